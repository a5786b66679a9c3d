"""Look for what draws miss; what is found is added to the mixture, and the work goes on."""

import dataclasses

import numpy as np

from klover.base.linalg import moments
from klover.base.shapes import Float
from klover.fitting.splits import num_parameters
from klover.importance.ratios import effective_sample_size, log_evidence
from klover.mixtures.algebra import inflate, join
from klover.mixtures.mixture import Mixture
from klover.refinement.exploration import follow
from klover.refinement.frugality import EVALUATIONS_OF_MISSED
from klover.refinement.learning import learn
from klover.refinement.start import around
from klover.refinement.state import Context, Stage, State
from klover.refinement.surrogate import efforts
from klover.sampling.tempering import carry
from klover.search.missed import Effort, Searched, find_missed
from klover.search.recall import Part, modes_of, num_apart, recall, relative_width, standing
from klover.targets.evaluator import Evaluator
from klover.verdict.case import Case
from klover.verdict.checks import num_evaluations_of_checks
from klover.warps.warped import unwarped

SHARES = 0.1, 0.5
"""The smallest and the largest share of the next draws that goes to what a search has found."""
CHEAP_SIZE = 10_000
"""Numbers in the largest array of a log density that is searched thoroughly although nobody has asked for it."""
NUM_RETURNING = 256
"""Particles of a thorough search that come from far outside."""


def look_for_missed(
    context: Context,
    state: State,
    proposal: Mixture,
    x: Float[np.ndarray, "draw dim"],
    log_ratio: Float[np.ndarray, " draw"],
    is_thorough: bool,
) -> tuple[tuple[Part, ...], Searched]:
    """Search for parts that draws miss.

    Thoroughly, if that is cheap, where the search would miss a mode that is known, and where several are known, or
    components lie far apart, in more dimensions than a usual search can cover: there may well be another, and it may be
    narrow. A thorough search has a pass for each known mode, until one finds something, so that the starts around each
    are as many as around one; where that would cost too much, or has no gradients to go by, a usual one has the passes.
    In few dimensions a larger search follows where so many modes are known that few starts are left around each.
    """
    evaluator, tuning = context.evaluator, context.tuning.missed
    hills = standing(evaluator.values, modes_of(state.mixture, tuning.smallest_halo))
    num_modes = max(len(hills), num_apart(state.mixture, _least_share(context, log_ratio)), 1)
    # Where it took particles, a ridge may be several hills: to find each of them is no test.
    known = () if state.was_hard else hills
    is_small = context.goal is not None and not context.has_usual_search

    def look(effort: Effort, most_passes: int = 1) -> tuple[list[Part], Searched]:
        parts, passes = [], []
        while not parts and len(passes) < most_passes:
            parts, searched = find_missed(
                context.generator, evaluator, proposal, state.mixture, x, log_ratio, effort, context.tuning
            )
            passes.append(searched)
        once = _recall(context, state, passes[0].num_starts_a_rung, len(x), known)
        found = 1 - (1 - once) ** len(passes)
        # A thrifty search is as small as the user has asked for, and known to miss narrow modes.
        width = 1.0 if is_small else relative_width(hills)
        about = {"num_modes": num_modes, "relative_width": width}
        return parts, dataclasses.replace(Searched.together(passes), recall=found, **about)

    if state.design is not None:
        effort = Effort.by_values(*efforts(context))
    elif context.goal is None:
        effort = Effort.of(tuning, _affordable(evaluator, tuning.num_starts))
    else:
        share = _thrifty_share(context, state, len(x), known) if is_small else _affordable(evaluator, tuning.num_starts)
        effort = Effort.thrifty(tuning, share, context.dim)
    context.tell("searching for missed modes")
    is_cheap = _is_cheap(evaluator) and not is_small
    num_passes = min(num_modes, tuning.most_passes) if evaluator.num_affordable is None else 1
    parts, searched = look(effort, 1 if is_cheap or is_small else num_passes)
    is_open = num_modes > 1 and context.dim > context.tuning.rounds.tiled_dim
    is_doubtful = is_open or searched.recall < tuning.least_recall
    is_coarse = len(hills) > 1 and searched.smallest_scale > tuning.trusted_scale
    if not parts and (is_thorough or (is_doubtful and is_cheap)):
        context.tell("searching thoroughly for missed modes")
        parts, searched = look(Effort.of(tuning, tuning.thorough), num_passes)
        parts = parts or _return_from_outside(context, state, proposal, float(log_evidence(log_ratio)[0]))
    elif not parts and is_coarse and is_cheap:
        parts, searched = look(Effort.of(tuning, tuning.fairly))
    return tuple(parts), searched


def _least_share(context: Context, log_ratio: Float[np.ndarray, " draw"]) -> float:
    """Return the share of a component that may be a mode: of the few draws of an update small ones fit chance alone."""
    least = context.tuning.missed.smallest_halo
    if not context.has_usual_search:
        return least
    fewest = context.tuning.rounds.fitted_per_parameter * num_parameters(context.dim)
    return max(least, fewest / max(float(effective_sample_size(log_ratio)), 1.0))


