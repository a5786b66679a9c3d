"""The vocabulary of shapes, and the one kind of record that the library is made of.

Axis names in annotations: ``draw`` (S), ``component`` (K), ``dim`` (d), ``rank``. A leading ``...`` in a record is a
batch of fits: functions are written for one fit, and vmap makes records of many. The commonest shapes have names.
"""

import dataclasses
import sys
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, dataclass_transform

import jax
import numpy as np

if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import Bool, Float, Int, Key
else:
    # Whoever checks shapes at run time has imported jaxtyping before klover. For everyone else annotations are words,
    # and making hundreds of classes of them takes three quarters of klover's own import time.
    class _Array:
        def __class_getitem__(cls, item):
            return item[0]

    Bool = Float = Int = Key = _Array

if TYPE_CHECKING:
    AnyArray: TypeAlias = jax.Array | np.ndarray
else:
    # NumPy reductions return scalars, which are arrays of no dimension to everyone but the type checker.
    AnyArray = jax.Array | np.ndarray | np.generic

PyTree: TypeAlias = Any

RandomKey: TypeAlias = Key[jax.Array, ""]
KeyLike: TypeAlias = RandomKey | int | np.integer
"""A typed key, or a seed that one is made of."""

Scalar: TypeAlias = Float[AnyArray, ""]
Count: TypeAlias = Int[AnyArray, ""] | int
Point: TypeAlias = Float[AnyArray, " dim"]
Points: TypeAlias = Float[AnyArray, "draw dim"]
PerDraw: TypeAlias = Float[AnyArray, " draw"]
AnyPoints: TypeAlias = Float[AnyArray, "*draw dim"]
PerPoint: TypeAlias = Float[AnyArray, "*draw"]
"""One point or many, and a number for each of them."""
Weights: TypeAlias = Float[AnyArray, " component"]
PerComponent: TypeAlias = Float[AnyArray, "component draw"]
Locations: TypeAlias = Float[AnyArray, "component dim"]

T = TypeVar("T")


def static(**kwargs: Any) -> Any:
    """Return a record field that belongs to the program, not to its data."""
    return dataclasses.field(metadata={"static": True}, **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(static, dataclasses.field))
def record(cls: type[T]) -> type[T]:
    """Make a frozen dataclass that is also a JAX pytree."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))
