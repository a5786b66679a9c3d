"""Errors at the door: each names the argument, what was expected, what it got, and the remedy."""

import contextlib
import inspect
import numbers
import operator
import os
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from klover.base.shapes import AnyArray, RandomKey

LARGEST_COUNT = 10**9
"""More of anything does not fit into a computer, and is a slip."""
NUMBERS = "biuf"
"""NumPy's letters for truth values and real numbers."""

T = TypeVar("T")


class DamagedFile(ValueError):
    """A file that was cut or changed, or that klover has not written."""


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
    if not -(2**63) <= seed < 2**63:
        raise ValueError(f"key must be a seed of at most 64 bits, got {seed}. Take a smaller number.")
    if 0 <= seed < 2**31 and jax.config.jax_default_prng_impl == "threefry2x32":  # pyright: ignore
        return jax.random.wrap_key_data(np.array([0, seed], np.uint32))  # pyright: ignore
    return jax.random.key(seed)


def in_words(value: Any) -> str:
    """Write a value in few words, whatever it is."""
    if isinstance(value, np.ndarray | jax.Array) and value.ndim > 0:
        return f"an array of {value.dtype} of shape {value.shape}"
    return reprlib.repr(value)


def check_count(name: str, value: Any, minimum: int, remedy: str = "", maximum: int = LARGEST_COUNT) -> int:
    """Return a whole number that is at least ``minimum`` and at most ``maximum``."""
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {in_words(value)}. {remedy}".rstrip()) from None
    if count < minimum or isinstance(value, bool):
        raise ValueError(f"{name} must be a whole number of at least {minimum}, got {value!r}. {remedy}".rstrip())
    if count > maximum:
        raise ValueError(f"{name} must be a whole number of at most {maximum}, got {value!r}. {remedy}".rstrip())
    return count


def check_flag(name: str, value: Any) -> None:
    """Refuse anything but True and False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {in_words(value)}.")


def check_instance(name: str, value: Any, kind: type[T], remedy: str = "") -> T:
    """Return a value of a class of klover's, and refuse any other."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {in_words(value)}. {remedy}".rstrip())
    return value


def check_function(
    name: str, value: Any, of: str, arguments: Sequence[Any] = (None,), options: Mapping[str, Any] | None = None
) -> None:
    """Refuse what cannot be called with such arguments, which ``of`` describes."""
    if not callable(value):
        raise TypeError(f"{name} must be a function of {of}, got a {type(value).__name__}.")
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return  # what is written in another language may not tell
    try:
        signature.bind(*arguments, **(options or {}))
    except TypeError as error:
        raise TypeError(
            f"{name} must be a function of {of}, got one with the arguments {signature}: {error}."
        ) from None


@contextlib.contextmanager
def note(text: str) -> Iterator[None]:
    """Add to an error that a function of the user raises where it was called."""
    try:
        yield
    except Exception as error:
        error.add_note(text)
        raise


def check_result(name: str, result: T) -> T:
    """Return what a function of the user has returned, and refuse what is no pytree of numbers."""
    for leaf in jax.tree.leaves(result):
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | numbers.Number):
            raise TypeError(f"{name} must return numbers or arrays of them, got {in_words(leaf)}.")
    return result


def check_path(name: str, value: Any, is_read: bool = False) -> str:
    """Return the path of a file that is to be read, or written: a file of that name, or a new one in a folder."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} must be a path (a str or a pathlib.Path), got {in_words(value)}.")
    path = os.fspath(value)
    if not isinstance(path, str) or not path or "\0" in path:
        raise ValueError(f"{name} must be the path of a file, got {value!r}.")
    if os.path.isdir(path):
        raise IsADirectoryError(f"{name} must be the path of a file, got the folder {path!r}. Add a name to it.")
    if is_read and not os.path.exists(path):
        raise FileNotFoundError(f"{name} must be the path of a file that exists, got {path!r}.")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise FileNotFoundError(
            f"{name} must be the path of a file in a folder that exists, got {path!r}. Make it first."
        )
    if not is_read and not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise PermissionError(f"{name} must be the path of a file that may be written, got {path!r}.")
    return path


def check_positive(name: str, value: Any, remedy: str = "") -> None:
    """Refuse anything but one finite number above zero."""
    if isinstance(value, Tracer):
        return  # under jit or vmap there is no value to look at
    if not (_is_number(value) and 0 < value):
        raise ValueError(f"{name} must be one finite number above 0, got {in_words(value)}. {remedy}".rstrip())


def check_number(name: str, value: Any, remedy: str = "") -> None:
    """Refuse anything but one finite number."""
    if not _is_number(value):
        raise ValueError(f"{name} must be one finite number, got {in_words(value)}. {remedy}".rstrip())


def check_not_negative(name: str, value: Any, remedy: str = "") -> None:
    """Refuse anything but one finite number of at least zero."""
    if not (_is_number(value) and 0 <= value):
        raise ValueError(f"{name} must be one finite number, 0 or more, got {in_words(value)}. {remedy}".rstrip())


def _is_number(value: Any) -> bool:
    """Whether this is one finite real number, of a size that arrays can hold."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    largest = 2.0**63 if isinstance(value, numbers.Integral) else float("inf")
    return bool(-largest < value < largest)  # pyright: ignore[reportOperatorIssue]


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Refuse a name that is not among the choices."""
    names = tuple(choices)
    if not (isinstance(value, str) and value in names):
        listed = ", ".join(repr(choice) for choice in names)
        raise ValueError(f"{name} must be one of {listed}, got {in_words(value)}.")


def check_names(name: str, value: Any, num: int) -> None:
    """Refuse anything but so many different words."""
    is_listed = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes)
    if not is_listed or not all(isinstance(each, str) for each in value):
        raise TypeError(f"{name} must be a list of {num} words, got {in_words(value)}.")
    if len(value) != num:
        raise ValueError(f"{name} must hold {num} names, one for each number read, got {len(value)}.")
    if len(set(value)) != num:
        raise ValueError(f"{name} must hold {num} different names, got {in_words(value)}.")


def as_numbers(name: str, value: Any, remedy: str = "") -> AnyArray:
    """Return an array of real numbers, or what already is one, and refuse anything else."""
    if isinstance(value, Tracer):
        return value
    try:
        array = value if isinstance(value, jax.Array) else np.asarray(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must hold real numbers, got {in_words(value)}. {remedy}".rstrip()) from None
    if array.dtype.kind not in NUMBERS and not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"{name} must hold real numbers, got an array of {array.dtype}. {remedy}".rstrip())
    return array


def as_floats(name: str, value: Any) -> AnyArray:
    """Return an array of floating-point numbers; whole numbers become such."""
    array = as_numbers(name, value)
    is_float = jnp.issubdtype(array.dtype, jnp.floating)
    return array if is_float else array.astype(jnp.result_type(float))


def check_points(name: str, x: Any, dim: int, ndims: tuple[int, ...] = (1, 2)) -> AnyArray:
    """Return one point of R^dim (one axis) or a stack of points (two axes) as an array, and refuse anything else."""
    points = as_floats(name, x)
    if points.ndim not in ndims or points.shape[-1] != dim:
        shapes = {1: f"a point of shape ({dim},)", 2: f"points of shape (num_draws, {dim})"}
        expected = " or ".join(shapes[ndim] for ndim in ndims)
        raise ValueError(f"{name} must be {expected}, got shape {points.shape}.")
    return points


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
