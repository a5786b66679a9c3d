r"""Sequential Monte Carlo from an approximation q to the target p, one temperature at a time.

The path is :math:`p^\beta q^{1-\beta}` (Del Moral, Doucet & Jasra 2006). A step raises β so far that every island keeps
half of its particles effective, resamples each island by a comb, and moves each particle by Hamiltonian Monte Carlo in
coordinates in which the particles have unit scales. Functions are pure, and can be vmapped over targets.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from klover.base.linalg import cholesky, inverse_triangular
from klover.base.shapes import AnyArray, Float, Int, Key, record
from klover.importance.resampling import systematic
from klover.mixtures.mixture import Mixture
from klover.mixtures.scale import Full
from klover.targets.target import Target

EFFECTIVE_SHARE = 0.5
ACCEPTANCE = 0.7
STEP_JITTER = 0.2
STEP_RANGE = (1e-4, 2.0)
NUM_HALVINGS = 40
SMALLEST_SCALE = 1e-6
NUM_STEPS = 1500
BATCH = 32
LEARNING_RATE = 0.02
FIRST_SCALE = 0.1


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


def mean_field(key: Key[jax.Array, ""], target: Target) -> tuple[Float[AnyArray, " dim"], Float[AnyArray, " dim"]]:
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

    start_of_steps = params, optimiser.init(params)
    ((location, log_scale), _), _ = jax.lax.scan(step, start_of_steps, jax.random.split(key_steps, NUM_STEPS))
    return location, jnp.exp(log_scale)


def release(key: Key[jax.Array, ""], target: Target, begin: Mixture, num_islands: int, island_size: int) -> Swarm:
    """Draw all particles from the approximation."""
    x = begin.sample(key, num_islands * island_size)
    log_p, log_q = target.log_prob(x), begin.log_prob(x)
    shape = num_islands, island_size
    zero = jnp.zeros((), x.dtype)
    return Swarm(
        x.reshape(*shape, -1),
        _clean(log_p).reshape(shape),
        log_q.reshape(shape),
        zero,
        jnp.zeros(num_islands, x.dtype),
        zero + 0.5,
        jnp.sum(jnp.isnan(log_p)),
    )


def advance(
    key: Key[jax.Array, ""], target: Target, begin: Mixture, swarm: Swarm, num_leapfrogs: Int[AnyArray, ""]
) -> Swarm:
    """Go to the next temperature: reweight, resample, move. At p itself only the move is left."""
    key_resample, key_move = jax.random.split(key)
    log_ratio = jnp.where(jnp.isfinite(swarm.log_p), swarm.log_p - swarm.log_q, -jnp.inf)
    beta = swarm.beta + _stride((1 - swarm.beta) * log_ratio) * (1 - swarm.beta)
    change = (beta - swarm.beta) * log_ratio
    change = jnp.where(jnp.isnan(change), -jnp.inf, change)
    log_evidence = swarm.log_evidence + jax.nn.logsumexp(change, axis=1) - jnp.log(change.shape[1])
    keys = jax.random.split(key_resample, change.shape[0])
    index = jax.vmap(lambda one, log_weight: systematic(one, log_weight, change.shape[1]))(keys, change)
    x = jnp.take_along_axis(swarm.x, index[:, :, None], axis=1)
    moved, log_p, log_q, rate, num_nan = _move(
        key_move, target, begin, x.reshape(-1, x.shape[-1]), beta, swarm.step, num_leapfrogs
    )
    step = jnp.clip(swarm.step * jnp.exp(rate - ACCEPTANCE), *STEP_RANGE)
    return Swarm(
        moved.reshape(x.shape),
        log_p.reshape(change.shape),
        log_q.reshape(change.shape),
        beta,
        log_evidence,
        step,
        swarm.num_nan + num_nan,
    )


def _clean(value: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
    return jnp.where(jnp.isnan(value) | (value == jnp.inf), -jnp.inf, value)


def _effective_share(change: Float[AnyArray, "island particle"]) -> Float[AnyArray, " island"]:
    total, square = jax.nn.logsumexp(change, axis=1), jax.nn.logsumexp(2 * change, axis=1)
    return jnp.exp(2 * total - square) / change.shape[1]


def _stride(change: Float[AnyArray, "island particle"]) -> Float[AnyArray, ""]:
    """Largest part of a change of log weights that leaves half of every island's particles effective."""

    def is_small(part):
        scaled = jnp.where(change == -jnp.inf, -jnp.inf, part * change)
        return jnp.all(_effective_share(scaled) >= EFFECTIVE_SHARE)

    def halve(_, ends):
        low, high = ends
        middle = 0.5 * (low + high)
        return jax.tree.map(lambda a, b: jnp.where(is_small(jnp.exp(middle)), a, b), (middle, high), (low, middle))

    zero = jnp.zeros((), change.dtype)
    low, _ = jax.lax.fori_loop(0, NUM_HALVINGS, halve, (zero - 40.0, zero))
    return jnp.where(is_small(zero + 1.0), 1.0, jnp.exp(low))


