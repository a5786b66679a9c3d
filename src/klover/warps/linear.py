r"""Linear warps: :math:`y=A(\theta-c)`, which standardises, decorrelates, or finds independent coordinates.

Independent coordinates are found by a weighted FastICA (Hyvärinen 1999): of whitened draws v, every row w of a rotation
is moved to :math:`\mathrm E[v\,\psi(w^\top v)]-\mathrm E[\psi'(w^\top v)]\,w`, all rows then made orthonormal. The
function :math:`\psi` is each row's own estimate of the score of its marginal, the best one in a span of four
functions: :math:`\mathrm E[\varphi\varphi^\top]\beta=\mathrm E[\varphi']` (Pham 1996), so that skewness counts as well
as long tails.
"""

import numpy as np

from klover.base.linalg import cholesky, moments
from klover.base.shapes import AnyArray, AnyPoints, Float, PerDraw, PerPoint, Point, Points, record

NUM_STEPS, FEW_STEPS = 20, 5
TOLERANCE = 1e-4
LIMIT = 6.0
"""Standard deviations at which draws are cut while a rotation is sought."""


@record
class Linear:
    """A matrix with its inverse, and what is subtracted before."""

    centre: Point
    matrix: Float[AnyArray, "dim dim"]
    inverse: Float[AnyArray, "dim dim"]
    log_det: Float[AnyArray, ""]

    @classmethod
    def of(cls, centre: Point, matrix: Float[np.ndarray, "dim dim"]) -> "Linear":
        """Return the warp of a matrix."""
        return cls(centre, matrix, np.linalg.inv(matrix), np.asarray(np.linalg.slogdet(matrix)[1]))

    def to_base(self, x: AnyPoints) -> tuple[AnyPoints, PerPoint]:
        """Return y, and the log determinant of its derivative."""
        return (x - self.centre) @ self.matrix.T, 0 * x[..., 0] + self.log_det

    def from_base(self, y: AnyPoints) -> tuple[AnyPoints, PerPoint]:
        """Return x, and the log determinant of its derivative."""
        return y @ self.inverse.T + self.centre, 0 * y[..., 0] - self.log_det

    def pull_back(self, y: AnyPoints, gradient: AnyPoints) -> AnyPoints:
        """Return the gradient in y of a function of x and of the log determinant, given that in x."""
        return gradient @ self.inverse

    def base_variance(self, variance: Point) -> Point:
        """Return the variances of y where coordinates of x are independent and have these."""
        return self.matrix**2 @ variance


def decorrelate(x: Points, weight: PerDraw) -> Linear:
    """Whiten by the triangular root of the covariance: each coordinate is freed of those before it."""
    mean, covariance = moments(x, weight)
    return Linear.of(mean, np.linalg.inv(cholesky(covariance)))


def separate(x: Points, weight: PerDraw, begun: Linear | None = None) -> Linear:
    """Whiten, and rotate to coordinates that are as independent as can be; from a warp that is near, in few steps."""
    mean, covariance = moments(x, weight)
    values, vectors = np.linalg.eigh(covariance)
    whiten = (vectors / np.sqrt(np.maximum(values, 1e-12 * values[-1]))) @ vectors.T
    v = np.clip((x - mean) @ whiten.T, -LIMIT, LIMIT)
    rotation = np.eye(x.shape[1]) if begun is None else _orthonormal(begun.matrix @ covariance @ whiten)
    for _ in range(NUM_STEPS if begun is None else FEW_STEPS):
        u = v @ rotation.T
        score, slope = _scores(u, weight)
        moved = _orthonormal((weight[:, None] * score).T @ v - slope[:, None] * rotation)
        change = 1 - np.abs((moved * rotation).sum(1)).min()
        rotation = moved
        if change < TOLERANCE:
            break
    return Linear.of(mean, rotation @ whiten)


def _scores(u: Points, weight: PerDraw) -> tuple[Points, Point]:
    """Estimate the score of each column's marginal, and its mean slope."""
    flat, size = np.tanh(u), np.abs(u)
    bump = np.exp(-0.5 * u**2)
    functions = u, flat, u * size / LIMIT, u**2 / LIMIT - 1 / LIMIT, bump
    slopes = np.ones_like(u), 1 - flat**2, 2 * size / LIMIT, 2 * u / LIMIT, -u * bump
    mean_slopes = np.stack([weight @ slope for slope in slopes], -1)
    products = np.empty((u.shape[1], len(functions), len(functions)))
    for i, one in enumerate(functions):
        weighted = weight[:, None] * one
        for j, two in enumerate(functions[: i + 1]):
            products[:, i, j] = products[:, j, i] = np.einsum("sj,sj->j", weighted, two)
    coefficients = np.linalg.solve(products + 1e-6 * np.eye(len(functions)), mean_slopes[..., None])[..., 0]
    score = np.sum([function * each for function, each in zip(functions, coefficients.T, strict=True)], axis=0)
    return score, (mean_slopes * coefficients).sum(-1)


def _orthonormal(rows: Float[AnyArray, "dim dim"]) -> Float[np.ndarray, "dim dim"]:
    """Return the nearest matrix with orthonormal rows."""
    left, _, right = np.linalg.svd(rows)
    return left @ right
