"""One mathematics for NumPy and JAX.

Every formula is written once against an array namespace ``xp``: ``jax.numpy`` where the arguments are JAX arrays
(compiled, batched, on a device), ``numpy`` where they are NumPy arrays (no compilation, so the first answer is quick).
The few things that the two namespaces do not share live here.
"""

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import jax.scipy.special
import numpy as np

from klover.typing import AnyArray, Float

Carry = TypeVar("Carry")
T = TypeVar("T")

BLOCK = 512


def namespace(*arrays: Any) -> ModuleType:
    """Return ``jax.numpy`` if any array is a JAX array (or tracer), else ``numpy``."""
    return jnp if any(isinstance(array, jax.Array) for array in arrays) else np


def constant(x: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
    """Return the array as something that no gradient flows through."""
    return jax.lax.stop_gradient(x) if namespace(x) is jnp else x


def logsumexp(x: Float[AnyArray, "..."], axis: int = -1) -> Float[AnyArray, "..."]:
    """Logarithm of the sum of exponentials along an axis; -inf where every entry is -inf, with finite gradients."""
    xp = namespace(x)
    highest = xp.max(x, axis=axis, keepdims=True)
    shift = constant(xp.where(xp.isfinite(highest), highest, 0.0))
    total = xp.sum(xp.exp(x - shift), axis=axis)
    is_empty = total == 0
    log_total = xp.log(xp.where(is_empty, 1.0, total)) + xp.squeeze(shift, axis=axis)
    return xp.where(is_empty, -xp.inf, log_total)


def _special(x: AnyArray) -> ModuleType:
    if namespace(x) is jnp:
        return jax.scipy.special
    import scipy.special  # 0.1 s that the JAX path need not pay

    return scipy.special


def gammaln(x: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
    """Logarithm of the gamma function."""
    return _special(x).gammaln(x)


def digamma(x: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
    """Logarithmic derivative of the gamma function."""
    return _special(x).digamma(x)


def inverse_triangular(factor: Float[AnyArray, "... dim dim"]) -> Float[AnyArray, "... dim dim"]:
    """Inverse of lower-triangular matrices."""
    if namespace(factor) is np:
        return np.linalg.inv(factor)
    identity = jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape)
    return jax.scipy.linalg.solve_triangular(factor, identity, lower=True)


def iterate(step: Callable[[Carry], Carry], carry: Carry, num_steps: int) -> Carry:
    """Apply ``step`` ``num_steps`` times: a compiled loop on JAX arrays, a Python loop on NumPy ones."""
    if namespace(*jax.tree.leaves(carry)) is jnp:
        return jax.lax.fori_loop(0, num_steps, lambda _, value: step(value), carry)
    for _ in range(num_steps):
        carry = step(carry)
    return carry


def over_blocks(function: Callable[..., T], *arrays: AnyArray) -> list[T]:
    """Apply a function to blocks of rows: all rows at once on JAX arrays, blocks that fit the cache on NumPy ones.

    NumPy lets go of the interpreter lock in large operations, so the blocks run on as many threads as there are cores.
    """
    num = arrays[0].shape[0]
    if namespace(*arrays) is jnp:
        return [function(*arrays)]

    def run(start: int) -> T:
        # What overflows is as good as infinite; the state of warnings does not pass to other threads by itself.
        with np.errstate(over="ignore"):
            return function(*(array[start : start + BLOCK] for array in arrays))

    return [run(0)] if num <= BLOCK else list(_threads().map(run, range(0, num, BLOCK)))


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count())
