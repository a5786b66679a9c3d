"""Errors at the door: each names the argument, what was expected, what it got, and the remedy."""

import numbers
import operator
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from klover.base.shapes import RandomKey


def as_key(key: Any) -> RandomKey:
    """Return one typed key; a whole number is the seed of one."""
    if isinstance(key, numbers.Integral) and not isinstance(key, bool):
        return _seeded(int(key))
    if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        raise TypeError(
            f"key must be a whole number or a typed JAX key, got a {type(key).__name__}. Make one with "
            "jax.random.key(0); wrap an old-style uint32 key with jax.random.wrap_key_data."
        )
    if key.shape != ():
        raise ValueError(f"key must be one key, got an array of shape {key.shape}. Pass key[0], or vmap over keys.")
    return key


def _seeded(seed: int) -> RandomKey:
    """Return ``jax.random.key(seed)``, which would compile two programs: a tenth of a second of a first answer."""
    if 0 <= seed < 2**31 and jax.config.jax_default_prng_impl == "threefry2x32":  # pyright: ignore
        return jax.random.wrap_key_data(np.array([0, seed], np.uint32))  # pyright: ignore
    return jax.random.key(seed)


def check_count(name: str, value: Any, minimum: int, remedy: str = "") -> int:
    """Return a whole number that is at least ``minimum``."""
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {value!r}. {remedy}".rstrip()) from None
    if count < minimum or isinstance(value, bool):
        raise ValueError(f"{name} must be a whole number of at least {minimum}, got {value!r}. {remedy}".rstrip())
    return count


def check_positive(name: str, value: Any, remedy: str = "") -> None:
    """Refuse anything but one finite number above zero."""
    if isinstance(value, Tracer):
        return  # under jit or vmap there is no value to look at
    if not (isinstance(value, numbers.Real) and 0 < float(value) < float("inf")):
        raise ValueError(f"{name} must be one finite number above 0, got {value!r}. {remedy}".rstrip())


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Refuse a name that is not among the choices."""
    names = tuple(choices)
    if value not in names:
        listed = ", ".join(repr(choice) for choice in names)
        raise ValueError(f"{name} must be one of {listed}, got {value!r}.")


def check_points(name: str, x: Any, dim: int) -> None:
    """Refuse arrays that are neither one point of R^dim nor a stack of points."""
    if np.ndim(x) not in (1, 2) or np.shape(x)[-1] != dim:
        expected = f"a point of shape ({dim},) or points of shape (num_draws, {dim})"
        raise ValueError(f"{name} must be {expected}, got shape {np.shape(x)}.")


def check_finite(name: str, tree: Any, remedy: str) -> None:
    """Refuse a pytree that is empty or holds anything but finite numbers."""
    leaves = jax.tree.leaves(tree)
    if sum(np.size(leaf) for leaf in leaves) == 0:
        raise ValueError(f"{name} holds no numbers. {remedy}")
    for leaf in leaves:
        if isinstance(leaf, Tracer):
            continue  # under jit or vmap there is no value to look at
        values = np.asarray(leaf)
        if not (jnp.issubdtype(values.dtype, jnp.integer) or jnp.issubdtype(values.dtype, jnp.floating)):
            raise TypeError(f"{name} must hold real numbers, got an array of {values.dtype}. {remedy}")
        if not np.all(np.isfinite(values)):
            raise ValueError(f"{name} must be finite, but it holds NaN or infinite values. {remedy}")
