"""The methods of the failure-mode table, each from a target and a reference Gaussian to (weighted) draws.

The reference has its centre at the example of the target and one scale for all coordinates. A target with a box is one
whose user expects several modes: the methods that can use that have more components there.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from klover.base import optional
from klover.base.shapes import Float, Int, Key
from klover.boosting.boost import compiled_init, compiled_init_given, compiled_step
from klover.boosting.settings import Settings
from klover.importance import psis
from klover.importance.draws import weigh_on_host
from klover.mixtures.algebra import diffuse
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.paper.adaptive import adaptive_importance, begin
from klover.refinement.refine import refine
from klover.search.climb import climb
from klover.search.curvature import precision
from klover.targets.evaluator import Evaluator
from klover.targets.target import Target

BUDGET = 100_000
"""Evaluations of the target, a gradient counting as one."""
NUM_DRAWS = 20_000
"""Draws of a final proposal, and the most transitions of a chain."""
NUM_ROUNDS = 20
NUM_WARMUP = 1000
NUM_LEAPFROGS = 10
NUM_STEPS = 4000
"""Steps of Adam for a component, of 25 draws, the fewest the paper tried; in 1000 steps an sd does not grow to 3."""
FEW_COMPONENTS, MANY_COMPONENTS = 3, 25
NORMAL = Family("normal")
EM_CHOICES = {"fitter": "em", "newcomer": "gain", "draws": "current", "weights": "newton"}
EM_CHOICES |= {"update": "all", "num_draws": 10_000, "num_steps": 10}


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """Draws, their weights (summing to one), and the evaluations that they took where these are counted."""

    x: Float[np.ndarray, "draw dim"]
    weight: Float[np.ndarray, " draw"]
    num_evaluations: int | None


def _num_components(target: Target) -> int:
    return FEW_COMPONENTS if target.box is None else MANY_COMPONENTS


def _equal(x: Float[np.ndarray, "draw dim"], num_evaluations: int | None) -> Sample:
    return Sample(x, np.full(len(x), 1 / len(x)), num_evaluations)


def _weighted(x: Float[np.ndarray, "draw dim"], log_ratio: Float[np.ndarray, " draw"], num_evaluations: int) -> Sample:
    return Sample(x, np.exp(psis.smooth(log_ratio)[0]), num_evaluations)


def _importance(seed: int, evaluator: Evaluator, proposal: Mixture, num_draws: int) -> Sample:
    """Weigh draws of a proposal, on the host, where nothing but the target is compiled."""
    draws = weigh_on_host(np.random.default_rng(seed), evaluator, proposal, num_draws)
    return Sample(np.asarray(draws.x), np.exp(draws.log_weight), evaluator.num_evaluations)


def prior_importance(seed: int, target: Target, scale: float) -> Sample:
    """Sample from the reference, and weigh."""
    centre = np.asarray(target.start, float)[None]
    return _importance(
        seed, Evaluator(target), Mixture.of(NORMAL.components(centre, np.full_like(centre, scale**2))), BUDGET
    )


def laplace_importance(seed: int, target: Target, scale: float) -> Sample:
    """Sample from Laplace's approximation with what its search left of the budget, and weigh."""
    evaluator = Evaluator(target)
    proposal = _laplace(evaluator, NORMAL)
    return _importance(seed, evaluator, proposal, BUDGET - evaluator.num_evaluations)


def _laplace(evaluator: Evaluator, family: Family) -> Mixture:
    """Return one component at the top that L-BFGS finds from the example, with the inverse of the Hessian there."""
    tops, _ = climb(evaluator.values_and_gradients, np.asarray(evaluator.target.start, float)[None])
    return Mixture.of(family.components(tops, np.linalg.inv(precision(evaluator, tops[0]))[None]))


