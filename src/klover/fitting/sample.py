"""Weighted draws: what a mixture is fitted to."""

import dataclasses

import jax
import numpy as np

from klover.base.shapes import AnyArray, Float, record
from klover.importance.ratios import kish
from klover.warps.warp import Warp


@record
class Sample:
    """Points with weights that sum to one.

    ``log_p`` is the log density of the target there, where it is needed: splits look at the residual. ``background`` is
    that of what is held fixed while components are fitted; None if nothing is.
    """

    x: Float[AnyArray, "... draw dim"]
    weight: Float[AnyArray, "... draw"]
    log_p: Float[AnyArray, "... draw"] | None = dataclasses.field(default=None, kw_only=True)
    background: Float[AnyArray, "... draw"] | None = dataclasses.field(default=None, kw_only=True)

    def __len__(self) -> int:
        """Return the number of draws."""
        return len(self.weight)

    @property
    def ess(self) -> float:
        """Effective number of draws."""
        return float(kish(self.weight))

    def where(self, chosen: np.ndarray) -> "Sample":
        """Return some of the draws, weights renormalised."""
        part = jax.tree.map(lambda leaf: leaf[chosen], self)
        return dataclasses.replace(part, weight=part.weight / part.weight.sum())

    def in_base(self, warp: Warp | None) -> "Sample":
        """Return the draws, and their log densities, in the coordinates behind a warp."""
        if warp is None:
            return self
        z, log_det = warp.to_base(self.x)
        return dataclasses.replace(self, x=z, log_p=None if self.log_p is None else self.log_p - log_det)

    def from_base(self, warp: Warp | None) -> "Sample":
        """Return draws in the coordinates behind a warp in those of the user."""
        if warp is None:
            return self
        x, log_det = warp.from_base(self.x)
        return dataclasses.replace(self, x=x, log_p=None if self.log_p is None else self.log_p - log_det)

    def join(self, other: "Sample", share: float) -> "Sample":
        """Put another sample beside this one, with a share of the weight."""
        both = jax.tree.map(lambda one, two: np.concatenate([one, two]), self, other)
        return dataclasses.replace(both, weight=np.concatenate([(1 - share) * self.weight, share * other.weight]))


def equal(x: Float[np.ndarray, "draw dim"], log_p: Float[np.ndarray, " draw"]) -> Sample:
    """Return equally weighted draws."""
    return Sample(x, np.full(len(x), 1 / len(x)), log_p=log_p)
