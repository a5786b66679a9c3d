r"""Marginal warps: a monotone function of each coordinate that makes its marginal a standard Normal.

Between knots :math:`t_0<\dots<t_K` the slope :math:`g'` is a straight line from one knot to the next, so that g is a
parabola there, and its inverse a root. Beyond the last knots

.. math:: g(y)=\pm\sqrt{g_K^2+2g_Kg_K'\,|y-t_K|},

the map of a density with exponential tails; they are heavier than those of any density whose logarithm is concave.
The forward KL of :math:`\phi(g(y))\,g'(y)` to weighted draws,

.. math:: \sum_sw_s\big(\tfrac12g(y_s)^2-\log g'(y_s)\big),

is convex in the slopes at the knots and in :math:`g_0`, which Newton's method finds in a few steps.
"""

import statistics

import numpy as np

from klover.base.arrays import namespace
from klover.base.shapes import AnyArray, AnyPoints, Float, PerDraw, PerPoint, Points, record

FEWEST_BEYOND = 8.0
"""Effective draws beyond the last knot."""
FEWEST_KNOTS, MOST_KNOTS = 4, 10
NUM_CELLS = 32
"""Between two knots, in which draws are put together."""
NUM_STEPS, MOST_HALVINGS, TOLERANCE = 20, 12, 1e-9
SMALLEST_SLOPE = 1e-3
"""Relative to that of a Normal with the draws' standard deviation."""
SMALLEST_END = 0.5
"""Standard deviations at which the last knots lie at the least: beyond them the tails begin."""
ROUGHNESS = 4.0
"""Effective draws for which a straight line of slopes counts."""

Knots = Float[AnyArray, "dim knot"]


@record
class Marginal:
    """Knots of every coordinate, and the values and slopes of its function there."""

    knot: Knots
    value: Knots
    slope: Knots

    def to_base(self, y: AnyPoints) -> tuple[AnyPoints, PerPoint]:
        """Return z = g(y), and the log determinant of its derivative."""
        xp = namespace(y, self.knot)
        inside = xp.clip(y, self.knot[:, 0], self.knot[:, -1])
        start, value, slope, bend = self._piece(xp, inside, self.knot)
        step, beyond = inside - start, y - inside
        value, slope = value + step * (slope + 0.5 * bend * step), slope + bend * step
        fall = xp.sqrt(1 + 2 * slope * xp.abs(beyond) / xp.maximum(xp.abs(value), SMALLEST_END))
        return value + 2 * slope * beyond / (1 + fall), xp.log(slope / fall).sum(-1)

    def from_base(self, z: AnyPoints) -> tuple[AnyPoints, PerPoint]:
        """Return y with g(y) = z, and the log determinant of its derivative."""
        inside, slope, _, beyond, fall = self._way_back(z)
        return inside + beyond * (1 + fall) / (2 * slope), namespace(z).log(fall / slope).sum(-1)

    def pull_back(self, z: AnyPoints, gradient: AnyPoints) -> AnyPoints:
        """Return the gradient in z of a function of y and of the log determinant, given that in y."""
        xp = namespace(z, self.knot)
        _, slope, bend, beyond, fall = self._way_back(z)
        change = xp.where(beyond == 0, -bend / slope**2, (fall - 1) / xp.where(beyond == 0, 1.0, beyond) / fall)
        return gradient * fall / slope + change

    def _way_back(self, z):
        """Return y, slope and bend at z, or at the last knot before it; how far z is beyond; by what the slope falls.

        Beyond the last knot the square of g is a straight line, so that the slope falls as 1 / |g|.
        """
        xp = namespace(z, self.knot)
        inside = xp.clip(z, self.value[:, 0], self.value[:, -1])
        start, value, slope, bend = self._piece(xp, inside, self.value)
        # The root of a parabola, written so that a small bend is harmless.
        local = xp.sqrt(xp.maximum(slope**2 + 2 * bend * (inside - value), 0.0))
        beyond = z - inside
        fall = 1 + xp.abs(beyond) / xp.maximum(xp.abs(inside), SMALLEST_END)
        return start + 2 * (inside - value) / (slope + local), local, bend, beyond, fall

    def _piece(self, xp, points, knots):
        """Return where the piece of every point begins, value and slope there, and the slope's change."""
        dim, num = self.knot.shape
        # Small integers: counting takes most of the time.
        slot = sum((points >= inner).astype("int8") for inner in knots[:, 1:-1].T) + (num - 1) * xp.arange(dim)
        bend = xp.diff(self.slope) / xp.diff(self.knot)
        tables = self.knot[:, :-1], self.value[:, :-1], self.slope[:, :-1], bend
        return [xp.take(xp.asarray(table).reshape(-1), slot) for table in tables]