def population_importance(seed: int, target: Target, scale: float) -> Sample:
    """Adaptive importance sampling from the reference."""
    generator, evaluator = np.random.default_rng(seed), Evaluator(target)
    centre = np.asarray(target.start, float)
    start = begin(generator, centre, np.full(target.dim, scale), _num_components(target))
    x, log_ratio = adaptive_importance(generator, evaluator, start, NUM_ROUNDS, BUDGET // NUM_ROUNDS)
    return _weighted(x, log_ratio, evaluator.num_evaluations)


def _boost(seed: int, target: Target, first: str | Mixture, **choices: Any) -> Mixture:
    """Grow a mixture as :func:`klover.boost` does; its verdict, which takes as long to compile, is not asked for."""
    settings = Settings.of(**choices)
    key_init, key_rounds = jax.random.split(jax.random.key(seed))
    if isinstance(first, Mixture):
        state, info = compiled_init_given(key_init, target, settings, jax.tree.map(jnp.asarray, first))
    else:
        state, info = compiled_init(key_init, target, settings, first)
    for number in range(int(info.num_components), settings.num_components):
        state, _ = compiled_step(jax.random.fold_in(key_rounds, number), state, target, settings)
    return jax.tree.map(lambda leaf: np.asarray(leaf, float), state.mixture)


def _boost_by_adam(seed: int, target: Target, first: str | Mixture, **choices: Any) -> Mixture:
    return _boost(seed, target, first, num_steps=NUM_STEPS, num_draws_per_step=BUDGET // NUM_STEPS, **choices)


def _unweighted(seed: int, mixture: Mixture) -> Sample:
    return _equal(mixture.draw(np.random.default_rng(seed), NUM_DRAWS), None)


def _corrected(seed: int, target: Target, mixture: Mixture) -> Sample:
    """Weigh draws of a boosted mixture; the evaluations inside its compiled rounds are not counted."""
    return dataclasses.replace(_importance(seed, Evaluator(target), mixture, NUM_DRAWS), num_evaluations=None)


def reverse_component(seed: int, target: Target, scale: float) -> Sample:
    """One Gaussian of diagonal covariance by the reverse KL, its draws taken as they are."""
    return _unweighted(seed, _reverse(seed, target))


def reverse_boosting(seed: int, target: Target, scale: float) -> Sample:
    """Three Gaussians by the reverse KL (Miller et al. 2017), their draws taken as they are."""
    first = _reverse(seed, target)
    return _unweighted(seed, _boost_by_adam(seed, target, first, num_components=3, divergence="reverse"))


def forward_component(seed: int, target: Target, scale: float) -> Sample:
    """One Gaussian of diagonal covariance by the forward KL, then importance sampling."""
    return _corrected(seed, target, _boost_by_adam(seed, target, "forward", num_components=1))


def forward_boosting(seed: int, target: Target, scale: float) -> Sample:
    """Three Gaussians by the forward KL, the first by the reverse KL as in the paper, then importance sampling."""
    return _corrected(seed, target, _boost_by_adam(seed, target, _reverse(seed, target), num_components=3))


def _reverse(seed: int, target: Target) -> Mixture:
    """Fit the first component; one compiled program serves all methods that begin with it."""
    return _boost_by_adam(seed, target, "reverse", num_components=1, divergence="reverse")


def em_boosting(seed: int, target: Target, scale: float) -> Sample:
    """Student-t of full covariance by EM; the first covers the box, or is Laplace's approximation without one."""
    family = Family("student")
    first = _laplace(Evaluator(target), family) if target.box is None else diffuse(*target.box, family=family)
    mixture = _boost(seed, target, first, family=family, num_components=_num_components(target), **EM_CHOICES)
    return _corrected(seed, target, mixture)


def refinement(seed: int, target: Target, scale: float) -> Sample:
    """Run the automatic engine, :func:`klover.refine`."""
    fit = refine(jax.random.key(seed), target, num_draws=NUM_DRAWS, budget=BUDGET, progress=False)
    return Sample(np.asarray(fit.draws.x, float), np.exp(np.asarray(fit.draws.log_weight)), fit.num_evaluations)


def chain(algorithm: str) -> Callable[[int, Target, float], Sample]:
    """Return the method that runs one chain of ``"hmc"`` or ``"nuts"``, begun at a draw of the reference.

    Step size and diagonal mass matrix are adapted by Stan's windows; the paper's HMC has as many steps of burn-in.
    """

    def run(seed: int, target: Target, scale: float) -> Sample:
        key_start, key_chain = jax.random.split(jax.random.key(seed))
        start = jnp.asarray(target.start) + scale * jax.random.normal(key_start, (target.dim,), target.start.dtype)
        x, num_steps, num_warmup_steps = _run_chain(key_chain, target, start, algorithm)
        taken = np.asarray(num_steps) > 0
        return _equal(np.asarray(x, float)[taken], int(num_warmup_steps) + int(np.sum(num_steps)))

    return run


@functools.partial(jax.jit, static_argnames="algorithm")
def _run_chain(
    key: Key[jax.Array, ""], target: Target, start: Float[jax.Array, " dim"], algorithm: str
) -> tuple[Float[jax.Array, "draw dim"], Int[jax.Array, " draw"], Int[jax.Array, ""]]:
    """Return positions, the leapfrog steps that each took (0 once the budget is spent), and those of the warm-up."""
    blackjax = optional.blackjax()
    family, choices = getattr(blackjax, algorithm), {}
    if algorithm == "hmc":
        choices["num_integration_steps"] = NUM_LEAPFROGS
    key_warmup, key_draws = jax.random.split(key)
    warmup = blackjax.window_adaptation(
        family,
        target.log_prob,
        adaptation_info_fn=lambda state, info, adaptation_state: info.num_integration_steps,
        **choices,
    )
    # The type that blackjax declares for ``run`` leaves the number of steps out.
    (state, parameters), num_warmup_steps = warmup.run(key_warmup, start, NUM_WARMUP)  # pyright: ignore[reportCallIssue]
    step = family(target.log_prob, **parameters).step
    spent = jnp.sum(num_warmup_steps)

    def move(key, state):
        state, info = step(key, state)
        return state, jnp.asarray(info.num_integration_steps, spent.dtype)

    def advance(carry, key):
        state, total = carry
        state, num = jax.lax.cond(total < BUDGET, move, lambda _, state: (state, jnp.zeros_like(total)), key, state)
        return (state, total + num), (state.position, num)

    _, (x, num_steps) = jax.lax.scan(advance, (state, spent), jax.random.split(key_draws, NUM_DRAWS))
    return x, num_steps, spent


METHODS: dict[str, Callable[[int, Target, float], Sample]] = {
    "is-prior": prior_importance,
    "is-laplace": laplace_importance,
    "adaptive-is": population_importance,
    "rkl-vi": reverse_component,
    "rkl-vb3": reverse_boosting,
    "fkl-vi": forward_component,
    "fkl-vb3": forward_boosting,
    "fkl-em": em_boosting,
    "hmc": chain("hmc"),
    "nuts": chain("nuts"),
    "refine": refinement,
}
