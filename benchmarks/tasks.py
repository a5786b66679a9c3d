"""What the tools are compared on: the targets of the suite and the reference posteriors, each with the right answer.

Every tool gets the same function: the log density of a flat, unconstrained point, in JAX and float64.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import klover
from benchmarks import targets

START_RADIUS = 2.0
NUM_TRIALS, NUM_TRIAL_DRAWS, LARGEST_SCATTER = 20, 4000, 0.04
BOX_SDS = 12.0
BOX_SHARE, BOX_GROWTH = 0.999, 1.25


class Unsuited(Exception):
    """A tool cannot be asked to solve a task."""


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A target and the right answer.

    Attributes
    ----------
    target
        What klover gets; the others get ``log_prob``.
    quantities
        From flat points (draw, dim) to the quantities (draw, quantity) whose moments are known.
    mean, sd
        Their means and standard deviations; None where there are none.
    log_evidence
        log Z; None where the prior is improper, so that it means nothing.
    modes, mode_weights
        Locations and weights of separate modes; None where there is one.
    has_spread
        Quantities whose standard deviation can be told from a few thousand draws at all.
    sample
        Makes exact draws; None where nobody can.
    """

    name: str
    target: klover.Target
    quantities: Callable[[np.ndarray], np.ndarray]
    mean: np.ndarray | None
    sd: np.ndarray | None
    log_evidence: float | None
    modes: np.ndarray | None = None
    mode_weights: np.ndarray | None = None
    has_spread: np.ndarray | bool = True
    sample: Callable[[np.random.Generator, int], np.ndarray] | None = None

    @property
    def dim(self) -> int:
        return self.target.dim

    def log_prob(self, x):
        """Log density at one point."""
        return self.target.log_prob(x)

    def box(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the region that tools without a density outside of it get.

        A target's box is a hint and no bound: it grows until it holds nearly all exact draws. Where the task has no box
        that a user would know, it lies a dozen standard deviations around the *right* answer, a gift to the tools that
        need one. The reference posteriors' answers are on another scale than the coordinates.
        """
        if self.target.box is not None:
            lower, upper = map(np.asarray, self.target.box)
            draws = self.sample(np.random.default_rng(0), NUM_TRIAL_DRAWS) if self.sample else np.empty((0, self.dim))
            while len(draws) and np.mean(np.all((draws > lower) & (draws < upper), axis=1)) < BOX_SHARE:
                centre, half = (lower + upper) / 2, BOX_GROWTH * (upper - lower) / 2
                lower, upper = centre - half, centre + half
            return lower, upper
        if self.mean is None or self.sd is None or self.quantities is not np.asarray:
            raise Unsuited(f"{self.name} has no box, and no moments of its coordinates to make one of.")
        return self.mean - BOX_SDS * self.sd, self.mean + BOX_SDS * self.sd

    def starts(self, seed: int, num: int) -> np.ndarray:
        """Return points to begin with: uniform in the box, or in [-2, 2] as Stan and NumPyro do."""
        generator = np.random.default_rng(seed)
        if self.target.box is not None:
            return generator.uniform(*self.target.box, size=(num, self.dim))
        return np.asarray(self.target.start) + generator.uniform(-START_RADIUS, START_RADIUS, size=(num, self.dim))


def has_spread(problem: targets.Problem) -> np.ndarray | bool:
    """Say for which coordinates samples of 4000 exact draws agree on the standard deviation.

    They do not where the fourth moment is huge, as in a funnel: there no tool can be held to it.
    """
    if problem.sample is None or problem.sd is None:
        return True
    draws = problem.sample(np.random.default_rng(0), NUM_TRIALS * NUM_TRIAL_DRAWS)
    estimates = draws.reshape(NUM_TRIALS, NUM_TRIAL_DRAWS, -1).std(1)
    return np.sqrt(np.mean((estimates / problem.sd - 1) ** 2, axis=0)) < LARGEST_SCATTER


def from_suite(name: str) -> Task:
    """One of the targets of ``targets.py``; their moments are those of the flat point."""
    problem = targets.PROBLEMS[name]()
    return Task(
        name,
        problem.target,
        np.asarray,
        problem.mean,
        problem.sd,
        problem.log_evidence,
        problem.modes,
        problem.mode_weights,
        has_spread(problem),
        problem.sample,
    )


def from_posterior(name: str) -> Task:
    """One of the reference posteriors; their moments are those of the model's own parameters."""
    from benchmarks import posterior_models, posteriors

    data, reference = posteriors.load(posteriors.DATA / f"{name}.json")
    target = klover.from_numpyro(*posterior_models.MODELS[name](data))
    places = np.array([target.names.index(each) for each in reference])
    moments = np.array(list(reference.values()))
    flatten = jax.jit(
        jax.vmap(lambda x: jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(target.position(x))]))
    )
    return Task(
        name,
        target,
        lambda x: np.asarray(flatten(x))[:, places],
        *moments.T,
        log_evidence=None,
    )


def names() -> list[str]:
    """List all tasks."""
    from benchmarks import posterior_models

    return [*targets.PROBLEMS, *posterior_models.MODELS]


def load(name: str) -> Task:
    """Build a task by its name."""
    return from_suite(name) if name in targets.PROBLEMS else from_posterior(name)
