r"""Linear warps of many coordinates: scales, and other lengths along a few directions.

With scales s, orthonormal columns U (of few directions) and lengths κ,

.. math:: \theta=c+s\circ\big(y+U\,\mathrm{diag}(\kappa-1)\,U^\top y\big),

so that a standard Normal y has the covariance
:math:`\mathrm{diag}(s)\,(I+U\,\mathrm{diag}(\kappa^2-1)\,U^\top)\,\mathrm{diag}(s)`. Every sum of a diagonal and a
low-rank matrix is of that form, whether its directions are wider than the rest (:math:`FF^\top` added) or narrower (a
regression with few rows). A point costs as many products as there are directions, the inverse has lengths 1/κ, and
the determinant is :math:`\prod_is_i\prod_j\kappa_j`.
"""

import numpy as np

from klover.base.arrays import namespace
from klover.base.shapes import AnyArray, AnyPoints, Float, PerPoint, Point, record


@record
class LowRankLinear:
    """What is subtracted, the scales, the directions as orthonormal columns, and the lengths along these."""

    centre: Point
    scale: Point
    directions: Float[AnyArray, "dim rank"]
    lengths: Float[AnyArray, " rank"]

    @classmethod
    def diagonal(cls, centre: Point, variance: Point) -> "LowRankLinear":
        """Return the warp without directions."""
        return cls(centre, np.sqrt(variance), np.zeros((len(centre), 0)), np.zeros(0))

    @property
    def rank(self) -> int:
        """Number of directions."""
        return self.lengths.shape[-1]

    def _log_det(self) -> Float[AnyArray, ""]:
        """Log determinant of the derivative of y."""
        xp = namespace(self.scale)
        return -(xp.log(self.scale).sum() + xp.log(self.lengths).sum())

    def to_base(self, x: AnyPoints) -> tuple[AnyPoints, PerPoint]:
        """Return y, and the log determinant of its derivative."""
        v = (x - self.centre) / self.scale
        y = v + (v @ self.directions * (1 / self.lengths - 1)) @ self.directions.T
        return y, 0 * x[..., 0] + self._log_det()

    def from_base(self, y: AnyPoints) -> tuple[AnyPoints, PerPoint]:
        """Return x, and the log determinant of its derivative."""
        v = y + (y @ self.directions * (self.lengths - 1)) @ self.directions.T
        return self.centre + self.scale * v, 0 * y[..., 0] - self._log_det()

    def pull_back(self, y: AnyPoints, gradient: AnyPoints) -> AnyPoints:
        """Return the gradient in y of a function of x and of the log determinant, given that in x."""
        slope = gradient * self.scale
        return slope + (slope @ self.directions * (self.lengths - 1)) @ self.directions.T

    def base_variance(self, variance: Point) -> Point:
        """Return the variances of y where coordinates of x are independent and have these."""
        own, directions = variance / self.scale**2, self.directions
        stretched = directions * (1 / self.lengths - 1)
        between = (stretched @ (directions.T @ (own[:, None] * directions)) * stretched).sum(1)
        return own + 2 * own * (stretched * directions).sum(1) + between

    def variance(self) -> Point:
        """Return the variances of x where y is a standard Normal."""
        return self.scale**2 * (1 + self.directions**2 @ (self.lengths**2 - 1))
