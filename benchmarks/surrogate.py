"""Densities that take a tenth of a second: at most 400 evaluations to 200 effective draws, by a surrogate.

    python -m benchmarks surrogate --seeds 5
    python -m benchmarks surrogate --seeds 5 --tuned
    python -m benchmarks surrogate --seeds 2 --peers pyvbmc gpry

A line is one target: the median, the smallest and the largest number of evaluations over the seeds, all of them
counted; how many answers were trusted, how many of these were wrong (log evidence off by more than four stated errors
and 0.05); effective draws; root mean square and mean of the errors of the log evidence in units of the stated ones;
the largest error of a mean, in standard deviations. ``--peers`` runs the same targets with PyVBMC or GPry, where they
are installed (:mod:`benchmarks.peers.pyvbmc_variational`, :mod:`benchmarks.peers.gpry_surrogate`), ``--tuned`` those
targets that the surrogate was tuned on. Densities are in fact cheap here: seconds are those of the tools.
"""

import argparse
import dataclasses
import functools
import itertools
import signal
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import klover
from benchmarks.peers import load
from klover.targets.adapters.callback import from_callback

MIN_ESS, MOST = 200, 400
REFERENCE_DRAWS = 400_000


@dataclasses.dataclass(frozen=True)
class Task:
    """A log density of JAX arrays, roughly where it lies, and its log evidence if that has a closed form."""

    name: str
    log_density: Callable
    dim: int
    box: tuple[np.ndarray, np.ndarray]
    log_evidence: float | None = None

    @property
    def log_prob(self) -> Callable:
        """The same, as peers know it."""
        return self.log_density

    @property
    def target(self) -> klover.Target:
        """The density with all that is known of it."""
        return klover.Target(self.log_density, jnp.zeros(self.dim), box=self.box)

    def callback(self, has_gradient: bool) -> klover.Target:
        """Return the density as a callback, so that nothing but its values (and gradients) is known of it."""
        values = jax.jit(jax.vmap(self.log_density))
        slope = jax.jit(jax.vmap(jax.grad(self.log_density)))

        def gradient(x):
            return np.asarray(slope(x))

        return from_callback(
            lambda x: np.asarray(values(x)), self.dim, grad=gradient if has_gradient else None, vectorized=True
        )

    @functools.cached_property
    def truth(self) -> tuple[float, np.ndarray, np.ndarray]:
        """Log evidence, means and standard deviations, by very many draws of a fit that spares nothing."""
        fit = klover.refine(12345, klover.Target(self.log_density, jnp.zeros(self.dim)), num_draws=REFERENCE_DRAWS)
        if not fit.verdict.trusted:
            raise RuntimeError(f"no reference for {self.name}: {fit.verdict}")
        weight, x = np.exp(np.asarray(fit.draws.log_weight)), np.asarray(fit.draws.x)
        mean = weight @ x
        evidence = float(fit.log_evidence) if self.log_evidence is None else self.log_evidence
        return evidence, mean, np.sqrt(weight @ (x - mean) ** 2)


