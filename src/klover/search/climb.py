"""L-BFGS from many starts at once."""

from collections.abc import Callable

import numpy as np

from klover.base.shapes import Float

MEMORY = 8


NUM_STEPS = 150


TOLERANCE = 1e-6


SUFFICIENT_RISE = 1e-4


SMALLEST_COSINE = 1e-8
"""A change of the gradient that is less along the step than this tells nothing about the curvature."""


BACKTRACK = 0.3


GROWTH = 2.0


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
