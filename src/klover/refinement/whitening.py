"""Many dimensions: scores at a few hundred points make coordinates in which the target is nearly a standard Normal.

Thousands of draws do not tell a covariance of hundreds of dimensions, and EM would only add their noise. Scores do
(:mod:`klover.fitting.scores`). From the top of a climb, pairs of points give a linear warp: scales with a few
directions, as many as held-out pairs ask for, or a whole matrix where that is not enough and it is still affordable.
The points are draws of the Gaussian of the moment, so that it comes to match the target over its whole width and not
at the top alone. The rest of the engine works behind that warp, as behind any other, with diagonal covariances.
"""

import contextlib

import numpy as np

from klover.base.shapes import Float
from klover.fitting.scores import Layer, Pairs, centred, fit_full, fit_low_rank, loss, moved, of_precision, regress
from klover.refinement.state import Context
from klover.search.curvature import FIRST_STEP, precision
from klover.search.modes import LENGTHS
from klover.warps.low_rank import LowRankLinear
from klover.warps.warp import WHITENED, Warp

SHARES = (0.25, 0.5, 1.0)
"""Of the way to a whole matrix that a batch asks for; where a target is no Gaussian, all of it is too far."""
NEAR = 0.1
"""Length of the first differences, in standard deviations."""
PAIRS_OF_DIRECTION = 4
"""Of scores, that tell it."""
LARGEST = 1e100
"""Of a score, or of a coordinate: squares of larger ones overflow."""


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def whiten(context: Context, top: Float[np.ndarray, " dim"]) -> Warp | None:
    """Return the warp that scores give around a top; None where scales alone are better."""
    # A density without a top, or far from any Gaussian, may ask for numbers that there are not.
    with contextlib.suppress(np.linalg.LinAlgError):
        return _whiten(context, top)
    return None


def _whiten(context: Context, top: Float[np.ndarray, " dim"]) -> Warp | None:
    tuning, least_gain = context.tuning.whitening, context.tuning.growth.least_gain
    simple = _scales(context, top)
    layer = _low_rank(context, simple, 0, tuning.few_pairs)
    if loss_of(context, layer) > least_gain:
        # Directions are at most as many as the dimensions of a whole matrix that draws would tell.
        many, is_small = PAIRS_OF_DIRECTION * context.tuning.search.full_dim, context.dim <= tuning.matrix_dim
        other = _whole(context, layer) if is_small else _low_rank(context, layer, tuning.few_pairs, many)
        layer = min((layer, other), key=lambda each: loss_of(context, each))
    noise = context.generator.standard_normal((num_held(context), context.dim))
    is_better = lower_bound(context, layer, noise) >= lower_bound(context, simple, noise) > -np.inf
    return Warp((layer,), WHITENED) if is_better else None


def num_held(context: Context) -> int:
    """Return the pairs that judge: the share of few pairs that is held out of draws, too."""
    return round(context.tuning.growth.held_out * context.tuning.whitening.few_pairs)


def _scales(context: Context, top: Float[np.ndarray, " dim"]) -> LowRankLinear:
    """Return scales alone, by differences around a top, first in the user's units and then in their own."""
    layer, length = LowRankLinear.diagonal(top, (FIRST_STEP * (1 + np.abs(top))) ** 2), 1.0
    for _ in range(2):
        found = fit_low_rank(_pairs(context, layer, num_held(context), length), 0)
        layer, length = LowRankLinear.diagonal(top, np.minimum(found.variance(), context.region.ceiling(top))), NEAR
    return layer


def ranks_of(few: int, many: int, dim: int) -> list[int]:
    """Return how many directions to try with many pairs, beyond those that were tried with few."""
    ranks, each = [0, *(2**power for power in range(1, many.bit_length()))], PAIRS_OF_DIRECTION
    return [rank for rank in ranks if each * rank <= many and 2 * rank < dim and (few == 0 or each * rank > few)]