def placement(dim: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw a place, and a matrix with scales between 0.4 and 2.5 and a rotation."""
    generator = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(generator.standard_normal((dim, dim)))
    return generator.uniform(-2, 2, dim), rotation * np.exp(generator.uniform(-0.9, 0.9, dim))


def placed(name: str, log_density: Callable, dim: int, log_evidence: float, seed: int) -> Task:
    """Move, rotate and scale a density."""
    place, matrix = placement(dim, seed)
    inverse = np.linalg.inv(matrix)
    spread = 3 * np.sqrt(np.sum(matrix**2, 1))
    return Task(
        name,
        lambda x: log_density(jnp.asarray(inverse) @ (x - place)),
        dim,
        (place - spread, place + spread),
        log_evidence + float(np.linalg.slogdet(matrix)[1]),
    )


def banana(dim: int, bend: float, seed: int) -> Task:
    """Return a Normal whose second coordinate follows the square of the first."""

    def log_density(y):
        return -0.5 * y[0] ** 2 - 0.5 * jnp.sum(((y[1:].at[0].add(-bend * (y[0] ** 2 - 1))) / 0.6) ** 2)

    log_evidence = 0.5 * dim * np.log(2 * np.pi) + (dim - 1) * np.log(0.6)
    return placed(f"banana d = {dim}", log_density, dim, log_evidence, seed)


def rotated_exponential(dim: int, shape: float, seed: int) -> Task:
    """Return a product of logarithms of gamma variables, rotated: quadratic on no side."""
    log_evidence = dim * float(jax.scipy.special.gammaln(shape))
    return placed(f"rotated exp d = {dim}", lambda y: jnp.sum(shape * y - jnp.exp(y)), dim, log_evidence, seed)


def normal(dim: int, seed: int) -> Task:
    """Return a correlated Normal."""
    return placed(f"normal d = {dim}", lambda y: -0.5 * jnp.sum(y**2), dim, 0.5 * dim * np.log(2 * np.pi), seed)


def logistic(dim: int, num_rows: int, seed: int) -> Task:
    """Return a logistic regression on few rows with priors of scale 3."""
    generator = np.random.default_rng(seed)
    design = generator.standard_normal((num_rows, dim))
    chance = 1 / (1 + np.exp(-design @ generator.standard_normal(dim)))
    rows = jnp.asarray(design * np.where(generator.uniform(size=num_rows) < chance, 1.0, -1.0)[:, None])

    def log_density(x):
        return -jnp.sum(jnp.logaddexp(0.0, -(rows @ x))) - 0.5 * jnp.sum(x**2) / 9

    return Task(f"logistic d = {dim}", log_density, dim, (np.full(dim, -6.0), np.full(dim, 6.0)))


def poisson(dim: int, num_rows: int, seed: int) -> Task:
    """Return a Poisson regression with priors of scale 2."""
    generator = np.random.default_rng(seed)
    design = np.concatenate([np.ones((num_rows, 1)), generator.standard_normal((num_rows, dim - 1))], axis=1)
    counts = generator.poisson(np.exp(design @ generator.normal(0, 0.5, dim)))
    rows, counts = jnp.asarray(design), jnp.asarray(counts)

    def log_density(x):
        return jnp.sum(counts * (rows @ x) - jnp.exp(rows @ x)) - 0.5 * jnp.sum(x**2) / 4

    return Task(f"Poisson d = {dim}", log_density, dim, (np.full(dim, -4.0), np.full(dim, 4.0)))


def decay(seed: int) -> Task:
    """Return a curve that decays: log height, log rate, offset and log noise of 20 observations."""
    generator = np.random.default_rng(seed)
    times = jnp.linspace(0.0, 4.0, 20)
    data = jnp.asarray(1.5 * np.exp(-0.7 * np.asarray(times)) + 0.3 + 0.15 * generator.standard_normal(20))

    def log_density(x):
        log_height, log_rate, offset, log_noise = x
        rest = (data - jnp.exp(log_height - jnp.exp(log_rate) * times) - offset) / jnp.exp(log_noise)
        return -0.5 * jnp.sum(rest**2) - 20 * log_noise - 0.5 * jnp.sum((x - jnp.array([0.0, 0, 0, -1])) ** 2)

    return Task("decay d = 4", log_density, 4, (np.full(4, -3.0), np.full(4, 3.0)))


def regression(dim: int, seed: int) -> Task:
    """Return a linear regression with an unknown log noise."""
    generator = np.random.default_rng(seed)
    design = generator.standard_normal((25, dim - 1)) * np.geomspace(0.5, 2.0, dim - 1)
    outcome = jnp.asarray(design @ generator.standard_normal(dim - 1) + generator.standard_normal(25))
    rows = jnp.asarray(design)

    def log_density(x):
        rest = (outcome - rows @ x[:-1]) * jnp.exp(-x[-1])
        return -0.5 * jnp.sum(rest**2) - 25 * x[-1] - 0.5 * jnp.sum(x[:-1] ** 2) / 9 - 0.5 * x[-1] ** 2

    return Task(f"regression d = {dim}", log_density, dim, (np.full(dim, -5.0), np.full(dim, 5.0)))


def tasks(is_tuned: bool) -> list[Task]:
    """Return the reported targets, or others that the surrogate was tuned on."""
    if is_tuned:
        others = [normal(6, 11), logistic(5, 40, 12), poisson(4, 30, 13)]
        return [banana(3, 0.6, 14), rotated_exponential(2, 1.5, 15), *others]
    others = [logistic(3, 15, 1), decay(2), regression(6, 3)]
    return [banana(2, 0.9, 4), rotated_exponential(4, 2.0, 5), *others]


def run(task: Task, seeds: int, has_gradient: bool, **options) -> None:
    """Fit with all seeds, and print a line."""
    truth, mean, sd = task.truth
    began, fits = time.process_time(), []
    for seed in range(seeds):
        fits.append(klover.refine(seed, task.callback(has_gradient), **options))
    seconds = (time.process_time() - began) / seeds
    trusted = [fit for fit in fits if fit.verdict.trusted]
    counts = [fit.num_evaluations for fit in fits]
    errors = [float(fit.log_evidence) - truth for fit in trusted]
    z = np.array([error / float(fit.log_evidence_se) for error, fit in zip(errors, trusted, strict=True)])
    wrong = sum(abs(each) > 4 and abs(error) > 0.05 for each, error in zip(z, errors, strict=True))
    means = [np.exp(np.asarray(fit.draws.log_weight)) @ np.asarray(fit.draws.x) for fit in fits]
    largest = max(float(np.max(np.abs(each - mean) / sd)) for each in means)
    ess = [float(fit.draws.ess) for fit in fits]
    print(
        f"{task.name + (', gradient' if has_gradient else ', values'):26} {statistics.median(counts):6.0f} "
        f"[{min(counts)}, {max(counts)}]  trusted {len(trusted)}/{seeds}  wrong {wrong}  "
        f"ESS {statistics.median(ess):.0f} [{min(ess):.0f}, {max(ess):.0f}]  "
        f"z rms {np.sqrt(np.mean(z**2)) if len(z) else np.nan:.2f} mean {np.mean(z) if len(z) else np.nan:+.2f}  "
        f"mean off by {largest:.2f} sd  {seconds:.1f} s  "
        f"{sorted({fit.verdict.status.name for fit in fits} - {'TRUSTED'})}",
        flush=True,
    )


def run_peer(peer: str, task: Task, seed: int, limit: int) -> None:
    """Let another tool work on a target for so many seconds at the most, and print a line."""
    truth, mean, sd = task.truth

    def stop(*_):
        raise TimeoutError(f"stopped after {limit} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(limit)
    began, name = time.process_time(), f"{task.name}, {peer}, seed {seed}"
    try:
        module, setting = load(peer)
        answer = module.prepare(task, **setting)(seed)
    except Exception as error:  # whatever it is, it is what the tool has said
        print(f"{name:36} no answer: {type(error).__name__}: {str(error)[:80]}", flush=True)
        return
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    weight = (
        np.ones(len(answer.x)) if answer.log_weight is None else np.exp(answer.log_weight - answer.log_weight.max())
    )
    off = np.max(np.abs(np.average(answer.x, axis=0, weights=weight) - mean) / sd)
    evidence = "no log Z"
    if answer.log_evidence is not None:
        error = answer.log_evidence - truth
        evidence = f"log Z off by {error:+.3f} where {answer.log_evidence_se:.3f} is stated"
    print(
        f"{name:36} {answer.num_evaluations:5} evaluations  {evidence}  mean off by {off:.2f} sd  "
        f"{time.process_time() - began:.0f} s  {answer.complaint or 'no complaint'}",
        flush=True,
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="fits of each target")
    parser.add_argument("--tuned", action="store_true", help="the targets that the surrogate was tuned on")
    parser.add_argument("--name", default="", help="targets whose names contain this")
    parser.add_argument("--only", choices=("values", "gradient"), help="without gradients, or with them")
    parser.add_argument("--without", action="store_true", help="without the surrogate, for comparison")
    parser.add_argument("--budget", type=int, help="most evaluations, and twice as many effective draws to aim at")
    parser.add_argument("--peers", nargs="+", help="other tools, instead of klover")
    parser.add_argument("--limit", type=int, default=300, help="seconds of one run of a peer")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if options.peers:
        chosen = [task for task in tasks(options.tuned) if options.name in task.name]
        for task, peer, seed in itertools.product(chosen, options.peers, range(options.seeds)):
            run_peer(peer, task, seed, options.limit)
        return
    for task in tasks(options.tuned):
        for has_gradient in (False, True):
            if options.name in task.name and options.only in (None, "gradient" if has_gradient else "values"):
                wanted = MIN_ESS if options.budget is None else options.budget
                run(
                    task,
                    options.seeds,
                    has_gradient,
                    min_ess=wanted,
                    budget=options.budget,
                    surrogate=not options.without,
                )


if __name__ == "__main__":
    main()
