"""Tops of the target: L-BFGS from many starts at once, and the curvature at each top, on the host.

All starts move together, so a step is one call of the compiled gradient; no optimiser is imported or compiled.

How many starts? The share of starts that found a top which nobody else found estimates the share of basins not yet seen
(Good & Turing). The search goes on until that share is small, and there were 16 starts for each top: by the first rule
alone, the search missed one of ten modes in 20 dimensions in four runs of ten.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from klover.evaluation import Evaluator
from klover.typing import Float, Int

MEMORY = 8
NUM_STEPS = 150
TOLERANCE = 1e-6
SUFFICIENT_RISE = 1e-4
SMALLEST_COSINE = 1e-8
"""A change of the gradient that is less along the step than this tells nothing about the curvature."""
BACKTRACK = 0.3
GROWTH = 2.0
NUM_STARTS = 16
MAX_STARTS = 2048
MAX_MODES = 128
MAX_LARGE_MODES = 4
"""In many dimensions the curvature of each costs as much as a search."""
UNSEEN_SHARE = 0.05
STARTS_PER_MODE = 16
SMALLEST_EIGENVALUE = 1e-6
NUM_NEWTON_STEPS = 30
LARGEST_GAIN = 0.01
LENGTHS = 0.2 ** np.arange(8)
LARGEST_VARIANCE = 1e20
LARGEST_SCALE = 10.0
"""A direction may be this many times as wide as the search has come in it."""
MOST_FULL_DIM = 128
"""Beyond this dimension covariances are diagonal: matrices would take more draws than there are."""

ValueAndGradient = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@np.errstate(invalid="ignore", over="ignore")
def climb(
    function: ValueAndGradient, starts: Float[np.ndarray, "start dim"], num_steps: int = NUM_STEPS
) -> tuple[Float[np.ndarray, "start dim"], Float[np.ndarray, " start"]]:
    """Maximise from every start by L-BFGS with a backtracking line search (Nocedal 1980); return tops and values."""
    x = starts.copy()
    value, gradient = function(x)
    history: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    step, num_idle, is_done = np.ones(len(x)), np.zeros(len(x), int), ~np.isfinite(value)
    direction, scale = _bounded(gradient), np.zeros(len(x))
    for _ in range(num_steps):
        trial = x + np.where(is_done, 0.0, step)[:, None] * direction
        trial_value, trial_gradient = function(trial)
        rise = SUFFICIENT_RISE * step * np.vecdot(gradient, direction)
        taken = ~is_done & np.isfinite(trial_value) & (trial_value >= value + rise)
        change, fall = trial - x, gradient - trial_gradient
        curvature = np.vecdot(change, fall)
        square = np.vecdot(fall, fall)
        is_useful = taken & (curvature > SMALLEST_COSINE * np.sqrt(np.vecdot(change, change) * square))
        inverse = np.divide(1.0, curvature, out=np.zeros(len(x)), where=is_useful)
        change, fall = np.where(is_useful[:, None], change, 0.0), np.where(is_useful[:, None], fall, 0.0)
        history = [*history, (change, fall, inverse)][-MEMORY:]
        scale = np.divide(curvature, square, out=scale, where=is_useful)
        tolerance = TOLERANCE * (1 + 1e-3 * np.abs(value))
        is_idle = trial_value - value < tolerance
        num_idle = np.where(taken, np.where(is_idle, num_idle + 1, 0), num_idle)
        x, gradient = np.where(taken[:, None], trial, x), np.where(taken[:, None], trial_gradient, gradient)
        value = np.where(taken, trial_value, value)
        fresh = _lbfgs_direction(gradient, history, scale)
        fresh = np.where((np.vecdot(gradient, fresh) > 0)[:, None], fresh, _bounded(gradient))
        direction = np.where(taken[:, None], fresh, direction)
        # Where the density is not concave (the tails of a Student-t) there is no curvature to go by: stride out.
        step = np.where(taken, np.where(is_useful, 1.0, GROWTH * step), BACKTRACK * step)
        # A step that fails although it could gain next to nothing has met the rounding of the density.
        is_done |= (num_idle >= 2) | (~taken & (step * np.vecdot(gradient, direction) < tolerance))
        if is_done.all():
            break
    return x, value


def _bounded(gradient: np.ndarray) -> np.ndarray:
    return gradient / np.maximum(np.linalg.norm(gradient, axis=1, keepdims=True), 1.0)


def _lbfgs_direction(
    gradient: np.ndarray, history: list[tuple[np.ndarray, np.ndarray, np.ndarray]], scale: np.ndarray
) -> np.ndarray:
    """Two-loop recursion for all starts; a pair with inverse curvature zero is skipped, a scale of zero is unknown."""
    direction, amounts = gradient.copy(), []
    for change, fall, inverse in reversed(history):
        amounts.append(inverse * np.vecdot(change, direction))
        direction -= amounts[-1][:, None] * fall
    direction = np.where(scale[:, None] > 0, scale[:, None] * direction, _bounded(direction))
    for (change, fall, inverse), amount in zip(history, reversed(amounts), strict=True):
        direction += (amount - inverse * np.vecdot(fall, direction))[:, None] * change
    return direction


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
