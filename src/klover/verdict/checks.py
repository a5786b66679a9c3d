"""What can speak against an answer, in the order in which it is asked.

Each check looks at a :class:`klover.verdict.case.Case` and returns a :class:`klover.verdict.case.Doubt`, or None where
it finds nothing. What explains bad weights (a posterior without end, a density that raises) comes before them; what
only good weights leave open (rounding, rounds that disagree, modes that nobody visited) comes after, the costly search
last.
"""

import numpy as np

from klover.base.arrays import logsumexp
from klover.base.shapes import Float
from klover.importance.draws import WeightedDraws
from klover.importance.islands import ParticleDraws
from klover.importance.psis import reliable_k
from klover.mixtures.mixture import Mixture
from klover.search.missed import Effort, find_tops, parts_with_mass
from klover.search.necks import endless_neck
from klover.search.tails import RADII, endless_coordinate
from klover.verdict.case import Case, Check, Doubt, place_in_words
from klover.verdict.status import Status

CUT = 10.0
"""Ratio of a raw weight to the smoothed one from which on smoothing has hidden something."""
INFINITE_VARIANCE = 0.5
"""The k̂ from which on weights have no variance."""
NUM_REPEATED = 16
"""Draws that are evaluated twice."""


def num_evaluations_of_checks(dim: int) -> int:
    """Return how many evaluations the checks make: repeated draws, probes along all axes, curvatures across them."""
    return 2 * NUM_REPEATED + 1 + (2 * len(RADII) + 6) * dim


def no_support(case: Case) -> Doubt | None:
    """Refuse where the density was finite at no draw."""
    return Doubt(Status.NO_SUPPORT) if float(case.draws.ess) == 0 else None


def improper(case: Case) -> Doubt | None:
    """Refuse where the mixture has followed the posterior outwards without end, or the density does not fall off."""
    coordinate, width = widest(case.mixture)
    if width <= case.tuning.answer.largest_width:
        centre, scale = moments_of(case.draws)
        # The weight of one draw tells no scale, and weights that bad are refused in any case.
        coordinate, width = None, np.inf
        if np.all(scale > 0):
            coordinate = endless_coordinate(case.evaluator, centre, scale)
            coordinate = endless_neck(case.evaluator, centre, scale) if coordinate is None else coordinate
    if coordinate is None:
        return None
    return Doubt(Status.IMPROPER, {"width": width, "name": case.evaluator.target.coordinate_name(coordinate)})


def moments_of(draws: WeightedDraws) -> tuple[Float[np.ndarray, " dim"], Float[np.ndarray, " dim"]]:
    """Return means and standard deviations of the coordinates."""
    weight, x = np.exp(np.asarray(draws.log_weight, float)), np.asarray(draws.x, float)
    centre = weight @ x
    return centre, np.sqrt(weight @ (x - centre) ** 2)


def widest(mixture: Mixture) -> tuple[int, float]:
    """Return the coordinate in which the mixture's locations and scales are largest, and their size there."""
    size = np.max(np.abs(mixture.components.location) + np.sqrt(mixture.components.spread.variance()), axis=0)
    return int(np.argmax(size)), float(np.max(size))


def raised(case: Case) -> Doubt | None:
    """Refuse where the density raised errors."""
    num_raised = case.evaluator.num_raised
    return Doubt(Status.TARGET_RAISED, {"num_raised": num_raised}) if num_raised > 0 else None


def hidden(case: Case) -> Doubt | None:
    """Refuse where NaN may hide more of the posterior than the last draws show, which have learnt to avoid it.

    A Stan program says so that a point is outside of the support; its is the ordinary limit.
    """
    num_nan, num_infinite, num_draws = case.most_invalid
    is_rejecting = getattr(case.evaluator.target.model_info, "name", "") == "stan"
    if is_rejecting or num_nan + num_infinite <= case.tuning.answer.largest_hidden * num_draws:
        return None
    return Doubt(Status.NOT_A_NUMBER, {"num_nan": num_nan, "num_infinite": num_infinite, "num_draws": num_draws})


def invalid(case: Case) -> Doubt | None:
    """Refuse where many of the final draws were NaN or +inf."""
    num_invalid = int(case.draws.num_nan) + int(case.draws.num_positive_infinite)
    is_many = num_invalid > case.tuning.answer.largest_invalid * case.draws.num_draws
    return Doubt(Status.NOT_A_NUMBER) if is_many else None


def heavy(case: Case) -> Doubt | None:
    """Refuse weights with too heavy a tail."""
    is_light = float(case.draws.pareto_k) <= reliable_k(case.draws.num_draws)
    return None if is_light else Doubt(Status.HEAVY_WEIGHTS)


