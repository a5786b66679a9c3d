"""The methods of the failure-mode table, each from a target and a reference Gaussian to (weighted) draws.

The reference has its centre at the example of the target and one scale for all coordinates. A target with a box is one
whose user expects several modes: the methods that can use that have more components there.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from klover.base.shapes import Float
from klover.boosting import rounds
from klover.boosting.settings import CLOSED_FORM, Settings
from klover.importance import psis
from klover.importance.draws import weigh_on_host
from klover.mixtures.algebra import diffuse
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.paper import chains
from klover.paper.adaptive import adaptive_importance, begin
from klover.refinement.refine import refine
from klover.search.curvature import covariance, precision
from klover.search.modes import climb_target
from klover.targets.evaluator import Evaluator
from klover.targets.target import Target

BUDGET = 100_000
"""Evaluations of the target, a gradient counting as one."""
NUM_DRAWS = 20_000
"""Draws of a final proposal, and the most transitions of a chain."""
NUM_ROUNDS = 20
NUM_STEPS = 4000
"""Steps of Adam for a component, of 25 draws, the fewest the paper tried; in 1000 steps an sd does not grow to 3."""
FEW_COMPONENTS, MANY_COMPONENTS = 3, 25
NORMAL = Family("normal")
ADAM = Settings(num_steps=NUM_STEPS, num_draws_per_step=BUDGET // NUM_STEPS)
ONE_REVERSE = dataclasses.replace(ADAM, max_components=1, divergence="reverse")
"""The first component; one compiled program serves all methods that begin with it."""
EM = dataclasses.replace(CLOSED_FORM, num_round_draws=10_000, num_steps=10)

Answer = tuple[Float[np.ndarray, "draw dim"], Float[np.ndarray, " draw"], int | None]
"""Draws, their weights (summing to one), and the evaluations that they took where these are counted."""
Method = Callable[[int, Target, float], Answer]
"""From a seed, a target and the scale of the reference."""


def _num_components(target: Target) -> int:
    return FEW_COMPONENTS if target.box is None else MANY_COMPONENTS


def _equal(x: Float[np.ndarray, "draw dim"], num_evaluations: int | None = None) -> Answer:
    return x, np.full(len(x), 1 / len(x)), num_evaluations


def _importance(seed: int, evaluator: Evaluator, proposal: Mixture, num_draws: int) -> Answer:
    """Weigh draws of a proposal, on the host, where nothing but the target is compiled."""
    draws = weigh_on_host(np.random.default_rng(seed), evaluator, proposal, num_draws)
    return np.asarray(draws.x), np.exp(draws.log_weight), evaluator.num_evaluations


def prior_importance(seed: int, target: Target, scale: float) -> Answer:
    """Sample from the reference, and weigh."""
    centre = np.asarray(target.start, float)[None]
    reference = Mixture.of(NORMAL.components(centre, np.full_like(centre, scale**2)))
    return _importance(seed, Evaluator(target), reference, BUDGET)


def laplace_importance(seed: int, target: Target, scale: float) -> Answer:
    """Sample from Laplace's approximation with what its search left of the budget, and weigh."""
    evaluator = Evaluator(target)
    proposal = _laplace(evaluator, NORMAL)
    return _importance(seed, evaluator, proposal, BUDGET - evaluator.num_evaluations)


def _laplace(evaluator: Evaluator, family: Family) -> Mixture:
    """Return one component at the top that L-BFGS finds from the example, as wide as the curvature there says."""
    tops, _ = climb_target(evaluator, np.asarray(evaluator.target.start, float)[None])
    return Mixture.of(
        family.components(tops, np.asarray(covariance(precision(evaluator.values_and_gradients, tops[0])))[None])
    )


