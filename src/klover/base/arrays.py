"""One mathematics for NumPy and JAX.

Every formula is written once against an array namespace ``xp``: ``jax.numpy`` where the arguments are JAX arrays
(compiled, batched, on a device), ``numpy`` where they are NumPy arrays (no compilation, so the first answer is quick).
The few things that the two namespaces do not share live here.
"""

import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from klover.base.checks import as_key
from klover.base.shapes import AnyArray, Count, Float, Int, KeyLike, PerDraw, RandomKey

Carry = TypeVar("Carry")
T = TypeVar("T")

BLOCK = 1024
"""Rows that NumPy goes through at a time, so that what is computed of them stays in the cache."""


def namespace(*arrays: Any) -> ModuleType:
    """Return ``jax.numpy`` if any array is a JAX array (or tracer), else ``numpy``."""
    # Asked some ten thousand times in a fit; whether something is a JAX array takes long to find out.
    for array in arrays:
        if type(array) is not np.ndarray and isinstance(array, jax.Array):
            return jnp
    return np


def randomness(source: KeyLike | np.random.Generator, *arrays: Any) -> RandomKey | np.random.Generator:
    """Return where chance comes from for arrays: a NumPy generator seeded by the key, or the key for JAX arrays."""
    if isinstance(source, np.random.Generator):
        return source
    key = as_key(source)
    is_on_host = namespace(*arrays) is np and not isinstance(key, Tracer)
    return np.random.default_rng(np.asarray(jax.random.key_data(key))) if is_on_host else key


def compiled(function: Callable[..., T]) -> Callable[..., T]:
    """Make a formula that is one program on JAX arrays, not one for each operation; on NumPy arrays nothing changes."""
    program = jax.jit(function)

    @functools.wraps(function)
    def call(*arguments):
        return (program if namespace(*arguments) is jnp else function)(*arguments)

    return call


def exact_products() -> AbstractContextManager:
    """Compute matrix products to full precision: a GPU would round single-precision factors to ten bits.

    A precision that the user has set (``jax_default_matmul_precision``) is kept.
    """
    return jax.default_matmul_precision(jax.config.jax_default_matmul_precision or "highest")  # pyright: ignore


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


def gammaln(x: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
    """Logarithm of the gamma function, for x > 0."""
    if namespace(x) is jnp:
        return jax.lax.lgamma(x)
    # Importing scipy.special takes 0.15 s, a sixth of a first answer.
    return np.reshape([math.lgamma(value) for value in np.ravel(x)], np.shape(x)).astype(np.asarray(x).dtype)


def digamma(x: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
    r"""Logarithmic derivative of the gamma function, for x > 0.

    :math:`\psi(x)=\psi(x+6)-\sum_{i<6}\frac1{x+i}`, and Stirling's series there, whose error is below 1e-12.
    """
    if namespace(x) is jnp:
        return jax.lax.digamma(x)
    large = x + 6.0
    square = 1 / large**2
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132))))
    return np.log(large) - 0.5 / large - series - sum(1 / (x + shift) for shift in range(6))


def comb(weight: PerDraw, level: Float[AnyArray, " taken"]) -> Int[AnyArray, " taken"]:
    """Return the draws at which the cumulative weight first exceeds the given shares of the total.

    Draws of weight zero are never taken.
    """
    xp = namespace(weight, level)
    ends = xp.cumsum(weight)
    if xp is jnp:
        # A parallel sum rounds each entry in its own way: without this, draws of weight zero could come up.
        ends = jax.lax.cummax(jnp.where(weight > 0, ends, 0.0))
    level = xp.minimum(level, 1 - xp.finfo(level.dtype).epsneg)
    return xp.searchsorted(ends, level * ends[-1], side="right")


def even_comb(generator: np.random.Generator, weight: PerDraw, num_taken: int) -> Int[np.ndarray, " taken"]:
    """Take draws by their weights on the host, on an evenly spaced comb with one random offset."""
    return np.asarray(comb(np.asarray(weight, float), (np.arange(num_taken) + generator.uniform()) / num_taken))


def iterate(
    step: Callable[[Carry], Carry], carry: Carry, num_steps: Count, is_finished: Callable[[Carry], Any] | None = None
) -> Carry:
    """Apply ``step`` ``num_steps`` times, or until it is finished: a compiled loop on JAX arrays, else a Python one."""
    if namespace(*jax.tree.leaves(carry)) is np:
        for _ in range(num_steps):
            if is_finished is not None and is_finished(carry):
                break
            carry = step(carry)
        return carry
    if is_finished is None:
        return jax.lax.fori_loop(0, num_steps, lambda _, value: step(value), carry)

    def goes_on(counted):
        return (counted[0] < num_steps) & ~is_finished(counted[1])

    return jax.lax.while_loop(goes_on, lambda counted: (counted[0] + 1, step(counted[1])), (0, carry))[1]


def over_blocks(function: Callable[..., T], *arrays: AnyArray, block: int = BLOCK) -> list[T]:
    """Apply a function to blocks of rows: all rows at once on JAX arrays, blocks that fit the cache on NumPy ones."""
    if namespace(*arrays) is jnp:
        return [function(*arrays)]
    # What overflows is as good as infinite.
    with np.errstate(over="ignore"):
        starts = range(0, arrays[0].shape[0], block) or [0]
        return [function(*(array[start : start + block] for array in arrays)) for start in starts]
