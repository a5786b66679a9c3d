"""One full-covariance Student-t component on the paper's regression (Boston, split 1): ESS, k̂ and log evidence.

    python -m benchmarks regression [--seeds 20]

Prints every seed, for the Gaussian and for the heavy-tailed prior.
"""

import argparse
import platform
import time

import jax
import numpy as np

import klover
from klover.paper import datasets, models

jax.config.update("jax_enable_x64", True)

CHOICES = {"start": "forward", "max_components": 1, "family": "student", "fitter": "em", "newcomer": "lbfgs"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    num_seeds = parser.parse_args().seeds
    print(f"# Regression, {platform.machine()}, Python {platform.python_version()}, jax {jax.__version__}")
    dataset = datasets.load("boston")
    split = datasets.split(dataset, 1)
    for build in (models.linear_regression, models.heavy_tailed_regression):
        target = build(split, dataset.feature_names)
        print(f"\n## {build.__name__}, d = {target.dim}")
        rows = []
        for seed in range(num_seeds):
            started = time.perf_counter()
            fit = klover.boost(jax.random.key(seed), target, **CHOICES)
            seconds = time.perf_counter() - started
            share = fit.ess / fit.draws.num_draws
            rows.append((share, fit.pareto_k, fit.log_evidence))
            print(
                f"seed {seed:<3} ESS {share:.3f}  k̂ {fit.pareto_k:+.2f}  log Z {fit.log_evidence:.4f}"
                f" ± {fit.log_evidence_se:.4f}  {'trusted' if fit.verdict.trusted else 'refused'}  {seconds:.2f} s"
            )
        shares, tails, evidence = np.array(rows).T
        met = ((shares >= 0.6) & (tails < 0.5)).sum()
        print(f"ESS >= 60 % and k̂ < 0.5 in {met} of {num_seeds}; log Z {evidence.mean():.4f}, sd {evidence.std():.4f}")


if __name__ == "__main__":
    main()
