r"""A surrogate proposes, the target weighs: for densities of which a few hundred values are all that can be had.

A Gaussian process (:mod:`klover.refinement.surrogate_model`) is fitted to all values so far, and costs microseconds.
Mixtures are fitted to draws of it instead of the target's, and new points are where it has mass and is unsure:

1. *climb*: from the middle of the region, to the highest point that the process sees within a radius, which grows where
   the gain is as predicted, and shrinks where it is not;
2. *design*: batches of points at which density times variance is largest, until the process knows log p well enough
   where it has mass, or there are as many points as may be;
3. *rounds*, as ever: draws of the mixture, weighed by the target itself. These are values, too, and the process is
   fitted anew after each round.

The answer, its errors and the verdict come from the rounds alone: what the process has wrong shows in the weights. It
is dropped where two rounds in a row have few effective draws; the search and the rounds that
:mod:`klover.refinement.thrift` describes then go on with what was found. Gradients are not used before that, nor is
there the check of the verdict that needs them (:mod:`klover.search.necks`).
"""

import dataclasses
import time

import numpy as np

from klover.base.checks import check_flag
from klover.base.shapes import Float
from klover.fitting.sample import equal
from klover.fitting.surrogate import Surrogate
from klover.mixtures.algebra import box_variance, defensive_inflation, inflate, join, mixture_of
from klover.mixtures.mixture import Mixture
from klover.refinement.pool import Pool
from klover.refinement.start import cover, from_target
from klover.refinement.state import Context, Stage, State
from klover.refinement.surrogate_model import Model, Points, Values, cover_model, fit_behind, fit_model
from klover.targets.budget import Budget, BudgetExhausted
from klover.targets.evaluator import Evaluator
from klover.targets.journal import Journal
from klover.targets.target import Target

LARGEST_DIM = 8
SLOW, NUM_TIMED = 0.1, 2
"""Seconds of an evaluation for which a surrogate is worth its own, and evaluations that tell: the first is compiled."""
SMALL_BUDGET = 250
"""Evaluations for each dimension, and for one more, below which climbs by differences take too many of them."""
DESIGN_SHARE = 0.5
"""Of a budget that climb and design may take."""
CLIMB_STEPS, POINTS_OF_DIMENSION, SMALL_BATCH = 10, 10, 4
"""For each dimension, at the most: steps of the climb, and points of the design; points of a batch at the least."""
INSIDE, SMALL_GAIN = 0.9, 0.3
"""A predicted top is inside within so much of the radius; nats that end a climb there."""
GROWING, SHRINKING = 0.5, 0.25
"""Shares of the predicted gain beyond which the radius grows, and below which it shrinks."""
NUM_TRIALS, NUM_NARROWINGS = 256, 6
"""Points among which the highest is chosen, and how often they close in on it."""
STEP, FLATTEST = 0.3, 0.1
"""Of the differences that give the curvature at the top, and the smallest curvature, in units of the radius."""
SMALL_VARIANCE, LARGE_VARIANCE = 0.03, 4.0
"""Square nats of log p with which the process knows enough, and beyond which more do not matter."""
SMALL_ERROR = 0.1
"""The same of predictions at the last batch, weighted by the root of the density."""
WIDER, NUM_CANDIDATES = 1.5, 1000
"""Copies among which a batch is chosen, beside the mixture's own draws, and how many of both."""
POWER = 0.5
"""Of the density, by which a batch is chosen: tails matter to weights more than to masses."""
MOST_DRAWS = 300
"""Of the pool, that the process is fitted to."""
NUM_REPEATED, STARTS_OF_RUNG, NUM_CLIMBS, RADIAL_OF_DIMENSION = 4, 3, 2, 4
"""Of the verdict and the last search, in place of larger numbers."""


def is_wanted(
    asked: bool | None,
    target: Target,
    min_ess: int | None,
    budget: Budget,
    is_given: bool,
    journal: Journal | None = None,
) -> tuple[bool, int]:
    """Return whether there is to be a surrogate, and the evaluations that it took to find out.

    A journal knows what the clock said the first time, so that a fit that is made again does not take another way.
    """
    can = min_ess is not None and target.dim <= LARGEST_DIM and not is_given
    if asked is not None:
        check_flag("surrogate", asked)
        if asked and not can:
            raise ValueError(
                f"surrogate=True needs min_ess, no start, and at most {LARGEST_DIM} dimensions, got min_ess = {min_ess}"
                f" and {target.dim} dimensions{' with a start' if is_given else ''}. Leave it out, or pass min_ess=200."
            )
        return bool(asked), 0
    if not can:
        return False, 0
    evaluator = Evaluator(target, is_thrifty=True)
    if isinstance(budget, int) and budget < SMALL_BUDGET * (target.dim + 1):
        return not evaluator.has_gradient, 0
    if target.is_shared:  # processes have clocks of their own
        return False, 0
    seconds = _time(evaluator) if journal is None else journal.fact("seconds", lambda: _time(evaluator))
    return seconds >= SLOW, NUM_TIMED


