"""Are posteriors calibrated? bilby's P-P test: injections drawn from the prior, fitted by klover and by its dynesty.

    python -m benchmarks pp_test --injections 100 --peer-injections 20 --out FILE.jsonl

The model is a sine wave in 40 noisy values: amplitude, phase and the noise's size, three parameters. For
each injection the quantile of the true value among the posterior samples is taken; under a calibrated sampler these are
uniform. A line is one sampler: p-values of Kolmogorov and Smirnov's test for each parameter, their combination by
Fisher, the share of truths in 50 % and 90 % intervals, the medians of evaluations, CPU seconds and stated errors of the
log evidence, and how many answers were trusted. The last line compares the evidences of injections that both fitted.
``--out`` is a file with a line for each fit; what it has already is not fitted again.
"""

import argparse
import json
import pathlib
import statistics
import tempfile
import time
from typing import Any

import jax
import numpy as np
from scipy import stats

from klover.base import optional

TIMES = np.linspace(0.0, 1.0, 40)
NAMES: tuple[str, ...] = ("amplitude", "phase", "noise")
DYNESTY = {"nlive": 500, "print_method": "interval-3600"}


def make(bilby: Any, seed: int) -> tuple[Any, Any, dict[str, float]]:
    """Return bilby's likelihood and priors for one injection, and the parameters that were injected."""

    class Sine(bilby.Likelihood):
        def log_likelihood(self, parameters: dict[str, float]) -> float:
            residual = (data - wave(parameters)) / parameters["noise"]
            return -0.5 * (residual @ residual) - len(data) * np.log(parameters["noise"] * np.sqrt(2 * np.pi))

    def wave(parameters: dict[str, float]) -> np.ndarray:
        return parameters["amplitude"] * np.sin(6 * np.pi * TIMES + parameters["phase"])

    prior, generator = bilby.core.prior, np.random.default_rng(seed)
    priors = prior.PriorDict(
        {
            "amplitude": prior.Uniform(0.0, 3.0),
            "phase": prior.Uniform(0.0, 2 * np.pi),
            "noise": prior.LogUniform(0.5, 3.0),
        }
    )
    truth = dict(zip(NAMES, priors.rescale(NAMES, generator.random(3)), strict=True))
    data = wave(truth) + truth["noise"] * generator.normal(size=len(TIMES))
    return Sine(), priors, truth


def fit(bilby: Any, name: str, seed: int) -> dict[str, Any]:
    """Fit one injection, and return what is reported of it."""
    likelihood, priors, truth = make(bilby, seed)
    options = {} if name == "klover" else DYNESTY
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        result = bilby.run_sampler(
            likelihood, priors, sampler=name, outdir=folder, label="pp", save=False, seed=seed, **options
        )
    return {
        "sampler": name,
        "seed": seed,
        "quantiles": [float(np.mean(result.posterior[each] < truth[each])) for each in NAMES],
        "log_evidence": float(result.log_evidence),
        "log_evidence_se": float(result.log_evidence_err),
        "evaluations": int(result.num_likelihood_evaluations or 0),
        "seconds": time.process_time() - start,
        "trusted": result.meta_data.get("klover", {}).get("trusted"),
    }


def summary(rows: list[dict[str, Any]]) -> str:
    """Describe the rows of one sampler in one line."""
    quantiles = np.array([row["quantiles"] for row in rows])
    p_values = [float(stats.kstest(column, "uniform").pvalue) for column in quantiles.T]
    together = float(stats.chi2(2 * len(p_values)).sf(-2 * np.sum(np.log(p_values))))  # Fisher's combination
    inside = [np.mean(np.abs(quantiles - 0.5) < level / 2) for level in (0.5, 0.9)]
    medians = [statistics.median(row[name] for row in rows) for name in ("evaluations", "seconds", "log_evidence_se")]
    trusted = sum(row["trusted"] is True for row in rows)
    each = ", ".join(f"{name} {value:.2f}" for name, value in zip(NAMES, p_values, strict=True))
    return (
        f"{rows[0]['sampler']}: {len(rows)} injections; p {each}, together {together:.2f}; "
        f"inside 50 %: {inside[0]:.2f}, 90 %: {inside[1]:.2f}; "
        f"evaluations {medians[0]:.0f}, CPU s {medians[1]:.1f}, error {medians[2]:.4f}; trusted {trusted}"
    )


def main() -> None:
    """Run both samplers, print their lines, and write the figures."""
    parser = argparse.ArgumentParser("python -m benchmarks pp_test", description=__doc__)
    parser.add_argument("--injections", type=int, default=100, help="fitted by klover")
    parser.add_argument("--peer-injections", type=int, default=100, help="fitted by dynesty")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("pp_test.jsonl"))
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    bilby = optional.load("bilby", "The P-P test needs", "bilby")
    bilby.core.utils.logger.setLevel("ERROR")
    lines = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    known = {(row["sampler"], row["seed"]): row for row in map(json.loads, lines)}

    def row_of(name: str, seed: int) -> dict[str, Any]:
        if (name, seed) not in known:
            known[name, seed] = fit(bilby, name, seed)
            with arguments.out.open("a") as file:
                print(json.dumps(known[name, seed]), file=file)
        return known[name, seed]

    ours = [row_of("klover", seed) for seed in range(arguments.injections)]
    theirs = [row_of("dynesty", seed) for seed in range(arguments.peer_injections)]
    for rows in filter(None, (ours, theirs)):
        print(summary(rows))
    pairs = list(zip(ours, theirs, strict=False))
    if pairs:
        z = [
            (one["log_evidence"] - other["log_evidence"]) / np.hypot(one["log_evidence_se"], other["log_evidence_se"])
            for one, other in pairs
        ]
        print(f"log evidences, klover - dynesty in their errors: mean {np.mean(z):.2f}, sd {np.std(z):.2f}, n {len(z)}")


if __name__ == "__main__":
    main()