def fit_marginal(y: Points, weight: PerDraw) -> Marginal:
    """Fit by the forward KL to weighted draws, which should be standardised."""
    effective = float(1 / (weight @ weight))
    num = int(np.clip(3 + np.log2(max(effective, 1.0) / 100), FEWEST_KNOTS, MOST_KNOTS))
    end = -statistics.NormalDist().inv_cdf(min(FEWEST_BEYOND / max(effective, 1.0), 0.2))
    normal = np.linspace(-end, end, num)
    levels = np.array([statistics.NormalDist().cdf(z) for z in normal])
    columns = [(column[order], weight[order]) for column in y.T for order in [np.argsort(column)]]
    knot = np.stack([np.interp(levels, np.cumsum(share) - 0.5 * share, column) for column, share in columns])
    # Draws that repeat would leave no room between knots.
    knot = np.maximum.accumulate(knot + 1e-6 * np.arange(num), axis=1)
    knot[:, 1:] = np.maximum(knot[:, 1:], knot[:, :-1] + 1e-6)
    summaries = [_summarise(*column, knots) for column, knots in zip(columns, knot, strict=True)]
    place, mass, squares = (np.stack(each) for each in zip(*summaries, strict=True))
    begun = np.concatenate([np.full((len(knot), 1), -end), np.gradient(normal) / np.gradient(knot, axis=1)], axis=1)
    second = np.diff(np.eye(num + 1)[1:], 2, axis=0)
    coefficients = _minimise(begun, squares + ROUGHNESS / effective * second.T @ second, place, mass)
    slope, first = coefficients[:, 1:], coefficients[:, :1]
    rise = 0.5 * (slope[:, 1:] + slope[:, :-1]) * np.diff(knot)
    value = first + np.concatenate([np.zeros((len(knot), 1)), np.cumsum(rise, axis=1)], axis=1)
    # A coordinate whose ends are on one side of the middle has no tails of this kind.
    shift = np.maximum(SMALLEST_END + value[:, :1], 0.0) + np.minimum(value[:, -1:] - SMALLEST_END, 0.0)
    return Marginal(knot, value - shift, slope)


def _summarise(y, weight, knot):
    """Return all that the loss needs of sorted draws of a coordinate.

    These are the mean place (in knots) and the mass of the draws in every cell, for the logarithm of the slope, which
    is straight enough in each; and the matrix of the mean square of g, which is quadratic in the value at the first
    knot and in the slopes at all knots: straight beyond the last ones.
    """
    width, inside = np.diff(knot), np.clip(y, knot[0], knot[-1])
    num = len(width)
    slot = np.minimum(np.searchsorted(knot, inside, side="right") - 1, num - 1)
    step, beyond = inside - knot[slot], y - inside
    share = step / width[slot]
    cell = np.minimum((NUM_CELLS * (slot + share)).astype(int), NUM_CELLS * num - 1)
    mass = np.bincount(cell, weight, NUM_CELLS * num)
    place = np.bincount(cell, weight * (slot + share), NUM_CELLS * num) / np.maximum(mass, 1e-300)
    # What g has of the value where the piece begins, and of the slopes at its two ends.
    later = 0.5 * step * share
    parts = np.ones_like(y), step - later + np.minimum(beyond, 0.0), later + np.maximum(beyond, 0.0)
    products = [[np.bincount(slot, weight * one * two, num) for one in parts] for two in parts]
    basis = np.zeros((num, 3, num + 2))
    basis[:, 0, 0] = 1
    basis[:, 0, 1:-1] += np.tril(np.broadcast_to(0.5 * width, (num, num)), -1)
    basis[:, 0, 2:] += np.tril(np.broadcast_to(0.5 * width, (num, num)), -1)
    basis[np.arange(num), 1, 1 + np.arange(num)] = basis[np.arange(num), 2, 2 + np.arange(num)] = 1
    return place, mass, np.einsum("kia,ijk,kjb->ab", basis, products, basis, optimize=True)


def _minimise(now, quadratic, place, mass):
    """Find the value at the first knot and the slopes at all knots by Newton's method, all coordinates at once."""
    dim, num = now.shape
    # Functions that are one at a knot, and zero at all others.
    hat = np.maximum(1 - np.abs(place[..., None] - np.arange(num - 1)), 0.0)

    def loss(candidate):
        slope = (hat @ candidate[:, 1:, None])[..., 0]
        return 0.5 * np.einsum("di,dij,dj->d", candidate, quadratic, candidate) - (mass * np.log(slope)).sum(1)

    best = loss(now)
    for _ in range(NUM_STEPS):
        slope = (hat @ now[:, 1:, None])[..., 0]
        scaled = hat * (np.sqrt(mass) / slope)[..., None]
        gradient = np.einsum("dij,dj->di", quadratic, now)
        gradient[:, 1:] -= (scaled * np.sqrt(mass)[..., None]).sum(1)
        hessian = quadratic + 1e-9 * np.eye(num)
        hessian[:, 1:, 1:] = hessian[:, 1:, 1:] + np.swapaxes(scaled, 1, 2) @ scaled
        step = -np.linalg.solve(hessian, gradient[..., None])[..., 0]
        # Steps are halved, coordinate by coordinate, until none loses.
        length, new, trial = np.ones(dim), best + 1, now
        for _ in range(MOST_HALVINGS):
            trial = now + length[:, None] * step
            trial[:, 1:] = np.maximum(trial[:, 1:], SMALLEST_SLOPE)
            new = loss(trial)
            length = np.where(new <= best, length, 0.5 * length)
            if np.all(new <= best + TOLERANCE):
                break
        is_better = new < best
        gain = np.where(is_better, best - new, 0.0)
        now, best = np.where(is_better[:, None], trial, now), best - gain
        if gain.max() < TOLERANCE:
            break
    return now
