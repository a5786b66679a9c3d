r"""Triangular warps: an automatic non-centring.

A few *leads* (scale parameters of a hierarchy, the bent coordinate of a banana) stay as they are; every other
coordinate is freed of what they say about its mean and its scale,

.. math:: y_j=\frac{\theta_j-m_j(\ell)}{\exp s_j(\ell)},

where m and s are natural cubic splines of each of the standardised leads :math:`\ell`, with products of two of them:
fitted by weighted least squares and Fisher scoring, the forward KL of a Normal whose mean and scale depend on the
leads. Leads are cut at ±5.
"""

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
NUM_STEPS = 12
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
        for i in range(num):
            for slope in _bends(xp, lead[..., i])[1]:
                slopes[i] = slopes[i] + by_feature[..., place] * slope
                place += 1
        for i in range(num):
            for bend, slope in zip(*_bends(xp, lead[..., i]), strict=True):
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
    """Return all functions of the leads: 1, each lead, products of two, and what bends along each of them."""
    num = lead.shape[-1]
    first = [xp.ones_like(lead[..., 0]), *(lead[..., i] for i in range(num))]
    products = [lead[..., i] * lead[..., j] for i, j in _pairs(num)]
    bends = [bend for i in range(num) for bend in _bends(xp, lead[..., i])[0]]
    crossed = [lead[..., j] * bend for i in range(num) for bend in _bends(xp, lead[..., i])[0] for j in _others(num, i)]
    return xp.stack([*first, *products, *bends, *crossed], -1)


def num_features(num: int) -> int:
    """Return the number of functions of so many leads."""
    return 1 + num + len(_pairs(num)) + (len(KNOTS) - 2) * num**2


def _pairs(num):
    return [(i, j) for i in range(num) for j in range(i + 1, num)]


def _others(num, i):
    return [j for j in range(num) if j != i]


def _bends(xp, lead):
    """Return natural cubic splines of a lead, which are linear beyond the knots, and their slopes."""

    def cube(knot):
        above = xp.maximum(lead - knot, 0.0)
        return above**3, 3 * above**2

    (last, last_slope), (before, before_slope) = cube(KNOTS[-1]), cube(KNOTS[-2])
    end = (before - last) / (KNOTS[-1] - KNOTS[-2]), (before_slope - last_slope) / (KNOTS[-1] - KNOTS[-2])
    values, slopes = [], []
    for knot in KNOTS[:-2]:
        value, slope = cube(knot)
        width = KNOTS[-1] - knot
        values.append(((value - last) / width - end[0]) / BEND_SIZE)
        slopes.append(((slope - last_slope) / width - end[1]) / BEND_SIZE)
    return values, slopes


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
    leads = [best, *_companions(x, weight, best)]
    return _fit(x, weight, leads)


def _signs(u: Points, rest: Points, weight: PerDraw) -> Point:
    """Return how much each coordinate says about the squares, and the bends, of the others."""
    size, total = np.log(rest**2 + SMALLEST_SQUARE), np.zeros(u.shape[1])
    for lead in range(u.shape[1]):
        bend = u - np.outer(u[:, lead], weight @ (u * u[:, [lead]]))
        explained = _correlation(u[:, lead], size, weight) ** 2 + _correlation(u[:, lead] ** 2, bend, weight) ** 2
        explained[lead] = 0.0
        total[lead] = np.maximum(explained / (weight @ weight) - NOISE, 0.0).sum()
    return total


def _companions(x: Points, weight: PerDraw, lead: int) -> list[int]:
    """Return further leads: where the first makes others narrow, a mean that they share must be known as well as they.

    It is the coordinate that tells most of the others, on the side of the lead on which these are narrow.
    """
    order = np.argsort(x[:, lead])
    half = np.searchsorted(np.cumsum(weight[order]), 0.3)
    sides = order[:half], order[-half:]
    spreads = [
        np.log(weight[side] @ (x[side] - weight[side] @ x[side] / weight[side].sum()) ** 2).sum() for side in sides
    ]
    narrow = sides[int(np.argmin(spreads))]
    _, covariance = moments(x[narrow], weight[narrow])
    scale = np.sqrt(np.diagonal(covariance))
    square = np.minimum((covariance / np.outer(scale, scale)) ** 2, 0.9999)
    gain = -np.log1p(-square * (1 - np.eye(len(scale))))
    gain[lead] = gain[:, lead] = 0.0
    total = gain.sum(1)
    best = int(np.argmax(total))
    return [best] if total[best] > COMPANY * (len(scale) - 2) else []


def _correlation(one: PerDraw, many: Points, weight: PerDraw) -> Point:
    one, many = one - weight @ one, many - weight @ many
    return (weight * one) @ many / np.sqrt(np.maximum((weight @ one**2) * (weight @ many**2), 1e-30))


def _fit(x: Points, weight: PerDraw, leads: list[int]) -> Triangular:
    """Fit means and log scales of all coordinates but the leads.

    A coordinate has more than straight lines only where the likelihood gains the price of it (Schwarz 1978).
    """
    num = len(leads)
    order = np.array([*leads, *np.setdiff1d(np.arange(x.shape[1]), leads)])
    x = x[:, order]
    centre = weight @ x[:, :num]
    scale = np.sqrt(weight @ (x[:, :num] - centre) ** 2)
    features = _features(np, np.clip((x[:, :num] - centre) / scale, -LIMIT, LIMIT))
    straight, bent = (_regress(x, weight, features[:, :count]) for count in (1 + num, features.shape[1]))
    effective = 1 / (weight @ weight)
    price = np.log(effective) * (features.shape[1] - 1 - num)
    is_bent = effective * (bent[2] - straight[2]) > price
    mean, log_scale = bent[0] * is_bent, bent[1] * is_bent
    mean[: 1 + num] += straight[0] * ~is_bent
    log_scale[: 1 + num] += straight[1] * ~is_bent
    mean[:, :num] = log_scale[:, :num] = 0.0
    return Triangular(order, centre, scale, mean, log_scale)


def _regress(
    x: Points, weight: PerDraw, features: Float[np.ndarray, "draw feature"]
) -> tuple[Float[np.ndarray, "feature dim"], Float[np.ndarray, "feature dim"], Point]:
    """Return coefficients of means and log scales, and the mean log likelihood of every coordinate."""
    num = features.shape[1]
    # Next to nothing of a ridge, so that a lead of two values leaves no singular matrix; where zero lies is no matter.
    ridge = weight @ weight * np.diag(np.arange(num) > 0)
    mean, log_scale = np.zeros((num, x.shape[1])), np.zeros((num, x.shape[1]))
    log_scale[0] = 0.5 * np.log(weight @ (x - weight @ x) ** 2)
    weighted = features.T * weight
    information = np.linalg.inv(weighted @ features + ridge)
    for _ in range(NUM_STEPS):
        precision = np.exp(-2 * (features @ log_scale))
        precision = precision / (weight @ precision)
        products = np.stack([(weighted * column) @ precision for column in features.T], -1)
        products = np.swapaxes(products, 0, 1) + ridge
        mean = np.linalg.solve(products, ((weighted @ (precision * x)).T)[..., None])[..., 0].T
        square = (x - features @ mean) ** 2 * np.exp(-2 * (features @ log_scale))
        log_scale = log_scale + information @ (weighted @ (0.5 * (np.minimum(square, LARGEST_SQUARE) - 1)))
    spread = features @ log_scale
    square = (x - features @ mean) ** 2 * np.exp(-2 * spread)
    return mean, log_scale, -(weight @ (0.5 * np.minimum(square, LARGEST_SQUARE) + spread))
