"""Look for what the final draws miss; what is found is added to the mixture, and the work goes on."""

import dataclasses

import numpy as np

from klover.fitting.growth import grow
from klover.importance.draws import WeightedDraws
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
    context: Context, state: State, proposal: Mixture, draws: WeightedDraws, is_thorough: bool
) -> tuple[tuple[Part, ...], Searched]:
    """Search for parts that the draws miss, thoroughly where several modes are known and evaluations are cheap."""
    evaluator, tuning = context.evaluator, context.tuning.missed

    def look(factor: float) -> tuple[list[Part], Searched]:
        effort = Effort.of(tuning, factor)
        return find_missed(context.generator, evaluator, proposal, state.mixture, draws, effort, context.tuning)

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


def go_on(context: Context, state: State, case: Case) -> State:
    """Return a state to go on from: the final draws are in the pool, what was found is in the mixture."""
    draws, parts = case.draws, case.parts
    pool = state.pool.add(case.proposal, np.asarray(draws.x), np.asarray(draws.log_p))
    state = dataclasses.replace(
        state, pool=pool, is_done=False, best_ess=0.0, num_stale=0, num_returns=state.num_returns + 1
    )
    if state.stage is not Stage.EXPLORE:
        state = dataclasses.replace(state, stage=Stage.POOL)
    if not parts:
        return dataclasses.replace(state, mixture=grow(context.generator, state.mixture, pool.sample(), context.rules))
    log_mass = np.array([part.log_mass for part in parts])
    found = around(
        context,
        np.stack([part.x for part in parts]),
        np.stack([part.covariance for part in parts]),
        log_mass,
    )
    mass = np.exp(np.minimum(log_mass.max() - float(draws.log_evidence), 0.0))
    return dataclasses.replace(
        state,
        mixture=join(state.mixture, found, float(np.clip(mass / (1 + mass), *SHARES))),
        num_modes=state.num_modes + len(parts),
    )
