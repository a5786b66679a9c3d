"""A user's function of a position, traced once as a function of the flat point."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from klover.base.arrays import exact_products
from klover.base.checks import check_result, note
from klover.base.jaxpr import ClosedJaxpr, prune
from klover.base.shapes import AnyArray, Float, PyTree


def identity(position: PyTree) -> PyTree:
    """Return the position itself: how it is read where nothing is constrained."""
    return position


def without_jit(function: Callable) -> Callable:
    """Return the function inside a compiled one, whose data would stay constants of it."""
    return getattr(function, "__wrapped__", function) if isinstance(function, type(jax.jit(identity))) else function


def trace(
    name: str, function: Callable, unravel: Callable, start: Float[AnyArray, " dim"]
) -> tuple[ClosedJaxpr, PyTree]:
    """Trace a function of a position as one of the flat point; return it with the shapes of its result."""
    try:
        with exact_products(), note(f"{name} failed at the example, in the shape of which it gets its argument."):
            closed, shapes = jax.make_jaxpr(lambda x: check_result(name, function(unravel(x))), return_shape=True)(
                start
            )
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        error.add_note(
            f"{name} could not be traced by JAX: write it with jax.numpy, without conversions to NumPy or to Python "
            "numbers and without branches on values, or wrap foreign code in jax.pure_callback."
        )
        raise
    return prune(closed), shapes


def check_scalar(value: PyTree) -> None:
    """Raise an error unless a log density is one real number."""
    if getattr(value, "shape", None) != () or not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(
            f"logdensity must return one real number (shape ()), but it returned {value}. "
            "Sum the log likelihood over the data."
        )