def _coordinates(begin: Mixture, x: Float[AnyArray, "particle dim"]) -> tuple[Callable, Callable]:
    """Return the way to coordinates in which particles have unit scales, and back.

    Where the approximation knows correlations, its covariance is used too; particles alone are too few to tell them.
    """
    if not isinstance(begin.components.spread, Full):
        scale = jnp.maximum(x.std(0), SMALLEST_SCALE)
        return lambda point: point / scale, lambda point: point * scale
    delta = begin.components.location - begin.mean()
    between = delta[:, :, None] * delta[:, None, :]
    covariance = jnp.tensordot(begin.weights, begin.components.spread.covariance() + between, 1)
    root = cholesky(covariance)
    inverse = inverse_triangular(root)
    scale = jnp.maximum((x @ inverse.T).std(0), SMALLEST_SCALE)
    return lambda point: point @ inverse.T / scale, lambda point: (scale * point) @ root.T


def _move(
    key: Key[jax.Array, ""],
    target: Target,
    begin: Mixture,
    x: Float[AnyArray, "particle dim"],
    beta: Float[AnyArray, ""],
    step: Float[AnyArray, ""],
    num_leapfrogs: Int[AnyArray, ""],
) -> tuple[AnyArray, AnyArray, AnyArray, AnyArray, AnyArray]:
    """Move each particle along one trajectory; return points, log p, log q, the acceptance rate, and NaN seen."""
    whiten, back = _coordinates(begin, x)

    def density(point):
        place = back(point)
        log_p = target.log_prob(place)
        log_q = begin.log_prob(place[None])[0]
        return beta * log_p + (1 - beta) * log_q, (log_p, log_q)

    def evaluate(points):
        (value, parts), slope = jax.vmap(jax.value_and_grad(density, has_aux=True))(points)
        return value, parts, jnp.where(jnp.isfinite(slope), slope, 0.0)

    key_momentum, key_size, key_accept = jax.random.split(key, 3)
    start = whiten(x)
    momentum = jax.random.normal(key_momentum, start.shape, start.dtype)
    size = step * jnp.exp(STEP_JITTER * jax.random.normal(key_size, (len(start), 1), start.dtype))
    value, parts, slope = evaluate(start)

    def leapfrog(_, carry):
        now, momentum, slope, _, _ = carry
        momentum = momentum + 0.5 * size * slope
        now = now + size * momentum
        value, parts, slope = evaluate(now)
        return now, momentum + 0.5 * size * slope, slope, value, parts

    first = start, momentum, slope, value, parts
    end, last, _, value_end, parts_end = jax.lax.fori_loop(0, num_leapfrogs, leapfrog, first)
    log_accept = value_end - value + 0.5 * (jnp.sum(momentum**2, 1) - jnp.sum(last**2, 1))
    log_accept = jnp.where(jnp.isnan(log_accept) | (log_accept == jnp.inf), -jnp.inf, log_accept)
    taken = jnp.log(jax.random.uniform(key_accept, log_accept.shape, start.dtype)) < log_accept
    log_p, log_q = (jnp.where(taken, new, old) for new, old in zip(parts_end, parts, strict=True))
    points = jnp.where(taken[:, None], back(end), x)
    rate = jnp.mean(jnp.exp(jnp.minimum(log_accept, 0.0)))
    return points, _clean(log_p), log_q, rate, jnp.sum(jnp.isnan(parts_end[0]))
