r"""What a search would have found: the smallest mode, relative to the one that was, in so many dimensions.

Let a unit Normal be found, and a Normal of relative mass m and relative scale s < 1 be missed, D standard deviations
away. It is higher than the found one inside of a ball: with :math:`A=\log m-d\log s`,

.. math:: \Big\lVert\theta-\frac{D}{1-s^2}u\Big\rVert^2<\frac{s^2}{1-s^2}\Big(2A+\frac{D^2}{1-s^2}\Big),

and a climb from there ends on it. A start of the rung :math:`N(0,c^2I)` falls into that ball with a probability that a
noncentral chi-square distribution gives; n starts on each of several rungs miss it with probability
:math:`\prod_c(1-\pi_c)^n`. The envelope is the smallest s with which at most 1 % are missed at every distance of 4 to
20 standard deviations.
"""

import functools
import math

import numpy as np

from klover.base.shapes import Float

MASS = 0.2
"""Relative to the found mode."""
DISTANCES = (4.0, 6.0, 9.0, 14.0, 20.0)
"""In standard deviations of the found mode."""
LARGEST_MISS = 0.01
"""Probability of missing a mode that counts as found."""
NUM_HALVINGS = 8
NUM_POINTS = 97
"""Of the quadrature: errors below 0.01."""


@functools.cache
def smallest_scale(dim: int, num: int, inflations: tuple[float, ...]) -> float:
    """Return the scale from which on a mode is hardly ever missed, by ``num`` starts each; 1 if there is none."""
    low, high = 0.0, 1.0
    for _ in range(NUM_HALVINGS):
        middle = 0.5 * (low + high)
        miss = max(_miss(dim, num, inflations, middle, distance) for distance in DISTANCES)
        low, high = (low, middle) if miss <= LARGEST_MISS else (middle, high)
    return high


def _miss(dim: int, num: int, inflations: tuple[float, ...], scale: float, distance: float) -> float:
    """Probability that no start falls where the missed mode is the higher one."""
    narrow = 1 - scale**2
    square = scale**2 / narrow * (2 * (math.log(MASS) - dim * math.log(scale)) + distance**2 / narrow)
    if square <= 0:
        return 1.0
    hits = [_in_ball(dim, distance / narrow / factor, math.sqrt(square) / factor) for factor in inflations]
    return math.exp(num * sum(math.log1p(-min(hit, 1 - 1e-12)) for hit in hits))


def _in_ball(dim: int, distance: float, radius: float) -> float:
    """Probability of a ball under the standard Normal, by quadrature along the axis to its centre."""
    along = np.linspace(distance - radius, distance + radius, NUM_POINTS)
    along = np.clip(along, -38.0, 38.0)
    density = np.exp(-0.5 * along**2) / math.sqrt(2 * math.pi)
    across = np.maximum(radius**2 - (along - distance) ** 2, 0.0)
    inside = _chi_square_cdf(dim - 1, across) if dim > 1 else np.ones(len(along))
    return float(np.trapezoid(density * inside, along))


def _chi_square_cdf(df: int, x: Float[np.ndarray, " point"]) -> Float[np.ndarray, " point"]:
    r"""Distribution function by the series :math:`e^{-x/2}\sum_{j\ge0}(x/2)^{a+j}/\Gamma(a+j+1)`, a = df / 2."""
    # Further out it is one.
    half, shape = np.clip(x, 1e-300, df + 12 * math.sqrt(df) + 20)[:, None] / 2, df / 2
    terms = np.arange(int(half.max() + 8 * math.sqrt(half.max() + 1) + 20))
    log_gamma = np.array([math.lgamma(shape + term + 1) for term in terms.tolist()])
    return np.minimum(np.exp(-half + (shape + terms) * np.log(half) - log_gamma).sum(1), 1.0)
