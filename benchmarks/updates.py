"""Ten yearly batches of a regression: `fit.update` beside ten fits from nothing.

    python -m benchmarks updates [--seeds 3]

A linear regression with unknown scatter (d = 5), 20 rows a year. *from nothing* are ten fits of all data so far, as
usual and with ``min_ess=1000``; *updated* is one fit, and nine updates of it, begun by either, and with ``min_ess``
throughout. *right* counts answers whose log evidence and means are those of the usual fits within four errors.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np

import klover

NUM_YEARS, NUM_ROWS, NUM_SLOPES = 10, 20, 4
GOAL = {"min_ess": 1000, "progress": False}


def regression(inputs: np.ndarray, outcomes: np.ndarray) -> klover.Target:
    """Return the target of all rows so far: slopes, and the log of the scatter."""

    def logdensity(x):
        error = (outcomes - inputs @ x["slope"]) * jnp.exp(-x["scatter"])
        prior = jnp.sum(x["slope"] ** 2) / 9 + x["scatter"] ** 2
        return -0.5 * jnp.sum(error**2) - len(outcomes) * x["scatter"] - 0.5 * prior

    return klover.Target(logdensity, {"slope": np.zeros(NUM_SLOPES), "scatter": 0.0})


def updated(first: klover.Fit, targets: list[klover.Target], **options) -> list[klover.Fit]:
    """Update a fit year by year."""
    fits = [first]
    for year, target in enumerate(targets[1:]):
        fits.append(fits[-1].update(target, year, **options))
    return fits


def is_right(fit: klover.Fit, usual: klover.Fit) -> bool:
    """Whether two answers agree within four of their errors."""
    error = np.hypot(fit.log_evidence_se, usual.log_evidence_se)
    here, there = (each.summary().columns for each in (fit, usual))
    means = np.abs(here["mean"] - there["mean"]) < 4 * np.hypot(here["mcse"], there["mcse"])
    return bool(abs(fit.log_evidence - usual.log_evidence) < 4 * error and means.all())


def run(seed: int) -> None:
    """Compare all ways on one set of data, and print a line for each."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(NUM_YEARS * NUM_ROWS, NUM_SLOPES))
    outcomes = inputs @ rng.normal(size=NUM_SLOPES) + rng.normal(size=len(inputs))
    ends = NUM_ROWS * np.arange(1, NUM_YEARS + 1)
    targets = [regression(inputs[:end], outcomes[:end]) for end in ends.tolist()]
    usual = [klover.refine(seed, target, progress=False) for target in targets]
    planned = [klover.refine(seed, target, **GOAL) for target in targets]
    ways = {
        "from nothing": usual,
        "from nothing, min_ess=1000": planned,
        "updated": updated(usual[0], targets),
        "updated, begun by min_ess": updated(planned[0], targets),
        "updated, min_ess=1000": updated(planned[0], targets, **GOAL),
    }
    total = sum(fit.num_evaluations or 0 for fit in usual)
    for way, fits in ways.items():
        num, trusted = sum(fit.num_evaluations or 0 for fit in fits), sum(fit.verdict.trusted for fit in fits)
        right = sum(map(is_right, fits, usual))
        share, smallest = num / total, min(fit.ess for fit in fits)
        print(f"{seed}  {way:<27} {num:>8} {share:6.1%}  trusted {trusted}  right {right}  ESS from {smallest:.0f}")


def main() -> None:
    """Run as many seeds as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for seed in range(arguments.seeds):
        run(seed)
