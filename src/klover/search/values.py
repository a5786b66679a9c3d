r"""Climbs without gradients: slopes and curvatures by differences of values.

A slope is the difference along each axis, d + 1 evaluations a point: in double precision the step is so small that its
top lies within 1e-4 of the true one. In single precision the step is longer, and the difference a central one (2d + 1).
A curvature takes d² + d: with
:math:`f_{\pm i}=f(x\pm h_ie_i)` and :math:`f_{\pm ij}=f(x\pm(h_ie_i+h_je_j))`,

.. math:: \partial_i\partial_jf\approx\frac{f_{ij}+f_{-ij}-f_i-f_{-i}-f_j-f_{-j}+2f_0}{2h_ih_j}.

The steps are about half a standard deviation, which is found by trying: so long a step does not mind values that are
rounded, or that a solver has left inexact.
"""

import numpy as np

from klover.base.shapes import Float
from klover.search.slopes import differences
from klover.targets.evaluator import Evaluator

FALL, FALLS = 0.125, (0.02, 1.0)
"""Nats that log p falls over half a standard deviation, and what counts as near enough to that."""
FINE = 1e-12
"""Relative spacing of numbers below which a difference to one side will do."""
MOST_TRIALS, LARGEST_CHANGE = 8, 30.0
"""Of steps, and the factor by which one may differ from the last."""


class ByValues:
    """The target as a function of points, from values alone; a point that has not moved is not evaluated again.

    Parameters
    ----------
    evaluator
        The target.
    scale
        Units of the coordinates, of which the steps of the slopes are a small part.
    """

    def __init__(self, evaluator: Evaluator, scale: Float[np.ndarray, " dim"]):
        self._values, dim = evaluator.values, evaluator.target.dim
        self._scale = np.asarray(scale, float)
        resolution = float(np.finfo(evaluator.target.start.dtype).eps)
        self._step, self._is_central = resolution**0.25 * self._scale, resolution > FINE
        self._last = np.zeros((0, dim)), np.zeros(0), np.zeros((0, dim))
        self._is_budgeted = evaluator.num_allowed is not None
        self._curved: tuple[bytes, Float[np.ndarray, "dim dim"]] = b"", np.zeros((dim, dim))

    def __call__(
        self, x: Float[np.ndarray, "start dim"]
    ) -> tuple[Float[np.ndarray, " start"], Float[np.ndarray, "start dim"]]:
        """Return values and slopes."""
        before, value, gradient = self._last
        is_new = np.ones(len(x), bool) if len(before) != len(x) else np.any(x != before, axis=1)
        value = np.zeros(len(x)) if is_new.all() else value.copy()
        gradient = np.zeros(x.shape) if is_new.all() else gradient.copy()
        if is_new.any():
            value[is_new], gradient[is_new] = differences(self._values, x[is_new], self._step, self._is_central)
        self._last = x, value, gradient
        return value, gradient

    def precision(self, x: Float[np.ndarray, " dim"]) -> Float[np.ndarray, "dim dim"]:
        """Return the negative Hessian at a point; where a budget counts, that of the last point is remembered."""
        if not self._is_budgeted or self._curved[0] != x.tobytes():
            self._curved = x.tobytes(), self._precision(x)
        return self._curved[1]

    @np.errstate(invalid="ignore", over="ignore")
    def _precision(self, x: Float[np.ndarray, " dim"]) -> Float[np.ndarray, "dim dim"]:
        dim, top = len(x), float(self._values(x[None])[0])
        step, pair = 0.1 * self._scale, np.zeros((2, dim))
        for _ in range(MOST_TRIALS):
            shift = np.concatenate([np.diag(step), -np.diag(step)])
            pair = self._values(x + shift).reshape(2, dim)
            fall = top - pair.mean(0)
            is_near = (np.abs(fall) > FALLS[0]) & (np.abs(fall) < FALLS[1])
            if is_near.all():
                break
            change = np.sqrt(FALL / np.maximum(np.abs(np.nan_to_num(fall)), 1e-12))
            step = step * np.where(is_near, 1.0, np.clip(change, 1 / LARGEST_CHANGE, LARGEST_CHANGE))
        first, second = np.triu_indices(dim, 1)
        along = np.zeros((len(first), dim))
        along[np.arange(len(first)), first], along[np.arange(len(first)), second] = step[first], step[second]
        crossed = self._values(np.concatenate([x + along, x - along])).reshape(2, -1).sum(0) if dim > 1 else np.zeros(0)
        sums = pair.sum(0)
        hessian = np.diag((sums - 2 * top) / step**2)
        mixed = (crossed - sums[first] - sums[second] + 2 * top) / (2 * step[first] * step[second])
        hessian[first, second] = hessian[second, first] = mixed
        return -np.nan_to_num(hessian, posinf=0.0, neginf=0.0)
