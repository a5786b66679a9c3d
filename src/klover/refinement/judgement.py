"""The verdict of a refinement: first what the weights say, then all that weights cannot see.

That is a posterior without end, rounding that hides its shape, rounds that disagree, and modes that neither draws nor
particles have visited: for these the target is climbed once more, from far away.
"""

import numpy as np

from klover.base.shapes import Float
from klover.importance.draws import WeightedDraws
from klover.importance.islands import ParticleDraws
from klover.mixtures.algebra import inflate
from klover.mixtures.mixture import Mixture
from klover.refinement.rounds import LARGEST_DRIFT, LARGEST_WIDTH, widest
from klover.refinement.start import region
from klover.refinement.state import Context, State
from klover.search.climb import climb
from klover.search.curvature import log_volume
from klover.search.modes import NUM_STARTS
from klover.targets.evaluator import BudgetExhausted
from klover.targets.loaded import as_target
from klover.verdict.judge import Verdict, judge, judge_particles, place_in_words
from klover.verdict.status import Status

SPENT = "the budget is spent"
SEARCH_INFLATION = 3.0
SMALLEST_MODE = 1e-3
SAME_TOP = 0.1
"""Whitened distance below which two climbs have ended on one top."""
FAR = 6.0
"""Standard deviations of particles from their mean, in any coordinate, at which a top is none of theirs."""
COARSEST = 0.01
"""Largest step between numbers, in standard deviations of a coordinate."""
COARSEST_LOG = 0.1
"""Largest step between numbers of the size of the log density."""
UNSTABLE_ERRORS, UNSTABLE_DIFFERENCE = 5, 0.05
LARGEST_HIDDEN_SHARE = 0.01


def judge_fit(context: Context, state: State, proposal: Mixture, draws: WeightedDraws, cause: str | None) -> Verdict:
    """Judge weighted draws of the final proposal; ``cause`` says why the work was stopped early, if it was."""
    evaluator = context.evaluator
    coordinate, width = widest(state.mixture)
    if width > LARGEST_WIDTH:
        return judge(draws, Status.IMPROPER, width=width, name=evaluator.target.coordinate_name(coordinate))
    if evaluator.num_raised > 0:
        return judge(draws, Status.TARGET_RAISED, num_raised=evaluator.num_raised)
    if _hides_a_part(context, state):
        num_nan, num_infinite, num_draws = state.most_invalid
        return judge(draws, Status.NOT_A_NUMBER, num_nan=num_nan, num_infinite=num_infinite, num_draws=num_draws)
    verdict = judge(draws)
    if not verdict.trusted:
        return verdict
    last = state.history[-1] if state.history else None
    if cause is not None:
        if last is not None and LARGEST_DRIFT < last.drift < np.inf:
            return judge(draws, Status.DRIFTING_PARTICLES, drift=last.drift)
        return judge(draws, Status.UNFINISHED, cause=cause)
    coarse = _coarse(draws)
    if coarse is not None:
        return judge(draws, Status.COARSE_NUMBERS, what=coarse, precision=evaluator.target.start.dtype)
    assert last is not None
    difference = float(draws.log_evidence) - last.log_evidence
    error = float(np.hypot(draws.log_evidence_se, last.log_evidence_se))
    if abs(difference) > max(UNSTABLE_ERRORS * error, UNSTABLE_DIFFERENCE):
        return judge(
            draws,
            Status.UNSTABLE_EVIDENCE,
            log_evidence=float(draws.log_evidence),
            difference=abs(difference),
            ratio=abs(difference) / error,
        )
    try:
        missed = _missed_by_draws(context, state, proposal, draws) if evaluator.has_gradient else None
    except BudgetExhausted:
        return judge(draws, Status.UNFINISHED, cause=SPENT)
    return verdict if missed is None else judge(draws, Status.UNCOVERED_MODE, mode=missed)


