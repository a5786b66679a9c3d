r"""Where a new component begins.

Fitting a component is not convex, so its start matters. Three ways:

- ``"ascent"`` (the paper): the mean at a mode of the residual :math:`\log p-\log q_{i-1}`, by 400 gradient steps of one
  point; standard deviations drawn from :math:`\mathrm N(0,\sigma^2)`. Where q has lighter tails than p the residual has
  no mode: it rises without end, and the number of steps decides where the ascent stops.
- ``"lbfgs"``: climb :math:`\log p` and the residual from several draws; covariance from the curvature of
  :math:`\log p` at the top.
- ``"gain"``: no gradients. Centres are draws picked by weight times positive residual, covariances are scaled copies of
  the weighted covariance of all draws.

The last two propose many candidates; :func:`choose` keeps the one that lowers the forward KL most on draws that did not
propose it, over a grid of weights γ. Taking simply the largest gain (the steepest functional gradient) would favour
spikes: on the draws that proposed it, a spike has an unbounded gain.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from klover.base.shapes import AnyArray, Float, PerDraw, Point, Points, RandomKey, Scalar
from klover.fitting.adam import Rate, minimise
from klover.importance import resampling
from klover.importance.ratios import normalise
from klover.mixtures.components import Components, Family
from klover.mixtures.mixture import Mixture
from klover.search.climb import climb, value_and_gradient
from klover.search.curvature import covariance
from klover.targets.target import Target

ASCENT_STEPS = 400
CLIMB_STEPS = 60
NUM_CLIMBS = 8
NUM_CENTRES = 48
CANDIDATE_BATCH = 16
SCALES = tuple(0.5**power for power in range(8))
GAMMAS = (0.003, 0.01, 0.03, 0.1, 0.3, 0.6, 0.9)


def ascent(
    log_density: Callable[[Point], Scalar], start: Point, learning_rate: Rate, num_steps: int = ASCENT_STEPS
) -> Point:
    """Climb by Adam, one point and one gradient a step; steps that are not finite are not taken."""

    def loss(_, now):
        return -log_density(now["x"])

    params, rates = {"x": start}, {"x": learning_rate}
    return minimise(jax.random.key(0), loss, params, rates, num_steps, is_stochastic=False)[0]["x"]


def candidates_from_draws(
    key: RandomKey, family: Family, x: Points, log_ratio: PerDraw, log_residual: PerDraw
) -> Components:
    """Propose components at draws picked by weight times positive residual log p - log q, in several sizes.

    The residual is taken relative to its mean under p, so that "positive" does not depend on the constant of p.
    """
    log_weight = normalise(log_ratio)
    weight = jnp.exp(log_weight)
    log_residual = jnp.where(log_weight > -jnp.inf, log_residual, 0.0)
    residual = log_residual - weight @ log_residual
    score = log_weight + jnp.log(jnp.maximum(residual, 1e-6))
    centres = x[resampling.stratified(key, score, NUM_CENTRES)]
    delta = x - weight @ x
    variance = jnp.maximum(weight @ delta**2, 1e-30)
    if family.covariance == "full":
        shape = delta.T @ (weight[:, None] * delta) + 1e-6 * jnp.diag(variance)
    else:
        shape = variance
    sizes = jnp.asarray(SCALES, x.dtype) ** 2
    location = jnp.repeat(centres, sizes.shape[0], axis=0)
    scaled = sizes.reshape((-1,) + (1,) * shape.ndim) * shape
    return family.components(location, jnp.tile(scaled, (NUM_CENTRES,) + (1,) * shape.ndim))


def candidates_from_climbs(
    family: Family, target: Target, previous: Mixture | None, starts: Float[AnyArray, "start dim"]
) -> Components:
    """Propose components at tops of log p, and of the residual, with the covariance that log p has there."""
    if previous is None:
        function = value_and_gradient(target.log_prob)
    else:
        # One program climbs both: the switch multiplies log q by 0 or 1.
        switch = jnp.repeat(jnp.array([0.0, 1.0], starts.dtype), starts.shape[0])
        starts = jnp.concatenate([starts, starts])
        function = value_and_gradient(
            lambda point, amount: target.log_prob(point) - amount * previous.log_prob(point), switch
        )
    tops, _ = climb(function, starts, CLIMB_STEPS)
    return family.components(tops, jax.vmap(lambda top: covariance(-jax.hessian(target.log_prob)(top)))(tops))


def choose(candidates: Components, x: Points, log_weight: PerDraw, log_q: PerDraw) -> Mixture:
    r"""Return the candidate, with its weight γ, that maximises :math:`\sum_sw_s\log(1-\gamma+\gamma f/q)`."""

    def log_density(index):
        return jax.tree.map(lambda leaf: leaf[index][None], candidates).log_prob(x)[0]

    # A few at a time: all at once would take (candidates × draws × dim) numbers.
    log_f = jax.lax.map(log_density, jnp.arange(candidates.df.shape[0]), batch_size=CANDIDATE_BATCH)
    log_ratio = jnp.clip(log_f - log_q, -1e6, 1e6)
    weight = jnp.exp(normalise(log_weight))

    def improvement(gamma):
        return jnp.logaddexp(jnp.log1p(-gamma), jnp.log(gamma) + log_ratio) @ weight

    table = jax.lax.map(improvement, jnp.asarray(GAMMAS, x.dtype))
    table = jnp.where(jnp.isnan(table), -jnp.inf, table)
    which, best = jnp.unravel_index(jnp.argmax(table), table.shape)
    chosen = jax.tree.map(lambda leaf: leaf[best][None], candidates)
    return Mixture(chosen, jnp.log(jnp.asarray(GAMMAS, x.dtype))[which][None])
