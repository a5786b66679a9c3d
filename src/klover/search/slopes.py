"""Values and gradients of the target for searches: its own gradients, or differences of values where it has none."""

from collections.abc import Callable

import numpy as np

from klover.base.linalg import times
from klover.base.shapes import Float, Point
from klover.search.climb import ValueAndGradient
from klover.targets.evaluator import Evaluator

STEP = 1e-3
"""Of the differences, in units of the coordinates that are searched in: a thousandth of a standard deviation."""


def slopes(
    evaluator: Evaluator, centre: Point, root: Float[np.ndarray, "dim *dim"], is_central: bool = True
) -> ValueAndGradient:
    r"""Return values and gradients as a function of whitened coordinates z, where :math:`\theta=c+Rz`.

    What a mixture knows of scales and correlations saves most of the steps of a climb, and says how long differences
    should be. A point that has not moved since the last call is not evaluated again: a climb that has ended costs
    nothing more. Without gradients a slope is the difference along each axis: a central one, 2d + 1 evaluations a
    point, as climbs need near a top, or one to one side, d + 1, which will do for a look.
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
        step = np.full(z.shape[1], STEP)
        return differences(lambda z: evaluator.values(np.asarray(centre) + times(root, z)), z, step, is_central)

    return function


@np.errstate(invalid="ignore")
def differences(
    values: Callable[[Float[np.ndarray, "point dim"]], Float[np.ndarray, " point"]],
    x: Float[np.ndarray, "start dim"],
    step: Float[np.ndarray, " dim"],
    is_central: bool,
) -> tuple[Float[np.ndarray, " start"], Float[np.ndarray, "start dim"]]:
    """Return values and their differences along each axis, by steps to both sides or to one; zero over an edge."""
    num, dim = x.shape
    ahead = np.diag(step)
    shift = np.concatenate([np.zeros((1, dim)), ahead, *([-ahead] if is_central else [])])
    value = values((x[:, None] + shift).reshape(-1, dim)).reshape(num, len(shift))
    behind = value[:, dim + 1 :] if is_central else value[:, :1]
    slope = (value[:, 1 : dim + 1] - behind) / ((2 if is_central else 1) * step)
    return value[:, 0], np.where(np.isfinite(slope), slope, 0.0)
