"""Between flat points and the pytrees that people read; on the host, where nothing needs to be compiled."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from klover.base.arrays import namespace
from klover.base.checks import check_finite
from klover.base.shapes import AnyArray, Float, PyTree


def pad(points: Float[np.ndarray, "draw dim"], size: int) -> Float[np.ndarray, "size dim"]:
    """Add copies of the first point until there are so many."""
    return np.concatenate([points, np.repeat(points[:1], size - len(points), axis=0)])


def flatten(example: PyTree) -> tuple[Float[AnyArray, " dim"], Callable[[AnyArray], PyTree]]:
    """Flatten a pytree of numbers, and return the way back, which takes points with leading axes too."""
    leaves, structure = jax.tree.flatten(example)
    xp = jnp if any(isinstance(leaf, Tracer) for leaf in leaves) else np
    arrays = [xp.asarray(leaf, jnp.result_type(float)) for leaf in leaves]
    shapes = [array.shape for array in arrays]
    ends = np.cumsum([array.size for array in arrays]).tolist()

    def unravel(x):
        parts = [x[..., first:end] for first, end in zip([0, *ends], ends, strict=False)]
        reshaped = [part.reshape((*x.shape[:-1], *shape)) for part, shape in zip(parts, shapes, strict=True)]
        return jax.tree.unflatten(structure, reshaped)

    return xp.concatenate([array.ravel() for array in arrays]), unravel


def ravel_rows(positions: PyTree) -> Float[AnyArray, "draw value"]:
    """Turn positions with a leading axis of draws into one row of numbers for each draw."""
    leaves = jax.tree.leaves(positions)
    return namespace(*leaves).concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def _name(path: tuple, shape: tuple[int, ...]) -> tuple[str, list[str]]:
    """Name an array by its path in a pytree, and each of its numbers."""
    stem = jax.tree_util.keystr(path, simple=True, separator=".") or "x"
    return stem, [f"{stem}[{','.join(map(str, index))}]" if index else stem for index in np.ndindex(shape)]


def names_of(position: PyTree) -> list[str]:
    """Name the numbers of a position by their paths in the pytree."""
    leaves = jax.tree_util.tree_leaves_with_path(position)
    return [name for path, leaf in leaves for name in _name(path, leaf.shape)[1]]


def variables(positions: PyTree, names: tuple[str, ...]) -> dict[str, AnyArray]:
    """Name the arrays of stacked positions by their paths; where the user has named single numbers, by these names."""
    found, first = {}, 0
    for path, values in jax.tree_util.tree_leaves_with_path(positions):
        stem, made = _name(path, values.shape[1:])
        given = list(names[first : first + len(made)])
        first += len(made)
        columns = zip(given, values.reshape(len(values), -1).T, strict=True)
        found |= {stem: values} if given == made else dict(columns)
    return found


def flat_box(
    box: tuple[PyTree, PyTree], start: Float[AnyArray, " dim"]
) -> tuple[Float[AnyArray, " dim"], Float[AnyArray, " dim"]]:
    """Flatten the corners of a box; one number stands for all coordinates."""
    if not (isinstance(box, tuple | list) and len(box) == 2):
        raise ValueError(f"box must be a pair (lower, upper), got {box!r}.")
    for corner in box:
        check_finite("box", corner, "Pass pytrees shaped like the example, or one number for each corner.")
    lower, upper = (
        np.full_like(start, corner) if isinstance(corner, int | float) else flatten(corner)[0] for corner in box
    )
    if lower.shape != start.shape or upper.shape != start.shape:
        raise ValueError(
            f"box must hold corners of {start.size} numbers, like the example, got {lower.size} and {upper.size}. "
            "Pass pytrees shaped like the example, or one number for each corner."
        )
    if not (np.isfinite(lower) & np.isfinite(upper) & (lower < upper)).all():
        raise ValueError("box must be finite, with lower below upper in every coordinate.")
    return lower.astype(start.dtype), upper.astype(start.dtype)
