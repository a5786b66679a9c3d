"""Tops of the target: L-BFGS from many starts at once, and the curvature at each top, on the host.

All starts move together, so a step is one call of the compiled gradient; no optimiser is imported or compiled.

How many starts? The share of starts that found a top which nobody else found estimates the share of basins not yet seen
(Good & Turing). The search goes on until that share is small, and there were 16 starts for each top: by the first rule
alone, the search missed one of ten modes in 20 dimensions in four runs of ten.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from klover.base.shapes import Float, Int
from klover.search.climb import climb
from klover.search.curvature import MOST_FULL_DIM, _scaled_eigen, local_covariance, precision, widen
from klover.targets.evaluator import Evaluator

NUM_STARTS = 16
MAX_STARTS = 2048
MAX_MODES = 128
MAX_LARGE_MODES = 4
"""In many dimensions the curvature of each costs as much as a search."""
UNSEEN_SHARE = 0.05
STARTS_PER_MODE = 16
NUM_NEWTON_STEPS = 30
LARGEST_GAIN = 0.01
LENGTHS = 0.2 ** np.arange(8)
LARGEST_VARIANCE = 1e20


@np.errstate(over="ignore", invalid="ignore")
def settle(evaluator: Evaluator, x: Float[np.ndarray, " dim"], value: float) -> tuple[Float[np.ndarray, " dim"], float]:
    """Take Newton steps from where a climb has ended, until the next one could gain next to nothing.

    A climb ends where a step gains little. On unscaled data that can be far below the top, and Newton's method, which
    does not depend on scales, goes on.
    """
    if len(x) > MOST_FULL_DIM:
        return x, value
    _, gradient = (leaf[0] for leaf in evaluator.values_and_gradients(x[None]))
    for _ in range(NUM_NEWTON_STEPS):
        scale, values, vectors = _scaled_eigen(precision(evaluator, x), 1 / LARGEST_VARIANCE)
        step = vectors @ (vectors.T @ (gradient / scale) / values) / scale
        if not 0.5 * gradient @ step > LARGEST_GAIN:
            break
        trials = x + LENGTHS[:, None] * step
        values, gradients = evaluator.values_and_gradients(trials)
        best = int(np.argmax(values))
        if not values[best] > value:
            break
        x, value, gradient = trials[best], float(values[best]), gradients[best]
    return x, value


@dataclasses.dataclass(frozen=True)
class Modes:
    """Distinct tops, the covariance that the curvature suggests at each, and how many starts ended there."""

    x: Float[np.ndarray, "mode dim"]
    log_p: Float[np.ndarray, " mode"]
    covariance: Float[np.ndarray, "mode dim *dim"]
    count: Int[np.ndarray, " mode"]

    @classmethod
    def none(cls, dim: int) -> "Modes":
        """Return no modes."""
        shape = (0, dim) if dim > MOST_FULL_DIM else (0, dim, dim)
        return cls(np.zeros((0, dim)), np.zeros(0), np.zeros(shape), np.zeros(0, int))

    @property
    def is_settled(self) -> bool:
        """Whether few starts ended on a top of their own, and there were many for each top."""
        num = self.count.sum()
        return bool((self.count == 1).sum() <= UNSEEN_SHARE * num and num >= STARTS_PER_MODE * len(self.count))

    def index(self, x: Float[np.ndarray, " dim"], log_p: float) -> int | None:
        """Find the mode that a top belongs to, by its distance in the metric of the mode and by its height."""
        for which, (delta, shape) in enumerate(zip(x - self.x, self.covariance, strict=True)):
            scaled = delta / shape if shape.ndim == 1 else np.linalg.solve(shape, delta)
            tolerance = 0.1 * len(x)
            if delta @ scaled < 1 + tolerance and abs(log_p - self.log_p[which]) < 0.5 + tolerance:
                return which
        return None

    def add(self, x: Float[np.ndarray, " dim"], log_p: float, shape: Float[np.ndarray, "dim *dim"]) -> "Modes":
        """Return the modes with one more, which one start has found."""
        return Modes(
            np.concatenate([self.x, x[None]]),
            np.append(self.log_p, log_p),
            np.concatenate([self.covariance, shape[None]]),
            np.append(self.count, 1),
        )


def find_modes(
    evaluator: Evaluator, draw_starts: Callable[[int], np.ndarray], ceiling: Float[np.ndarray, " dim"]
) -> Modes:
    """Climb from batches of starts until few of them find a top that no other start has found."""
    modes = Modes.none(len(ceiling))
    most = MAX_MODES if len(ceiling) <= MOST_FULL_DIM else MAX_LARGE_MODES
    while True:
        tops, values = climb(evaluator.values_and_gradients, draw_starts(NUM_STARTS))
        for start in np.argsort(-values):
            if not np.isfinite(values[start]):
                continue
            top, value = tops[start], float(values[start])
            known = modes.index(top, value)
            if known is None:
                top, value = settle(evaluator, top, value)
                known = modes.index(top, value)
            if known is not None:
                modes.count[known] += 1
            elif len(modes.count) < most:
                modes = modes.add(top, value, local_covariance(evaluator, top, widen(evaluator, top, ceiling)))
        if modes.is_settled or modes.count.sum() >= MAX_STARTS or len(modes.count) == most:
            return modes
