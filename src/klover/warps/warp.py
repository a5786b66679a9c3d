"""A composition of layers, from the user's coordinates x to base coordinates z in which a mixture is fitted."""

from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from klover.base.arrays import namespace, over_blocks
from klover.base.shapes import PerDraw, Points, record, static
from klover.warps.linear import Linear, decorrelate, separate
from klover.warps.low_rank import LowRankLinear
from klover.warps.marginal import Marginal, fit_marginal
from klover.warps.triangular import Triangular, fit_triangular

Layer: TypeAlias = Linear | LowRankLinear | Marginal | Triangular

KINDS = ("correlated", "independent", "led")
"""Marginal warps of decorrelated coordinates, of independent ones, and of what a few leads have freed the others of."""
WHITENED = "whitened"
"""The kind of a linear warp that scores have given, in many dimensions (:mod:`klover.refinement.whitening`)."""


@record
class Warp:
    """Layers, the first of which sees the user's coordinates; arrays of NumPy or JAX stay what they are."""

    layers: tuple[Layer, ...]
    kind: str = static(default="")

    def to_base(self, x: Any) -> tuple[Any, Any]:
        """Return base coordinates, and the log determinant of their derivative in x."""
        return self._through(x, [layer.to_base for layer in self.layers])

    def from_base(self, z: Any) -> tuple[Any, Any]:
        """Return the user's coordinates, and the log determinant of their derivative in z."""
        return self._through(z, [layer.from_base for layer in reversed(self.layers)])

    def _through(self, x, maps):
        """Apply maps one after the other, to blocks of points that stay in the cache."""
        xp = namespace(x, *jax.tree.leaves(self))

        def of_block(x):
            log_det = 0 * x[..., 0]
            for change in maps:
                x, more = change(x)
                log_det = log_det + more
            return x, log_det

        if xp is jnp or x.ndim != 2:
            return of_block(x)
        y, log_det = zip(*over_blocks(of_block, x), strict=True)
        return xp.concatenate(y), xp.concatenate(log_det)

    @property
    def is_bent(self) -> bool:
        """Whether it is fitted to draws, and more than linear."""
        return self.kind != WHITENED

    @property
    def num_leads(self) -> int:
        """Leads of the first layer, which are the first base coordinates; the others were freed of them."""
        first = self.layers[0]
        return first.num_leads if isinstance(first, Triangular) else 0

    @property
    def lead(self) -> int | None:
        """The first lead, as a coordinate of the user's; None where there is none."""
        first = self.layers[0]
        return int(first.order[0]) if isinstance(first, Triangular) else None

    def pull_back(self, z: Any, gradient: Any) -> Any:
        r"""Return the gradient in z of :math:`\log p(x(z))+\log|\partial x/\partial z|`, given that of log p in x."""
        inside = [z]
        for layer in reversed(self.layers[1:]):
            inside.append(layer.from_base(inside[-1])[0])
        for layer, points in zip(self.layers, reversed(inside), strict=True):
            gradient = layer.pull_back(points, gradient)
        return gradient


def fit_warp(kind: str, x: Points, weight: PerDraw, begun: Warp | None = None) -> Warp | None:
    """Fit a warp of a kind to weighted draws, None where there is none; a near one of its kind may begin it."""
    layers: list[Layer] = []
    if kind == "led":
        led = fit_triangular(x, weight)
        if led is None:
            return None
        layers.append(led)
    y = Warp(tuple(layers)).to_base(x)[0]
    near = begun.layers[0] if begun is not None and begun.kind == kind else None
    near = near if isinstance(near, Linear) else None
    linear = separate(y, weight, near) if kind == "independent" else decorrelate(y, weight)
    return Warp((*layers, linear, fit_marginal(linear.to_base(y)[0], weight)), kind)
