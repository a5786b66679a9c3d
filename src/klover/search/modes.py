"""The distinct tops of the target, and when enough starts were climbed.

The share of starts that found a top which nobody else found estimates the share of basins not yet seen (Good & Turing).
The search goes on until that share is small, and there were 16 starts for each top: by the first rule alone, it missed
one of ten modes in 20 dimensions in four runs of ten.
"""

import dataclasses

import numpy as np

from klover.base.shapes import Float, Int
from klover.search.climb import ValueAndGradient, climb
from klover.search.curvature import local_covariance, precision, scaled_eigen
from klover.search.region import Region
from klover.targets.budget import BudgetExhausted
from klover.targets.evaluator import Evaluator
from klover.tuning import Search

MOST_LARGE_MODES = 4
"""In many dimensions the curvature of each costs as much as a search."""
ENDLESS_BATCHES, ENDLESS_SHARE = 4, 0.8
"""Batches of starts, and the share of tops that one start alone has found; of 128 true modes it would be 0.6."""
MOST_NEWTON_STEPS, FEW_NEWTON_STEPS = 30, 6
"""In many dimensions each takes two gradients for every coordinate, and nothing is asked but whether there is a top."""
NEWTON_GAIN = 0.01
"""A Newton step that promises less, in nats, is not taken."""
LONG, SHORT = 20, 10
"""Steps of a climb; in whitened coordinates a concave log density takes ten."""
REST_SHARE = 0.5
"""Of what a budget allows after the first climb of a thrifty search, for all others."""
RISING_TOPS, RISING_GAIN = 4, 1.0
"""Tops of a neck that are enough of them, and nats that the last Newton step to each has gained."""
RISING_SHARE = 0.75
"""Of the tops so far: where several scales narrow, a climb may rest between two necks."""
NEGLIGIBLE = 10.0
"""Nats for each dimension, and for five more, below the highest top: lower ones hold nothing, were they e¹⁰ as wide."""
NEGLIGIBLE_THRIFTY = 2.0
"""The same where evaluations are expensive, were they e² as wide."""
LENGTHS = 0.2 ** np.arange(8)
SMALLEST_PRECISION = 1e-20


Whitening = tuple[Float[np.ndarray, " dim"], Float[np.ndarray, "dim dim"]]
"""A centre c and a root R of coordinates z, where x = c + Rz."""


@dataclasses.dataclass(frozen=True)
class Modes:
    """Distinct tops, the covariance that the curvature suggests at each, and how many starts ended there.

    ``num_rising`` of them are none: neither a climb nor Newton's method came to an end.
    """

    x: Float[np.ndarray, "mode dim"]
    log_p: Float[np.ndarray, " mode"]
    covariance: Float[np.ndarray, "mode dim *dim"]
    count: Int[np.ndarray, " mode"]
    num_rising: int = 0

    @classmethod
    def none(cls, dim: int, is_full: bool) -> "Modes":
        """Return no modes."""
        return cls(np.zeros((0, dim)), np.zeros(0), np.zeros((0, dim, dim) if is_full else (0, dim)), np.zeros(0, int))

    def is_settled(self, tuning: Search) -> bool:
        """Whether few starts ended on a top of their own, and there were many for each top."""
        num = self.count.sum()
        is_seen = (self.count == 1).sum() <= tuning.unseen_share * num
        return bool(is_seen and num >= tuning.num_starts * len(self.count))

    def is_endless(self, tuning: Search) -> bool:
        """Whether nearly every start ends on a top of its own: a ridge or a neck, which has no tops to find."""
        num = self.count.sum()
        return bool(num >= ENDLESS_BATCHES * tuning.num_starts and (self.count == 1).sum() > ENDLESS_SHARE * num)

    @property
    def is_neck(self) -> bool:
        """Whether nearly all of the first tops are different, and the density rises beyond them."""
        return bool(self.num_rising >= RISING_TOPS and self.num_rising >= RISING_SHARE * self.count.sum())

    def index(self, x: Float[np.ndarray, " dim"], log_p: float) -> int | None:
        """Find the mode that a top belongs to, by its distance in the metric of the mode and by its height."""
        # A climb ends within a fraction of a nat of the top, the further from it the more dimensions there are.
        slack = 0.1 * len(x)
        for which, (delta, shape) in enumerate(zip(x - self.x, self.covariance, strict=True)):
            scaled = delta / shape if shape.ndim == 1 else np.linalg.solve(shape, delta)
            if delta @ scaled < 1 + slack and abs(log_p - self.log_p[which]) < 0.5 + slack:
                return which
        return None

    def add(
        self, x: Float[np.ndarray, " dim"], log_p: float, shape: Float[np.ndarray, "dim *dim"], is_rising: bool = False
    ) -> "Modes":
        """Return the modes with one more, which one start has found."""
        return Modes(
            np.concatenate([self.x, x[None]]),
            np.append(self.log_p, log_p),
            np.concatenate([self.covariance, shape[None]]),
            np.append(self.count, 1),
            self.num_rising + is_rising,
        )

    def found_again(self, which: int) -> "Modes":
        """Return the modes, one of which one more start has found."""
        return dataclasses.replace(self, count=self.count + (np.arange(len(self.count)) == which))


