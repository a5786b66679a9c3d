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
        slot = _slot(xp, y, self.knot)
        start, value, slope, bend, width = self._piece(xp, slot)
        step = xp.clip(y - start, 0.0, width)
        inside = value + step * (slope + 0.5 * bend * step)
        beyond = y - xp.clip(y, self.knot[:, 0], self.knot[:, -1])
        end_value, end_slope = self._end(xp, beyond)
        root = xp.sqrt(end_value**2 + 2 * xp.abs(end_value) * end_slope * xp.abs(beyond))
        z = xp.where(beyond == 0, inside, xp.sign(end_value) * root)
        log_slope = xp.where(
            beyond == 0, xp.log(slope + bend * step), xp.log(xp.abs(end_value) * end_slope) - xp.log(root)
        )
        return z, log_slope.sum(-1)

    def from_base(self, z: AnyPoints) -> tuple[AnyPoints, PerPoint]:
        """Return y with g(y) = z, and the log determinant of its derivative."""
        xp = namespace(z, self.knot)
        slot = _slot(xp, z, self.value)
        start, value, slope, bend, _ = self._piece(xp, slot)
        rise = xp.clip(z, self.value[:, 0], self.value[:, -1]) - value
        # The root of a parabola, written so that a small bend is harmless.
        local = xp.sqrt(xp.maximum(slope**2 + 2 * bend * rise, 0.0))
        inside = start + 2 * rise / (slope + local)
        is_beyond = (z < self.value[:, 0]) | (z > self.value[:, -1])
        end_value, end_slope = self._end(xp, z)
        far = (z**2 - end_value**2) / (2 * xp.abs(end_value) * end_slope)
        end = xp.where(z < 0, self.knot[:, 0], self.knot[:, -1])
        y = xp.where(is_beyond, end + xp.sign(z) * far, inside)
        safe = xp.where(is_beyond, xp.abs(z), 1.0)
        log_slope = xp.where(is_beyond, xp.log(xp.abs(end_value) * end_slope) - xp.log(safe), xp.log(local))
        return y, -log_slope.sum(-1)

    def pull_back(self, z: AnyPoints, gradient: AnyPoints) -> AnyPoints:
        """Return the gradient in z of a function of y and of the log determinant, given that in y."""
        xp = namespace(z, self.knot)
        _, value, slope, bend, _ = self._piece(xp, _slot(xp, z, self.value))
        rise = xp.clip(z, self.value[:, 0], self.value[:, -1]) - value
        square = xp.maximum(slope**2 + 2 * bend * rise, 0.0)
        is_beyond = (z < self.value[:, 0]) | (z > self.value[:, -1])
        end_value, end_slope = self._end(xp, z)
        size = xp.where(is_beyond, xp.abs(z), 1.0)
        widening = xp.where(is_beyond, size / (xp.abs(end_value) * end_slope), 1 / xp.sqrt(square))
        return gradient * widening + xp.where(is_beyond, xp.sign(z) / size, -bend / square)

    def _piece(self, xp, slot):
        """Return where the piece of every point begins, value and slope there, the slope's change, and its width."""
        row = xp.arange(self.knot.shape[0])
        knots, values, slopes = xp.asarray(self.knot), xp.asarray(self.value), xp.asarray(self.slope)
        start, slope = knots[row, slot], slopes[row, slot]
        width = knots[row, slot + 1] - start
        return start, values[row, slot], slope, (slopes[row, slot + 1] - slope) / width, width

    def _end(self, xp, side):
        """Return value and slope at the last knot on the side of a sign."""
        return (
            xp.where(side < 0, self.value[:, 0], self.value[:, -1]),
            xp.where(side < 0, self.slope[:, 0], self.slope[:, -1]),
        )


def _slot(xp, points, knots):
    """Return the piece in which each coordinate of each point lies."""
    return xp.clip((points[..., None] >= knots[:, 1:-1]).sum(-1), 0, knots.shape[-1] - 2)


