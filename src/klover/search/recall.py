r"""The search, tested on the modes that are known: whether it would have found each of them.

Where several modes are known, the search can be tested on them. Each in turn is taken out of the mixture, starts are
drawn from what is left as the search draws them, and those are counted that fall where the left-out mode is the highest
(each mode a bell with its mass). With h such starts on average the search finds it with probability
:math:`1-e^{-h}`. If that is small for one of the known modes, which was then found by luck, there may be others like
it. The target is asked only whether hills of the mixture are its own; all else are bells.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from klover.base.shapes import Bool, Float, Int
from klover.mixtures.algebra import mixture_of, take
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.mixtures.scale import Diagonal
from klover.search.region import Region
from klover.search.starts import draw_rungs

STEPS = np.linspace(0.0, 1.0, 9)
SMALLEST_DIP = 1.0
"""Nats between two modes; skewed hills have many components."""
FARTHEST = 2.0
"""Standard deviations, of both together, between two components of one round hill."""
MOST_PARTS = 12
"""The test is made with the modes of least mass, if there are more: they are the hardest to find."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the target: where it is, its covariance (or variances, in many dimensions), its log mass."""

    x: Float[np.ndarray, " dim"]
    covariance: Float[np.ndarray, "dim *dim"]
    log_mass: float


def modes_of(mixture: Mixture, least_share: float) -> tuple[Part, ...]:
    """Return the hills of a mixture, the heaviest first, that have at least this share of its mass.

    Components between which it does not dip by a nat are on one hill, and so are those that others connect: the
    components along a ridge are one mode. Its place and covariance are those of the heaviest component on it.
    """
    weights, location = np.asarray(mixture.weights), np.asarray(mixture.components.location)
    spread = mixture.components.spread
    shapes = spread.variance() if isinstance(spread, Diagonal) else spread.covariance()
    hill = _connected(_is_linked(mixture, location))
    parts = []
    for place in np.unique(hill):
        members = np.flatnonzero(hill == place)
        lead, share = members[np.argmax(weights[members])], weights[members].sum()
        if share >= least_share:
            parts.append(Part(location[lead], np.asarray(shapes[lead]), float(np.log(share))))
    return tuple(sorted(parts, key=lambda part: -part.log_mass))


def standing(
    log_prob: Callable[[Float[np.ndarray, "draw dim"]], Float[np.ndarray, " draw"]], parts: tuple[Part, ...]
) -> tuple[Part, ...]:
    """Return the hills that the target has too: on the way to the nearest higher one it dips by a nat.

    The tails of a heavy-tailed mode are often a wide component, whose centre is anywhere on the slope.
    """
    if len(parts) < 2:
        return parts
    x, heights = np.stack([part.x for part in parts]), log_prob(np.stack([part.x for part in parts]))
    first, *others = np.argsort(-heights, kind="stable").tolist()
    kept = [first]
    for one in others:
        near = min(kept, key=lambda other: _distance(parts[one], parts[other]))
        if log_prob(x[one] + STEPS[:, None] * (x[near] - x[one])).min() < heights[one] - SMALLEST_DIP:
            kept.append(one)
    return tuple(parts[place] for place in sorted(kept))


def _distance(one: Part, other: Part) -> float:
    """Return the squared distance of two parts, in units of both their covariances together."""
    delta, both = one.x - other.x, one.covariance + other.covariance
    return float(delta @ (delta / both if both.ndim == 1 else np.linalg.solve(both, delta)))


def num_apart(mixture: Mixture, least_share: float) -> int:
    """Count components, of those with this share of the mass, that lie too far apart for one round hill.

    Modes that touch are one hill to :func:`modes_of`, and so is a narrow one in the flank of a wide one. The narrowest
    are counted first: two in opposite flanks lie apart, although neither is far from the hill.
    """
    is_large = np.asarray(mixture.weights) >= least_share
    location, spread = np.asarray(mixture.components.location)[is_large], mixture.components.spread
    shape = spread.variance() if isinstance(spread, Diagonal) else spread.covariance()
    shape = np.asarray(shape)[is_large]
    chosen: list[int] = []
    for one in np.argsort(np.asarray(spread.log_scale())[is_large]).tolist():
        delta, both = location[chosen] - location[one], shape[chosen] + shape[one]
        solved = delta / both if both.ndim == 2 else np.linalg.solve(both, delta[:, :, None])[:, :, 0]
        if np.all(np.sum(delta * solved, axis=1) > FARTHEST**2):
            chosen.append(one)
    return len(chosen)