def dominated(case: Case) -> Doubt | None:
    """Refuse where one draw has a large part of the weight that smoothing has taken from it, or the rounds had more."""
    raw = np.exp(np.asarray(case.draws.log_ratio, float) - float(logsumexp(np.asarray(case.draws.log_ratio, float))))
    top = int(np.argmax(raw))
    smoothed = float(np.exp(case.draws.log_weight[top]))
    answer, share = case.tuning.answer, float(case.draws.ess) / case.draws.num_draws
    is_cut = raw[top] > answer.largest_weight and raw[top] > CUT * smoothed
    is_fallen = case.last_ess is not None and share < answer.fallen_ess * case.last_ess
    if not (is_cut or is_fallen):
        return None
    return Doubt(Status.DOMINATED, {"top": raw[top], "share": share, "before": case.last_ess or share})


def noisy(case: Case) -> Doubt | None:
    """Refuse a density that gives two values at one point: evaluated twice, some of the draws must agree."""
    num = NUM_REPEATED if case.earliest is None else len(case.earliest[1])
    x, log_p = np.asarray(case.draws.x, float)[:num], np.asarray(case.draws.log_p, float)[:num]
    if case.earliest is not None:
        x, log_p = (np.concatenate(pair) for pair in zip((x, log_p), case.earliest, strict=True))
    again = case.evaluator.values(x)
    resolution = float(np.finfo(case.evaluator.target.start.dtype).eps) ** 0.5
    is_inside = np.isfinite(again)
    both = is_inside & np.isfinite(log_p)
    again, before = (np.where(both, values, 0.0) for values in (again, log_p))
    difference = np.abs(again - before)
    is_same = np.all(difference <= resolution * (1 + np.abs(before)))
    if is_same and np.array_equal(is_inside, np.isfinite(log_p)):
        return None
    return Doubt(Status.NOISY, {"difference": float(difference.max()) if both.any() else np.inf})


def few(case: Case) -> Doubt | None:
    """Refuse where few draws are effective."""
    is_enough = float(case.draws.ess) >= case.tuning.answer.fewest_effective
    return None if is_enough else Doubt(Status.FEW_EFFECTIVE_DRAWS)


def poor(case: Case) -> Doubt | None:
    """Refuse where so few of many draws are effective that the proposal lies mostly beside the posterior.

    More of them have to be where the tail of the weights has no variance: stated errors are too small then.
    """
    share, answer = float(case.draws.ess) / case.draws.num_draws, case.tuning.answer
    least = answer.least_share if float(case.draws.pareto_k) <= INFINITE_VARIANCE else answer.least_uneven_share
    return None if share >= least else Doubt(Status.POOR_COVER, {"ess_share": share})


def unfinished(case: Case) -> Doubt | None:
    """Refuse what was stopped early: a part of the posterior was still being discovered, or had not been looked for."""
    if case.cause is None:
        return None
    if case.tuning.answer.largest_drift < case.drift < np.inf:
        return Doubt(Status.DRIFTING_PARTICLES, {"drift": case.drift})
    return Doubt(Status.UNFINISHED, {"cause": case.cause})


def drifting(case: Case) -> Doubt | None:
    """Refuse where particles find more beyond the heaviest draws than the tail of the weights tells."""
    is_more = case.beyond > case.tuning.answer.largest_beyond
    return Doubt(Status.DRIFTING_PARTICLES, {"drift": case.beyond}) if is_more else None


def coarse(case: Case) -> Doubt | None:
    """Refuse where the target's precision resolves a coordinate, or the log density, too coarsely."""
    target, answer = case.evaluator.target, case.tuning.answer
    weight, log_p = np.exp(np.asarray(case.draws.log_weight, float)), np.asarray(case.draws.log_p, float)
    resolution, x = float(np.finfo(target.start.dtype).eps), np.asarray(case.draws.x, float)
    size = np.abs(x[weight > 0]).max(0)
    sd = np.sqrt(weight @ (x - weight @ x) ** 2)
    worst = int(np.argmax(size / np.maximum(sd, np.finfo(float).tiny)))
    if resolution * size[worst] > answer.coarse_step * sd[worst]:
        what = target.coordinate_name(worst)
    elif resolution * np.abs(log_p[weight > 0]).max() > answer.coarse_log:
        what = "the log density"
    else:
        return None
    return Doubt(Status.COARSE_NUMBERS, {"what": what, "precision": target.start.dtype})


def pinned(case: Case) -> Doubt | None:
    """Refuse where a part of the posterior lies so near to a bound that numbers do not reach there."""
    target, reach = case.evaluator.target, getattr(case.evaluator.target.model_info, "reach", None)
    if reach is None:
        return None
    x, weight = np.asarray(case.draws.x, float), np.exp(np.asarray(case.draws.log_weight, float))
    is_there = (x <= reach[0]) | (x >= reach[1])
    share = float(weight @ is_there.any(axis=1))
    if share <= case.tuning.missed.smallest_mode:
        return None
    name = target.coordinate_name(int(np.argmax(weight @ is_there)))
    what = f"{name}, which rounds to its bound in {share:.2g} of what was found: let it be its distance from there"
    return Doubt(Status.COARSE_NUMBERS, {"what": what, "precision": target.start.dtype})


