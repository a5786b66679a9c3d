"""The decisions of a round, as pure functions of what was measured.

======== =================================== ======== ==================================================================
stage    goes on when                        to       what the stage does
======== =================================== ======== ==================================================================
begin    draws are effective enough to fit   pool     the first round of all
begin    otherwise                           temper
temper   they are                            pool     fit to tempered weights
temper   tempering no longer helps           chain,   descend where there are no chains; a search that ends in a neck
                                             descend  begins with chains
chain    draws are effective enough, after   pool     fit to what chains see in a window, beside the pool
         two windows, or after eight
descend  always                              pool     particles carry the first draws to the target, once
pool     particles found something new, or   explore  fit to the pool alone; when its draws are good, particles take a
         rounds no longer get better, with            last look
         few effective draws, after warps
         were tried
explore  never                                        particles are sent out in every round, and fitted together with
                                                      the pool: fitting to draws of q alone lets q forget what it does
                                                      not visit
======== =================================== ======== ==================================================================

In every stage the fit may be behind a warp (:mod:`klover.fitting.warping`); a new one leads from *explore* back to
*pool*. Before particles are sent out, the target is searched for modes that draws have missed. Beyond four dimensions
that is all: nothing is explored. Beyond 128 a target that would have to descend is left to
:mod:`klover.refinement.escalation`.
"""

import dataclasses
import enum
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from klover.fitting.splits import num_parameters
from klover.importance import psis
from klover.refinement.state import RoundInfo, Stage, State
from klover.tuning import Tuning

STEADY_ERRORS = 2.0
"""Standard errors within which the evidences of rounds agree."""
FEWEST_OF_A_TREND = 4
"""Rounds that show one."""
FEWEST_WINDOWS = 2
"""Of chains: the first comes from far away."""
SMALLEST_RISE = 0.02
"""Nats between rounds that are worth more work."""


class Look(enum.Enum):
    """How particles look around in a round."""

    NONE = "none"
    CHAIN = "chain"
    DESCEND = "descend"
    EXPLORE = "explore"
    LAST = "last"
    LONG_LAST = "long last"


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What the fresh draws of a round say, and how many draws of the pool are effective by then."""

    num_draws: int
    ess_share: float
    pareto_k: float
    log_evidence: float
    log_evidence_se: float
    pool_ess: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is to be done after measuring."""

    stage: Stage
    was_hard: bool
    best_ess: float
    num_stale: int
    could_stop: bool
    look: Look
    is_beyond: bool
    is_warped: bool = False
    is_thrifty: bool = False


def decide(measured: Measurement, state: State, dim: int, tuning: Tuning, goal: float | None = None) -> Plan:
    """Choose the stage, whether the draws are good enough to stop, and how to look around.

    With a goal (:mod:`klover.refinement.thrift`) a pool with so many effective draws is good enough.
    """
    rounds = tuning.rounds
    num_stale = 0 if measured.ess_share > rounds.least_gain * state.best_ess else state.num_stale + 1
    best_ess = max(state.best_ess, measured.ess_share)
    stage = _next_stage(measured, state, num_stale, dim, tuning)
    was_hard = state.was_hard or stage in (Stage.DESCEND, Stage.EXPLORE)
    could_stop = _could_stop(measured, state, stage, num_stale, dim, tuning)
    if goal is not None:
        could_stop = _is_enough(measured, state, goal, tuning)
    is_beyond = stage is Stage.DESCEND and dim > tuning.search.full_dim
    look = Look.NONE
    if stage is Stage.DESCEND and not is_beyond:
        look = Look.DESCEND
    elif stage is Stage.CHAIN:
        look = Look.CHAIN
    elif stage is Stage.EXPLORE:
        look = Look.EXPLORE
    elif stage is Stage.POOL and could_stop and (goal is not None or _may_be_last(measured, state, tuning)):
        is_long = was_hard and state.warp is None and dim <= rounds.tiled_dim and goal is None
        look = Look.LONG_LAST if is_long else Look.LAST
    kind = state.warp is not None and state.warp.is_bent, goal is not None
    return Plan(stage, was_hard, best_ess, num_stale, could_stop, look, is_beyond, *kind)


class Conclusion(NamedTuple):
    """Whether the mixture is as good as it will get, the stage to go on with, and whether rounds alone will not do."""

    is_done: bool
    stage: Stage
    is_stuck: bool


def conclude(
    plan: Plan, history: tuple[RoundInfo, ...], discovered: tuple[float, ...], dim: int, tuning: Tuning
) -> Conclusion:
    """Decide how to go on, after the look."""
    rounds, last = tuning.rounds, history[-1]
    has_found = last.drift > tuning.answer.largest_drift
    is_settled = last.drift < tuning.answer.largest_drift
    is_doubtful = plan.was_hard or plan.is_warped or last.ess_share < rounds.fair_ess
    is_steady = not is_doubtful or _is_steady(plan.stage, history, discovered, tuning)
    patience = 1 if last.pareto_k > psis.reliable_k(last.num_draws) else rounds.patience
    is_tried = len(history) >= 2 * rounds.patience
    enough = rounds.warped_ess if plan.is_warped else rounds.good_ess
    # Particles that are sent out cost more than draws of which a twentieth is effective.
    enough = rounds.least_ess if plan.is_thrifty else enough
    # With a fair share effective it is the tail of a few weights that varies: the next rounds may have a lighter one.
    patience = patience if plan.best_ess < rounds.fair_ess else rounds.trend_rounds
    is_late = is_tried and plan.num_stale >= patience and not plan.could_stop and plan.best_ess < enough
    is_stuck = plan.stage is Stage.POOL and (has_found or is_late)
    goes_out = is_stuck and dim <= rounds.tiled_dim
    # Where nothing is explored, nothing but chance would change what has not changed for so long.
    is_lost = dim > rounds.tiled_dim and plan.num_stale >= rounds.trend_rounds and not plan.could_stop
    is_good = plan.could_stop and is_settled and is_steady
    return Conclusion(is_good or is_lost, Stage.EXPLORE if goes_out else plan.stage, is_stuck)


