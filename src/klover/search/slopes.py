"""Values and gradients of the target for searches: its own gradients, or differences of values where it has none."""

import numpy as np

from klover.base.linalg import times
from klover.base.shapes import Float, Point
from klover.search.climb import ValueAndGradient
from klover.targets.evaluator import Evaluator

STEP = 1e-3
"""Of the differences, in units of the coordinates that are searched in: a thousandth of a standard deviation."""


def slopes(evaluator: Evaluator, centre: Point, root: Float[np.ndarray, "dim *dim"]) -> ValueAndGradient:
    r"""Return values and gradients as a function of whitened coordinates z, where :math:`\theta=c+Rz`.

    What a mixture knows of scales and correlations saves most of the steps of a climb, and says how long differences
    should be. A point that has not moved since the last call is not evaluated again: a climb that has ended costs
    nothing more. Without gradients a slope is the central difference along each axis, 2d + 1 evaluations a point.
    """
    last = np.zeros((0, len(root))), np.zeros(0), np.zeros((0, len(root)))

    def function(z):
        nonlocal last
        moved = np.ones(len(z), bool) if len(last[0]) != len(z) else np.any(z != last[0], axis=1)
        value, gradient = (np.zeros(len(z)), np.zeros(z.shape)) if moved.all() else (last[1].copy(), last[2].copy())
        if moved.any():
            value[moved], gradient[moved] = evaluate(z[moved])
        last = z, value, gradient
        return value, gradient

    def evaluate(z):
        if evaluator.has_gradient:
            value, gradient = evaluator.values_and_gradients(np.asarray(centre) + times(root, z))
            return value, times(root.T, gradient)
        return _differences(evaluator, z, centre, root)

    return function


@np.errstate(invalid="ignore")
def _differences(
    evaluator: Evaluator,
    z: Float[np.ndarray, "start dim"],
    centre: Point,
    root: Float[np.ndarray, "dim *dim"],
) -> tuple[Float[np.ndarray, " start"], Float[np.ndarray, "start dim"]]:
    num, dim = z.shape
    shift = STEP * np.concatenate([np.zeros((1, dim)), np.eye(dim), -np.eye(dim)])
    points = np.asarray(centre) + times(root, z[:, None] + shift)
    values = evaluator.values(points.reshape(-1, dim)).reshape(num, 2 * dim + 1)
    gradient = (values[:, 1 : dim + 1] - values[:, dim + 1 :]) / (2 * STEP)
    return values[:, 0], np.where(np.isfinite(gradient), gradient, 0.0)
