"""What a file can know of a target: its names, and the constrained positions at the draws that were stored.

A log density is a function, and functions are not stored. So a fit that is loaded without its target can be read, and
nothing can be evaluated.
"""

import collections
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from klover.base.shapes import AnyArray, Float, PyTree
from klover.targets.model_info import ModelInfo
from klover.targets.target import Target


@jax.tree_util.register_pytree_node_class
class StoredTarget(Target):
    """The target of a fit that was loaded without it; whatever needs the density is refused.

    Parameters
    ----------
    x
        The draws that were stored, flat and unconstrained.
    values
        The constrained positions there, raveled.
    example
        One constrained position.
    names
        The target's names.
    model_info
        What of the model is data: names of axes, observations.
    """

    def __init__(
        self,
        x: Float[np.ndarray, "draw dim"],
        values: Float[np.ndarray, "draw value"],
        example: PyTree,
        names: tuple[str, ...],
        model_info: ModelInfo | None,
    ):
        self.x, self.values, self.example = x, values, example
        self._names, self._model_info = names, model_info

    @property
    def dim(self) -> int:
        """Dimension d of the flat space."""
        return self.x.shape[1]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the numbers in a constrained position, in flat order."""
        return self._names

    @property
    def model_info(self) -> ModelInfo | None:
        """What was stored of what the modelling language knows."""
        return self._model_info

    def flat_position(self, x: Float[AnyArray, "draw dim"]) -> Float[AnyArray, "draw value"]:
        """Return the raveled positions at the stored draws, and at no others."""
        if x is not self.x and not np.array_equal(np.asarray(x), self.x):
            self._refuse()
        return self.values

    def positions(self, x: Float[AnyArray, "draw dim"]) -> PyTree:
        """Return the constrained positions at the stored draws, and at no others."""
        return jax.vmap(ravel_pytree(self.example)[1])(jnp.asarray(self.flat_position(x)))

    def _refuse(self) -> NoReturn:
        raise ValueError(
            "this fit was loaded without its target, so that only what was stored can be read. Build the target as "
            "before, and load with klover.load(path, target=target)."
        )

    # All that a target does begins with one of these two.
    _program = _constants = property(_refuse)


def describe(target: Target, x: Float[AnyArray, "draw dim"]) -> dict[str, Any]:
    """Return what is to be stored of a target: the arguments of :class:`StoredTarget`, without functions."""
    is_stored = isinstance(target, StoredTarget)
    example = target.example if is_stored else _plain(jax.tree.map(np.asarray, target.position(jnp.asarray(x[0]))))
    known = target.model_info
    model_info = known and ModelInfo(
        known.name,
        {name: list(dims) for name, dims in known.dims.items()},
        {name: np.asarray(labels) for name, labels in known.coords.items()},
        {name: np.asarray(values) for name, values in known.observed.items()},
        tuple(known.improper),
    )
    values = np.asarray(target.flat_position(x))
    return {"x": x, "values": values, "example": example, "names": target.names, "model_info": model_info}


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
    return all(map(_is_plain, position)) if type(position) in (list, tuple) else isinstance(position, np.ndarray)
