"""Simulation 2 of the paper: twenty separated modes, from log p and the box [0, 10]² alone.

    python -m benchmarks twenty_modes [--seeds 20]

Prints every seed. Moments are importance estimates from a million fresh draws: the squared error of a second moment
from n independent draws is about 1600 / n by itself.
"""

import argparse
import platform
import time

import jax
import numpy as np

import klover
from klover.paper import simulations

jax.config.update("jax_enable_x64", True)

CHOICES = {"family": "normal", "fitter": "em", "newcomer": "gain", "weights": "newton", "update": "all"}
CHOICES |= {"draws": "current", "max_components": 25, "num_round_draws": 10_000, "num_steps": 10}
NUM_DRAWS = 1_000_000


def run(seed, target):
    started = time.perf_counter()
    start = klover.diffuse(*simulations.TWENTY_MODE_BOX, family=CHOICES["family"])
    fit = klover.boost(jax.random.key(seed), target, start, num_draws=NUM_DRAWS, **CHOICES)
    seconds = time.perf_counter() - started
    x, weight = np.asarray(fit.draws.x), np.exp(np.asarray(fit.draws.log_weight))
    own = np.full(len(x), 1 / len(x))
    masses = simulations.twenty_mode_masses(x, own)
    first_moment, second_moment = simulations.twenty_mode_moments()
    errors = [np.sum((weight @ x - first_moment) ** 2), np.sum((weight @ x**2 - second_moment) ** 2)]
    ess = fit.ess / NUM_DRAWS
    is_met = masses.min() >= 0.025 and abs(fit.log_evidence) <= 0.01 and max(errors) <= 1e-2 and ess >= 0.7
    verdict = "trusted" if fit.verdict.trusted else "refused"
    print(
        f"seed {seed:<3} modes {(masses >= 0.025).sum():>2}  least mass {masses.min():.4f}"
        f"  log Z {fit.log_evidence:+.5f} ± {fit.log_evidence_se:.5f}  squared errors {errors[0]:.1e} {errors[1]:.1e}"
        f"  ESS {ess:.3f}  k̂ {fit.pareto_k:.2f}  K {int(fit.mixture.num_components)}  {verdict}  {seconds:.1f} s"
        f"  {'met' if is_met else 'NOT MET'}",
        flush=True,
    )
    return is_met


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    num_seeds = parser.parse_args().seeds
    print(f"# Twenty modes, {platform.machine()}, Python {platform.python_version()}, jax {jax.__version__}")
    target = simulations.twenty_modes()
    met = sum(run(seed, target) for seed in range(num_seeds))
    print(f"all points met in {met} of {num_seeds} seeds")


if __name__ == "__main__":
    main()
