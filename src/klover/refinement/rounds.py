r"""One round of the automatic engine: draw, measure, look around, fit.

A round draws from the present mixture, defended by wider and longer copies of its components, adds the draws to the
pool, and measures ESS, k̂ and the evidence on these fresh draws. If that is not good enough, the mixture is fitted to
the pool by :func:`klover.fitting.growth.grow`.

Four stages:

- *temper*: the first draws have next to no effective ones. Fit to tempered weights, while that helps.
- *descend*: it does not help. Particles carry the first draws to the target, once.
- *pool*: fit to the pool alone. When its draws are good, particles take a last look.
- *explore*: after a descent, if the starts of the search disagreed, if the last look found something new, or if the
  pool does not get better. Every round gets particles (:mod:`klover.refinement.exploration`), which are fitted together
  with the pool: fitting to draws of q alone lets q forget what it does not visit.

Beyond 20 dimensions nothing is explored; beyond 128 a target that would have to descend is left to
:mod:`klover.refinement.escalation`.
"""

import numpy as np

from klover.fitting.growth import grow, num_parameters
from klover.fitting.sample import Sample, equal
from klover.importance import psis
from klover.importance.ratios import effective_sample_size, log_evidence
from klover.mixtures.algebra import inflate, join, stretch
from klover.mixtures.mixture import Mixture
from klover.refinement.exploration import NUM_PARTICLES, NUM_PROBES, descend, explore, find_frontier, probe
from klover.refinement.state import DESCEND, EXPLORE, POOL, TEMPER, Context, RoundInfo, State
from klover.sampling.hamiltonian import Particles, systematic
from klover.search.curvature import MOST_FULL_DIM

FIRST_DRAWS = 2048
DRAWS_GROWTH = 1.5
MOST_DRAWS = 8192
MOST_NUMBERS = 2**22
"""Numbers that the draws of a round may hold: 32 MiB."""
FEWEST_FITTED = 4096
FITTED_PER_PARAMETER = 16
SPLIT_ROUNDS = 2
DEFENCE_SHARE = 0.1
DEFENCE_DF = 4.0
LENGTH = 6.0
FRONTIER_SHARE = 0.15
BROAD_SHARE = 0.005
PARTICLE_SHARE = 0.3
BEGUN_ESS = 0.1
GOOD_ESS = 0.8
GOOD_EXPLORED_ESS = 0.65
FAIR_ESS = 0.5
LEAST_ESS = 0.05
TEMPERED_DRAWS = 10.0
FEW_DRAWS = 1.0
GOOD_PARETO_K = 0.4
FAIR_PARETO_K = 0.6
BAD_PARETO_K = 0.7
SMALLEST_GAIN = 1.03
PATIENCE = 2
LARGEST_DRIFT = 3.0
MOST_EXPLORED_DIM = 20
LARGEST_WIDTH = 1e10
LARGEST_DISCOVERY = 0.03
STEADY_ROUNDS = 3
NUM_BLENDED = 3
MOST_TILED_DIM = 4
"""Up to here components are cheap enough to follow any shape."""
WIDENED_SHARE = 0.4
WIDENING = 0.6


def most_components(dim: int) -> int:
    """Return the number of components that the draws of a round can tell apart."""
    return 64 if dim <= MOST_TILED_DIM else int(np.clip(MOST_DRAWS / num_parameters(dim), 4, 32))


def next_proposal(context: Context, state: State) -> Mixture:
    """Return what the next round draws from: the mixture, defended.

    The defence is inflated copies of the components, the box where the target has one, and the frontier.
    """
    if not state.history:
        return state.mixture
    copies = inflate(state.mixture, 1 + 2 / np.sqrt(context.dim), DEFENCE_DF)
    if state.was_hard:
        copies = join(copies, stretch(state.mixture, LENGTH, DEFENCE_DF), 0.5)
    proposal = join(state.mixture, copies, DEFENCE_SHARE)
    if context.evaluator.target.box is not None:
        proposal = join(proposal, state.broad, BROAD_SHARE)
    return proposal if state.frontier is None else join(proposal, state.frontier, FRONTIER_SHARE)


