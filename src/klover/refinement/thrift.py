r"""Thrift: where a point is expensive, no more is evaluated than the answer needs.

The usual rounds are made for densities that cost a microsecond: thousands of draws, of which the last ones alone are
the answer. Here there is a *goal*, a number of effective draws. All that is counted in draws shrinks in proportion to
the goal, what is counted in climbs by the root of that. The answer is made of the draws of all rounds. A round draws
as many as are still missing, and the rounds end when together they have the goal and fresh draws have nothing against
it. The last search takes a quarter of all evaluations.

Draws of round j are weighted by p over the proposal :math:`q_j` that they were drawn from, which was fitted to rounds
before it alone: so each round has an evidence :math:`\hat Z_j` without bias, and their mean with weights
:math:`\alpha_j\propto n_je_j`, e being the share of effective draws, has the sum of their effective draws. The pool's own
weights, p over the mixture of all proposals, are for fits only: a proposal is too high at the draws that it was fitted
to, which made log evidences too low by two standard errors in 18 dimensions.

There is a goal where the user gives one (``min_ess``), where a budget is too small for the usual rounds, and where one
evaluation makes an array of a million numbers, so that it takes about a millisecond. No clock decides: the same key
leads to the same draws on any machine.
"""

import dataclasses

import numpy as np

from klover.importance import psis
from klover.importance.draws import WeightedDraws, weigh_on_host
from klover.importance.ratios import effective_sample_size
from klover.refinement.defence import next_proposal
from klover.refinement.frugality import num_final_draws
from klover.refinement.pool import Pool
from klover.refinement.state import Context, Stage, State
from klover.targets.budget import Budget
from klover.targets.target import Target
from klover.tuning import Tuning
from klover.warps.warped import behind

EXPENSIVE_SIZE = 2**20
"""Numbers in the largest array of an evaluation that takes about a millisecond."""
EXPENSIVE_GOAL = 400
"""Effective draws to aim at there, if the user does not say how many."""
EVALUATIONS_OF_EFFECTIVE = 5
"""Of a budget, for each effective draw: half of them draws, the rest for searches and checks."""
FEWEST_DRAWS, DRAWS_OF_DIMENSION = 64, 4
"""Of a first round, at all and for each dimension."""
MORE = 1.1
"""Factor by which a round draws more than seem to be missing."""


def goal_of(min_ess: int | None, budget: Budget, target: Target, tuning: Tuning) -> int | None:
    """Return how many effective draws to aim at with as few evaluations as possible; None if those are cheap."""
    answer, goal = tuning.answer, min_ess
    if goal is None and target.largest_intermediate >= EXPENSIVE_SIZE:
        goal = EXPENSIVE_GOAL
    if isinstance(budget, int) and budget < EVALUATIONS_OF_EFFECTIVE * (goal or answer.wanted_ess):
        goal = max(budget // EVALUATIONS_OF_EFFECTIVE, answer.fewest_effective)
    return goal


def plan(tuning: Tuning, goal: int | None, dim: int) -> Tuning:
    """Return numbers in proportion to the goal; never larger ones than usual."""
    if goal is None:
        return tuning
    ratio, rounds, exploration = min(goal / tuning.answer.wanted_ess, 1.0), tuning.rounds, tuning.exploration
    fewest = max(FEWEST_DRAWS, DRAWS_OF_DIMENSION * dim)
    first = min(max(round(ratio * rounds.first_draws), fewest), rounds.first_draws)
    most = min(max(round(ratio * rounds.most_draws), 4 * fewest), rounds.most_draws)
    particles = max(round(ratio * exploration.num_particles), exploration.num_probes)
    starts = max(round(ratio**0.5 * tuning.search.num_starts), 2)
    return dataclasses.replace(
        tuning,
        search=dataclasses.replace(tuning.search, num_starts=starts),
        rounds=dataclasses.replace(rounds, first_draws=first, most_draws=most),
        exploration=dataclasses.replace(exploration, num_particles=particles),
    )


def num_missing(context: Context, state: State, planned: int) -> int:
    """Return how many draws of the next round are worth making, of as many as are planned."""
    if context.goal is None or not state.history:
        return planned
    missing = MORE * (context.goal - num_effective(state.pool)) / max(state.history[-1].ess_share, 1e-3)
    return int(np.clip(missing, min(context.tuning.rounds.first_draws // 2, planned), planned))


def suffices(context: Context, state: State) -> bool:
    """Whether the rounds that a budget has paid for are an answer, although it has ended them before the goal."""
    if context.goal is None or len(state.history) < 2 or state.was_hard or state.stage is not Stage.POOL:
        return False
    rounds, last = context.tuning.rounds, state.history[-1]
    is_good = last.ess_share > rounds.fair_ess and last.pareto_k < rounds.fair_pareto_k
    return is_good and num_effective(state.pool) >= context.tuning.answer.fewest_effective


def num_effective(pool: Pool) -> float:
    """Return the effective draws of all rounds."""
    return float(sum(_effective(pool)))


def _effective(pool: Pool) -> list[float]:
    """Return the effective draws of each round."""
    ratios = [pool.log_p[row] - pool.log_q[which, row] for which, row in enumerate(_rows(pool))]
    return [float(effective_sample_size(log_ratio)) for log_ratio in ratios]


def _rows(pool: Pool) -> list[slice]:
    """Return which draws belong to each round."""
    ends = np.cumsum(pool.sizes).tolist()
    return [slice(end - size, end) for end, size in zip(ends, pool.sizes, strict=True)]


def draw_the_rest(context: Context, state: State) -> State:
    """Return a state with as many draws more as a budget that has ended the rounds still pays for."""
    mixture = next_proposal(context, state)
    proposal = behind(mixture, state.warp)
    draws = weigh_on_host(context.generator, context.evaluator, proposal, num_final_draws(context, state, mixture, True))
    return dataclasses.replace(state, pool=state.pool.add(proposal, np.asarray(draws.x), np.asarray(draws.log_p)))


def pooled_draws(context: Context, state: State) -> WeightedDraws:
    """Return the draws of all rounds that have effective ones, the latest first, with their weights."""
    pool, (num_nan, num_infinite, _) = state.pool, state.most_invalid
    sizes, effective = np.array(pool.sizes), np.array(_effective(pool))
    is_used = effective > 0 if effective.any() else sizes > 0
    share = np.where(is_used, np.maximum(effective, 1e-300), 0.0)
    used = np.repeat(is_used, sizes)[::-1]
    # So that the mean ratio of all draws is the mean of the rounds' evidences with the weights α.
    log_factor = np.log((share / share.sum())[is_used] * sizes[is_used].sum() / sizes[is_used])
    log_q = np.concatenate([pool.log_q[which, row] for which, row in enumerate(_rows(pool))])[::-1][used]
    log_q = log_q - np.repeat(log_factor, sizes[is_used])[::-1]
    log_p = pool.log_p[::-1][used]
    log_weight, pareto_k = psis.smooth(log_p - log_q)
    invalid = np.asarray(num_nan), np.asarray(num_infinite)
    return WeightedDraws(pool.x[::-1][used], log_p, log_q, log_weight, pareto_k, *invalid, context.evaluator.target)
