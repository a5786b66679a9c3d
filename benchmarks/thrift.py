"""Few evaluations: how many a trusted, right answer with 400 effective draws takes, and what small budgets give.

    python -m benchmarks thrift --seeds 20
    python -m benchmarks thrift --seeds 5 --tuned
    python -m benchmarks thrift --only budgets --seeds 10

A line is one target: the median, the smallest and the largest number of evaluations over the seeds, how many answers
were trusted, how many of these were wrong (log evidence off by more than four stated errors and 0.05), the median of
effective draws, and the root mean square and the mean of the errors of the log evidence in units of the stated ones.
``--tuned`` runs the targets that the engine was tuned on: other dimensions and other data.
"""

import argparse
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import klover
from klover.targets.adapters.callback import from_callback

MIN_ESS = 400
BUDGETS = (500, 1000, 2000)
REFERENCE_DRAWS = 400_000


@dataclasses.dataclass(frozen=True)
class Task:
    """A target, its log evidence, and the evaluations that it may take."""

    name: str
    make: Callable[[], klover.Target]
    log_evidence: Callable[[], float]
    most: int | None = None


def regression_data(dim: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw a design whose columns have scales from 0.3 to 3, and outcomes with unit noise."""
    generator = np.random.default_rng(seed)
    design = generator.standard_normal((4 * dim + 20, dim)) * np.geomspace(0.3, 3.0, dim)
    return design, design @ generator.standard_normal(dim) + generator.standard_normal(len(design))


def linear(dim: int, seed: int) -> tuple[Callable, Callable, Callable]:
    """Return the log posterior of a linear regression with known noise, its gradient, and the log evidence."""
    design, outcome = regression_data(dim, seed)
    precision = design.T @ design + np.eye(dim) / 25
    right = design.T @ outcome
    constant = -0.5 * (outcome @ outcome) - 0.5 * dim * np.log(2 * np.pi * 25)

    def log_density(x):
        return constant + x @ right - 0.5 * np.sum((x @ precision) * x, -1)

    def log_evidence():
        top = np.linalg.solve(precision, right)
        return constant + 0.5 * right @ top + 0.5 * dim * np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(precision)[1]

    return log_density, lambda x: right - x @ precision, log_evidence


def logistic(dim: int, seed: int, num_rows: int | None = None) -> klover.Target:
    """Return a logistic regression with unit Normal priors."""
    generator = np.random.default_rng(seed)
    design = generator.standard_normal((num_rows or 20 * dim, dim))
    chance = 1 / (1 + np.exp(-design @ generator.standard_normal(dim) * dim**-0.5))
    sign = np.where(generator.uniform(size=len(design)) < chance, 1.0, -1.0)
    rows = jnp.asarray(design * sign[:, None])

    def log_density(x):
        return -jnp.sum(jnp.log1p(jnp.exp(-(rows @ x)))) - 0.5 * jnp.sum(x**2) - 0.5 * dim * jnp.log(2 * jnp.pi)

    return klover.Target(log_density, jnp.zeros(dim))


def spectrum(seed: int, centres: tuple[float, float]) -> tuple[Callable, Callable, tuple]:
    """Return a spectral line on a continuum, fitted to data with two lines: two modes; its gradient; its bounds."""
    generator = np.random.default_rng(seed)
    place = np.linspace(0.0, 10.0, 60)
    data = 1.0 + 0.05 * place + 0.2 * generator.standard_normal(60)
    for centre in centres:
        data = data + 0.8 * np.exp(-0.5 * ((place - centre) / 0.4) ** 2)
    bounds = np.array([-5.0, -1.0, 0.0, 0.0, 0.1]), np.array([5.0, 1.0, 5.0, 10.0, 2.0])

    def parts(x):
        offset, slope, height, centre, width = np.moveaxis(np.asarray(x)[..., None], -2, 0)
        away = (place - centre) / width
        line = np.exp(-0.5 * away**2)
        return (data - offset - slope * place - height * line) / 0.2, height, width, away, line

    def log_density(x):
        return -0.5 * np.sum(parts(x)[0] ** 2, -1)

    def gradient(x):
        residual, height, width, away, line = parts(x)
        slopes = [np.ones_like(line), place + 0 * line, line, height * line * away / width]
        slopes.append(height * line * away**2 / width)
        return np.stack([np.sum(residual * slope, -1) for slope in slopes], -1) / 0.2

    return log_density, gradient, bounds


def reference(target: klover.Target) -> float:
    """Return the log evidence of very many draws, of a fit that spares nothing."""
    fit = klover.refine(12345, target, num_draws=REFERENCE_DRAWS)
    if not fit.verdict.trusted:
        raise RuntimeError(f"no reference: {fit.verdict}")
    return float(fit.log_evidence)


def tasks(is_tuned: bool) -> list[Task]:
    """Return the reported targets, or those of other dimensions and data that the engine was tuned on."""
    shift = 100 if is_tuned else 0
    goals = ((4, None, None), (8, None, None)) if is_tuned else ((3, 800, 1500), (10, 1500, 5000))
    found = []
    for dim, *most in goals:
        density, gradient, evidence = linear(dim, dim + shift)
        for name, slope, limit in (("gradient", gradient, most[0]), ("values", None, most[1])):
            make = functools.partial(from_callback, density, dim, grad=slope, vectorized=True)
            found.append(Task(f"linear d = {dim}, {name}", make, evidence, limit))
    dim = 18 if is_tuned else 25
    target = logistic(dim, 1 + shift)
    found.append(Task(f"logistic d = {dim}", lambda: target, lambda: reference(target), None if is_tuned else 3000))
    density, gradient, bounds = spectrum(1 + shift, (2.5, 6.0) if is_tuned else (3.0, 7.0))

    def line(slope):
        return from_callback(density, 5, grad=slope, vectorized=True, bounds=bounds)

    truth = functools.cache(lambda: reference(line(gradient)))
    found.append(Task("two lines d = 5, gradient", lambda: line(gradient), truth, None if is_tuned else 10_000))
    found.append(Task("two lines d = 5, values", lambda: line(None), truth, None if is_tuned else 30_000))
    return found


def run(task: Task, seeds: int, **options) -> None:
    """Fit with all seeds, and print a line."""
    truth, fits = task.log_evidence(), []
    began = time.process_time()
    for seed in range(seeds):
        fits.append(klover.refine(seed, task.make(), **options))
    seconds = (time.process_time() - began) / seeds
    trusted = [fit for fit in fits if fit.verdict.trusted]
    counts = [fit.num_evaluations for fit in fits]
    errors = [float(fit.log_evidence) - truth for fit in trusted]
    z = [error / float(fit.log_evidence_se) for error, fit in zip(errors, trusted, strict=True)]
    wrong = sum(abs(each) > 4 and abs(error) > 0.05 for each, error in zip(z, errors, strict=True))
    ess = statistics.median(float(fit.draws.ess) for fit in fits)
    goal = "" if task.most is None else f" (at most {task.most})"
    print(
        f"{task.name:26} {statistics.median(counts):8.0f}{goal} [{min(counts)}, {max(counts)}]  "
        f"trusted {len(trusted)}/{seeds}  wrong {wrong}  ESS {ess:.0f}  "
        f"z rms {np.sqrt(np.mean(np.square(z))) if z else np.nan:.2f} mean {np.mean(z) if z else np.nan:+.2f}  "
        f"{seconds:.2f} s  {sorted({fit.verdict.status.name for fit in fits} - {'TRUSTED'})}",
        flush=True,
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="fits of each target")
    parser.add_argument("--tuned", action="store_true", help="the targets that the engine was tuned on")
    parser.add_argument("--only", choices=("goals", "budgets", "rows"), help="a part of it")
    parser.add_argument("--name", default="", help="targets whose names contain this")
    parser.add_argument("--generous", action="store_true", help="without min_ess, for comparison")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    chosen = [task for task in tasks(options.tuned) if options.name in task.name]
    if options.only in (None, "goals"):
        for task in chosen:
            run(task, options.seeds, min_ess=None if options.generous else MIN_ESS)
    if options.only in (None, "budgets"):
        for budget in BUDGETS:
            for task in chosen:
                named = dataclasses.replace(task, name=f"{task.name}, {budget}", most=None)
                run(named, options.seeds, budget=budget, min_ess=None if options.generous else MIN_ESS)
    if options.only == "rows":
        target = logistic(10, 2, 1_000_000)
        began, busy = time.perf_counter(), time.process_time()
        fit = klover.refine(0, target, min_ess=MIN_ESS)
        seconds = f"{time.perf_counter() - began:.0f} s ({time.process_time() - busy:.0f} s of CPU)"
        print(f"1e6 rows: {seconds}, {fit.num_evaluations} evaluations, ESS {fit.ess:.0f}, {fit.verdict}")


if __name__ == "__main__":
    main()
