r"""Triangular warps: an automatic non-centring.

A few *leads* (scale parameters of a hierarchy, the bent coordinate of a banana) stay as they are; every other
coordinate is freed of what they say about its mean and its scale,

.. math:: y_j=\frac{\theta_j-m_j(\ell)}{\exp s_j(\ell)},

where m and s are natural cubic splines of each of the standardised leads :math:`\ell`, with products of two of them,
or m is a parabola and s straight: fitted by weighted least squares and Fisher scoring, the forward KL of a Normal whose
mean and scale depend on the leads. Leads are cut at ±5.
"""

import itertools

import numpy as np

from klover.base.arrays import namespace
from klover.base.linalg import moments
from klover.base.shapes import AnyArray, AnyPoints, Float, Int, PerDraw, PerPoint, Point, Points, record

LIMIT = 5.0
KNOTS = (-3.0, -1.5, 0.0, 1.5, 3.0)
"""Of splines of a lead, in standard deviations."""
BEND_SIZE = 10.0
"""About the largest value of a spline, by which it is divided."""
SMALLEST_SQUARE = 1e-4
COMPANY = 0.02
"""Nats that a further lead must tell of each of the others, on average."""
NUM_STEPS, TOLERANCE = 8, 0.1
"""Steps at most, and nats of all effective draws that are worth another."""
LOG_SQUARE = 0.635
"""Half of what the mean logarithm of a squared standard Normal is below zero."""
LARGEST_SQUARE = 20.0
"""Standardised squares are cut here: one draw must not set a scale."""
FEWEST_SIGNS = 30.0
"""Effective draws times squared correlation, in the sum over all coordinates, that make a coordinate a lead."""
NOISE = 6.0
"""The same of one coordinate, which chance may give."""


@record
class Triangular:
    """The coordinates in a new order, leads first; centres and scales of these, and the coefficients of all others."""

    order: Int[AnyArray, " dim"]
    centre: Float[AnyArray, " lead"]
    scale: Float[AnyArray, " lead"]
    mean: Float[AnyArray, "feature dim"]
    log_scale: Float[AnyArray, "feature dim"]

    def to_base(self, x: AnyPoints) -> tuple[AnyPoints, PerPoint]:
        """Return y, and the log determinant of its derivative."""
        x = namespace(x).asarray(x)[..., self.order]
        mean, log_scale = self._moments(x)
        return (x - mean) * namespace(x).exp(-log_scale), -log_scale.sum(-1)

    def from_base(self, y: AnyPoints) -> tuple[AnyPoints, PerPoint]:
        """Return x, and the log determinant of its derivative."""
        mean, log_scale = self._moments(y)
        return (y * namespace(y).exp(log_scale) + mean)[..., self._back], log_scale.sum(-1)

    def pull_back(self, y: AnyPoints, gradient: AnyPoints) -> AnyPoints:
        """Return the gradient in y of a function of x and of the log determinant, given that in x."""
        xp, gradient = namespace(y), gradient[..., self.order]
        lead, log_scale = self._leads(y), self._moments(y)[1]
        scaled = gradient * xp.exp(log_scale)
        by_feature = gradient @ self.mean.T + (scaled * y + 1) @ self.log_scale.T
        num = lead.shape[-1]
        slopes = [by_feature[..., 1 + i] for i in range(num)]
        for place, (i, j) in enumerate(_pairs(num), 1 + num):
            slopes[i] = slopes[i] + by_feature[..., place] * lead[..., j]
            slopes[j] = slopes[j] + by_feature[..., place] * lead[..., i]
        place = 1 + num + len(_pairs(num))
        bends, bend_slopes = ([_bends(xp, lead[..., i], power) for i in range(num)] for power in (3, 2))
        for i in range(num):
            for slope in bend_slopes[i]:
                slopes[i] = slopes[i] + by_feature[..., place] * slope
                place += 1
        for i in range(num):
            for bend, slope in zip(bends[i], bend_slopes[i], strict=True):
                for j in _others(num, i):
                    slopes[i] = slopes[i] + by_feature[..., place] * slope * lead[..., j]
                    slopes[j] = slopes[j] + by_feature[..., place] * bend
                    place += 1
        to_leads = xp.stack(slopes, -1) * (xp.abs(lead) < LIMIT) / self.scale
        return xp.concatenate([scaled[..., :num] + to_leads, scaled[..., num:]], -1)

    @property
    def num_leads(self) -> int:
        """Number of leads, which come first behind the warp."""
        return self.centre.shape[-1]

    @property
    def _back(self) -> Int[AnyArray, " dim"]:
        return namespace(self.order).argsort(self.order)

    def _leads(self, x: AnyPoints) -> Float[AnyArray, "*draw lead"]:
        """Return the standardised leads of coordinates in the new order."""
        return namespace(x).clip((x[..., : self.num_leads] - self.centre) / self.scale, -LIMIT, LIMIT)

    def _moments(self, x: AnyPoints) -> tuple[AnyPoints, AnyPoints]:
        """Return means and log scales, which depend on the leads alone: these are the same in x and y."""
        features = _features(namespace(x), self._leads(x))
        return features @ self.mean, features @ self.log_scale


