"""Targets as results need them: with their log density, or as a file can know them.

A log density is a function, and functions are not stored. So a fit that is loaded without its target can be read, and
nothing can be evaluated.
"""

import collections
import dataclasses
import functools
from typing import Any, TypeAlias

import jax
import numpy as np

from klover.base.shapes import AnyArray, Float, Int, PyTree
from klover.targets.model_info import ModelInfo
from klover.targets.positions import flatten, names_of, ravel_rows
from klover.targets.target import Target

REFUSAL = (
    "this fit was loaded without its target, so that only what was stored can be read. Build the target as before, and "
    "load with klover.load(path, target=target)."
)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class LoadedTarget:
    """The target of a fit that was loaded without it: it reads as the target does, at the stored draws alone.

    Parameters
    ----------
    x
        The draws that were stored, flat and unconstrained.
    read
        The constrained positions there, on a leading axis.
    example
        One unconstrained position.
    names
        The target's names.
    model_info
        What of the model is data: names of axes, observations.
    """

    x: Float[np.ndarray, "draw dim"]
    read: PyTree
    example: PyTree
    names: tuple[str, ...]
    model_info: ModelInfo | None

    @classmethod
    def of(cls, target: "TargetLike", x: Float[AnyArray, "draw dim"]) -> "LoadedTarget":
        """Return what can be stored of a target, and of its positions at draws."""
        x = np.asarray(x)
        read, example = _plain(target.positions(x)), _plain(target.unravel(x[0]))
        return cls(x, read, example, target.names, target.model_info and _without_functions(target.model_info))

    @property
    def dim(self) -> int:
        """Dimension d of the flat space."""
        return self.x.shape[1]

    def coordinate_name(self, index: int) -> str:
        """Name one coordinate of the flat, unconstrained point."""
        return names_of(self.example)[index]

    def unravel(self, x: Float[AnyArray, "*draw dim"]) -> PyTree:
        """Turn flat points into (unconstrained) positions, whose arrays have the leading axes of x."""
        return flatten(self.example)[1](x)

    def positions(self, x: Float[AnyArray, "draw dim"]) -> PyTree:
        """Return the constrained positions at stored draws."""
        rows = self._find(x)
        return jax.tree.map(lambda leaf: leaf[rows], self.read)

    def flat_position(self, x: Float[AnyArray, "draw dim"]) -> Float[AnyArray, "draw value"]:
        """Return the constrained positions at stored draws, each raveled in the order of ``names``."""
        return ravel_rows(self.positions(x))

    @functools.cached_property
    def _rows(self) -> dict[bytes, int]:
        return {point.tobytes(): row for row, point in enumerate(self.x)}

    def _find(self, x: Float[AnyArray, "draw dim"]) -> Int[np.ndarray, " draw"]:
        """Find draws among those that were stored."""
        try:
            return np.array([self._rows[point.tobytes()] for point in np.asarray(x, self.x.dtype)], int)
        except KeyError:
            raise ValueError(REFUSAL) from None


TargetLike: TypeAlias = Target | LoadedTarget
"""What results can be read with: names, coordinates and positions."""


def as_target(target: Any) -> Target:
    """Return a target that can be evaluated, and refuse anything else."""
    if isinstance(target, Target):
        return target
    if isinstance(target, LoadedTarget):
        raise ValueError(REFUSAL)
    raise TypeError(
        f"target must be a klover.Target, got a {type(target).__name__}. Wrap your log density: "
        "klover.Target(logdensity, example)."
    )


def _without_functions(known: ModelInfo) -> ModelInfo:
    return ModelInfo(
        known.name,
        {name: list(dims) for name, dims in known.dims.items()},
        {name: np.asarray(labels) for name, labels in known.coords.items()},
        {name: np.asarray(values) for name, values in known.observed.items()},
        tuple(known.improper),
    )


def _plain(position: PyTree) -> PyTree:
    """Return a position whose containers JSON knows; others become one dict, by the names of their arrays."""
    if _is_plain(position):
        return position
    # Its order is the order of the leaves, where a plain dict would be sorted.
    return collections.OrderedDict(
        (jax.tree_util.keystr(path, simple=True, separator="."), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(position)
    )


def _is_plain(position: PyTree) -> bool:
    if type(position) is dict:
        return all(type(name) is str and _is_plain(entry) for name, entry in position.items())
    if type(position) in (list, tuple):
        return all(map(_is_plain, position))
    return isinstance(position, np.ndarray | np.generic)
