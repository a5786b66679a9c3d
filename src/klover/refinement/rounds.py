"""One round of the automatic engine: draw and measure, decide, look around, decide again, fit.

A round draws from the present mixture, defended (:mod:`klover.refinement.defence`), adds the draws to the pool, and
measures ESS, k̂ and the evidence on these fresh draws. :mod:`klover.refinement.stages` decides what follows from that.
Particles look around if they are to (:mod:`klover.refinement.exploration`). If the mixture is not good enough yet, it
is fitted to the pool, and to the particles, by :func:`klover.fitting.growth.grow`.
"""

import contextlib
import dataclasses

import numpy as np

from klover.fitting.growth import grow
from klover.fitting.sample import Sample, equal
from klover.fitting.warping import choose
from klover.importance import psis
from klover.importance.ratios import effective_sample_size, kish, log_evidence
from klover.mixtures.algebra import inflate
from klover.refinement.chains import follow_lead
from klover.refinement.completion import look_where_stuck
from klover.refinement.coordinates import adopt, in_base
from klover.refinement.defence import next_proposal
from klover.refinement.exploration import look_around
from klover.refinement.stages import Look, Measurement, conclude, decide
from klover.refinement.state import Context, RoundInfo, Stage, State
from klover.refinement.surrogate import fall_back, is_poor, is_used, refit
from klover.refinement.thrift import light, num_effective, num_missing, num_needed
from klover.sampling.hamiltonian import Particles
from klover.targets.budget import BudgetExhausted
from klover.verdict.checks import widest
from klover.warps.warp import KINDS
from klover.warps.warped import behind

SHRINKAGE, MOST_SHRINKAGES = 0.1, 8
"""Factor by which the first mixture becomes narrower where none of its draws lies in the support, and how often."""
WORDS = {
    Stage.BEGIN: "first draws",
    Stage.TEMPER: "tempering",
    Stage.CHAIN: "chains",
    Stage.DESCEND: "particles carried to the target",
    Stage.POOL: "weighing",
    Stage.EXPLORE: "exploring with particles",
}
"""What a round does, for who waits for it."""
EVERY_KIND = 4
"""Rounds after which all kinds of warps are tried again."""
MOST_NUMBERS = 2**22
"""Numbers that the draws of a round may hold: 32 MiB."""


def take_round(context: Context, state: State) -> State:
    """Measure, decide, act; return the next state."""
    state, measured = _measure(context, state)
    needed = num_needed(context, state)
    plan = decide(measured, state, context.dim, context.tuning, needed)
    doing, is_last = f"round {len(state.history)}: {WORDS[plan.stage]}", plan.look in (Look.LAST, Look.LONG_LAST)
    context.tell(f"{doing}, a last look by particles" if is_last else doing)
    state = dataclasses.replace(
        state, stage=plan.stage, was_hard=plan.was_hard, best_ess=plan.best_ess, num_stale=plan.num_stale
    )
    # All draws are mapped only where they are looked at.
    with contextlib.nullcontext(state) if plan.look is Look.NONE else in_base(context, state) as inside:
        seen, particles, drift = look_around(context, inside, plan.look)
    state = dataclasses.replace(seen, pool=state.pool)
    state = dataclasses.replace(state, history=(*state.history, _info(context, state, measured, drift)))
    is_good, stage, is_stuck = conclude(plan, state.history, state.discovered, context.dim, context.tuning)
    if not np.isfinite(state.pool.log_p).any() and len(state.history) < MOST_SHRINKAGES:
        return dataclasses.replace(state, mixture=inflate(state.mixture, SHRINKAGE), stage=Stage.BEGIN)
    is_endless = widest(state.mixture)[1] > context.tuning.answer.largest_width
    is_hopeless = plan.is_beyond or is_endless or not np.isfinite(state.pool.log_p).any()
    if is_stuck and not state.has_looked:
        with in_base(context, state) as inside:
            completed = look_where_stuck(context, inside)
        if completed is not inside:
            return dataclasses.replace(completed, pool=state.pool)
        state = dataclasses.replace(state, has_looked=True, was_hard=True)
    has_found = stage is not plan.stage or plan.stage in (Stage.CHAIN, Stage.DESCEND)
    num_blind = len(state.pool.sizes) if has_found else state.num_blind
    state = dataclasses.replace(state, is_done=is_good or is_hopeless, stage=stage, num_blind=num_blind)
    if state.is_done:
        return state
    context.tell(f"{doing}, fitting the mixture")
    try:
        return _fit(context, follow_lead(context, state), particles)
    except BudgetExhausted:
        # The draws of the round are kept; the next one finds the same.
        return state


