"""The search for parts of the target that a proposal does not cover.

The weights of a proposal say nothing about a mode that it never visits: k̂ and ESS are then perfect. So the target is
searched once more: from starts far and near, of which a screen chooses those that lie in no known basin
(:mod:`klover.search.starts`, :mod:`klover.search.screen`), from the heaviest draws, and radially, for other scales
around the known centres (:mod:`klover.search.ladder`). This is a search, not a proof:
:mod:`klover.search.envelope` says what it would have found.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from klover.base.linalg import divided, times
from klover.base.shapes import AnyArray, Float
from klover.importance import ratios
from klover.mixtures.mixture import Mixture
from klover.search.climb import ValueAndGradient, climb
from klover.search.curvature import local_covariance, log_volume
from klover.search.envelope import LARGEST_MISS, MASS, smallest_scale
from klover.search.ladder import TOO_LOW, find_scale
from klover.search.modes import resolution_of
from klover.search.recall import Part
from klover.search.region import Region
from klover.search.screen import KNOWN, lowest, score
from klover.search.slopes import slopes
from klover.search.starts import INFLATIONS, draw_rungs
from klover.targets.evaluator import Evaluator
from klover.tuning import Missed, Tuning

FEWEST_RADIAL = 10
"""Draws of the ladder for each dimension, and for one more."""
NUM_RUNGS = 12
"""On which starts lie."""
SAME_TOP = 0.1
"""Whitened distance below which two climbs have ended on one top."""
EVEN = 0.9
"""Ratio of the widths of known modes above which they are alike: fits do not tell widths any better."""


@dataclasses.dataclass(frozen=True)
class Effort:
    """How hard to look: starts and climbs on each rung, climbs from heavy draws, draws of the ladder.

    A thrifty one looks at heavy draws before it climbs from them, as at all other starts, and makes all draws of the
    ladder only where the first of them have seen something. One by values looks at slopes only where the target is ten
    times as high as the mixture, as it is in a basin that is not known, and high enough to matter.
    """

    num_starts: int
    num_climbs: int
    num_heavy: int
    num_radial: int
    is_thrifty: bool = False
    is_by_values: bool = False

    @classmethod
    def of(cls, tuning: Missed, factor: float | int = 1) -> "Effort":
        """Return the usual effort, or one that is so many times as large."""
        root = factor**0.5
        return cls(
            max(round(factor * tuning.num_starts), 1),
            max(round(root * tuning.num_climbs), 1),
            tuning.num_heavy,
            max(round(root * tuning.num_radial), 2),
        )

    @classmethod
    def thrifty(cls, tuning: Missed, share: float, dim: int) -> "Effort":
        """Return a share of the usual effort; in more dimensions scales are harder to see."""
        usual, fewest = cls.of(tuning, share), min(FEWEST_RADIAL * (1 + dim), tuning.num_radial)
        num_heavy = max(round(share**0.5 * tuning.num_heavy), 1)
        num_radial = max(round(share * tuning.num_radial), fewest)
        return dataclasses.replace(usual, num_heavy=num_heavy, num_radial=num_radial, is_thrifty=True)

    @classmethod
    def by_values(cls, num_starts: int, num_climbs: int, num_radial: int) -> "Effort":
        """Return an effort of few evaluations: so many climbs at the most, from all rungs together."""
        return cls(num_starts, num_climbs, 0, num_radial, is_thrifty=True, is_by_values=True)


@dataclasses.dataclass(frozen=True)
class Searched:
    """What was searched for missed parts.

    Parameters
    ----------
    num_starts, num_climbs
        Points at which the slope was looked at, and those that were climbed from.
    num_starts_a_rung
        Of the starts, those on each of the rungs around the components.
    inflations
        Standard deviations of the components at which these lie, the smallest and the largest.
    num_radial
        Draws on other scales around the known centres.
    dim
        Dimension of the space.
    recall
        Probability with which each of several known modes would have been found, had it been missed
        (:mod:`klover.search.recall`); 1 where there is but one.
    num_modes, relative_width
        Modes that are known, among which the starts are shared out, and the width of the narrowest of these relative to
        the widest.
    """

    num_starts: int
    num_climbs: int
    num_starts_a_rung: int
    inflations: tuple[float, float]
    num_radial: int
    dim: int
    recall: float = 1.0
    num_modes: int = 1
    relative_width: float = 1.0

    @property
    def smallest_scale(self) -> float:
        """Relative scale from which on a further mode would have been found (:mod:`klover.search.envelope`)."""
        return smallest_scale(self.dim, max(self.num_starts_a_rung // self.num_modes, 1), INFLATIONS)

    @classmethod
    def together(cls, passes: "Sequence[Searched]") -> "Searched":
        """Count what several passes have searched."""
        counts = ("num_starts", "num_climbs", "num_starts_a_rung", "num_radial")
        total = {name: sum(getattr(each, name) for each in passes) for name in counts}
        return dataclasses.replace(passes[0], **total)

    @property
    def is_too_coarse(self) -> bool:
        """Whether known modes differ, and it would miss, beside the widest, one as narrow as the narrowest."""
        return self.relative_width < min(self.smallest_scale, EVEN)

    def __str__(self) -> str:
        """Say what was searched, and what would have been found."""
        looked = (
            f"{self.num_starts} starts up to {self.inflations[1]:.0f} sds away, {self.num_climbs} climbs, "
            f"{self.num_radial} draws on other scales: a further mode with {MASS:.0%} of the mass of a known one, and "
        )
        if self.smallest_scale == 1:
            return f"{looked}as wide, may have been missed (more than {LARGEST_MISS:.0%})"
        return f"{looked}{self.smallest_scale:.2f} of its width, would have been found with {1 - LARGEST_MISS:.0%}"


def find_missed(
    generator: np.random.Generator,
    evaluator: Evaluator,
    proposal: Mixture,
    mixture: Mixture,
    x: Float[AnyArray, "draw dim"],
    log_ratio: Float[AnyArray, " draw"],
    effort: Effort,
    tuning: Tuning,
) -> tuple[list[Part], Searched]:
    """Search for parts of the target where the proposal is far too low; the largest come first.

    Parameters
    ----------
    generator, evaluator
        Sources of chance and of the target.
    proposal, mixture
        What draws come from, and the same without what was added in defence.
    x, log_ratio
        Draws of the proposal and log p - log q there; the heaviest may have met what it misses.
    effort, tuning
        How hard to look, and the numbers of the engine.
    """
    log_ratio, radial = np.asarray(log_ratio), (effort.num_radial, tuning.missed.smallest_halo)
    most = tuning.missed.num_radial if effort.is_thrifty else None
    log_evidence = float(ratios.log_evidence(log_ratio)[0])
    heaviest = np.argsort(-log_ratio)[: min(effort.num_heavy, int(np.isfinite(log_ratio).sum()))]
    with evaluator.probing():
        heavy = np.asarray(x)[heaviest]
        tops, values, searched = find_tops(generator, evaluator, mixture, heavy, effort, tuning, log_evidence)
        is_suspect = values - proposal.log_prob(tops) > log_evidence + np.log(tuning.missed.least_ratio)
        log_tails = log_mass_of_tails(mixture)
        parts = parts_with_mass(evaluator, mixture, tops, values, is_suspect, log_evidence, tuning, log_tails)
        scale = find_scale(generator, evaluator, proposal, mixture, log_evidence, *radial, most)
    return parts + ([] if scale is None else [Part(*scale)]), searched


@np.errstate(over="ignore", invalid="ignore")
def find_tops(
    generator: np.random.Generator,
    evaluator: Evaluator,
    mixture: Mixture,
    heavy: Float[AnyArray, "draw dim"],
    effort: Effort,
    tuning: Tuning,
    log_evidence: float = 0.0,
) -> tuple[Float[np.ndarray, "top dim"], Float[np.ndarray, " top"], Searched]:
    """Climb from the starts that the screen chooses, and from heavy draws; return tops and log densities."""
    centre, root = mixture.mean(), mixture.root()
    function = slopes(evaluator, centre, root)
    num = _num_starts(evaluator, effort, mixture.dim)
    region = Region(evaluator.target, tuning.search, evaluator.coordinates)
    rungs = draw_rungs(generator, region, mixture, evaluator.prior_draws(), num)
    flat = rungs.reshape(-1, mixture.dim)
    if effort.is_by_values:
        starts = _suspects(evaluator.values(flat) - log_evidence, mixture, flat, tuning.missed)[: effort.num_climbs]
        starts = _unknown(function, mixture, starts, centre, root)
    else:
        heavy = _unknown(function, mixture, heavy, centre, root) if effort.is_thrifty else heavy
        look = slopes(evaluator, centre, root, is_central=False)
        value, gradient = look(divided(root, flat - centre))
        scores = score(mixture, flat, divided(root.T, gradient))
        chosen = lowest(scores.reshape(len(rungs), num), value.reshape(len(rungs), num), effort.num_climbs)
        starts = np.concatenate([np.reshape([rungs[place] for place in chosen], (-1, mixture.dim)), heavy])
    tops, values = climb(function, divided(root, starts - centre), resolution=resolution_of(evaluator))
    searched = Searched(len(flat), len(starts), num, (INFLATIONS[0], INFLATIONS[-1]), effort.num_radial, mixture.dim)
    return np.asarray(centre + times(root, tops)), np.where(np.isfinite(values), values, -np.inf), searched


def _num_starts(evaluator: Evaluator, effort: Effort, dim: int) -> int:
    """Return the starts on each rung.

    By differences a look costs d + 1 evaluations: the looks may cost as many as all work before. Where evaluations are
    counted there are fewer starts, for about as many evaluations as with gradients.
    """
    if evaluator.has_gradient or effort.is_by_values:
        return effort.num_starts
    fewest = max(effort.num_starts // (2 * dim + 1), 1)
    if effort.is_thrifty or evaluator.num_affordable is not None:
        return fewest
    return int(np.clip(evaluator.num_evaluations // (NUM_RUNGS * (dim + 1)), fewest, effort.num_starts))


def _suspects(
    log_ratio: Float[np.ndarray, " start"], mixture: Mixture, x: Float[np.ndarray, "start dim"], tuning: Missed
) -> Float[np.ndarray, "some dim"]:
    """Return points at which the target, over the evidence, is far higher than the mixture, the worst first.

    A top of that height must have a mass that counts, were it as wide as all of the mixture.
    """
    root = mixture.root()
    log_scale = np.log(root).sum() if root.ndim == 1 else np.log(np.diagonal(root)).sum()
    log_mass = log_ratio + log_scale + 0.5 * mixture.dim * np.log(2 * np.pi)
    excess = np.where(log_mass > np.log(tuning.smallest_mode), log_ratio - mixture.log_prob(x), -np.inf)
    worst = np.argsort(-excess)
    return x[worst[excess[worst] > np.log(TOO_LOW)]]


def _unknown(
    function: ValueAndGradient,
    mixture: Mixture,
    x: Float[AnyArray, "draw dim"],
    centre: Float[AnyArray, " dim"],
    root: Float[np.ndarray, "dim *dim"],
) -> Float[AnyArray, "some dim"]:
    """Return the points that lie in no known basin, by their slopes."""
    value, gradient = function(divided(root, x - centre))
    scores = score(mixture, x, divided(root.T, gradient))
    return x[np.isfinite(value) & (scores < KNOWN)]


@np.errstate(over="ignore", invalid="ignore")
def parts_with_mass(
    evaluator: Evaluator,
    mixture: Mixture,
    tops: Float[np.ndarray, "top dim"],
    values: Float[np.ndarray, " top"],
    is_suspect: AnyArray,
    log_evidence: float,
    tuning: Tuning,
    log_tails: float = 0.0,
) -> list[Part]:
    """Return the suspects that are no spikes, the largest first.

    The neck of a funnel is high and has no mass, as Laplace's approximation tells. With heavy tails a part may have far
    more than that: none is a trifle that would matter with ``log_tails`` more (:func:`log_mass_of_tails`).
    """
    centre, root = mixture.mean(), mixture.root()
    function = slopes(evaluator, centre, root)
    log_scale = np.log(root).sum() if root.ndim == 1 else np.linalg.slogdet(root)[1]
    whitened, search = divided(root, tops - centre), tuning.search
    parts, seen = [], []
    for place in np.argsort(-values).tolist():
        z = whitened[place]
        if not is_suspect[place] or any(np.linalg.norm(z - other) < SAME_TOP for other in seen):
            continue
        seen.append(z)
        ceiling = (search.widest * np.maximum(search.start_scale, np.abs(z))) ** 2
        log_mass = values[place] + log_volume(function, z, ceiling, search) + log_scale
        if log_mass + log_tails >= log_evidence + np.log(tuning.missed.smallest_mode):
            shape = local_covariance(function, z, ceiling, search)
            scale = root if root.ndim == 1 else np.diagonal(root)
            shape = times(root, times(root, shape).T) if shape.ndim == 2 else scale**2 * shape
            parts.append(Part(tops[place], shape, float(log_mass)))
        if len(parts) == search.num_starts:
            break
    return sorted(parts, key=lambda part: -part.log_mass)


def log_mass_of_tails(mixture: Mixture) -> float:
    r"""Return by how much a part with the tails of the known ones has more mass than the curvature at its top tells.

    A Student-t with ν degrees of freedom has :math:`\big(\tfrac{\nu+d}2\big)^{d/2}\Gamma(\tfrac\nu2)/
    \Gamma(\tfrac{\nu+d}2)` times the mass that Laplace's approximation gives it: e⁹ times with ν = 2 in twenty
    dimensions, where two modes with four fifths of the mass were taken for trifles.
    """
    if mixture.components.tail != "student":
        return 0.0
    half, dims = 0.5 * np.asarray(mixture.components.df, float), 0.5 * mixture.dim
    log_gammas = [math.lgamma(one) - math.lgamma(one + dims) for one in half.tolist()]
    return float(np.asarray(mixture.weights) @ (dims * np.log(half + dims) + np.array(log_gammas)))
