r"""Gaussians from scores, in closed form: where gradients are at hand, few of them say what many draws would.

The score :math:`g=\nabla\log p` of a Gaussian with mean μ and precision P is :math:`-P(\theta-\mu)`: differences of
scores are P times differences of points, without any noise. So P follows from a regression of scores on points, with
fewer points than there are dimensions if it is a diagonal and a matrix of low rank. The same is the idea of Gaussian
score matching (Modi et al. 2023) and of batch-and-match (Cai et al. 2024), whose updates also minimise, on a batch of
draws of the present Gaussian q, the Fisher divergence in the metric of the new covariance,

.. math:: \tfrac12\,\mathrm E_q\big[e^\top\Sigma\,e\big],\qquad e=\nabla\log p(\theta)+\Sigma^{-1}(\theta-\mu).

It does not depend on units, and is about twice KL(q‖p) where both are nearly Gaussian.

Points come in pairs :math:`m\pm\delta`. The *fall* :math:`\tfrac12(g_--g_+)` is even in what makes p a Gaussian and
blind to its skewness; the *slope* :math:`\tfrac12(g_-+g_+)` says where the mean is.
"""

from typing import TypeAlias

import numpy as np

from klover.base.shapes import AnyArray, Float, Point, record
from klover.warps.linear import Linear
from klover.warps.low_rank import LowRankLinear

NUM_SWEEPS = 20
"""Alternations between the diagonal and the directions; each shrinks the error by about rank over pairs."""
SMALLEST_PRECISION = 1e-10
"""Of a direction, relative to the diagonal: flatter, or rising ones are no wider than this allows."""
SMALLEST_SQUARE = 1e-14
"""Of a direction's variance of scores, relative to the largest, which numbers can tell."""
SMALLEST_SHARE = 1e-8
"""Of the first guess of a coordinate's precision, below which it is not believed."""

Layer: TypeAlias = Linear | LowRankLinear
"""A map from a standard Normal to a Gaussian, by a whole matrix or by a few directions."""


@record
class Pairs:
    """Differences δ of pairs of points from their middle, and the scores at both."""

    middle: Point
    delta: Float[AnyArray, "pair dim"]
    after: Float[AnyArray, "pair dim"]
    before: Float[AnyArray, "pair dim"]

    @property
    def fall(self) -> Float[AnyArray, "pair dim"]:
        """By how much the score falls along each difference: Pδ of a Gaussian."""
        return 0.5 * (self.before - self.after)

    @property
    def slope(self) -> Point:
        """Mean score: P times the way from the middle to the mean of a Gaussian."""
        return 0.5 * (self.before + self.after).mean(0)

    def part(self, chosen: slice) -> "Pairs":
        """Return some of the pairs."""
        return Pairs(self.middle, self.delta[chosen], self.after[chosen], self.before[chosen])


def loss(layer: Layer, pairs: Pairs) -> float:
    """Return the Fisher divergence in the metric of the layer's own covariance, in nats."""
    total = 0.0
    for sign, score in ((1, pairs.after), (-1, pairs.before)):
        z = layer.to_base(pairs.middle + sign * pairs.delta)[0]
        total += np.mean(np.sum((layer.pull_back(z, score) + z) ** 2, axis=1))
    return float(0.25 * total)


def moved(layer: Layer, pairs: Pairs) -> Layer:
    """Return the layer with the mean that the scores ask for: Newton's step from the middle, with its covariance."""
    step = layer.from_base(layer.pull_back(pairs.middle, pairs.slope))[0] - layer.centre
    return centred(layer, pairs.middle + step)


def centred(layer: Layer, centre: Point) -> Layer:
    """Return the layer around another centre."""
    if isinstance(layer, Linear):
        return Linear(centre, layer.matrix, layer.inverse, layer.log_det)
    return LowRankLinear(centre, layer.scale, layer.directions, layer.lengths)


def match(
    x: Float[AnyArray, "draw dim"], score: Float[AnyArray, "draw dim"]
) -> tuple[Point, Float[AnyArray, "dim dim"]]:
    r"""Return mean and covariance of the Gaussian with the least divergence on draws of p, scores at hand.

    With C and G the covariances of points and scores, it is least where :math:`\Sigma G\Sigma=C`: at the geometric mean
    of C and :math:`G^{-1}`. Of a Gaussian p both are exact, with one draw more than there are dimensions, wherever the
    draws come from.
    """
    scale = np.maximum(x.std(0), np.finfo(float).tiny)
    x, score = x / scale, score * scale
    values, vectors = np.linalg.eigh(np.cov(score.T))
    if not np.finfo(float).eps * np.mean(score**2) < values[-1] < np.inf:
        raise np.linalg.LinAlgError("scores do not vary, or overflow: they tell no covariance")
    root = np.sqrt(np.maximum(values, SMALLEST_SQUARE * values[-1]))
    inside = (vectors * root).T @ np.cov(x.T) @ (vectors * root)
    lengths, axes = np.linalg.eigh(inside)
    lengths = np.sqrt(np.maximum(lengths, SMALLEST_SQUARE * lengths[-1]))
    half = (vectors / root) @ (axes * np.sqrt(lengths))
    covariance = half @ half.T
    mean = x.mean(0) + covariance @ score.mean(0)
    return scale * mean, scale[:, None] * covariance * scale


