from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.importance import psis
from klover.importance.draws import WeightedDraws
from klover.search.missed import Effort, find_missed
from klover.targets.evaluator import Evaluator
from klover.tuning import Tuning
from klover.verdict.case import Case


def make_case(
    target: klover.Target | None = None,
    *,
    scale: float = 1.2,
    location: float = 0.0,
    tail: str = "normal",
    num_draws: int = 2000,
    seed: int = 0,
    evaluator: Evaluator | None = None,
    is_searched: bool = False,
    **known,
) -> Case:
    """Return the case of a proposal of one round component, which nothing speaks against unless the target does."""
    if target is None:
        target = klover.Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2))
    dim, generator = target.dim, np.random.default_rng(seed)
    evaluator = evaluator or Evaluator(target)
    components = klover.Family(tail).components(np.full((1, dim), location), scale**2 * np.eye(dim)[None])
    mixture = klover.Mixture.of(components)
    x = mixture.draw(generator, num_draws)
    log_p, log_q = evaluator.values(x), mixture.log_prob(x)
    log_weight, pareto_k = psis.smooth(log_p - log_q)
    num_nan, num_infinite = np.asarray(evaluator.num_nan), np.asarray(evaluator.num_infinite)
    draws = WeightedDraws(x, log_p, log_q, log_weight, pareto_k, num_nan, num_infinite, target)
    if is_searched:
        tuning = Tuning()
        effort = Effort.of(tuning.missed)
        parts, searched = find_missed(generator, evaluator, mixture, mixture, x, log_p - log_q, effort, tuning)
        known |= {"parts": tuple(parts), "searched": searched}
    return Case(draws, mixture, mixture, evaluator, generator, **known)


@pytest.fixture(name="make_case")
def _make_case() -> Callable[..., Case]:
    return make_case
