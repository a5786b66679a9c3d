r"""Particles on random targets of 50 to 500 dimensions with known evidences: are their stated errors true?

    python -m benchmarks particles --num 100 --jobs 2 --out particles.jsonl [--set dev] [--families student]

Where importance sampling cannot work, `refine` carries particles to the target. Here they are carried without rounds
before, from a mean-field Gaussian, so that every target is theirs, and judged as in a fit; the search for modes is left
out, as all targets have one. A case that is in the file already is not run again, so that an interrupted run goes on.
Printed are the outcomes by family, and z-scores (error over stated error) of log evidences and of means.
"""

import argparse
import dataclasses
import pathlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

import klover
from benchmarks.reliability import SETS, case, statistics, workers
from benchmarks.reliability.densities import random_dim, random_rotation
from benchmarks.reliability.work import Limit, OutOfTime
from klover.refinement import escalation
from klover.targets.evaluator import Evaluator
from klover.verdict.case import Case
from klover.verdict.checks import unconverged

NUM_MEANS = 16
"""Coordinates whose means are kept of a run; those of one run are not independent."""


class Known(NamedTuple):
    """A log density of one point, its log evidence, and the means and standard deviations of its coordinates."""

    log_density: Callable[[jax.Array], jax.Array]
    log_evidence: float
    mean: np.ndarray
    sd: np.ndarray


def gaussian(generator: np.random.Generator, dim: int) -> Known:
    """A rotated Gaussian whose axes are up to 30 times as long as each other."""
    scales = np.geomspace(1.0, 10 ** generator.uniform(0, 1.5), dim)
    rotation, mean = random_rotation(generator, dim), generator.normal(size=dim)
    whitener = rotation.T / scales[:, None]
    log_evidence = 0.5 * dim * np.log(2 * np.pi) + np.log(scales).sum()
    sd = np.sqrt((rotation**2) @ scales**2)
    return Known(lambda x: -0.5 * jnp.sum((whitener @ (x - mean)) ** 2), log_evidence, mean, sd)


def regression(generator: np.random.Generator, dim: int) -> Known:
    """A linear regression with known noise and a standard Normal prior; columns are correlated."""
    num_rows, noise = int(dim * generator.uniform(0.3, 3)), 10 ** generator.uniform(-0.3, 0.7)
    common = generator.uniform(0, 0.7) * generator.normal(size=(num_rows, 1))
    design = (common + generator.normal(size=(num_rows, dim))) / noise
    response = design @ generator.normal(size=dim) + generator.normal(size=num_rows)
    precision = design.T @ design + np.eye(dim)
    mean = np.linalg.solve(precision, design.T @ response)
    # Density at the mean, times the volume of the posterior.
    highest = -0.5 * (np.sum((response - design @ mean) ** 2) + mean @ mean)
    log_evidence = highest + 0.5 * dim * np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(precision)[1]
    sd = np.sqrt(np.diagonal(np.linalg.inv(precision)))
    return Known(lambda x: -0.5 * (jnp.sum((response - design @ x) ** 2) + x @ x), log_evidence, mean, sd)


def turned(generator: np.random.Generator, dim: int, log_density, mean: np.ndarray, variance: np.ndarray, log_evidence):
    """Return a product of densities, turned by a rotation in half of the cases."""
    rotation = random_rotation(generator, dim) if generator.random() < 0.5 else np.eye(dim)
    sd = np.sqrt((rotation**2) @ variance)
    return Known(lambda x: jnp.sum(log_density(rotation.T @ x)), float(np.sum(log_evidence)), rotation @ mean, sd)


def logistic(generator: np.random.Generator, dim: int) -> Known:
    """Shares of binomial counts with a beta prior, on the logit scale: e^(ax) / (1 + e^x)^(a+b) in each direction."""
    a, b = generator.gamma(2.0, 1.5, size=(2, dim)) + 0.5
    mean, variance = special.digamma(a) - special.digamma(b), special.polygamma(1, a) + special.polygamma(1, b)
    return turned(generator, dim, lambda x: a * x - (a + b) * jax.nn.softplus(x), mean, variance, special.betaln(a, b))


def poisson(generator: np.random.Generator, dim: int) -> Known:
    """Rates of Poisson counts with a gamma prior, on the log scale: e^(ax - bexp(x)) in each direction."""
    a, b = generator.poisson(2.0, size=dim) + 1.0, generator.uniform(0.5, 2, size=dim)
    mean, variance = special.digamma(a) - np.log(b), special.polygamma(1, a)
    return turned(generator, dim, lambda x: a * x - b * jnp.exp(x), mean, variance, special.gammaln(a) - a * np.log(b))


def student(generator: np.random.Generator, dim: int) -> Known:
    """A product of Student-t densities with 4 to 30 degrees of freedom and scales that differ."""
    df, scale = generator.choice([4.0, 6.0, 10.0, 30.0]), np.exp(0.5 * generator.normal(size=dim))
    mean = generator.normal(size=dim)
    log_evidence = special.betaln(df / 2, 0.5) + 0.5 * np.log(df) + np.log(scale)
    variance = df / (df - 2) * scale**2
    centre = mean

    def log_density(y):
        return -0.5 * (df + 1) * jnp.log1p(((y - centre) / scale) ** 2 / df)

    return turned(generator, dim, log_density, mean, variance, log_evidence)