def final_proposal(context: Context, state: State) -> Mixture:
    """Return what the final draws come from.

    In few dimensions, and where the target was hard, a good mixture is used exactly as it was measured. Elsewhere a
    part of the draws comes from slightly wider copies: few components leave some skewness, and with it a tail of
    weights. In many dimensions, where fits no longer get better, they differ by chance alone, and the mixture of the
    last ones is safer than any of them.
    """
    if not state.is_done:
        return next_proposal(context, state)
    is_chance = context.dim > MOST_EXPLORED_DIM and state.num_stale >= PATIENCE
    first, *others = state.pool.proposals[-NUM_BLENDED if is_chance else -1 :]
    for number, other in enumerate(others, 2):
        first = join(first, other, 1 / number)
    if state.was_hard or context.dim <= MOST_TILED_DIM:
        return first
    return join(first, inflate(state.mixture, 1 + WIDENING / np.sqrt(context.dim), np.inf), WIDENED_SHARE)


def widest(mixture: Mixture) -> tuple[int, float]:
    """Return the coordinate in which the mixture's locations and scales are largest, and their size there."""
    size = np.max(np.abs(mixture.components.location) + np.sqrt(mixture.components.spread.variance()), axis=0)
    return int(np.argmax(size)), float(np.max(size))


def take_round(context: Context, state: State) -> None:
    """Draw, measure, look around, and fit unless the mixture is good."""
    proposal = next_proposal(context, state)
    most = min(MOST_DRAWS, max(MOST_NUMBERS // context.dim, FIRST_DRAWS))
    num_draws = int(min(FIRST_DRAWS * DRAWS_GROWTH ** len(state.history), most))
    x = proposal.draw(context.generator, num_draws)
    num_nan, num_infinite = context.evaluator.num_nan, context.evaluator.num_infinite
    log_p = context.evaluator.values(x)
    if state.history:
        invalid = context.evaluator.num_nan - num_nan, context.evaluator.num_infinite - num_infinite, num_draws
        state.most_invalid = max(state.most_invalid, invalid, key=lambda each: sum(each[:2]) / each[2])
    state.pool = state.pool.add(proposal, x, log_p)
    log_ratio = log_p - state.pool.log_q[-1, -num_draws:]
    ess_share = float(effective_sample_size(log_ratio)) / num_draws
    pareto_k = float(psis.pareto_k(log_ratio))
    state.num_stale = 0 if ess_share > SMALLEST_GAIN * state.best_ess else state.num_stale + 1
    state.best_ess = max(state.best_ess, ess_share)
    _choose_stage(context, state, ess_share, num_draws)
    could_stop = _could_stop(state, ess_share, pareto_k)
    is_beyond = state.stage == DESCEND and context.dim > MOST_FULL_DIM
    moved, drift = (None, 0.0) if is_beyond else _look_around(context, state, could_stop)
    evidence, error = log_evidence(log_ratio)
    info = RoundInfo(
        round=len(state.history),
        num_components=len(state.mixture.log_weights),
        num_draws=num_draws,
        ess_share=ess_share,
        pareto_k=pareto_k,
        log_evidence=float(evidence),
        log_evidence_se=float(error),
        drift=drift,
        num_evaluations=context.evaluator.num_evaluations,
        seconds=context.evaluator.elapsed,
    )
    state.history = (*state.history, info)
    is_hopeless = not np.isfinite(state.pool.log_p).any() or widest(state.mixture)[1] > LARGEST_WIDTH or is_beyond
    is_settled = drift < LARGEST_DRIFT and (not state.was_hard or _is_steady(state))
    state.is_done = is_hopeless or (could_stop and is_settled)
    is_stale = state.num_stale >= (1 if pareto_k > BAD_PARETO_K else PATIENCE)
    is_stuck = is_stale and not could_stop and state.best_ess < GOOD_ESS
    if state.stage == POOL and (drift > LARGEST_DRIFT or is_stuck) and context.dim <= MOST_EXPLORED_DIM:
        state.stage = EXPLORE
    if not state.is_done:
        _fit(context, state, moved)


def _choose_stage(context: Context, state: State, ess_share: float, num_draws: int) -> None:
    """Go on from a stage that has served its purpose."""
    if ess_share == 0:
        return
    enough = num_parameters(context.dim)
    is_begun = ess_share >= min(10 * enough / num_draws, BEGUN_ESS) or state.pool.ess >= 2 * enough
    explored = EXPLORE if context.dim <= MOST_EXPLORED_DIM else POOL
    if not state.history:
        state.stage = POOL if is_begun else TEMPER
    elif state.stage == TEMPER and is_begun:
        state.stage = explored if state.was_hard else POOL
    elif state.stage == TEMPER and state.num_stale >= PATIENCE and state.pool.ess < FEW_DRAWS * (context.dim + 1):
        state.stage = DESCEND
    elif state.stage == DESCEND:
        state.stage = explored
    state.was_hard = state.was_hard or state.stage in (DESCEND, EXPLORE)


def _could_stop(state: State, ess_share: float, pareto_k: float) -> bool:
    """Whether the weights look good, or no longer get better."""
    goal = GOOD_EXPLORED_ESS if state.stage == EXPLORE else GOOD_ESS
    is_last_stage = state.stage == EXPLORE or state.pool.x.shape[1] > MOST_EXPLORED_DIM
    is_stale = state.num_stale >= PATIENCE and ess_share > (LEAST_ESS if is_last_stage else FAIR_ESS)
    return (ess_share > goal and pareto_k < GOOD_PARETO_K) or (is_stale and pareto_k < FAIR_PARETO_K)


def _look_around(context: Context, state: State, could_stop: bool) -> tuple[Particles | None, float]:
    """Move particles where the stage asks for them; return those to fit, and what they found, in errors."""
    if state.stage == DESCEND and np.isfinite(state.pool.log_p).any():
        moved, state.mixture = descend(context, state.pool)
        return moved, np.inf
    if state.stage == EXPLORE:
        moved, drift = probe(context, state, NUM_PARTICLES)
        explore(context, state, moved)
        return moved, drift
    if state.stage == POOL and could_stop:
        is_longer = state.was_hard and context.dim <= MOST_EXPLORED_DIM
        moved, drift = probe(context, state, NUM_PARTICLES if is_longer else NUM_PROBES)
        if is_longer:
            find_frontier(context, state, moved)
        elif drift > LARGEST_DRIFT:
            # Few particles raise a false alarm on one easy target in a hundred, and exploring costs fifty such looks.
            _, drift = probe(context, state, NUM_PARTICLES)
        return None, drift
    return None, 0.0


def _is_steady(state: State) -> bool:
    """Whether the evidence of the last rounds agrees, and the last journey found nothing new."""
    last = state.history[-STEADY_ROUNDS:]
    if len(last) < STEADY_ROUNDS or (state.stage == EXPLORE and max(state.discovered) > LARGEST_DISCOVERY):
        return False
    return all(
        abs(info.log_evidence - last[-1].log_evidence) < 2 * np.hypot(info.log_evidence_se, last[-1].log_evidence_se)
        for info in last
    )


def _fit(context: Context, state: State, moved: Particles | None) -> None:
    """Fit the mixture to the pool, and to the particles where there are any."""
    sample = state.pool.sample(TEMPERED_DRAWS * (context.dim + 1) if state.stage == TEMPER else 0.0)
    ess = sample.ess
    # Draws that hardly count cost as much as the others: a comb leaves most of them out, and is unbiased.
    num = max(FEWEST_FITTED, int(FITTED_PER_PARAMETER * num_parameters(context.dim)))
    index, count = np.unique(systematic(context.generator, sample.weight, num), return_counts=True)
    sample = Sample(sample.x[index], sample.log_p[index], count / count.sum())
    if moved is not None:
        groups = (moved, *state.archive)
        x, log_p = np.concatenate([group.x for group in groups]), np.concatenate([group.log_p for group in groups])
        sample = sample.join(equal(x, log_p), max(len(x) / (len(x) + ess), PARTICLE_SHARE))
    state.mixture = grow(context.generator, state.mixture, sample, context.max_components, SPLIT_ROUNDS)