def _features(xp, lead):
    """Return all functions of the leads: 1, each lead, products of two, squares, and what bends along each of them."""
    num = lead.shape[-1]
    first = [xp.ones_like(lead[..., 0]), *(lead[..., i] for i in range(num))]
    products = [lead[..., i] * lead[..., j] for i, j in _pairs(num)]
    bends = [_bends(xp, lead[..., i]) for i in range(num)]
    crossed = [lead[..., j] * bend for i in range(num) for bend in bends[i] for j in _others(num, i)]
    return xp.stack([*first, *products, *itertools.chain(*bends), *crossed], -1)


def num_features(num: int) -> int:
    """Return the number of functions of so many leads."""
    return 1 + num + len(_pairs(num)) + (len(KNOTS) - 2) * num**2


def _pairs(num):
    return list(itertools.combinations_with_replacement(range(num), 2))


def _others(num, i):
    return [j for j in range(num) if j != i]


def _bends(xp, lead, power=3):
    """Return natural cubic splines of a lead, which are linear beyond the knots; for power 2 their slopes."""

    def truncated(knot):
        above = xp.maximum(lead - knot, 0.0)
        return above * above * above if power == 3 else 3 * above * above

    last = truncated(KNOTS[-1])
    end = (truncated(KNOTS[-2]) - last) / (KNOTS[-1] - KNOTS[-2])
    return [((truncated(knot) - last) / (KNOTS[-1] - knot) - end) / BEND_SIZE for knot in KNOTS[:-2]]


def fit_triangular(x: Points, weight: PerDraw) -> Triangular | None:
    """Choose leads, and fit to weighted draws; None where no coordinate leads others."""
    mean, covariance = moments(x, weight)
    precision = np.linalg.inv(covariance)
    # What is left of each coordinate when all others have told what they know of it.
    rest = (x - mean) @ precision / np.sqrt(np.diagonal(precision))
    u = np.clip((x - mean) / np.sqrt(np.diagonal(covariance)), -LIMIT, LIMIT)
    signs = _signs(u, np.clip(rest, -LIMIT, LIMIT), weight)
    best = int(np.argmax(signs))
    if signs[best] < FEWEST_SIGNS:
        return None
    return _fit(x, weight, [best, *_companions(x, weight, best)])


def _signs(u: Points, rest: Points, weight: PerDraw) -> Point:
    r"""Return how much each coordinate says about the squares, and the bends, of the others.

    With c the covariance of u, the squared correlations of :math:`u_i` with :math:`\log r_j^2`, where r is the rest,
    and of :math:`u_i^2` with :math:`u_j-c_{ij}u_i`, what i leaves of j: a few products of matrices for all pairs.
    """
    size, square = np.log(rest**2 + SMALLEST_SQUARE), u**2
    u, size, square = u - weight @ u, size - weight @ size, square - weight @ square
    weighted = weight[:, None] * u
    covariance, with_size, with_square = u.T @ weighted, weighted.T @ size, square.T @ weighted
    variance, of_size, of_square = np.diagonal(covariance), weight @ size**2, weight @ square**2
    bent = with_square - covariance * np.diagonal(with_square)[:, None]
    left = variance + covariance**2 * (variance[:, None] - 2)
    explained = with_size**2 / np.maximum(variance[:, None] * of_size, 1e-30)
    explained += bent**2 / np.maximum(of_square[:, None] * left, 1e-30)
    explained = explained * (1 - np.eye(len(variance)))
    return np.maximum(explained / (weight @ weight) - NOISE, 0.0).sum(1)


def _parabola(lead: PerDraw, x: Points, weight: PerDraw) -> Points:
    """Return the parabolas of a lead that are nearest to all coordinates."""
    lead = (lead - lead.mean()) / max(float(lead.std()), np.finfo(float).tiny)
    features = np.stack([np.ones_like(lead), lead, lead**2], 1)
    weighted = features.T * weight
    return features @ np.linalg.lstsq(weighted @ features, weighted @ x)[0]


def _companions(x: Points, weight: PerDraw, lead: int) -> list[int]:
    """Return further leads: where the first makes others narrow, a mean that they share must be known as well as they.

    It is the coordinate that tells most of the others, on the side of the lead on which these are narrow, of what the
    lead itself has left of them.
    """
    order = np.argsort(x[:, lead])
    half = np.searchsorted(np.cumsum(weight[order]), 0.3)
    sides = order[:half], order[-half:]
    spreads = [
        np.log(weight[side] @ (x[side] - weight[side] @ x[side] / weight[side].sum()) ** 2).sum() for side in sides
    ]
    narrow = sides[int(np.argmin(spreads))]
    x, weight = x[narrow], weight[narrow]
    rest = x - _parabola(x[:, lead], x, weight)
    rest[:, lead] = x[:, lead]
    _, covariance = moments(rest, weight)
    scale = np.sqrt(np.diagonal(covariance))
    square = np.minimum((covariance / np.outer(scale, scale)) ** 2, 0.9999)
    gain = -np.log1p(-square * (1 - np.eye(len(scale))))
    gain[lead] = gain[:, lead] = 0.0
    total = gain.sum(1)
    best = int(np.argmax(total))
    return [best] if total[best] > COMPANY * (len(scale) - 2) else []