def find_modes(
    generator: np.random.Generator,
    evaluator: Evaluator,
    region: Region,
    tuning: Search,
    function: ValueAndGradient | None = None,
    known: Modes | None = None,
) -> Modes:
    """Climb from batches of starts until few of them find a top that no other start has found.

    Modes that are known already need no curvature, and are counted as the others.

    The function gives values and slopes of the target, if they are not to be those of the evaluator: where evaluations
    are expensive. Then the first start goes ahead, and the others climb in coordinates that its top has whitened; where
    they end on several tops, or take many steps, the target is no simple one, and there are as many starts as usual.
    """
    is_thrifty, function = function is not None, function or evaluator.values_and_gradients
    dim, is_long = evaluator.target.dim, False
    cost = (1 if evaluator.has_gradient else dim + 1) if is_thrifty else 0
    is_full = dim <= tuning.full_dim
    modes, most = known or Modes.none(dim, is_full), tuning.most_modes if is_full else MOST_LARGE_MODES
    try:
        for _ in range(tuning.most_modes):
            starts = region.draw_starts(generator, tuning.num_starts)
            if is_thrifty and len(modes.count) == 0:
                tops, values = climb_target(evaluator, starts[:1], function)
                if np.isfinite(values[0]):
                    modes = _with_top(function, region, modes, tops[0], float(values[0]), most, tuning)
                    starts = starts[1:]
            num = _num_affordable(evaluator, cost, len(starts))
            starts, is_cut = starts[:num], num < len(starts)
            if num == 0:
                break
            spent = evaluator.num_evaluations
            is_whitened = is_thrifty and not is_long and len(modes.count) > 0
            whitening = (modes.x[0], root_of(modes.covariance[0])) if is_whitened else None
            tops, values = climb_target(evaluator, starts, function, whitening)
            modes = _with_tops(function, region, modes, tops, values, most, tuning, is_thrifty)
            is_long = is_thrifty and evaluator.num_evaluations - spent > LONG * len(starts) * cost
            if is_thrifty and (len(modes.count) > 1 or is_long):
                tuning = dataclasses.replace(tuning, num_starts=max(tuning.num_starts, Search().num_starts))
            is_done = modes.is_neck or modes.is_settled(tuning) or modes.is_endless(tuning)
            if is_done or is_cut or len(modes.count) == most:
                break
    except BudgetExhausted:
        # A mode that is known is worth more than all that a rest without one could find.
        if len(modes.count) == 0:
            raise
    return modes