def _next_stage(measured: Measurement, state: State, num_stale: int, dim: int, tuning: Tuning) -> Stage:
    """Go on from a stage that has served its purpose."""
    stage, rounds = state.stage, tuning.rounds
    if measured.ess_share == 0 and stage not in (Stage.CHAIN, Stage.DESCEND):
        return Stage.POOL if stage is Stage.BEGIN else stage
    enough = num_parameters(dim)
    is_begun = measured.ess_share >= rounds.begun_ess or measured.pool_ess >= rounds.begun_pool * enough
    is_stalled = num_stale >= rounds.patience and measured.pool_ess < dim + 1
    is_over = state.num_windows >= rounds.trend_rounds
    transitions = (
        (Stage.BEGIN, is_begun, Stage.POOL),
        (Stage.BEGIN, True, Stage.TEMPER),
        (Stage.TEMPER, is_begun, Stage.POOL),
        (Stage.TEMPER, is_stalled, Stage.CHAIN if state.can_chain else Stage.DESCEND),
        (Stage.CHAIN, (is_begun and state.num_windows >= FEWEST_WINDOWS) or is_over, Stage.POOL),
        (Stage.DESCEND, True, Stage.POOL),
    )
    return next((to for here, holds, to in transitions if here is stage and holds), stage)


def _could_stop(measured: Measurement, state: State, stage: Stage, num_stale: int, dim: int, tuning: Tuning) -> bool:
    """Whether the weights look good, or no longer get better."""
    rounds, is_exploring = tuning.rounds, stage is Stage.EXPLORE
    goal = rounds.good_explored_ess if is_exploring else rounds.good_ess
    fair = rounds.warped_ess if state.warp is not None and state.warp.is_bent else rounds.fair_ess
    least = rounds.least_ess if is_exploring or dim > rounds.tiled_dim else fair
    is_stale = num_stale >= rounds.patience and measured.ess_share > least
    # Final draws make up for what a warp has not found; where it is all but found, a round costs more than these.
    is_calm = measured.ess_share < rounds.warped_gain * state.best_ess and measured.ess_share > rounds.warped_ess
    is_good = measured.ess_share > goal or (state.warp is not None and is_calm)
    is_fair = is_stale and measured.pareto_k < rounds.fair_pareto_k
    return is_fair or (is_good and measured.pareto_k < rounds.good_pareto_k)


def _is_enough(measured: Measurement, state: State, goal: float, tuning: Tuning) -> bool:
    """Whether the pool holds the goal; fresh draws of a second round at the least must have weights that are fair."""
    is_second, rounds = len(state.history) > 0, tuning.rounds
    is_light = state.design is not None and measured.ess_share > rounds.good_ess
    return is_second and measured.pool_ess >= goal and (is_light or measured.pareto_k < rounds.fair_pareto_k)


def _may_be_last(measured: Measurement, state: State, tuning: Tuning) -> bool:
    """Whether a look by particles may end the work: behind a warp only where rounds are steady by now."""
    return state.warp is None or _is_steady(Stage.POOL, (*state.history, measured), (), tuning)


def _is_steady(
    stage: Stage, history: tuple[RoundInfo | Measurement, ...], discovered: tuple[float, ...], tuning: Tuning
) -> bool:
    """Whether evidence and ESS of the last rounds agree, and particles from outside found nothing new."""
    last = history[-tuning.rounds.steady_rounds :]
    if len(last) < tuning.rounds.steady_rounds:
        return False
    if stage is Stage.EXPLORE and max(discovered) > tuning.exploration.discovery:
        return False
    # The error of a round with heavy weights is not known, and its evidence too small: it shows no trend.
    recent = history[-tuning.rounds.trend_rounds :]
    if _is_rising([info for info in recent if info.pareto_k < psis.reliable_k(info.num_draws)]):
        return False
    # A round with far fewer effective draws than one before it has met what that one has not.
    shares = np.array([info.ess_share for info in last])
    if np.any(shares < tuning.answer.fallen_ess * np.maximum.accumulate(shares)):
        return False
    now = last[-1]
    return all(
        abs(info.log_evidence - now.log_evidence)
        < max(STEADY_ERRORS * np.hypot(info.log_evidence_se, now.log_evidence_se), SMALLEST_RISE)
        for info in last
    )


def _is_rising(history: Sequence[RoundInfo | Measurement]) -> bool:
    """Whether the evidence of the rounds has a trend: each may agree with the next, while all of them climb."""
    value, error = (np.array([getattr(info, name) for info in history]) for name in ("log_evidence", "log_evidence_se"))
    inside = np.isfinite(value) & np.isfinite(error)
    if inside.sum() < FEWEST_OF_A_TREND:
        return False
    weight = 1 / np.maximum(error[inside], 1e-3) ** 2
    place = np.flatnonzero(inside) - np.average(np.flatnonzero(inside), weights=weight)
    slope = (weight * place) @ value[inside] / (weight @ place**2)
    return bool(slope > STEADY_ERRORS / np.sqrt(weight @ place**2) and slope * np.ptp(place) > SMALLEST_RISE)
