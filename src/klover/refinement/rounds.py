"""One round of the automatic engine: draw and measure, decide, look around, decide again, fit.

A round draws from the present mixture, defended (:mod:`klover.refinement.defence`), adds the draws to the pool, and
measures ESS, k̂ and the evidence on these fresh draws. :mod:`klover.refinement.stages` decides what follows from that.
Particles look around if they are to (:mod:`klover.refinement.exploration`). If the mixture is not good enough yet, it
is fitted to the pool, and to the particles (:mod:`klover.refinement.learning`).
"""

import contextlib
import dataclasses

import numpy as np

from klover.importance import psis
from klover.importance.ratios import effective_sample_size, log_evidence
from klover.mixtures.algebra import inflate
from klover.refinement.chains import follow_lead
from klover.refinement.completion import look_where_stuck
from klover.refinement.coordinates import in_base
from klover.refinement.defence import next_proposal
from klover.refinement.exploration import look_around
from klover.refinement.learning import learn
from klover.refinement.stages import Look, Measurement, conclude, decide
from klover.refinement.state import Context, RoundInfo, Stage, State
from klover.refinement.thrift import light, num_effective, num_missing, num_needed
from klover.targets.budget import BudgetExhausted
from klover.verdict.checks import widest
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
        return learn(context, follow_lead(context, state), particles)
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
    # In tens of dimensions few draws tell a warp too little: funnels with 50 of them failed.
    is_small = state.warp is not None and state.warp.is_bent and context.dim <= context.tuning.islands.beyond_dim
    most = min(
        rounds.warped_draws if is_small else rounds.most_draws, max(MOST_NUMBERS // context.dim, rounds.first_draws)
    )
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