def _is_cheap(evaluator: Evaluator) -> bool:
    """Whether 100,000 evaluations take about a second: by the size of the program, which no clock changes."""
    is_foreign = hasattr(evaluator.target.model_info, "failures")
    is_small = evaluator.target.largest_intermediate <= CHEAP_SIZE
    return evaluator.num_affordable is None and evaluator.has_gradient and not is_foreign and is_small


def _thrifty_share(context: Context, state: State, num_draws: int, known: tuple[Part, ...]) -> float:
    """Return the share of the usual effort that makes the search a quarter of all work, or finds what is known.

    Without gradients a slope costs as much as the values around a point.
    """
    evaluator, tuning = context.evaluator, context.tuning.missed
    each = 1 if evaluator.has_gradient else 2 * context.dim + 1
    usual, affordable = EVALUATIONS_OF_MISSED * tuning.num_starts * each, evaluator.num_affordable
    most, share = 1.0, evaluator.num_evaluations / (3 * usual)
    if affordable is not None:
        most = max(affordable - num_evaluations_of_checks(context.dim), 0) / usual

    def is_unsure() -> bool:
        num_starts = max(int(share * tuning.num_starts / each), 1)
        return _recall(context, state, num_starts, num_draws, known) < tuning.least_recall

    while share < min(most, 1.0) and is_unsure():
        share *= 2
    return min(share, most, 1.0)


def _recall(context: Context, state: State, num_starts: int, num_draws: int, known: tuple[Part, ...]) -> float:
    """Return how surely known modes would be found; 1 where there is but one."""
    if len(known) < 2:
        return 1.0
    return recall(
        context.generator,
        context.region,
        state.mixture,
        known,
        context.evaluator.prior_draws(),
        num_starts,
        num_draws,
    )


def _affordable(evaluator: Evaluator, num_starts: int) -> float:
    """Return the share of the usual effort that the budget still pays for."""
    num = evaluator.num_affordable
    return 1.0 if num is None else min(num / (EVALUATIONS_OF_MISSED * num_starts), 1.0)


def _return_from_outside(context: Context, state: State, proposal: Mixture, known: float) -> list[Part]:
    """Carry particles from far outside to the target: they find wide parts that have no top of their own."""
    tuning, evaluator = context.tuning.exploration, context.evaluator
    wide = inflate(state.mixture, tuning.inflations[0], context.tuning.start.wide_df)
    x = wide.draw(context.generator, 2 * NUM_RETURNING)
    log_p = evaluator.values(x)
    if not np.isfinite(log_p).any():
        return []
    particles, _ = carry(
        context.generator, evaluator, wide, x, log_p, NUM_RETURNING, follow(context), context.tuning.moves
    )
    outside = particles.log_p - proposal.log_prob(particles.x) > known + np.log(context.tuning.missed.least_ratio)
    if outside.mean() < context.tuning.missed.smallest_halo or outside.sum() < 2:
        return []
    mean, covariance = moments(particles.x[outside], np.ones(outside.sum()))
    shape = np.diagonal(covariance) if context.dim > context.tuning.search.full_dim else covariance
    return [Part(np.asarray(mean), np.asarray(shape), known + float(np.log(outside.mean())))]


def look_where_stuck(context: Context, state: State) -> State:
    """Search at the draws of the last round: rounds alone would hardly find a mode, and particles cost far more."""
    fresh = state.pool.fresh
    if state.num_returns >= context.tuning.missed.most_returns or not np.isfinite(fresh.log_p).any():
        return state
    parts, _ = look_for_missed(context, state, unwarped(fresh.proposals[0]), fresh.x, fresh.log_ratio, False)
    return add_parts(context, state, parts, fresh.log_evidence) if parts else state


def go_on(context: Context, state: State, case: Case) -> State:
    """Return a state to go on from: the final draws are in the pool, what was found is in the mixture."""
    draws, pool = case.draws, state.pool
    if context.goal is None:
        pool = pool.add(case.proposal, np.asarray(draws.x), np.asarray(draws.log_p))
    state = dataclasses.replace(state, pool=pool, is_done=False)
    if case.parts:
        return add_parts(context, state, case.parts, float(draws.log_evidence))
    state = learn(context, state, None)
    return dataclasses.replace(state, best_ess=0.0, num_stale=0, num_returns=state.num_returns + 1)


def add_parts(context: Context, state: State, parts: tuple[Part, ...], known: float) -> State:
    """Return a state with parts in its mixture, from which rounds go on; ``known`` is the log evidence without them."""
    mass, found = np.exp(min(max(part.log_mass for part in parts) - known, 0.0)), around(context, parts)
    return dataclasses.replace(
        state,
        mixture=join(state.mixture, found, float(np.clip(mass / (1 + mass), *SHARES))),
        found=found if state.found is None else join(state.found, found, 0.5),
        stage=state.stage if state.stage is Stage.EXPLORE else Stage.POOL,
        best_ess=0.0,
        num_stale=0,
        num_returns=state.num_returns + 1,
        has_looked=False,
        num_blind=len(state.pool.sizes),
        is_done=False,
    )
