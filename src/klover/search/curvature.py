"""From the Hessian at a top to a covariance."""

import numpy as np

from klover.base.shapes import Float
from klover.targets.evaluator import Evaluator

SMALLEST_EIGENVALUE = 1e-6
LARGEST_CURVATURE = 1e100


LARGEST_SCALE = 10.0
"""A direction may be this many times as wide as the search has come in it."""


MOST_FULL_DIM = 128
"""Beyond this dimension covariances are diagonal: matrices would take more draws than there are."""


@np.errstate(over="ignore", invalid="ignore")
def precision(evaluator: Evaluator, x: Float[np.ndarray, " dim"]) -> Float[np.ndarray, "dim dim"]:
    """Negative Hessian at a point, by central differences of the gradient.

    The first steps are a guess; the second ones are a thousandth of each coordinate's own length.
    """
    dim = len(x)
    step = 1e-4 * (1 + np.abs(x))
    hessian = np.eye(dim)
    for _ in range(2):
        shift = np.diag(step)
        _, gradient = evaluator.values_and_gradients(np.concatenate([x + shift, x - shift]))
        hessian = (gradient[dim:] - gradient[:dim]) / (2 * step[:, None])
        # Far out in a tail the differences may overflow.
        hessian = np.clip(np.nan_to_num(hessian), -LARGEST_CURVATURE, LARGEST_CURVATURE)
        diagonal = np.abs(np.diagonal(hessian))
        better = np.where(diagonal > 0, 1e-3 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0)), step)
        if np.all((better < 30 * step) & (better > step / 30)):
            break
        step = better
    return 0.5 * (hessian + hessian.T)


def _scaled_eigen(
    hessian: Float[np.ndarray, "dim dim"], floor: Float[np.ndarray, " dim"] | float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scales that make the diagonal of a precision matrix one; its eigenvalues then, in absolute value; the vectors."""
    scale = np.sqrt(np.maximum(np.abs(np.diagonal(hessian)), floor))
    values, vectors = np.linalg.eigh(hessian / np.outer(scale, scale))
    return scale, np.maximum(np.abs(values), SMALLEST_EIGENVALUE), vectors


def covariance(
    hessian: Float[np.ndarray, "dim dim"], ceiling: Float[np.ndarray, " dim"]
) -> Float[np.ndarray, "dim dim"]:
    """Invert a precision matrix; eigenvalues in absolute value, and no direction wider than the ceiling (variances)."""
    scale, values, vectors = _scaled_eigen(hessian, 1 / ceiling)
    root = vectors / np.sqrt(values) / scale[:, None]
    wide = np.sqrt(ceiling)
    values, vectors = np.linalg.eigh((root @ root.T) / np.outer(wide, wide))
    root = wide[:, None] * vectors * np.sqrt(np.clip(values, 1e-14, 1.0))
    return root @ root.T


def local_covariance(
    evaluator: Evaluator, top: Float[np.ndarray, " dim"], ceiling: Float[np.ndarray, " dim"]
) -> Float[np.ndarray, "dim *dim"]:
    """Covariance that the curvature at a top suggests; in many dimensions the variances alone."""
    hessian = precision(evaluator, top)
    if len(top) <= MOST_FULL_DIM:
        return covariance(hessian, ceiling)
    return np.minimum(1 / np.maximum(np.abs(np.diagonal(hessian)), 1e-300), ceiling)


def widen(
    evaluator: Evaluator, top: Float[np.ndarray, " dim"], ceiling: Float[np.ndarray, " dim"]
) -> Float[np.ndarray, " dim"]:
    """Raise the ceiling where a search without a box has come far: on unscaled data the way is the only scale."""
    if evaluator.target.box is not None:
        return ceiling
    return np.maximum(ceiling, (LARGEST_SCALE * (top - np.asarray(evaluator.target.start, float))) ** 2)


def log_volume(evaluator: Evaluator, top: Float[np.ndarray, " dim"], ceiling: Float[np.ndarray, " dim"]) -> float:
    """Log mass around a top over the density there, by Laplace; unlike a covariance's determinant, without a floor."""
    hessian = precision(evaluator, top)
    if len(top) > MOST_FULL_DIM:
        hessian = np.diag(np.diagonal(hessian))
    scale, values, _ = _scaled_eigen(hessian, 1 / widen(evaluator, top, ceiling))
    return float(0.5 * np.sum(np.log(2 * np.pi / values)) - np.sum(np.log(scale)))


def log_determinant(shape: Float[np.ndarray, "dim *dim"]) -> float:
    """Log determinant of a covariance matrix, or of variances."""
    return float(np.log(shape).sum() if shape.ndim == 1 else np.linalg.slogdet(shape)[1])
