r"""One round of the automatic engine: draw, measure, look around, fit.

A round draws from the present mixture, defended by inflated copies of its components, adds the draws to the pool, and
measures ESS, k̂ and the evidence on these fresh draws. If that is not good enough, the mixture is fitted to the pool by
:func:`klover.growth.grow`.

Four stages:

- *temper*: the first draws have next to no effective ones. Fit to tempered weights, while that helps.
- *descend*: it does not help. Particles carry the first draws to the target, once.
- *pool*: fit to the pool alone. When its draws are good, particles take a last look.
- *explore*: after a descent, or if the last look found something new, or if the pool does not get better. Every round
  gets particles (:mod:`klover.exploration`), which are fitted together with the pool: fitting to draws of q alone
  lets q forget what it does not visit.
"""

import numpy as np

from klover import psis
from klover.exploration import NUM_PARTICLES, NUM_PROBES, descend, explore, find_frontier, inflate, probe
from klover.growth import Sample, equal, grow, join, num_parameters
from klover.importance import effective_sample_size, log_evidence
from klover.mixture import Mixture
from klover.particles import Particles, systematic
from klover.state import DESCEND, EXPLORE, POOL, TEMPER, Context, RoundInfo, State

FIRST_DRAWS = 2048
DRAWS_GROWTH = 1.5
MOST_DRAWS = 8192
MOST_NUMBERS = 2**22
"""Numbers that the draws of a round may hold: 32 MiB."""
MOST_FITTED = 6144
SPLIT_ROUNDS = 2
DEFENCE_SHARE = 0.1
DEFENCE_DF = 4.0
FRONTIER_SHARE = 0.15
BROAD_SHARE = 0.005
PARTICLE_SHARE = 0.3
BEGUN_ESS = 0.1
GOOD_ESS = 0.8
GOOD_EXPLORED_ESS = 0.65
FAIR_ESS = 0.05
TEMPERED_DRAWS = 10.0
GOOD_PARETO_K = 0.6
SMALLEST_GAIN = 1.03
PATIENCE = 2
LARGEST_DRIFT = 3.0
MOST_EXPLORED_DIM = 20
LARGEST_WIDTH = 1e10
LARGEST_DISCOVERY = 0.03
STEADY_ROUNDS = 3


def most_components(dim: int) -> int:
    """Return the number of components that the draws of a round can tell apart."""
    return 64 if dim <= 4 else int(np.clip(MOST_DRAWS / num_parameters(dim), 4, 32))


def next_proposal(context: Context, state: State) -> Mixture:
    """Return what the next round draws from: the mixture, defended.

    The defence is inflated copies of the components, the box where the target has one, and the frontier.
    """
    if not state.history:
        return state.mixture
    copies = inflate(state.mixture, 1 + 2 / np.sqrt(context.dim), DEFENCE_DF)
    proposal = join(state.mixture, copies, DEFENCE_SHARE)
    if context.evaluator.target.box is not None:
        proposal = join(proposal, state.broad, BROAD_SHARE)
    return proposal if state.frontier is None else join(proposal, state.frontier, FRONTIER_SHARE)


def widest(mixture: Mixture) -> tuple[int, float]:
    """Return the coordinate in which the mixture's locations and scales are largest, and their size there."""
    scale = np.sqrt(np.diagonal(mixture.components.spread.covariance(), axis1=-2, axis2=-1))
    size = np.max(np.abs(mixture.components.location) + scale, axis=0)
    return int(np.argmax(size)), float(np.max(size))