def _time(evaluator: Evaluator) -> float:
    """Return the seconds of an evaluation, the last of a few: the first is compiled."""
    seconds = 0.0
    for _ in range(NUM_TIMED):
        began = time.perf_counter()
        evaluator.values(np.asarray(evaluator.target.start, float)[None])
        seconds = time.perf_counter() - began
    return seconds


def num_kept_back(target: Target) -> int:
    """Return the evaluations of the last search and the verdict."""
    return 2 * NUM_REPEATED + 13 * STARTS_OF_RUNG + RADIAL_OF_DIMENSION * (target.dim + 1) + 8 * target.dim + 1


def efforts(context: Context) -> tuple[int, int, int]:
    """Return starts on a rung, climbs, and draws on other scales of the last search."""
    return STARTS_OF_RUNG, NUM_CLIMBS, RADIAL_OF_DIMENSION * (context.dim + 1)


class Book:
    """All points that were evaluated before the rounds, and what was found there."""

    def __init__(self, context: Context):
        self._evaluator = context.evaluator
        self.x, self.log_p = np.zeros((0, context.dim)), np.zeros(0)

    def evaluate(self, x: Points) -> Values:
        """Evaluate the target at points, and write that down."""
        with self._evaluator.probing():
            log_p = self._evaluator.values(x)
        self.x, self.log_p = np.concatenate([self.x, x]), np.concatenate([self.log_p, log_p])
        return log_p

    @property
    def best(self) -> Float[np.ndarray, " dim"]:
        """The highest point."""
        return self.x[np.argmax(self.log_p)]

    @property
    def is_enough(self) -> bool:
        """Whether there are as many points in the support as one for each direction, and two more."""
        return int(np.isfinite(self.log_p).sum()) >= self.x.shape[1] + 2


def begin(context: Context) -> State:
    """Climb, design, and return a mixture of the process; without one where the support is hardly met."""
    book, mixture = Book(context), None
    try:
        with context.evaluator.part(DESIGN_SHARE):
            mixture = _climb(context, book)
            mixture = _design(context, book, mixture) if book.is_enough else None
    except BudgetExhausted:
        if book.is_enough and mixture is not None:
            mixture, _ = cover_model(context, fit_behind(book.x, book.log_p, mixture), mixture)
    if mixture is None:
        context.evaluator.has_gradient = context.evaluator.is_differentiable
        return from_target(context)
    broad, inside = cover(context), np.isfinite(book.log_p)
    copies = inflate(mixture, defensive_inflation(context.dim), context.tuning.defence.df)
    defended = join(_widened(context, mixture), copies, context.tuning.defence.share)
    return State(defended, broad, Pool.empty(context.dim), design=equal(book.x[inside], book.log_p[inside]))


def _widened(context: Context, mixture: Mixture) -> Mixture:
    """Return a mixture with slightly wider copies: the process is surest, and often too low, where few points are."""
    defence = context.tuning.defence
    return join(mixture, inflate(mixture, 1 + defence.widening / context.dim**0.5), defence.widened_share)


def _climb(context: Context, book: Book) -> Mixture:
    """Climb to the top that the process sees; return a component with the curvature there."""
    box, dim, radius = context.region.box, context.dim, 1.0
    scale = np.ones(dim) if box is None else 0.5 * np.sqrt(np.asarray(box_variance(*box)))
    star = np.concatenate([np.zeros((1, dim)), np.eye(dim), -np.eye(dim)])
    book.evaluate(context.region.centre + scale * star)
    for _ in range(CLIMB_STEPS * dim):
        if not np.isfinite(book.log_p).any():
            return cover(context)
        model = fit_model(book.x, book.log_p, book.best, np.diag(radius * scale))
        z, gain = _highest(context.generator, model.surrogate)
        is_inside, before = np.linalg.norm(z) < INSIDE, book.log_p.max()
        rise = float(book.evaluate((model.centre + model.root @ z)[None])[0] - before)
        if is_inside and gain < SMALL_GAIN and abs(rise) < 2 * SMALL_GAIN:
            break
        if rise > GROWING * gain and not is_inside:
            radius *= 2
        elif rise < SHRINKING * gain:
            radius /= 2
    return _at_top(context, fit_model(book.x, book.log_p, book.best, np.diag(radius * scale)))