FAMILIES = {each.__name__: each for each in (gaussian, regression, logistic, poisson, student)}


def run(name: str) -> dict[str, Any]:
    """Carry particles to one case, and compare them with the truth."""
    _, _, family, _ = name.split("/")
    generator = np.random.default_rng(case.seed_of(name, "case"))
    dim = random_dim(generator, 500, 50)
    known = FAMILIES[family](generator, dim)
    target = klover.Target(known.log_density, np.zeros(dim))
    evaluator, key = Evaluator(target), jax.random.key(case.seed_of(name, "fit") % 2**31)
    one = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], target)
    mixture = jax.tree.map(lambda leaf: np.asarray(leaf[0]), escalation.mean_field(key[None], one))
    began = time.perf_counter()
    draws = escalation.escalate(jax.random.fold_in(key, 1), evaluator, mixture, np.asarray(np.inf), lambda beta: None)
    seconds = time.perf_counter() - began
    doubt = unconverged(Case(draws, mixture, mixture, evaluator, np.random.default_rng(0)))
    mean, error = draws.mean_and_error(draws.x)
    log_z_error, log_z_se = float(draws.log_evidence) - known.log_evidence, float(draws.log_evidence_se)
    is_wrong = abs(log_z_error) > max(5 * log_z_se, 0.05) or np.any(np.abs(mean - known.mean) > 0.2 * known.sd)
    outcome = "refused" if doubt is not None else "trusted wrong" if is_wrong else "trusted right"
    figures = {"spread": draws.spread, "drift": float(draws.drift), "agreement": float(draws.agreement)}
    return {
        "id": name,
        "family": family,
        "dim": dim,
        "outcome": outcome,
        "log_z_error": log_z_error,
        "log_z_se": log_z_se,
        "mean_z": ((mean - known.mean) / error)[generator.permutation(dim)[:NUM_MEANS]].round(3).tolist(),
        "largest_mean_error": float(np.max(np.abs(mean - known.mean) / known.sd)),
        "island_errors": (np.asarray(draws.island_log_evidence) - known.log_evidence).round(4).tolist(),
        **figures,
        "ess": float(draws.ess),
        "evaluations": evaluator.num_evaluations,
        "seconds": seconds,
    }


@dataclasses.dataclass(frozen=True)
class Job:
    """What a worker process does."""

    limit: float

    def begin(self) -> None:
        """Nothing to prepare."""

    def run(self, name: str) -> dict[str, Any]:
        """Run one case within the limit of time."""
        try:
            with Limit(self.limit):
                return run(name)
        except OutOfTime:
            return {"id": name, "family": name.split("/")[2], "outcome": "unfinished"}
        except escalation.Stranded as error:
            return {"id": name, "family": name.split("/")[2], "outcome": "refused", "reason": str(error)}

    def tidy(self) -> None:
        """Forget what was compiled."""
        jax.clear_caches()


def table(lines: list[dict]) -> str:
    """Count outcomes, and say how z-scores of the trusted and of all are spread."""
    rows = ["| family | runs | trusted right | trusted wrong | refused | unfinished | evaluations | s |"]
    rows.append("|" + "---|" * 8)
    kinds = ("trusted right", "trusted wrong", "refused", "unfinished")
    for family in ("all", *FAMILIES):
        own = [line for line in lines if family in ("all", line["family"])]
        counts = [str(sum(line["outcome"] == kind for line in own)) for kind in kinds]
        done = [line for line in own if "evaluations" in line]
        cost = [
            f"{np.median([line[name] for line in done]):.3g}" if done else "" for name in ("evaluations", "seconds")
        ]
        rows.append("| " + " | ".join([family, str(len(own)), *counts, *cost]) + " |")
    for words, own in (
        ("trusted", [line for line in lines if line["outcome"].startswith("trusted")]),
        ("all", [line for line in lines if "log_z_se" in line]),
    ):
        log_z = [line["log_z_error"] / line["log_z_se"] for line in own]
        means = [z for line in own for z in line["mean_z"]]
        rows += ["", f"z of {words}: mean of log Z {np.mean(log_z) if log_z else np.nan:+.2f}"]
        rows += [f"- log Z, {statistics.scores(log_z)}", f"- means, {statistics.scores(means)}"]
    return "\n".join(rows)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks particles", description=__doc__.splitlines()[0])
    parser.add_argument("--num", type=int, default=100, help="number of cases, spread over the families")
    parser.add_argument("--set", default="dev", choices=SETS, help="set of seeds")
    parser.add_argument("--families", default=",".join(FAMILIES), help="separated by commas")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes, each on one core")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds that a case may take")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("particles.jsonl"))
    options = parser.parse_args()
    families = options.families.split(",")
    if not set(families) <= set(FAMILIES):
        raise SystemExit(f"--families must be some of {', '.join(FAMILIES)}, got {options.families}.")
    each = [(families[at % len(families)], at // len(families)) for at in range(options.num)]
    names = [f"particles/{options.set}/{family}/{number}" for family, number in each]
    print(table(workers.collect(options.out, names, Job(options.limit), options.jobs)))


if __name__ == "__main__":
    main()