def fit_low_rank(pairs: Pairs, rank: int) -> LowRankLinear:
    r"""Fit the precision :math:`\mathrm{diag}(a)-L` with L of low rank, by alternating least squares.

    With differences as rows of D and falls as rows of F, :math:`F=D\,\mathrm{diag}(a)-DL`. Given a, the rows of DL have
    few directions in the space of pairs; given these directions, every coordinate of F is a regression on the one of D
    and on them. For a Gaussian of that form, and more pairs than a few times the rank, the limit is exact.
    """
    delta, fall = pairs.delta, pairs.fall
    guess = _ratio(delta, fall)
    # A flat or rising coordinate is no wider than the differences that do not tell its width, times 1e5.
    unit = np.sqrt(np.maximum(np.abs(guess), SMALLEST_PRECISION / (delta**2).mean(0)))
    delta, fall = delta * unit, fall / unit
    diagonal, directions, curvature = np.ones(len(unit)), np.zeros((len(unit), 0)), np.zeros((0, 0))
    for _ in range(NUM_SWEEPS if rank else 0):
        rest = delta * diagonal - fall
        common = np.linalg.eigh(rest @ rest.T)[1][:, -rank:]
        diagonal = _ratio(delta - common @ (common.T @ delta), fall - common @ (common.T @ fall))
        diagonal = np.maximum(diagonal, SMALLEST_SHARE)
    if rank:
        rest = delta * diagonal - fall
        common = np.linalg.eigh(rest @ rest.T)[1][:, -rank:]
        directions = np.linalg.qr(rest.T @ common)[0]
        curvature = np.linalg.lstsq(delta @ directions, rest @ directions, rcond=None)[0]
        curvature = 0.5 * (curvature + curvature.T)
    scale = 1 / np.sqrt(diagonal)
    basis, corner = np.linalg.qr(scale[:, None] * directions)
    values, vectors = np.linalg.eigh(np.eye(rank) - corner @ curvature @ corner.T)
    lengths = 1 / np.sqrt(np.maximum(np.abs(values), SMALLEST_PRECISION))
    layer = LowRankLinear(pairs.middle, scale / unit, basis @ vectors, lengths)
    return moved(layer, pairs)  # pyright: ignore[reportReturnType]


def _ratio(delta: Float[AnyArray, "pair dim"], fall: Float[AnyArray, "pair dim"]) -> Point:
    """Regress each coordinate of one on the same of the other."""
    square = np.einsum("pd,pd->d", delta, delta)
    return np.einsum("pd,pd->d", delta, fall) / np.where(square > 0, square, 1.0)


def of_precision(centre: Point, precision: Float[AnyArray, "dim dim"]) -> Linear:
    """Return the layer of a whole precision matrix, its eigenvalues in absolute value and above a floor."""
    unit = np.sqrt(np.maximum(np.abs(np.diagonal(precision)), np.finfo(float).tiny))
    values, vectors = np.linalg.eigh(precision / (unit[:, None] * unit))
    root = np.sqrt(np.maximum(np.abs(values), SMALLEST_PRECISION))
    log_det = np.log(root).sum() + np.log(unit).sum()
    return Linear(centre, (vectors * root).T * unit, vectors / root / unit[:, None], log_det)


def regress(layer: Layer, pairs: Pairs) -> Float[AnyArray, "dim dim"]:
    """Return the precision that falls ask for, in the layer's coordinates; there are more pairs than dimensions.

    Where these are draws of the layer's Gaussian, their products are far from singular.
    """
    delta = layer.to_base(layer.centre + pairs.delta)[0]
    fall = layer.pull_back(delta, pairs.fall)
    whole = np.linalg.solve(delta.T @ delta, delta.T @ fall)
    return 0.5 * (whole + whole.T)


def fit_full(layer: Layer, pairs: Pairs, precision: Float[AnyArray, "dim dim"], share: float = 1.0) -> Linear:
    """Go a share of the way to a precision in the layer's coordinates, and to the mean that the scores ask for."""
    dim = len(pairs.middle)
    values, vectors = np.linalg.eigh(np.eye(dim) + share * (precision - np.eye(dim)))
    length = np.sqrt(np.maximum(np.abs(values), SMALLEST_PRECISION))
    inverse = layer.from_base((vectors / length).T)[0].T - layer.centre[:, None]
    log_det = layer.to_base(layer.centre[None])[1][0] + np.log(length).sum()
    matrix = (vectors * length).T @ (layer.to_base(layer.centre + np.eye(dim))[0]).T
    return moved(Linear(pairs.middle, matrix, inverse, log_det), pairs)  # pyright: ignore[reportReturnType]