def _highest(generator: np.random.Generator, surrogate: Surrogate) -> tuple[Float[np.ndarray, " dim"], float]:
    """Return the point of the unit ball at which the mean is highest, and the mean there."""
    dim = surrogate.z.shape[1]
    z, width = generator.standard_normal((NUM_TRIALS, dim)), 0.5
    z *= generator.uniform(size=(NUM_TRIALS, 1)) ** (1 / dim) / np.linalg.norm(z, axis=1, keepdims=True)
    for _ in range(NUM_NARROWINGS):
        best = z[np.argmax(surrogate.predict(z)[0])]
        near = best + width * generator.standard_normal((NUM_TRIALS, dim)) / dim**0.5
        z = np.concatenate([best[None], near / np.maximum(np.linalg.norm(near, axis=1, keepdims=True), 1.0)])
        width /= 2
    mean = surrogate.predict(z)[0]
    return z[np.argmax(mean)], float(mean.max())


def _at_top(context: Context, model: Model) -> Mixture:
    """Return a component around the origin of a model, with the curvature of the process there."""
    axes = STEP * np.eye(context.dim)
    pairs = (axes[:, None] + axes).reshape(-1, context.dim), (axes[:, None] - axes).reshape(-1, context.dim)
    plus, minus = (model.surrogate.predict(each)[0] + model.surrogate.predict(-each)[0] for each in pairs)
    hessian = (plus - minus).reshape(context.dim, context.dim) / (4 * STEP**2)
    values, vectors = np.linalg.eigh(-0.5 * (hessian + hessian.T))
    root = model.root @ vectors / np.sqrt(np.maximum(values, FLATTEST))
    df = context.tuning.start.wide_df
    return mixture_of(context.family, model.centre[None], (root @ root.T)[None], df, np.ones(1))


def _design(context: Context, book: Book, mixture: Mixture) -> Mixture:
    """Evaluate where the process has mass and is unsure, until it is no longer; return a mixture of it."""
    most, wrong = len(book.x) + POINTS_OF_DIMENSION * context.dim, np.inf
    while True:
        model = fit_behind(book.x, book.log_p, mixture)
        mixture, pool = cover_model(context, model, mixture)
        unsure = pool.weight() @ np.minimum(model.predict(pool.x)[1], LARGE_VARIANCE)
        if (unsure < SMALL_VARIANCE and wrong < SMALL_ERROR) or len(book.x) >= most:
            return mixture
        x, size = (
            join(mixture, inflate(mixture, WIDER), 0.5).draw(context.generator, NUM_CANDIDATES),
            max(context.dim, SMALL_BATCH),
        )
        x = x[model.surrogate.spread_out(model.to_base(x), POWER * model.predict(x)[0], size)]
        (mean, _), top = model.predict(x), book.log_p.max()
        value = book.evaluate(x) - top
        weight = np.exp(POWER * np.minimum(np.maximum(mean, value), 0.0))
        wrong = weight @ np.minimum((value - mean) ** 2, LARGE_VARIANCE) / weight.sum()


def is_used(state: State) -> bool:
    """Whether the next mixture is one of the process: not after something was found that it does not know."""
    return state.design is not None and state.warp is None and state.num_blind == 0


def is_poor(context: Context, state: State) -> bool:
    """Whether two rounds have shown that the process is wrong: with so few effective draws nothing would be fitted."""
    last = state.history[-2:]
    return len(last) == 2 and all(info.ess_share < context.tuning.rounds.begun_ess for info in last)


def refit(context: Context, state: State) -> State:
    """Return a mixture of the process that all values give."""
    assert state.design is not None
    # The work grows with the cube of the points: of very many draws a part says as much.
    every = slice(None, None, -(-len(state.pool.x) // MOST_DRAWS) or 1)
    x = np.concatenate([np.asarray(state.design.x), state.pool.x[every]])
    log_p = np.concatenate([np.asarray(state.design.log_p), state.pool.log_p[every]])
    mixture, _ = cover_model(context, fit_behind(x, log_p, state.mixture), state.mixture)
    return dataclasses.replace(state, mixture=_widened(context, mixture))


def fall_back(context: Context, state: State) -> State:
    """Return a state without a surrogate: with the modes that climbs find, beside the mixture."""
    context.evaluator.has_gradient = context.evaluator.is_differentiable
    found = from_target(context)
    mixture = join(found.mixture, state.mixture, 0.5)
    return dataclasses.replace(
        state, mixture=mixture, design=None, was_hard=found.was_hard, stage=Stage.POOL, num_blind=len(state.pool.sizes)
    )