def _measure(context: Context, state: State) -> tuple[State, Measurement]:
    """Add draws to the pool, unless it begins with draws that are not measured yet, and measure the last of them."""
    if state.history or not state.pool.sizes:
        state = _draw(context, state)
    fresh = state.pool.fresh
    log_ratio, num_draws = fresh.log_ratio, fresh.sizes[0]
    evidence, error = log_evidence(log_ratio)
    known = state.pool, state.num_blind, light(state)
    measured = Measurement(
        num_draws,
        float(effective_sample_size(log_ratio)) / num_draws,
        float(psis.pareto_k(log_ratio)),
        float(evidence),
        float(error),
        state.pool.ess if context.goal is None else num_effective(*known),
    )
    return state, measured


def _draw(context: Context, state: State) -> State:
    """Draw from the defended mixture, and add the draws to the pool."""
    rounds, evaluator = context.tuning.rounds, context.evaluator
    proposal = behind(next_proposal(context, state), state.warp)
    most = min(rounds.most_draws, max(MOST_NUMBERS // context.dim, rounds.first_draws))
    num_draws = int(min(rounds.first_draws * rounds.draws_growth ** len(state.history), most))
    num_draws = num_missing(context, state, num_draws)
    x = proposal.draw(context.generator, num_draws)
    num_nan, num_infinite = evaluator.num_nan, evaluator.num_infinite
    log_p = evaluator.values(x)
    pool = state.pool.add(proposal, x, log_p)
    most_invalid = state.most_invalid
    if state.history:
        invalid = evaluator.num_nan - num_nan, evaluator.num_infinite - num_infinite, num_draws
        most_invalid = max(most_invalid, invalid, key=lambda each: sum(each[:2]) / each[2])
    return dataclasses.replace(state, pool=pool, most_invalid=most_invalid)


def _info(context: Context, state: State, measured: Measurement, drift: float) -> RoundInfo:
    return RoundInfo(
        round=len(state.history),
        num_components=len(state.mixture.log_weights),
        num_draws=measured.num_draws,
        ess_share=measured.ess_share,
        pareto_k=measured.pareto_k,
        log_evidence=measured.log_evidence,
        log_evidence_se=measured.log_evidence_se,
        drift=drift,
        num_evaluations=context.evaluator.num_evaluations,
        seconds=context.evaluator.elapsed,
    )


def _fit(context: Context, state: State, particles: Particles | None) -> State:
    """Fit the mixture to the pool, and to the particles where there are any; behind a warp where that is worth it."""
    if is_used(state) and particles is None:
        return fall_back(context, state) if is_poor(context, state) else refit(context, state)
    rounds = context.tuning.rounds
    is_tempered = state.stage is Stage.TEMPER
    fewest = rounds.tempered_draws * (context.dim + 1) if is_tempered else 0.0
    is_warped = _is_warped(context, state)
    sample = state.pool.thinned(context.generator, context.num_warped if is_warped else context.num_fitted, fewest)
    if particles is not None:
        ess = float(kish(state.pool.weight(fewest)))
        groups = (particles, *state.archive)
        x, log_p = (np.concatenate([getattr(group, name) for group in groups]) for name in ("x", "log_p"))
        sample = _joined(context, sample, equal(x, log_p).from_base(state.warp), ess)
    elif state.seen is not None:
        sample = _joined(context, sample, state.seen, state.pool.ess)
    if is_warped and sample.ess >= rounds.tempered_draws * (context.dim + 1):
        # Once there is a warp its kind seldom changes, and to fit the others takes most of the time.
        is_settled = state.warp is not None and len(state.history) % EVERY_KIND > 0
        kinds, splits = ((state.warp.kind,), 0) if state.warp is not None and is_settled else (KINDS, None)
        scores = (lambda x: context.evaluator.values_and_gradients(x)[1]) if context.evaluator.has_gradient else None
        given = context.family, state.mixture, state.warp, sample, context.rules
        found = choose(context.generator, *given, kinds, splits, scores)
        return dataclasses.replace(adopt(state, found[1]), mixture=found[0])
    mixture = grow(context.generator, state.mixture, sample.in_base(state.warp), context.rules)
    return dataclasses.replace(state, mixture=mixture)


def _joined(context: Context, sample: Sample, particles: Sample, ess: float) -> Sample:
    """Fit to particles beside the pool, however many effective draws this has: of what it misses it knows nothing."""
    share = len(particles) / (len(particles) + ess)
    return sample.join(particles, max(share, context.tuning.exploration.particle_share))


def _is_warped(context: Context, state: State) -> bool:
    """Whether a warp is worth trying: the mixture has had its chance, or is behind one already."""
    rounds = context.tuning.rounds
    is_poor = len(state.history) >= rounds.patience and state.history[-1].ess_share < rounds.fair_ess
    # In few dimensions many components follow any shape: there, a warp is for what would have to be explored.
    is_poor = is_poor and (context.dim > rounds.tiled_dim or state.stage is Stage.EXPLORE)
    return context.can_warp and (is_poor or state.stage is Stage.CHAIN or state.warp is not None)