def judge_carried(context: Context, state: State, proposal: Mixture, draws: ParticleDraws) -> Verdict:
    """Judge particles by the agreement of their islands, and by whether there is a mode that none of them is on."""
    verdict = judge_particles(draws)
    if not verdict.trusted:
        return verdict
    tops, values, ceiling = _tops(context, state, proposal)
    x = np.asarray(draws.x)
    is_far = np.any(np.abs(tops - x.mean(0)) > FAR * x.std(0), axis=1)
    suspects = [place for place in np.argsort(-values).tolist() if is_far[place]]
    missed = _first_with_mass(context, state, tops, values, suspects, ceiling, float(draws.log_evidence))
    return verdict if missed is None else judge_particles(draws, missed)


def _hides_a_part(context: Context, state: State) -> bool:
    """Whether NaN may hide more of the posterior than the last draws show, which have learnt to avoid it.

    Densities in other languages often say so that a point is outside of the support; theirs is the ordinary limit.
    """
    num_nan, num_infinite, num_draws = state.most_invalid
    is_foreign = hasattr(context.evaluator.target.model_info, "failures")
    return not is_foreign and num_nan + num_infinite > LARGEST_HIDDEN_SHARE * num_draws


def _coarse(draws: WeightedDraws) -> str | None:
    """Name what the target's precision resolves too coarsely, if anything."""
    target = as_target(draws.target)
    resolution = float(np.finfo(target.start.dtype).eps)
    x, weight, log_p = np.asarray(draws.x), np.exp(np.asarray(draws.log_weight)), np.asarray(draws.log_p)
    size = np.abs(x[weight > 0]).max(0)
    sd = np.sqrt(weight @ (x - weight @ x) ** 2)
    worst = int(np.argmax(size / sd))
    if resolution * size[worst] > COARSEST * sd[worst]:
        return target.coordinate_name(worst)
    return "the log density" if resolution * np.abs(log_p[weight > 0]).max() > COARSEST_LOG else None


def _tops(
    context: Context, state: State, proposal: Mixture
) -> tuple[Float[np.ndarray, "top dim"], Float[np.ndarray, " top"], Float[np.ndarray, " dim"]]:
    """Climb from far draws and from the region; return tops, log densities, and how wide a mode may be.

    What is known of scales and correlations by now saves most of the steps: the climb is in coordinates without them.
    """
    _, draw_starts, ceiling = region(context)
    far = inflate(proposal, SEARCH_INFLATION, 5.0).draw(context.generator, NUM_STARTS)
    starts = np.concatenate([far, draw_starts(NUM_STARTS)])
    root = state.mixture.root()

    def whitened(z):
        values, gradients = context.evaluator.values_and_gradients(z @ root.T)
        return values, gradients @ root

    tops, values = climb(whitened, np.linalg.solve(root, starts.T).T)
    return tops @ root.T, np.where(np.isfinite(values), values, -np.inf), ceiling


def _missed_by_draws(context: Context, state: State, proposal: Mixture, draws: WeightedDraws) -> str | None:
    """Name a top at which one draw would outweigh all others."""
    tops, values, ceiling = _tops(context, state, proposal)
    log_ratio = values - proposal.log_prob(tops)
    log_evidence = float(draws.log_evidence)
    is_heavy = log_ratio > log_evidence + np.log(draws.num_draws)
    suspects = [place for place in np.argsort(-log_ratio).tolist() if is_heavy[place]]
    return _first_with_mass(context, state, tops, values, suspects, ceiling, log_evidence)


def _first_with_mass(
    context: Context,
    state: State,
    tops: Float[np.ndarray, "top dim"],
    values: Float[np.ndarray, " top"],
    suspects: list[int],
    ceiling: Float[np.ndarray, " dim"],
    log_evidence: float,
) -> str | None:
    """Name the first of some tops that is no spike: the neck of a funnel is high and has no mass, as Laplace tells."""
    whitened = np.linalg.solve(state.mixture.root(), tops.T).T
    seen: list[int] = []
    for place in suspects:
        if not any(np.linalg.norm(whitened[place] - whitened[other]) < SAME_TOP for other in seen):
            seen.append(place)
            log_mass = values[place] + log_volume(context.evaluator, tops[place], ceiling)
            if log_mass >= log_evidence + np.log(SMALLEST_MODE):
                return place_in_words(context.evaluator.target, tops[place])
    return None