def population_importance(seed: int, target: Target, scale: float) -> Answer:
    """Adaptive importance sampling from the reference."""
    generator, evaluator, centre = np.random.default_rng(seed), Evaluator(target), np.asarray(target.start, float)
    start = begin(generator, centre, np.full(target.dim, scale), _num_components(target))
    x, log_ratio = adaptive_importance(generator, evaluator, start, NUM_ROUNDS, BUDGET // NUM_ROUNDS)
    return np.asarray(x), np.exp(psis.smooth(log_ratio)[0]), evaluator.num_evaluations


def _boost(seed: int, target: Target, start: str | Mixture, settings: Settings) -> Mixture:
    """Grow a mixture as :func:`klover.boost` does; its verdict, which takes as long to compile, is not asked for."""
    key_start, key_rounds = jax.random.split(jax.random.key(seed))
    if isinstance(start, Mixture):
        start = jax.tree.map(jnp.asarray, start)
    mixture = rounds.run(key_start, key_rounds, target, settings, start).mixture
    return jax.tree.map(lambda leaf: np.asarray(leaf, float), mixture)


def _corrected(seed: int, target: Target, mixture: Mixture) -> Answer:
    """Weigh draws of a boosted mixture; the evaluations inside its compiled rounds are not counted."""
    x, weight, _ = _importance(seed, Evaluator(target), mixture, NUM_DRAWS)
    return x, weight, None


def adam_boosting(divergence: str, num_components: int) -> Method:
    """Return the method that fits Gaussians of diagonal covariance by the paper's Adam.

    One component is fitted by the divergence; of several the first is fitted by the reverse KL, as in the paper. Draws
    of reverse-KL fits (several: Miller et al. 2017) are taken as they are, those of forward-KL fits are weighed.
    """
    settings = dataclasses.replace(ADAM, divergence=divergence, max_components=num_components)

    def run(seed: int, target: Target, scale: float) -> Answer:
        start = divergence if num_components == 1 else _boost(seed, target, "reverse", ONE_REVERSE)
        mixture = _boost(seed, target, start, settings)
        if divergence == "forward":
            return _corrected(seed, target, mixture)
        return _equal(mixture.draw(np.random.default_rng(seed), NUM_DRAWS))

    return run


def em_boosting(seed: int, target: Target, scale: float) -> Answer:
    """Student-t of full covariance by EM; the first covers the box, or is Laplace's approximation without one."""
    first = _laplace(Evaluator(target), EM.family) if target.box is None else diffuse(*target.box, family=EM.family)
    settings = dataclasses.replace(EM, max_components=_num_components(target))
    return _corrected(seed, target, _boost(seed, target, first, settings))


def refinement(seed: int, target: Target, scale: float) -> Answer:
    """Run the automatic engine, :func:`klover.refine`."""
    fit = refine(jax.random.key(seed), target, num_draws=NUM_DRAWS, budget=BUDGET, progress=False)
    return np.asarray(fit.draws.x, float), np.exp(np.asarray(fit.draws.log_weight)), fit.num_evaluations


def chain(algorithm: str, **options: Any) -> Method:
    """Return the method that runs one chain of ``"hmc"`` or ``"nuts"``, begun at a draw of the reference.

    Step size and diagonal mass matrix are adapted by Stan's windows; the paper's HMC has as many steps of burn-in.
    """

    @jax.jit
    def program(key, target, start):
        return chains.adapted(key, target.log_prob, start, NUM_DRAWS, algorithm=algorithm, budget=BUDGET, **options)

    def run(seed: int, target: Target, scale: float) -> Answer:
        key_start, key_chain = jax.random.split(jax.random.key(seed))
        start = jnp.asarray(target.start) + scale * jax.random.normal(key_start, (target.dim,), target.start.dtype)
        x, num_steps, num_warmup_steps = program(key_chain, target, start)
        taken = np.asarray(num_steps) > 0
        return _equal(np.asarray(x, float)[taken], int(num_warmup_steps) + int(np.sum(num_steps)))

    return run


METHODS: dict[str, Method] = {
    "is-prior": prior_importance,
    "is-laplace": laplace_importance,
    "adaptive-is": population_importance,
    "rkl-vi": adam_boosting("reverse", 1),
    "rkl-vb3": adam_boosting("reverse", FEW_COMPONENTS),
    "fkl-vi": adam_boosting("forward", 1),
    "fkl-vb3": adam_boosting("forward", FEW_COMPONENTS),
    "fkl-em": em_boosting,
    "hmc": chain("hmc", num_integration_steps=chains.NUM_LEAPFROGS),
    "nuts": chain("nuts"),
    "refine": refinement,
}