def take_round(context: Context, state: State) -> None:
    """Draw, measure, look around, and fit unless the mixture is good."""
    proposal = next_proposal(context, state)
    most = min(MOST_DRAWS, max(MOST_NUMBERS // context.dim, FIRST_DRAWS))
    num_draws = int(min(FIRST_DRAWS * DRAWS_GROWTH ** len(state.history), most))
    x = proposal.draw(context.generator, num_draws)
    log_p = context.evaluator.values(x)
    state.pool = state.pool.add(proposal, x, log_p)
    log_ratio = log_p - state.pool.log_q[-1, -num_draws:]
    ess = float(effective_sample_size(log_ratio))
    moved, drift = _look_around(context, state, proposal, ess / num_draws, num_draws)
    evidence, error = log_evidence(log_ratio)
    info = RoundInfo(
        round=len(state.history),
        num_components=len(state.mixture.log_weights),
        num_draws=num_draws,
        ess_share=ess / num_draws,
        pareto_k=float(psis.pareto_k(log_ratio)),
        log_evidence=float(evidence),
        log_evidence_se=float(error),
        drift=drift,
        num_evaluations=context.evaluator.num_evaluations,
        seconds=context.evaluator.elapsed,
    )
    state.history = (*state.history, info)
    is_hopeless = not np.isfinite(state.pool.log_p).any() or widest(state.mixture)[1] > LARGEST_WIDTH
    state.is_done = is_hopeless or _is_good(state, info)
    if not state.is_done:
        _fit(context, state, moved)


def _look_around(
    context: Context, state: State, proposal: Mixture, ess_share: float, num_draws: int
) -> tuple[Particles | None, float]:
    """Choose the stage, and move particles where it asks for them; return them and what they found, in errors."""
    if ess_share == 0:
        return None, np.inf
    is_begun = ess_share >= min(10 * num_parameters(context.dim) / num_draws, BEGUN_ESS)
    if not state.history or state.stage == TEMPER:
        state.stage = POOL if is_begun else TEMPER
    elif state.stage == DESCEND:
        state.stage = EXPLORE if context.dim <= MOST_EXPLORED_DIM else POOL
    state.was_hard = state.was_hard or state.stage in (TEMPER, EXPLORE)
    if state.stage == TEMPER and state.num_stale + (ess_share <= SMALLEST_GAIN * state.best_ess) >= PATIENCE:
        state.stage = DESCEND
        moved, state.mixture = descend(context, state.pool)
        return moved, np.inf
    if state.stage == EXPLORE:
        moved, drift = probe(context, state, proposal, NUM_PARTICLES)
        explore(context, state, moved)
        return moved, drift
    if state.stage == POOL and ess_share > min(GOOD_ESS, state.best_ess):
        moved, drift = probe(context, state, proposal, NUM_PARTICLES if state.was_hard else NUM_PROBES)
        if state.was_hard and context.dim <= MOST_EXPLORED_DIM:
            find_frontier(context, state, moved)
        return None, drift
    return None, 0.0


def _is_good(state: State, info: RoundInfo) -> bool:
    """Whether the proposal is good, or no longer gets better, and nothing speaks against it.

    A mixture that stays bad without particles gets them.
    """
    is_better = info.ess_share > SMALLEST_GAIN * state.best_ess
    state.num_stale = 0 if is_better else state.num_stale + 1
    state.best_ess = max(state.best_ess, info.ess_share)
    is_stale = state.num_stale >= PATIENCE
    is_reliable = info.pareto_k < GOOD_PARETO_K
    is_found = info.drift > LARGEST_DRIFT or (is_stale and not is_reliable)
    if state.stage == POOL and is_found and state.pool.x.shape[1] <= MOST_EXPLORED_DIM:
        state.stage = EXPLORE
    goal = GOOD_EXPLORED_ESS if state.stage == EXPLORE else GOOD_ESS
    is_good = is_reliable and (info.ess_share > goal or (is_stale and info.ess_share > FAIR_ESS))
    return is_good and info.drift < LARGEST_DRIFT and (not state.was_hard or _is_steady(state))


def _is_steady(state: State) -> bool:
    """Whether the evidence of the last rounds agrees, and the last journey found nothing new."""
    last = state.history[-STEADY_ROUNDS:]
    if len(last) < STEADY_ROUNDS or (state.stage == EXPLORE and state.discovered > LARGEST_DISCOVERY):
        return False
    return all(
        abs(info.log_evidence - last[-1].log_evidence) < 2 * np.hypot(info.log_evidence_se, last[-1].log_evidence_se)
        for info in last
    )


def _fit(context: Context, state: State, moved: Particles | None) -> None:
    """Fit the mixture to the pool, and to the particles where there are any."""
    sample = state.pool.sample(TEMPERED_DRAWS * (context.dim + 1) if state.stage == TEMPER else 0.0)
    ess = sample.ess
    if len(sample) > MOST_FITTED:
        index, count = np.unique(systematic(context.generator, sample.weight, MOST_FITTED), return_counts=True)
        sample = Sample(sample.x[index], sample.log_p[index], count / count.sum())
    if moved is not None:
        groups = (moved, *state.archive)
        x, log_p = np.concatenate([group.x for group in groups]), np.concatenate([group.log_p for group in groups])
        sample = sample.join(equal(x, log_p), max(len(x) / (len(x) + ess), PARTICLE_SHARE))
    state.mixture = grow(context.generator, state.mixture, sample, context.max_components, SPLIT_ROUNDS)
