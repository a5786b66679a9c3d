r"""From the curvature of the log density at a top to a covariance.

The precision matrix is the negative Hessian. Its eigenvalues are taken in absolute value, after the diagonal has been
scaled to one, so that neither units nor saddle points matter.
"""

import numpy as np

from klover.base.arrays import namespace
from klover.base.shapes import AnyArray, Float
from klover.search.climb import ValueAndGradient
from klover.search.values import ByValues
from klover.tuning import Search

SMALLEST_EIGENVALUE = 1e-6
FIRST_STEP, STEP = 1e-4, 1e-3
"""Steps of the differences: first a guess, relative to the coordinate; then in units of its own length."""
LARGEST_CURVATURE = 1e100
BLOCK = 256
"""Axes whose differences are taken at once where no matrix is kept."""


@np.errstate(over="ignore", invalid="ignore")
def precision(function: ValueAndGradient, x: Float[np.ndarray, " dim"]) -> Float[np.ndarray, "dim dim"]:
    """Negative Hessian at a point, by central differences of the gradient; without gradients, of the values."""
    if isinstance(function, ByValues):
        return function.precision(x)
    dim = len(x)
    step = FIRST_STEP * (1 + np.abs(x))
    hessian = np.eye(dim)
    for _ in range(2):
        shift = np.diag(step)
        _, gradient = function(np.concatenate([x + shift, x - shift]))
        hessian = (gradient[dim:] - gradient[:dim]) / (2 * step[:, None])
        # Far out in a tail the differences may overflow.
        hessian = np.clip(np.nan_to_num(hessian), -LARGEST_CURVATURE, LARGEST_CURVATURE)
        diagonal = np.abs(np.diagonal(hessian))
        better = np.where(diagonal > 0, STEP / np.sqrt(np.where(diagonal > 0, diagonal, 1.0)), step)
        if np.all((better < 30 * step) & (better > step / 30)):
            break
        step = better
    return 0.5 * (hessian + hessian.T)


@np.errstate(over="ignore", invalid="ignore")
def diagonal_precision(function: ValueAndGradient, x: Float[np.ndarray, " dim"]) -> Float[np.ndarray, " dim"]:
    """Diagonal of the negative Hessian at a point: the same differences, of which no matrix is kept."""
    if isinstance(function, ByValues):
        return np.diagonal(function.precision(x))
    step = FIRST_STEP * (1 + np.abs(x))
    diagonal = np.ones(len(x))
    for _ in range(2):
        parts = [_falls(function, x, step, axes) for axes in np.array_split(np.arange(len(x)), -(-len(x) // BLOCK))]
        diagonal = np.clip(np.nan_to_num(np.concatenate(parts)), -LARGEST_CURVATURE, LARGEST_CURVATURE)
        size = np.abs(diagonal)
        better = np.where(size > 0, STEP / np.sqrt(np.where(size > 0, size, 1.0)), step)
        if np.all((better < 30 * step) & (better > step / 30)):
            break
        step = better
    return diagonal


def _falls(
    function: ValueAndGradient, x: Float[np.ndarray, " dim"], step: Float[np.ndarray, " dim"], axes: np.ndarray
) -> Float[np.ndarray, " some"]:
    """By how much the slope along some axes falls, for a unit of each."""
    shift = np.zeros((len(axes), len(x)))
    shift[np.arange(len(axes)), axes] = step[axes]
    _, gradient = function(np.concatenate([x + shift, x - shift]))
    own = gradient[np.arange(2 * len(axes)), np.tile(axes, 2)]
    return (own[len(axes) :] - own[: len(axes)]) / (2 * step[axes])


def scaled_eigen(
    precision: Float[AnyArray, "dim dim"], smallest: Float[AnyArray, " dim"] | float
) -> tuple[Float[AnyArray, " dim"], Float[AnyArray, " dim"], Float[AnyArray, "dim dim"]]:
    """Scales that make the diagonal one; then the eigenvalues, in absolute value and above a floor; their vectors."""
    xp = namespace(precision)
    precision = xp.where(xp.isfinite(precision), precision, 0.0)
    scale = xp.sqrt(xp.maximum(xp.abs(xp.diagonal(precision)), smallest))
    values, vectors = xp.linalg.eigh(precision / (scale[:, None] * scale))
    return scale, xp.maximum(xp.abs(values), SMALLEST_EIGENVALUE), vectors


def covariance(
    precision: Float[AnyArray, "dim dim"], ceiling: Float[AnyArray, " dim"] | None = None
) -> Float[AnyArray, "dim dim"]:
    """Invert a precision matrix; no direction may be wider than the ceiling (variances), if there is one."""
    xp = namespace(precision)
    tiny = float(xp.finfo(precision.dtype).tiny) ** 0.25
    scale, values, vectors = scaled_eigen(precision, tiny if ceiling is None else 1 / ceiling)
    root = vectors / xp.sqrt(values) / scale[:, None]
    if ceiling is None:
        return root @ root.T
    wide = xp.sqrt(ceiling)
    values, vectors = xp.linalg.eigh((root @ root.T) / (wide[:, None] * wide))
    root = wide[:, None] * vectors * xp.sqrt(xp.clip(values, 1e-14, 1.0))
    return root @ root.T


def local_covariance(
    function: ValueAndGradient, top: Float[np.ndarray, " dim"], ceiling: Float[np.ndarray, " dim"], tuning: Search
) -> Float[np.ndarray, "dim *dim"]:
    """Covariance that the curvature at a top suggests; in many dimensions the variances alone."""
    if len(top) <= tuning.full_dim:
        return np.asarray(covariance(precision(function, top), ceiling))
    return np.minimum(1 / np.maximum(np.abs(diagonal_precision(function, top)), 1e-300), ceiling)


def log_volume(
    function: ValueAndGradient, top: Float[np.ndarray, " dim"], ceiling: Float[np.ndarray, " dim"], tuning: Search
) -> float:
    """Log mass around a top over the density there, by Laplace; unlike a covariance's determinant, without a floor."""
    # The ceiling's own precision is added, which a curved direction does not feel, and a flat one is bounded by.
    if len(top) > tuning.full_dim:
        found = np.maximum(np.abs(diagonal_precision(function, top) + 1 / ceiling), 1 / ceiling)
        return float(0.5 * np.sum(np.log(2 * np.pi / found)))
    scale, values, _ = scaled_eigen(precision(function, top) + np.diag(1 / ceiling), 1 / ceiling)
    return float(0.5 * np.sum(np.log(2 * np.pi / values)) - np.sum(np.log(scale)))


def log_determinant(shape: Float[np.ndarray, "dim *dim"]) -> float:
    """Log determinant of a covariance matrix, or of variances."""
    return float(np.log(shape).sum() if shape.ndim == 1 else np.linalg.slogdet(shape)[1])