def _low_rank(context: Context, layer: Layer, few: int, many: int) -> Layer:
    """Update scales and directions until held-out pairs no longer gain: around the top first, then on draws."""
    ranks = ranks_of(few, many, context.dim)
    length = NEAR
    for _ in range(context.tuning.whitening.most_updates):
        fitted, held = _split(context, layer, many, length)
        new = _choose(context, [layer, *(fit_low_rank(fitted, rank) for rank in ranks)], held)
        if length == 1 and loss(layer, held) - loss(new, held) < context.tuning.growth.least_gain:
            return layer
        # The mean of a skewed density is no top: from draws on, held-out pairs alone say where it is.
        layer, length = (_settled(context, layer, new) if length == NEAR else new), 1.0
    return layer


def _whole(context: Context, layer: Layer) -> Layer:
    """Do the same with a whole matrix, beginning with the curvature at the top."""
    tuning, function = context.tuning.whitening, context.evaluator.values_and_gradients
    layer = _settled(context, layer, of_precision(layer.centre, precision(function, np.asarray(layer.centre))))
    for _ in range(tuning.most_updates):
        fitted, held = _split(context, layer, tuning.pairs_per_dim * context.dim, 1.0)
        asked = regress(layer, fitted)
        candidates = [layer, moved(layer, fitted), *(fit_full(layer, fitted, asked, share) for share in SHARES)]
        new = min(candidates, key=lambda each: loss(each, held))
        if loss(layer, held) - loss(new, held) < context.tuning.growth.least_gain:
            return layer
        layer = new
    return layer


def _choose(context: Context, layers: list[Layer], held: Pairs) -> Layer:
    """Return the layer that held-out pairs like best; each must gain something over those before it."""
    best, lowest = layers[0], loss(layers[0], held)
    for layer in layers[1:]:
        found = loss(layer, held)
        if found < lowest - context.tuning.growth.least_gain:
            best, lowest = layer, found
    return best


def _settled(context: Context, old: Layer, new: Layer) -> Layer:
    """Go from the old centre towards the new one only as far as the density does not fall below the old one's."""
    if new is old:
        return old
    begin = np.asarray(old.centre)
    points = begin + np.append(LENGTHS, 0.0)[:, None] * (new.centre - begin)
    values, _ = context.evaluator.values_and_gradients(points)
    return centred(new, points[int(np.argmax(values >= values[-1]))])


def _split(context: Context, layer: Layer, num: int, length: float) -> tuple[Pairs, Pairs]:
    """Make pairs to fit to, and pairs that judge."""
    pairs = _pairs(context, layer, num + num_held(context), length)
    return pairs.part(slice(num)), pairs.part(slice(num, None))


def _pairs(context: Context, layer: Layer, num: int, length: float) -> Pairs:
    """Make pairs of points, draws of the layer's Gaussian if the length is one, with their scores."""
    noise = length * context.generator.standard_normal((num, context.dim))
    delta = layer.from_base(noise)[0] - layer.centre
    points = np.concatenate([layer.centre + delta, layer.centre - delta])
    _, score = context.evaluator.values_and_gradients(points)
    if not (np.abs(delta).max() < LARGEST and np.abs(score).max() < LARGEST):
        raise np.linalg.LinAlgError("scores overflow")
    return Pairs(layer.centre, delta, score[:num], score[num:])


def loss_of(context: Context, layer: Layer) -> float:
    """Return the Fisher divergence on fresh draws of the layer's own Gaussian."""
    return loss(layer, _pairs(context, layer, num_held(context), 1.0))


def lower_bound(context: Context, layer: Layer, noise: Float[np.ndarray, "draw dim"]) -> float:
    """Return the evidence lower bound of the layer's Gaussian, by draws that are made of noise, but for a constant."""
    x, log_det = layer.from_base(noise)
    return float(np.mean(context.evaluator.values(np.asarray(x)) + log_det))
