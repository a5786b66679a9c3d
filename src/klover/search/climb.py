"""L-BFGS from many starts at once (Nocedal 1980), for NumPy and for JAX.

All starts move together, so that a step is one call of the gradient; no optimiser is imported, and on the host nothing
but the target is compiled.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from klover.base.arrays import iterate, namespace
from klover.base.shapes import AnyArray, Bool, Float, Int, record

MOST_STEPS = 150
TOLERANCE = 1e-6
"""Nats: a climb ends after two steps that gain less."""
MEMORY = 8
"""Steps that the curvature is remembered of; more take fewer steps, and each of them longer."""
SUFFICIENT_RISE = 1e-4
SMALLEST_COSINE = 1e-8
"""A change of the gradient that is less along the step than this tells nothing about the curvature."""
SHRINKAGE, GROWTH = 0.3, 2.0
"""Factors of the step where one fails, and where there is no curvature to go by."""

Points: TypeAlias = Float[AnyArray, "start dim"]
ValueAndGradient = Callable[[Any], tuple[Any, Any]]
"""From points to values, (start,), and gradients, (start, dim), of the same kind of arrays."""


@record
class _Path:
    """Where the climbs are: points with values and gradients, the next step, and what the last steps have told."""

    x: Points
    value: Float[AnyArray, " start"]
    gradient: Points
    direction: Points
    step: Float[AnyArray, " start"]
    changes: Float[AnyArray, "memory start dim"]
    falls: Float[AnyArray, "memory start dim"]
    inverses: Float[AnyArray, "memory start"]
    scale: Float[AnyArray, " start"]
    num_idle: Int[AnyArray, " start"]
    is_done: Bool[AnyArray, " start"]


def value_and_gradient(log_density: Callable[..., Float[AnyArray, ""]], *arguments: AnyArray) -> ValueAndGradient:
    """Make a log density under JAX into a function of many points; further arguments have one entry for each."""

    def function(x):
        value, gradient = jax.vmap(jax.value_and_grad(log_density))(x, *arguments)
        value = jnp.where(jnp.isnan(value) | (value == jnp.inf), -jnp.inf, value)
        return value, jnp.where(jnp.isfinite(gradient) & jnp.isfinite(value)[:, None], gradient, 0.0)

    return function


@np.errstate(invalid="ignore", over="ignore")
def climb(
    function: ValueAndGradient,
    starts: Points,
    num_steps: int = MOST_STEPS,
    tolerance: float = TOLERANCE,
    resolution: float = 0.0,
) -> tuple[Points, Float[AnyArray, " start"]]:
    """Maximise from every start; return the points that were reached, and the values there.

    Parameters
    ----------
    function
        Values and gradients of many points; a value of -inf is a point to turn back from.
    starts
        Where to begin.
    num_steps
        Most steps.
    tolerance
        A climb ends after two steps that gain less.
    resolution
        Relative spacing of the values, if it is coarser than that of the arrays.
    """
    xp = namespace(starts)
    value, gradient = function(starts)
    num, nothing = len(starts), xp.zeros_like(value)
    history = xp.zeros((MEMORY, *starts.shape), starts.dtype)
    path = _Path(
        starts,
        value,
        gradient,
        _bounded(gradient),
        nothing + 1.0,
        history,
        history,
        xp.zeros((MEMORY, num), starts.dtype),
        nothing,
        xp.zeros(num, int),
        ~xp.isfinite(value),
    )
    resolution = max(resolution, float(xp.finfo(value.dtype).eps))
    path = iterate(
        lambda now: _advance(function, now, tolerance, resolution), path, num_steps, lambda now: now.is_done.all()
    )
    return path.x, path.value


def _advance(function: ValueAndGradient, path: _Path, tolerance: float, resolution: float) -> _Path:
    """Try one step of every climb that goes on."""
    xp = namespace(path.x)
    trial = path.x + xp.where(path.is_done, 0.0, path.step)[:, None] * path.direction
    value, gradient = function(trial)
    rise = _dot(path.gradient, path.direction)
    taken = ~path.is_done & xp.isfinite(value) & (value >= path.value + SUFFICIENT_RISE * path.step * rise)

    change, fall = trial - path.x, path.gradient - gradient
    curvature, square = _dot(change, fall), _dot(fall, fall)
    is_useful = taken & (curvature > SMALLEST_COSINE * xp.sqrt(_dot(change, change) * square))
    safe = xp.where(is_useful, curvature, 1.0)
    changes = _remember(path.changes, xp.where(is_useful[:, None], change, 0.0))
    falls = _remember(path.falls, xp.where(is_useful[:, None], fall, 0.0))
    inverses = _remember(path.inverses, xp.where(is_useful, 1.0 / safe, 0.0))
    scale = xp.where(is_useful, safe / xp.where(is_useful, square, 1.0), path.scale)

    # Where values are rounded more coarsely than the tolerance, a smaller gain cannot be seen.
    smallest = xp.maximum(tolerance, resolution * xp.abs(xp.where(path.is_done, 0.0, path.value)))
    num_idle = xp.where(taken, xp.where(value - path.value < smallest, path.num_idle + 1, 0), path.num_idle)
    x, gradient = xp.where(taken[:, None], trial, path.x), xp.where(taken[:, None], gradient, path.gradient)
    fresh = _direction(gradient, changes, falls, inverses, scale)
    fresh = xp.where((_dot(gradient, fresh) > 0)[:, None], fresh, _bounded(gradient))
    direction = xp.where(taken[:, None], fresh, path.direction)
    # Where the density is not concave (the tails of a Student-t) there is no curvature to go by: stride out.
    step = xp.where(taken, xp.where(is_useful, 1.0, GROWTH * path.step), SHRINKAGE * path.step)
    # A step that fails although it could gain next to nothing has met the rounding of the density.
    is_done = path.is_done | (num_idle >= 2) | (~taken & (step * _dot(gradient, direction) < smallest))
    value = xp.where(taken, value, path.value)
    return _Path(x, value, gradient, direction, step, changes, falls, inverses, scale, num_idle, is_done)


def _dot(first: AnyArray, second: AnyArray) -> Float[AnyArray, " start"]:
    """Scalar products, start by start; as a sum a GPU does not round the factors."""
    return (first * second).sum(-1)


def _remember(history: AnyArray, newest: AnyArray) -> AnyArray:
    """Put the newest last, and forget the oldest."""
    return namespace(history).concatenate([history[1:], newest[None]])


def _bounded(gradient: Points) -> Points:
    xp = namespace(gradient)
    return gradient / xp.maximum(xp.sqrt(_dot(gradient, gradient)), 1.0)[:, None]


def _direction(gradient: Points, changes: AnyArray, falls: AnyArray, inverses: AnyArray, scale: AnyArray) -> Points:
    """Two-loop recursion for all starts; a pair with inverse curvature zero is skipped, a scale of zero is unknown."""
    xp = namespace(gradient)
    direction, amounts = gradient, {}
    for place in reversed(range(MEMORY)):
        amounts[place] = inverses[place] * _dot(changes[place], direction)
        direction = direction - amounts[place][:, None] * falls[place]
    direction = xp.where(scale[:, None] > 0, scale[:, None] * direction, _bounded(direction))
    for place in range(MEMORY):
        amount = amounts[place] - inverses[place] * _dot(falls[place], direction)
        direction = direction + amount[:, None] * changes[place]
    return direction
