"""Gradient descent with Adam under one compiled loop, as the paper fits each component."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from klover.typing import AnyArray, Bool, Float, Key, PyTree, record

Params = dict[str, PyTree]
Rate = float | Float[AnyArray, ""]
"""A learning rate, or a traced one where many are tried at once."""


@record
class Descent:
    """How a descent ended: the loss of every step, and whether any step was not finite (and so was not taken)."""

    loss: Float[AnyArray, "... step"]
    has_failed: Bool[AnyArray, "..."]


def minimise(
    key: Key[jax.Array, ""],
    loss: Callable[[Key[jax.Array, ""], Params], Float[AnyArray, ""]],
    params: Params,
    learning_rates: dict[str, Rate],
    num_steps: int,
    *,
    is_stochastic: bool,
) -> tuple[Params, Descent]:
    """Take Adam steps on a loss.

    Parameters
    ----------
    key
        Split into one key for each step.
    loss
        From a key and the parameters to a scalar.
    params
        Where to begin: pytrees of arrays, by name.
    learning_rates
        One rate for each name.
    num_steps
        Number of steps.
    is_stochastic
        Whether the loss is drawn anew at every step. If so the last parameters are returned, since the smallest of many
        noisy losses is a lucky one; if not, the best.
    """
    import optax  # 0.1 s of import that other fitters need not pay

    optimiser = optax.adam(1.0)

    def step(carry, step_key):
        params, state, best, best_loss, has_failed = carry
        value, gradient = jax.value_and_grad(loss, argnums=1)(step_key, params)
        is_finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(ravel_pytree(gradient)[0]))
        is_best = is_finite & (value < best_loss)
        best = jax.tree.map(lambda new, old: jnp.where(is_best, new, old), params, best)
        best_loss = jnp.where(is_best, value, best_loss)
        updates: PyTree
        updates, new_state = optimiser.update(gradient, state, params)
        moved = {name: _move(params[name], updates[name], rate) for name, rate in learning_rates.items()}
        params, state = jax.tree.map(
            lambda new, old: jnp.where(is_finite, new, old), (moved, new_state), (params, state)
        )
        return (params, state, best, best_loss, has_failed | ~is_finite), value

    worst = jnp.array(jnp.inf, jax.tree.leaves(params)[0].dtype)
    start = (params, optimiser.init(params), params, worst, jnp.array(False))
    (last, _, best, _, has_failed), values = jax.lax.scan(step, start, jax.random.split(key, num_steps))
    return (last if is_stochastic else best), Descent(values, has_failed)


def _move(params: PyTree, updates: PyTree, rate: Rate) -> PyTree:
    return jax.tree.map(lambda leaf, update: leaf + rate * update, params, updates)