def relative_width(parts: tuple[Part, ...]) -> float:
    """Return the width of the narrowest part, the geometric mean of all directions, relative to the widest."""
    if len(parts) < 2:
        return 1.0
    dim = len(parts[0].x)
    log_volume = [
        np.linalg.slogdet(part.covariance)[1] if part.covariance.ndim == 2 else np.log(part.covariance).sum()
        for part in parts
    ]
    return float(np.exp((min(log_volume) - max(log_volume)) / (2 * dim)))


def _is_linked(mixture: Mixture, location: Float[np.ndarray, "component dim"]) -> Bool[np.ndarray, "component other"]:
    """Return between which components the mixture does not dip."""
    one, other = np.triu_indices(len(location), 1)
    ways = location[one, None] + STEPS[:, None] * (location[other] - location[one])[:, None]
    along = np.reshape(mixture.log_prob(ways.reshape(-1, mixture.dim)), (len(one), len(STEPS)))
    linked = np.eye(len(location), dtype=bool)
    linked[one, other] = along.min(axis=1) >= np.minimum(along[:, 0], along[:, -1]) - SMALLEST_DIP
    return linked | linked.T


def _connected(linked: Bool[np.ndarray, "component other"]) -> Int[np.ndarray, " component"]:
    """Return the group of every component, in which links connect all: the number of its first."""
    group = np.arange(len(linked))
    for _ in group:
        group = np.where(linked, group, len(group)).min(axis=1)
    return group


def recall(
    generator: np.random.Generator,
    region: Region,
    mixture: Mixture,
    parts: tuple[Part, ...],
    prior: Float[np.ndarray, "draw dim"],
    num_starts: int,
    num_draws: int,
) -> float:
    """Return the smallest probability, over the parts, that a search finds the part if it is not known.

    Parameters
    ----------
    region, mixture, prior, num_starts
        What the search draws its starts from, and how many on each rung.
    parts
        The known ones, of which there must be two or more.
    num_draws
        Draws of the mixture itself: one in a missed part would have had a large weight.
    """
    bells = _bells(mixture, parts)
    owner = np.argmax(_log_joint(bells, parts, np.asarray(mixture.components.location)), axis=0)
    hits = []
    for which in np.argsort([part.log_mass for part in parts])[:MOST_PARTS]:
        others = np.flatnonzero(owner != which)
        if len(others) == 0:
            continue
        rest = take(mixture, others)
        starts = draw_rungs(generator, region, rest, prior, num_starts).reshape(-1, mixture.dim)
        starts = np.concatenate([starts, rest.draw(generator, num_draws)])
        hits.append(_count(bells, parts, starts, int(which)))
    return 1 - math.exp(-min(hits)) if hits else 1.0


def _bells(mixture: Mixture, parts: tuple[Part, ...]) -> Mixture:
    """Return a component for each part, all with the heaviest of their tails.

    Were their tails their own, the heaviest alone would own all that is far away; were they a Normal's, the core of a
    heavy-tailed mode would be taken for a narrow mode.
    """
    x, shape = np.stack([part.x for part in parts]), np.stack([part.covariance for part in parts])
    nearest = [int(np.argmin(np.abs(mixture.components.location - part.x).sum(axis=1))) for part in parts]
    df = float(np.min(np.asarray(mixture.components.df)[nearest]))
    return mixture_of(Family(mixture.components.tail), x, shape, df, np.ones(len(parts)))


def _log_joint(
    bells: Mixture, parts: tuple[Part, ...], x: Float[np.ndarray, "draw dim"]
) -> Float[np.ndarray, "part draw"]:
    return np.array([part.log_mass for part in parts])[:, None] + np.asarray(bells.component_log_prob(x))


def _count(
    bells: Mixture, parts: tuple[Part, ...], starts: Float[np.ndarray, "start dim"], which: int
) -> Int[np.ndarray, ""] | int:
    """Count the starts at which a part is the highest."""
    return int(np.sum(np.argmax(_log_joint(bells, parts, starts), axis=0) == which))
