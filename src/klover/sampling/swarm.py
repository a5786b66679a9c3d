r"""Sequential Monte Carlo from an approximation q to the target p under JAX, one temperature at a time.

The path is :math:`p^\beta q^{1-\beta}` (Del Moral, Doucet & Jasra 2006). A step raises β so far that every island keeps
half of its particles effective, resamples each island by a comb, and moves each particle by Hamiltonian Monte Carlo in
the metric in which the particles have unit scales. Functions are pure, and can be vmapped over targets.
"""

import jax
import jax.numpy as jnp

from klover.base.linalg import cholesky, inverse_triangular
from klover.base.shapes import AnyArray, Float, Int, Point, RandomKey, Scalar, record
from klover.importance.resampling import systematic
from klover.mixtures.mixture import Mixture
from klover.mixtures.scale import Full
from klover.sampling.hamiltonian import accept, adapt, trajectory
from klover.sampling.tempering import next_temperature
from klover.targets.target import Target
from klover.tuning import Moves

MOVES = Moves()
STEP_JITTER = 0.2
"""Log sd of step sizes; trajectories are long here, and a step that is too large wastes all of one."""
SMALLEST_SCALE = 1e-6
NUM_STEPS, BATCH, LEARNING_RATE, FIRST_SCALE = 1500, 32, 0.02, 0.1
"""Of the mean-field fit: steps of Adam, draws of each, its first rate, and the scale at which it begins."""


@record
class Swarm:
    """Islands of equally weighted particles on their way, and what has been learnt on it."""

    x: Float[AnyArray, "... island particle dim"]
    log_p: Float[AnyArray, "... island particle"]
    log_q: Float[AnyArray, "... island particle"]
    beta: Float[AnyArray, "..."]
    log_evidence: Float[AnyArray, "... island"]
    step: Float[AnyArray, "..."]
    num_nan: Int[AnyArray, "..."]


def mean_field(key: RandomKey, target: Target) -> tuple[Point, Point]:
    r"""Fit one Gaussian with a diagonal covariance by the reverse KL; return its location and scale.

    Adam on location and log scale, with the gradient of :math:`\theta=\mu+s\epsilon` (Kingma & Welling 2014); steps
    shrink to zero along a cosine.
    """
    import optax

    optimiser = optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, NUM_STEPS), b2=0.99)
    key_first, key_steps = jax.random.split(key)
    start = jnp.asarray(target.start)
    first = start + FIRST_SCALE * jax.random.normal(key_first, start.shape, start.dtype)
    params = first, jnp.full_like(start, jnp.log(FIRST_SCALE))

    def loss(params, noise):
        location, log_scale = params
        return -jnp.mean(target.log_prob(location + jnp.exp(log_scale) * noise)) - jnp.sum(log_scale)

    def step(carry, step_key):
        params, state = carry
        gradient = jax.grad(loss)(params, jax.random.normal(step_key, (BATCH, target.dim), start.dtype))
        # A draw outside the support must not end the descent.
        gradient = jax.tree.map(lambda leaf: jnp.where(jnp.isfinite(leaf), leaf, 0.0), gradient)
        updates, state = optimiser.update(gradient, state)
        return (jax.tree.map(jnp.add, params, updates), state), None

    carry = params, optimiser.init(params)
    ((location, log_scale), _), _ = jax.lax.scan(step, carry, jax.random.split(key_steps, NUM_STEPS))
    return location, jnp.exp(log_scale)


def release(key: RandomKey, target: Target, begin: Mixture, num_islands: int, island_size: int) -> Swarm:
    """Draw all particles from the approximation."""
    x, shape = begin.sample(key, num_islands * island_size), (num_islands, island_size)
    log_p, log_q = target.log_prob(x), begin.log_prob(x).reshape(shape)
    places, values, num_nan = x.reshape(*shape, -1), _clean(log_p).reshape(shape), jnp.sum(jnp.isnan(log_p))
    zero = jnp.zeros((), x.dtype)
    return Swarm(places, values, log_q, zero, jnp.zeros(num_islands, x.dtype), zero + 0.5, num_nan)