def fit_marginal(y: Points, weight: PerDraw) -> Marginal:
    """Fit by the forward KL to weighted draws, which should be standardised."""
    effective = float(1 / (weight @ weight))
    num = int(np.clip(3 + np.log2(max(effective, 1.0) / 100), FEWEST_KNOTS, MOST_KNOTS))
    end = -statistics.NormalDist().inv_cdf(min(FEWEST_BEYOND / max(effective, 1.0), 0.2))
    levels = np.array([statistics.NormalDist().cdf(z) for z in np.linspace(-end, end, num)])
    order = np.argsort(y, axis=0)
    middle = np.cumsum(weight[order], axis=0) - 0.5 * weight[order]
    ordered = np.take_along_axis(y, order, axis=0)
    knot = np.stack([np.interp(levels, *columns) for columns in zip(middle.T, ordered.T, strict=True)])
    # Draws that repeat would leave no room between knots.
    knot = np.maximum.accumulate(knot + 1e-6 * np.arange(num), axis=1)
    knot[:, 1:] = np.maximum(knot[:, 1:], knot[:, :-1] + 1e-6)
    hat, ramp = _bases(y, knot)
    coefficients = _minimise(hat, ramp, weight, knot, effective)
    slope, first = coefficients[:, 1:], coefficients[:, :1]
    rise = 0.5 * (slope[:, 1:] + slope[:, :-1]) * np.diff(knot)
    value = first + np.concatenate([np.zeros((len(knot), 1)), np.cumsum(rise, axis=1)], axis=1)
    # A coordinate whose ends are on one side of the middle has no tails of this kind.
    shift = np.maximum(SMALLEST_END + value[:, :1], 0.0) + np.minimum(value[:, -1:] - SMALLEST_END, 0.0)
    return Marginal(knot, value - shift, slope)


def _bases(y, knot):
    """Return the hat functions of the slopes at the knots, and their integrals, (dim, draw, knot)."""
    points = y.T[:, :, None]
    width = np.diff(knot)[:, None, :]
    share = np.clip((points - knot[:, None, :-1]) / width, 0.0, 1.0)
    zero = np.zeros((*share.shape[:2], 1))
    hat = np.concatenate([np.ones_like(zero), share], -1) - np.concatenate([share, zero], -1)
    # The integral of 1 - s over a piece, and of s, from its beginning.
    down, up = width * (share - 0.5 * share**2), 0.5 * width * share**2
    ramp = np.concatenate([down, zero], -1) + np.concatenate([zero, up], -1)
    ramp[:, :, 0] += np.minimum(points[:, :, 0] - knot[:, None, 0], 0.0)
    ramp[:, :, -1] += np.maximum(points[:, :, 0] - knot[:, None, -1], 0.0)
    return hat, ramp


def _minimise(hat, ramp, weight, knot, effective):
    """Find the value at the first knot and the slopes at all knots by Newton's method, all coordinates at once."""
    dim, num_draws, num = hat.shape
    features = np.concatenate([np.ones((dim, num_draws, 1)), ramp], -1)
    second = np.diff(np.eye(num + 1)[1:], 2, axis=0) if num > 2 else np.zeros((0, num + 1))
    penalty = ROUGHNESS / effective * second.T @ second
    quadratic = np.swapaxes(features * weight[:, None], 1, 2) @ features + penalty
    now = np.concatenate([knot[:, :1], np.ones((dim, num))], axis=1)

    def loss(candidate):
        slope = (hat @ candidate[:, 1:, None])[..., 0]
        return 0.5 * np.einsum("di,dij,dj->d", candidate, quadratic, candidate) - np.log(slope) @ weight

    best = loss(now)
    for _ in range(NUM_STEPS):
        slope = (hat @ now[:, 1:, None])[..., 0]
        scaled = hat * (np.sqrt(weight) / slope)[..., None]
        gradient = np.einsum("dij,dj->di", quadratic, now)
        gradient[:, 1:] -= (scaled * np.sqrt(weight)[:, None]).sum(1)
        hessian = quadratic + 1e-9 * np.eye(num + 1)
        hessian[:, 1:, 1:] = hessian[:, 1:, 1:] + np.swapaxes(scaled, 1, 2) @ scaled
        step = -np.linalg.solve(hessian, gradient[..., None])[..., 0]
        # Steps are halved, coordinate by coordinate, until none loses.
        length, new, trial = np.ones(dim), best + 1, now
        for _ in range(MOST_HALVINGS):
            trial = now + length[:, None] * step
            trial[:, 1:] = np.maximum(trial[:, 1:], SMALLEST_SLOPE)
            new = loss(trial)
            length = np.where(new <= best, length, 0.5 * length)
            if np.all(new <= best):
                break
        is_better = new < best
        gain = np.where(is_better, best - new, 0.0)
        now, best = np.where(is_better[:, None], trial, now), best - gain
        if gain.max() < TOLERANCE:
            break
    return now
