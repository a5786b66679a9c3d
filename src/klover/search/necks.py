r"""Whether the target has an end in a neck: a way that narrows for ever, and is seen along no axis.

With a flat prior on the log scale c of a centred hierarchy, :math:`\log p=-Jc-\tfrac12e^{-2c}\sum_j(\theta_j-\mu)^2+…`
grows without end as c falls and the θ come together, but falls off along every axis. What counts is the mass at c, by
Laplace's approximation over the other coordinates,

.. math:: \log m(c)=\max_\theta\log p(c,\theta)-\tfrac12\log\det H(c),

H being the negative Hessian there: in a funnel it falls, here it becomes constant, and the posterior is improper. A
coordinate is followed if the curvature across the others grows with it, which costs few gradients; then Newton's method
leads the others along, from each distance to the next. Where a step cannot be told in floating point, or the curvature
has no definite sign, the way is followed no further: the mass has to come to rest before.
"""

import numpy as np

from klover.base.shapes import Float, Int
from klover.search.climb import ValueAndGradient
from klover.search.curvature import precision
from klover.search.tails import NEGLIGIBLE
from klover.targets.evaluator import Evaluator

FAR = 20.0
"""Standard deviations at which the curvature across the other coordinates is compared with that at the centre."""
LEAST_GROWTH = 10.0
LARGEST_OTHER = 1.5
"""The growth towards the other end of a coordinate that says how wide others are: none, but for chance."""
LARGEST_DIM = 30
"""Beyond, a way would take thousands of gradients."""
MOST_FOLLOWED = 2
"""Ends of coordinates."""
RADII = 3.0 * 1.5 ** np.arange(9)
"""Standard deviations from the centre, to 77."""
NUM_SEEN = 5
"""Distances, the centre's included, that have to be told."""
LARGEST_FALL, LARGEST_LAST_FALL, LARGEST_RATIO = 0.05, 0.005, 0.5
"""Nats that log m falls from the last distance but two to the last but one, and from there to the last, if it comes to
rest: the second fall is nothing, or small beside the first. A small power of τ makes falls that grow instead.
"""
STEP = 0.1
"""Standard deviations, for the curvature across."""
MOST_STEPS, TOLERANCE = 4, 1e-2
"""Of Newton's method: steps, and nats that the next one would gain."""


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def endless_neck(
    evaluator: Evaluator, centre: Float[np.ndarray, " dim"], scale: Float[np.ndarray, " dim"]
) -> int | None:
    """Return a coordinate along which a neck has no end, if there is one.

    Without gradients, and in many dimensions, none is looked for.
    """
    dim = len(centre)
    if not 2 <= dim <= LARGEST_DIM or not evaluator.has_gradient:
        return None
    with evaluator.probing():
        growth = _growth(evaluator, centre, scale)
        for end in np.argsort(-growth)[:MOST_FOLLOWED]:
            if growth[end] < LEAST_GROWTH:
                return None
            step = np.zeros(dim)
            step[end % dim] = scale[end % dim] * (1 if end < dim else -1)
            if _is_endless(_log_masses(evaluator, centre, scale, step)):
                return int(end % dim)
    return None


def scale_coordinate(
    evaluator: Evaluator, centre: Float[np.ndarray, " dim"], scale: Float[np.ndarray, " dim"]
) -> int | None:
    """Return a coordinate that says how wide others are, if there is one: they narrow towards one of its ends alone.

    Without gradients, and in many dimensions, none is looked for.
    """
    dim = len(centre)
    if not 2 <= dim <= LARGEST_DIM or not evaluator.has_gradient or not np.all(scale > 0):
        return None
    with evaluator.probing():
        growth = _growth(evaluator, centre, scale).reshape(2, dim)
    narrowing = np.where(growth.min(0) <= LARGEST_OTHER, growth.max(0), 0.0)
    return int(np.argmax(narrowing)) if narrowing.max() >= LEAST_GROWTH else None


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def _growth(
    evaluator: Evaluator, centre: Float[np.ndarray, " dim"], scale: Float[np.ndarray, " dim"]
) -> Float[np.ndarray, " end"]:
    """Return by how much the curvature across grows towards both ends of each coordinate, the upper ends first."""
    dim = len(centre)
    ends = FAR * np.concatenate([np.diag(scale), -np.diag(scale), np.zeros((dim, dim))])
    # Directions by chance: all coordinates moved alike would leave a hierarchy as it is.
    across = np.random.default_rng(0).standard_normal((dim, dim)) * (1 - np.eye(dim))
    across = np.tile(across, (3, 1))
    points = centre + ends + STEP * np.stack([across, -across]) * scale
    value, gradient = evaluator.values_and_gradients(points.reshape(-1, dim))
    difference = np.diff(gradient.reshape(2, 3 * dim, dim), axis=0)[0] * scale
    curvature = np.where(np.isfinite(value).reshape(2, -1).all(0), np.abs(np.sum(difference * across, axis=1)), 0.0)
    return np.nan_to_num(curvature[: 2 * dim] / np.tile(curvature[2 * dim :], 2))


def _log_masses(
    evaluator: Evaluator,
    centre: Float[np.ndarray, " dim"],
    scale: Float[np.ndarray, " dim"],
    step: Float[np.ndarray, " dim"],
) -> list[float]:
    """Return log m at the centre and at growing distances from it, as far as they can be told and matter."""
    others = np.flatnonzero(step == 0)
    z, found = np.zeros(len(others)), []
    for radius in (0.0, *RADII):
        function = restricted(evaluator, centre + radius * step, scale, others)
        z, log_mass, _ = laplace(function, z)
        if log_mass is None:
            break
        found.append(log_mass)
        if log_mass < found[0] - NEGLIGIBLE:
            break
    return found


def restricted(
    evaluator: Evaluator,
    origin: Float[np.ndarray, " dim"],
    scale: Float[np.ndarray, " dim"],
    others: Int[np.ndarray, " other"],
) -> ValueAndGradient:
    """Return the log density as a function of the other coordinates, in standard deviations from the origin."""

    def function(z):
        x = np.tile(origin, (len(z), 1))
        x[:, others] += z * scale[others]
        value, gradient = evaluator.values_and_gradients(x)
        return value, gradient[:, others] * scale[others]

    return function


def laplace(
    function: ValueAndGradient, z: Float[np.ndarray, " other"]
) -> tuple[Float[np.ndarray, " other"], float | None, Float[np.ndarray, "other other"]]:
    """Climb by Newton's method; return the top, the log mass around it, None where that cannot be told, and its root.

    That is the Cholesky factor of the precision; the log mass is without the constant that all distances share.
    """
    root = np.eye(len(z))
    for _ in range(MOST_STEPS):
        value, gradient = function(z[None])
        try:
            root = np.linalg.cholesky(precision(function, z))
        except np.linalg.LinAlgError:
            return z, None, root
        white = np.linalg.solve(root, gradient[0])
        gain = 0.5 * white @ white
        if gain < TOLERANCE:
            log_mass = value[0] + gain - np.log(np.diagonal(root)).sum()
            return z, float(log_mass) if np.isfinite(log_mass) else None, root
        z = z + np.linalg.solve(root.T, white)
    return z, None, root


def _is_endless(log_masses: list[float]) -> bool:
    """Whether the masses come to rest, at a height that matters."""
    if len(log_masses) < NUM_SEEN:
        return False
    first, last = -np.diff(log_masses[-3:])
    is_resting = first <= LARGEST_FALL and last <= max(LARGEST_RATIO * first, LARGEST_LAST_FALL)
    return bool(is_resting and log_masses[-1] >= log_masses[0] - NEGLIGIBLE)
