"""Which coordinates to look at first: those of which something remarkable can be said, and what that is.

Four signs are measured on posterior draws, each in units in which 1 is remarkable: skewness, the strongest correlation
with another coordinate, how deep a valley lies between two peaks, and the tail index k̂ of the coordinate's mean. A
coordinate ranks by its largest sign. Moments would not do: those of a heavy tail are noise.
"""

import dataclasses

import numpy as np

from klover.base.arrays import comb
from klover.base.shapes import Float
from klover.importance import psis
from klover.results.fit import Fit

LEVELS = (0.05, 0.5, 0.95)
REMARKABLE_SKEWNESS = 0.3
"""Of (upper end + lower end - 2 median) / (upper end - lower end): a Gumbel distribution has 0.28, a Normal 0."""
REMARKABLE_CORRELATION = 0.8
"""Of ranks."""
REMARKABLE_VALLEY = 0.5
"""How much lower the density is between two peaks than at the smaller one."""
SMALLEST_PEAK = 0.1
"""Of the largest one."""
NUM_BINS, NUM_SMOOTHINGS = 30, 4
MOST_CORRELATED = 500
"""Coordinates beyond which no correlations are looked at: there are half as many as the square."""
MOST_POINTS = 4000
SMALLEST_SIGN = 0.5
"""What is less remarkable is not worth a word."""


@dataclasses.dataclass(frozen=True)
class Interest:
    """A flat coordinate, and its name with what is remarkable about it."""

    coordinate: int
    words: str


def interests(fit: Fit) -> list[Interest]:
    """Return all coordinates, the most remarkable first."""
    weight = np.exp(np.asarray(fit.draws.log_weight, float))
    points = np.asarray(fit.draws.x, float)[comb(weight, (np.arange(MOST_POINTS) + 0.5) / MOST_POINTS)]
    names = [fit.target.coordinate_name(place) for place in range(fit.mixture.dim)]
    skewness, depth, tails = _skewness(points), np.array([_valley(column) for column in points.T]), _tails(fit, names)
    correlation, partner = _strongest(points)
    signs = np.stack(
        [
            np.abs(skewness) / REMARKABLE_SKEWNESS,
            np.abs(correlation) / REMARKABLE_CORRELATION,
            depth / REMARKABLE_VALLEY,
            tails / psis.reliable_k(fit.draws.num_draws),
        ]
    )
    found = []
    for place in np.argsort(-signs.max(axis=0), kind="stable"):
        said = (
            "skewed to the right" if skewness[place] > 0 else "skewed to the left",
            f"correlation {correlation[place]:.2f} with {names[partner[place]]}",
            "two peaks",
            f"k̂ {tails[place]:.2f}",
        )
        words = [said[sign] for sign in np.argsort(-signs[:, place]) if signs[sign, place] >= SMALLEST_SIGN]
        found.append(Interest(int(place), f"{names[place]} ({', '.join(words)})" if words else names[place]))
    return found


def _skewness(points: Float[np.ndarray, "draw dim"]) -> Float[np.ndarray, " dim"]:
    lower, median, upper = np.quantile(points, LEVELS, axis=0)
    return np.divide(upper + lower - 2 * median, upper - lower, out=np.zeros_like(median), where=upper > lower)


def _valley(values: Float[np.ndarray, " draw"]) -> float:
    """Return how deep the deepest valley of a smoothed histogram is, as a share of the lower of its two peaks."""
    lower, upper = np.quantile(values, (0.005, 0.995))
    height = np.histogram(values, NUM_BINS, (float(lower), float(upper)))[0].astype(float)
    for _ in range(NUM_SMOOTHINGS):
        height = np.convolve(np.pad(height, 1, mode="edge"), (0.25, 0.5, 0.25), "valid")
    peak = np.minimum(np.maximum.accumulate(height), np.maximum.accumulate(height[::-1])[::-1])
    is_peak = peak >= SMALLEST_PEAK * height.max()
    return float(np.max(1 - height[is_peak] / peak[is_peak]))


def _strongest(points: Float[np.ndarray, "draw dim"]) -> tuple[np.ndarray, np.ndarray]:
    """Return each coordinate's strongest correlation of ranks with another one, and which that is."""
    num, dim = points.shape
    if not 1 < dim <= MOST_CORRELATED:
        return np.zeros(dim), np.zeros(dim, int)
    # Draws of large weight come more than once, and share a rank.
    rank = np.stack([np.unique(column, return_inverse=True)[1] for column in points.T], axis=1).astype(float)
    rank -= rank.mean(axis=0)
    rank /= np.maximum(rank.std(axis=0), 1e-12)
    correlation = rank.T @ rank / num
    np.fill_diagonal(correlation, 0.0)
    partner = np.abs(correlation).argmax(axis=1)
    return correlation[np.arange(dim), partner], partner


def _tails(fit: Fit, names: list[str]) -> Float[np.ndarray, " dim"]:
    """Return k̂ of the mean of each coordinate, as the summary has it; zero where it is not a quantity there."""
    summary = fit.summary()
    known = dict(zip(summary.names, np.nan_to_num(summary.columns["pareto_k"], posinf=0.0), strict=True))
    return np.array([known.get(name, 0.0) for name in names])