def _num_affordable(evaluator: Evaluator, cost: int, wanted: int) -> int:
    """Return how many starts can be climbed from, where each is expensive: a batch that is cut off finds nothing."""
    allowed = evaluator.num_allowed
    return wanted if cost == 0 or allowed is None else min(wanted, int(REST_SHARE * allowed) // (SHORT * cost))


def _with_tops(
    function: ValueAndGradient,
    region: Region,
    modes: Modes,
    tops: Float[np.ndarray, "start dim"],
    values: Float[np.ndarray, " start"],
    most: int,
    tuning: Search,
    is_thrifty: bool,
) -> Modes:
    """Count tops with their modes, the highest first, until they turn out to be a neck."""
    # To a digit that rounding does not reach: a constant in log p must not choose who stands for a mode.
    heights = np.round(values - values.max(), 6) if np.isfinite(values).any() else values
    lowest = max([*values, *modes.log_p]) - (NEGLIGIBLE_THRIFTY if is_thrifty else NEGLIGIBLE) * (tops.shape[1] + 5)
    for place in np.argsort(-heights, kind="stable"):
        if values[place] > lowest:
            modes = _with_top(function, region, modes, tops[place], float(values[place]), most, tuning)
        if modes.is_neck:
            break
    return modes


def climb_target(
    evaluator: Evaluator,
    starts: Float[np.ndarray, "start dim"],
    function: ValueAndGradient | None = None,
    whitening: Whitening | None = None,
) -> tuple[Float[np.ndarray, "start dim"], Float[np.ndarray, " start"]]:
    """Climb the target itself, in whitened coordinates if there are such; what is not finite stays below everything."""
    function = function or evaluator.values_and_gradients
    if whitening is None:
        tops, values = climb(function, starts, resolution=resolution_of(evaluator))
        return np.asarray(tops), np.where(np.isfinite(values), values, -np.inf)
    centre, root = whitening

    def whitened(z):
        value, gradient = function(centre + z @ root.T)
        return value, gradient @ root

    tops, values = climb(whitened, np.linalg.solve(root, (starts - centre).T).T, resolution=resolution_of(evaluator))
    return centre + np.asarray(tops) @ root.T, np.where(np.isfinite(values), values, -np.inf)


def end_in_neck(
    evaluator: Evaluator, tops: Float[np.ndarray, "start dim"], values: Float[np.ndarray, " start"]
) -> bool:
    """Whether climbs have ended in a neck: by Newton's method from the highest ends, until too many of them rest."""
    num = num_resting = 0
    for place in np.argsort(-values)[: min(RISING_TOPS, int(np.isfinite(values).sum()))]:
        _, _, is_rising = settle(evaluator.values_and_gradients, tops[place], float(values[place]), FEW_NEWTON_STEPS)
        num, num_resting = num + 1, num_resting + (not is_rising)
        if num_resting > (1 - RISING_SHARE) * RISING_TOPS:
            return False
    return num >= RISING_TOPS


def root_of(shape: Float[np.ndarray, "dim *dim"]) -> Float[np.ndarray, "dim dim"]:
    """Return a square root of a covariance matrix, or of variances."""
    return np.diag(np.sqrt(shape)) if shape.ndim == 1 else np.linalg.cholesky(shape)


def resolution_of(evaluator: Evaluator) -> float:
    """Return the relative spacing of the numbers that the target works with."""
    return float(np.finfo(evaluator.target.start.dtype).eps)


def _with_top(
    function: ValueAndGradient,
    region: Region,
    modes: Modes,
    top: Float[np.ndarray, " dim"],
    value: float,
    most: int,
    tuning: Search,
) -> Modes:
    """Count a top with its mode, or add it to the modes if there is room."""
    known, is_rising = modes.index(top, value), False
    if known is None and len(top) <= tuning.full_dim:
        top, value, is_rising = settle(function, top, value)
        known = modes.index(top, value)
    if known is not None:
        return modes.found_again(known)
    if len(modes.count) >= most:
        return modes
    shape = local_covariance(function, top, region.ceiling(top), tuning)
    return modes.add(top, value, shape, is_rising)


@np.errstate(over="ignore", invalid="ignore")
def settle(
    function: ValueAndGradient, x: Float[np.ndarray, " dim"], value: float, most_steps: int = MOST_NEWTON_STEPS
) -> tuple[Float[np.ndarray, " dim"], float, bool]:
    """Take Newton steps from where a climb has ended, until the next one could gain next to nothing.

    Return the top, its height, and whether the density was rising still when the steps came to an end.

    A climb ends where a step gains little. On unscaled data that can be far below the top, and Newton's method, which
    does not depend on scales, goes on.
    """
    _, gradient = (leaf[0] for leaf in function(x[None]))
    gain = 0.0
    for _ in range(most_steps):
        scale, values, vectors = scaled_eigen(precision(function, x), SMALLEST_PRECISION)
        step = vectors @ (vectors.T @ (gradient / scale) / values) / scale
        if not 0.5 * gradient @ step > NEWTON_GAIN:
            return x, value, False
        trials = x + LENGTHS[:, None] * step
        values, gradients = function(trials)
        best = int(np.argmax(values))
        if not values[best] > value:
            break
        gain = float(values[best]) - value
        x, value, gradient = trials[best], float(values[best]), gradients[best]
    return x, value, gain > RISING_GAIN
