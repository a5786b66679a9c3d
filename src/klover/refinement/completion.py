"""Look for what draws miss; what is found is added to the mixture, and the work goes on."""

import dataclasses

import numpy as np

from klover.base.shapes import Float
from klover.fitting.growth import grow
from klover.mixtures.algebra import join
from klover.mixtures.mixture import Mixture
from klover.refinement.start import around
from klover.refinement.state import Context, Stage, State
from klover.search.missed import Effort, Part, Searched, find_missed
from klover.targets.evaluator import Evaluator
from klover.verdict.checks import Case

SHARES = 0.1, 0.5
"""The smallest and the largest share of the next draws that goes to what a search has found."""
CHEAP_SECONDS = 1.0
"""That a thorough search may take where nobody has asked for it."""
EVALUATIONS = 24
"""Of a search for each start on a rung: twelve rungs, and as many again for the climbs."""


def look_for_missed(
    context: Context,
    state: State,
    proposal: Mixture,
    x: Float[np.ndarray, "draw dim"],
    log_ratio: Float[np.ndarray, " draw"],
    is_thorough: bool,
) -> tuple[tuple[Part, ...], Searched]:
    """Search for parts that draws miss, thoroughly where several modes are known and evaluations are cheap."""
    evaluator, tuning = context.evaluator, context.tuning.missed

    def look(factor: float) -> tuple[list[Part], Searched]:
        effort = Effort.of(tuning, factor)
        return find_missed(context.generator, evaluator, proposal, state.mixture, x, log_ratio, effort, context.tuning)

    seconds, num = evaluator.seconds, evaluator.num_evaluations
    parts, searched = look(_affordable(evaluator, tuning.num_starts))
    seconds = (evaluator.seconds - seconds) / (evaluator.num_evaluations - num)
    is_cheap = evaluator.num_left is None and seconds * tuning.thorough * searched.num_starts < CHEAP_SECONDS
    if not parts and (is_thorough or (state.num_modes > 1 and is_cheap)):
        parts, searched = look(tuning.thorough)
    return tuple(parts), searched


def _affordable(evaluator: Evaluator, num_starts: int) -> float:
    """Return the share of the usual effort that the budget still pays for."""
    return 1.0 if evaluator.num_left is None else min(evaluator.num_left / (EVALUATIONS * num_starts), 1.0)


def look_before_exploring(context: Context, state: State) -> State:
    """Search at the draws of the last round: a mode that climbs find needs no particles, which cost far more."""
    fresh = state.pool.fresh
    if state.num_returns >= context.tuning.missed.most_returns or not np.isfinite(fresh.log_p).any():
        return state
    parts, _ = look_for_missed(context, state, fresh.proposals[0], fresh.x, fresh.log_ratio, False)
    return add_parts(context, state, parts, fresh.log_evidence) if parts else state


def go_on(context: Context, state: State, case: Case) -> State:
    """Return a state to go on from: the final draws are in the pool, what was found is in the mixture."""
    draws = case.draws
    pool = state.pool.add(case.proposal, np.asarray(draws.x), np.asarray(draws.log_p))
    state = dataclasses.replace(state, pool=pool, is_done=False)
    if case.parts:
        return add_parts(context, state, case.parts, float(draws.log_evidence))
    mixture = grow(context.generator, state.mixture, pool.sample(), context.rules)
    return dataclasses.replace(state, mixture=mixture, best_ess=0.0, num_stale=0, num_returns=state.num_returns + 1)


def add_parts(context: Context, state: State, parts: tuple[Part, ...], log_evidence: float) -> State:
    """Return a state with parts in its mixture, from which rounds go on."""
    log_mass = np.array([part.log_mass for part in parts])
    where, shape = (np.stack([getattr(part, name) for part in parts]) for name in ("x", "covariance"))
    mass = np.exp(np.minimum(log_mass.max() - log_evidence, 0.0))
    share = float(np.clip(mass / (1 + mass), *SHARES))
    return dataclasses.replace(
        state,
        mixture=join(state.mixture, around(context, where, shape, log_mass), share),
        stage=state.stage if state.stage is Stage.EXPLORE else Stage.POOL,
        best_ess=0.0,
        num_stale=0,
        num_modes=state.num_modes + len(parts),
        num_returns=state.num_returns + 1,
        is_done=False,
    )