def unstable(case: Case) -> Doubt | None:
    """Refuse where the evidence of the final draws differs from that of the round before them."""
    if case.last_evidence is None:
        return None
    log_evidence, error = float(case.draws.log_evidence), float(case.draws.log_evidence_se)
    difference, error = abs(log_evidence - case.last_evidence[0]), float(np.hypot(error, case.last_evidence[1]))
    answer = case.tuning.answer
    if difference <= max(answer.unstable_errors * error, answer.unstable_difference):
        return None
    figures = {"log_evidence": log_evidence, "difference": difference, "ratio": difference / error}
    return Doubt(Status.UNSTABLE_EVIDENCE, figures)


def missed(case: Case) -> Doubt | None:
    r"""Refuse where a search has found parts of the target that the proposal does not cover, and that matter.

    Without a part of mass m, D standard deviations away, log Z is too small by m and a standard deviation by
    :math:`\tfrac12mD^2` of itself. Parts that change nothing by more than an answer may be off are no reason to refuse.
    """
    if not case.parts:
        return None
    x = np.stack([part.x for part in case.parts])
    mass = np.exp([part.log_mass - float(case.draws.log_evidence) for part in case.parts])
    centre, scale = moments_of(case.draws)
    distance = np.max(np.abs((x if case.warp is None else case.warp.from_base(x)[0]) - centre) / scale, axis=1)
    if mass @ (1 + 0.5 * distance**2) < case.tuning.answer.unstable_difference:
        return None
    return Doubt(Status.UNCOVERED_MODE, {"mode": place_in_words(case, case.parts[0])})


def unsearchable(case: Case) -> Doubt | None:
    """Refuse where known modes say that the search was not good enough: there may be others like them.

    One of them was found by luck, or, beside the widest, it would have missed one as narrow as the narrowest. In few
    dimensions, or where it would have missed much narrower ones alone, few answers are wrong. There it says nothing,
    nor where the user has said where to look.
    """
    searched, tuning = case.searched, case.tuning.missed
    if searched is None:
        return None
    if searched.recall < tuning.trusted_recall:
        return Doubt(Status.HIDDEN_MODES, {"recall": searched.recall})
    is_open = case.evaluator.target.box is None and searched.dim > case.tuning.rounds.tiled_dim
    if is_open and searched.is_too_coarse and searched.smallest_scale > tuning.trusted_scale:
        figures = {"num": searched.num_modes, "ratio": searched.relative_width, "scale": searched.smallest_scale}
        return Doubt(Status.UNEVEN_MODES, figures)
    return None


def unconverged(case: Case) -> Doubt | None:
    """Refuse particles whose islands disagree, that still move, or that remember where they began."""
    draws, islands, answer = case.draws, case.tuning.islands, case.tuning.answer
    assert isinstance(draws, ParticleDraws)
    is_settled = draws.spread < islands.largest_spread and float(draws.drift) < answer.largest_drift
    has_forgotten = float(draws.agreement) >= islands.least_agreement
    is_converged = is_settled and has_forgotten and float(draws.ess) >= answer.fewest_effective
    return None if is_converged else Doubt(Status.UNCONVERGED_PARTICLES)


def missed_by_particles(case: Case) -> Doubt | None:
    """Refuse particles where there is a mode that none of them is on."""
    x, tuning = np.asarray(case.draws.x), case.tuning
    x = x if case.warp is None else case.warp.to_base(x)[0]
    effort = Effort.of(tuning.missed)
    heavy = x[:: max(len(x) // effort.num_heavy, 1)]
    with case.evaluator.within(case.warp):
        tops, values, _ = find_tops(case.generator, case.evaluator, case.mixture, heavy, effort, tuning)
        is_far = np.any(np.abs(tops - x.mean(0)) > tuning.answer.far * x.std(0), axis=1)
        log_evidence = float(case.draws.log_evidence)
        parts = parts_with_mass(case.evaluator, case.mixture, tops, values, is_far, log_evidence, tuning)
    if not parts:
        return None
    return Doubt(Status.PARTICLES_MISS_MODE, {"mode": place_in_words(case, parts[0])})


CHECKS: tuple[Check, ...] = (
    no_support,
    improper,
    raised,
    hidden,
    invalid,
    noisy,
    heavy,
    few,
    poor,
    dominated,
    unfinished,
    drifting,
    coarse,
    pinned,
    unstable,
    missed,
    unsearchable,
)
"""Of importance draws."""

PARTICLE_CHECKS: tuple[Check, ...] = (unconverged, missed_by_particles)
"""Of particles, which take over where importance draws were refused."""