def advance(key: RandomKey, target: Target, begin: Mixture, swarm: Swarm, num_leapfrogs: Int[AnyArray, ""]) -> Swarm:
    """Go to the next temperature: reweight, resample, move. At p itself only the move is left."""
    key_resample, key_move = jax.random.split(key)
    log_ratio = jnp.where(jnp.isfinite(swarm.log_p), swarm.log_p - swarm.log_q, -jnp.inf)
    beta = next_temperature(swarm.beta, log_ratio, MOVES.effective_share)
    change = (beta - swarm.beta) * log_ratio
    change = jnp.where(jnp.isnan(change), -jnp.inf, change)
    log_evidence = swarm.log_evidence + jax.nn.logsumexp(change, axis=1) - jnp.log(change.shape[1])
    keys = jax.random.split(key_resample, change.shape[0])
    index = jax.vmap(lambda one, log_weight: systematic(one, log_weight, change.shape[1]))(keys, change)
    x = jnp.take_along_axis(swarm.x, index[:, :, None], axis=1)
    flat = x.reshape(-1, x.shape[-1])
    moved, (log_p, log_q, is_nan), rate = _move(key_move, target, begin, flat, beta, swarm.step, num_leapfrogs)
    log_p, log_q, num_nan = log_p.reshape(change.shape), log_q.reshape(change.shape), swarm.num_nan + jnp.sum(is_nan)
    step = adapt(swarm.step, rate, MOVES.acceptance)
    return Swarm(moved.reshape(x.shape), log_p, log_q, beta, log_evidence, step, num_nan)


def _clean(value: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
    return jnp.where(jnp.isnan(value) | (value == jnp.inf), -jnp.inf, value)


@record
class _Metric:
    """One square root for all particles: that of the approximation, if it has one, times the particles' own scales."""

    scale: Point
    root: Float[AnyArray, "dim dim"] | None

    def times(self, noise: Float[AnyArray, "particle dim"]) -> Float[AnyArray, "particle dim"]:
        """Multiply by the square root."""
        return self.scale * noise if self.root is None else (self.scale * noise) @ self.root.T

    def times_transposed(self, slope: Float[AnyArray, "particle dim"]) -> Float[AnyArray, "particle dim"]:
        """Multiply by the transposed square root."""
        return self.scale * slope if self.root is None else self.scale * (slope @ self.root)


def _metric(begin: Mixture, x: Float[AnyArray, "particle dim"]) -> _Metric:
    """Return the metric in which particles have unit scales.

    Where the approximation knows correlations, its covariance is used too; particles alone are too few to tell them.
    """
    if not isinstance(begin.components.spread, Full):
        return _Metric(jnp.maximum(x.std(0), SMALLEST_SCALE), None)
    delta = begin.components.location - begin.mean()
    between = delta[:, :, None] * delta[:, None, :]
    root = cholesky(jnp.tensordot(begin.weights, begin.components.spread.covariance() + between, 1))
    scale = (x @ inverse_triangular(root).T).std(0)
    return _Metric(jnp.maximum(scale, SMALLEST_SCALE), root)


def _move(
    key: RandomKey,
    target: Target,
    begin: Mixture,
    x: Float[AnyArray, "particle dim"],
    beta: Scalar,
    step: Scalar,
    num_leapfrogs: Int[AnyArray, ""],
) -> tuple[Float[AnyArray, "particle dim"], tuple[AnyArray, AnyArray, AnyArray], Scalar]:
    """Move each particle along one trajectory; return points, (log p, log q, NaN seen), and the acceptance rate."""

    def density(point):
        log_p, log_q = target.log_prob(point), begin.log_prob(point[None])[0]
        return beta * log_p + (1 - beta) * log_q, (log_p, log_q)

    def evaluate(points):
        (value, parts), slope = jax.vmap(jax.value_and_grad(density, has_aux=True))(points)
        return value, jnp.where(jnp.isfinite(slope), slope, 0.0), parts

    key_momentum, key_size, key_accept = jax.random.split(key, 3)
    momentum = jax.random.normal(key_momentum, x.shape, x.dtype)
    size = step * jnp.exp(STEP_JITTER * jax.random.normal(key_size, (len(x), 1), x.dtype))
    found = evaluate(x)
    end, last, moved = trajectory(evaluate, x, momentum, found, _metric(begin, x), size, num_leapfrogs)
    log_ratio = moved[0] - found[0] + 0.5 * (jnp.sum(momentum**2, 1) - jnp.sum(last**2, 1))
    taken, rate = accept(log_ratio, jax.random.uniform(key_accept, log_ratio.shape, x.dtype))
    log_p, log_q = (jnp.where(taken, new, old) for new, old in zip(moved[2], found[2], strict=True))
    return jnp.where(taken[:, None], end, x), (_clean(log_p), log_q, jnp.isnan(moved[2][0])), rate