def _fit(x: Points, weight: PerDraw, leads: list[int]) -> Triangular:
    """Fit means and log scales of all coordinates but the leads.

    A coordinate has more than straight lines, a parabola or splines, only where the likelihood gains the price of it
    (Schwarz 1978). A parabola goes on where there are no draws yet, along a bent ridge.
    """
    num = len(leads)
    order = np.array([*leads, *np.setdiff1d(np.arange(x.shape[1]), leads)])
    x = x[:, order]
    centre = weight @ x[:, :num]
    scale = np.sqrt(weight @ (x[:, :num] - centre) ** 2)
    features = _features(np, np.clip((x[:, :num] - centre) / scale, -LIMIT, LIMIT))
    lines, squares = np.arange(1 + num), 1 + num + len(_pairs(num))
    splines = np.setdiff1d(np.arange(features.shape[1]), [1 + num + _pairs(num).index((i, i)) for i in range(num)])
    effective, best = 1 / (weight @ weight), np.full(x.shape[1] - num, -np.inf)
    mean, log_scale = np.zeros((2, features.shape[1], x.shape[1] - num))
    for of_mean, of_scale in ((lines, lines), (np.arange(squares), lines), (splines, splines)):
        given_mean, given_scale, gain = _regress(x[:, num:], weight, features[:, of_mean], features[:, of_scale])
        # Few of many coordinates bend, and each of them might have been the one that does so by chance.
        price = 0.0 if of_mean is lines else 0.5 * np.log(effective) * (len(of_mean) + len(of_scale) - 2 * len(lines))
        gain = effective * gain - price - (price > 0) * np.log(x.shape[1])
        is_better = gain > best
        mean[:, is_better] = log_scale[:, is_better] = 0.0
        mean[np.ix_(of_mean, is_better)] = given_mean[:, is_better]
        log_scale[np.ix_(of_scale, is_better)] = given_scale[:, is_better]
        best = np.maximum(gain, best)
    return Triangular(order, centre, scale, *(np.pad(each, ((0, 0), (num, 0))) for each in (mean, log_scale)))


def _regress(
    x: Points, weight: PerDraw, features: Float[np.ndarray, "draw feature"], of_scale: Float[np.ndarray, "draw other"]
) -> tuple[Float[np.ndarray, "feature dim"], Float[np.ndarray, "other dim"], Point]:
    """Return coefficients of means and log scales, and the mean log likelihood of every coordinate."""
    num = features.shape[1]
    # Next to nothing of a ridge, so that a lead of two values leaves no singular matrix; where zero lies is no matter.
    ridge, scale_ridge = (weight @ weight * np.diag(np.arange(each.shape[1]) > 0) for each in (features, of_scale))
    weighted, weighted_scale = features.T * weight, of_scale.T * weight
    information = np.linalg.inv(weighted_scale @ of_scale + scale_ridge)
    one, two = np.triu_indices(num)
    pairs = weighted[one] * features.T[two]
    products = np.empty((x.shape[1], num, num))
    # Regressed logarithms of squares are near: steps alone take many, as none narrows a scale by more than half a nat.
    square = (x - features @ np.linalg.solve(weighted @ features + ridge, weighted @ x)) ** 2
    log_scale = 0.5 * information @ (weighted_scale @ np.log(square + SMALLEST_SQUARE * (weight @ square)))
    log_scale[0] += LOG_SQUARE
    mean, spread = np.zeros((num, x.shape[1])), of_scale @ log_scale
    for _ in range(NUM_STEPS):
        precision = np.exp(-2 * spread)
        relative = precision / (weight @ precision)
        products[:, one, two] = products[:, two, one] = (pairs @ relative).T
        mean = np.linalg.solve(products + ridge, (weighted @ (relative * x)).T[..., None])[..., 0].T
        square = np.minimum((x - features @ mean) ** 2 * precision, LARGEST_SQUARE)
        score = weighted_scale @ (square - 1)
        change = 0.5 * information @ score
        if (score * change).sum(0).max() < TOLERANCE * (weight @ weight):
            break
        log_scale = log_scale + change
        spread = of_scale @ log_scale
    square = (x - features @ mean) ** 2 * np.exp(-2 * spread)
    return mean, log_scale, -(weight @ (0.5 * np.minimum(square, LARGEST_SQUARE) + spread))
