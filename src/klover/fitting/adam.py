"""Gradient descent with Adam under one compiled loop, as the paper fits each component."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from klover.base.shapes import AnyArray, Bool, Float, PyTree, RandomKey, Scalar, record

Params = dict[str, PyTree]
Rate = float | Scalar
"""A learning rate, or a traced one where many are tried at once."""


@record
class Descent:
    """How a descent ended: the loss of every step, and whether any step was not finite (and so was not taken)."""

    loss: Float[AnyArray, "... step"]
    has_failed: Bool[AnyArray, "..."]


def minimise(
    key: RandomKey,
    loss: Callable[[RandomKey, Params], Scalar],
    params: Params,
    learning_rates: dict[str, Rate],
    num_steps: int,
    *,
    is_stochastic: bool,
    is_cooled: bool = False,
    memory: float = 0.999,
) -> tuple[Params, Descent]:
    """Take Adam steps on a loss of a key (one for each step) and parameters, which are pytrees of arrays by name.

    Where the loss is stochastic, drawn anew at every step, the last parameters are returned, since the smallest of many
    noisy losses is a lucky one; if not, the best. Rates that are cooled shrink to zero along half a cosine, so that the
    last parameters lose the noise of their draws. ``memory`` is that of the squared gradients (Adam's second β): where
    they shrink by orders of magnitude on the way, a shorter one keeps steps from shrinking too soon.
    """
    import optax  # 0.1 s of import that other fitters need not pay

    optimiser = optax.adam(optax.cosine_decay_schedule(1.0, num_steps) if is_cooled else 1.0, b2=memory)
    # One vector: on a GPU small steps wait for the launch of each kernel, and several leaves would be several kernels.
    begin, unravel = ravel_pytree(params)
    each = {name: functools.partial(jnp.full_like, fill_value=rate) for name, rate in learning_rates.items()}
    rates, _ = ravel_pytree({name: jax.tree.map(fill, params[name]) for name, fill in each.items()})

    def step(carry, step_key):
        point, state, best, best_loss, has_failed = carry
        value, gradient = jax.value_and_grad(lambda point: loss(step_key, unravel(point)))(point)
        is_finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(gradient))
        is_best = is_finite & (value < best_loss)
        best, best_loss = jnp.where(is_best, point, best), jnp.where(is_best, value, best_loss)
        update: PyTree
        # A step that is not finite is not taken, and its gradient counts as zero in the moments.
        with jax.numpy_dtype_promotion("standard"):  # optax needs it, whatever a user has set
            update, state = optimiser.update(jnp.where(is_finite, gradient, 0.0), state, point)
        point = jnp.where(is_finite, point + rates * update, point)
        return (point, state, best, best_loss, has_failed | ~is_finite), value

    start = (begin, optimiser.init(begin), begin, jnp.array(jnp.inf, begin.dtype), jnp.array(False))
    (last, _, best, _, has_failed), values = jax.lax.scan(step, start, jax.random.split(key, num_steps))
    return unravel(last if is_stochastic else best), Descent(values, has_failed)
