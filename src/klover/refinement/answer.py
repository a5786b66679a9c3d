"""The end of the work: final draws, what the verdict looks at, whether to go on, and particles where weights fail."""

import contextlib
import dataclasses
from collections.abc import Callable

import jax
import numpy as np

from klover.base.linalg import FAILURES, said_of
from klover.base.shapes import AnyArray, Float, PyTree
from klover.importance.draws import WeightedDraws, weigh_on_host
from klover.mixtures.mixture import Mixture
from klover.refinement import frugality, thrift
from klover.refinement import surrogate as surrogates
from klover.refinement.aim import aim
from klover.refinement.beyond import look_beyond
from klover.refinement.completion import look_for_missed
from klover.refinement.coordinates import in_base, in_user_coordinates
from klover.refinement.defence import final_proposal
from klover.refinement.progress import Progress
from klover.refinement.state import Context, State
from klover.search.missed import Searched
from klover.search.recall import Part
from klover.targets.budget import SPENT, BudgetExhausted
from klover.verdict.case import Case
from klover.verdict.checks import NUM_REPEATED
from klover.verdict.judge import Verdict, judge
from klover.verdict.status import Status
from klover.warps.warped import behind, unwarped

INTERRUPTED = "interrupted"
SHAPELESS = (Status.HEAVY_WEIGHTS, Status.FEW_EFFECTIVE_DRAWS, Status.POOR_COVER)
RETRIED = (*SHAPELESS, Status.DOMINATED, Status.DRIFTING_PARTICLES, Status.UNSTABLE_EVIDENCE)
"""What further rounds may cure, with the final draws in the pool."""
ESCALATED = (*SHAPELESS, Status.UNFINISHED)
"""Where importance sampling has failed, and particles may not."""


def answer(
    context: Context,
    state: State,
    cause: str | None,
    num_draws: int | None,
    integrand: Callable[[PyTree], Float[AnyArray, ""]] | None,
    is_thorough: bool,
) -> tuple[State, Case]:
    """Make the final draws, search for what they miss, and put together what the verdict looks at."""
    last = state.history[-1] if state.history else None
    last_share = None if last is None else last.ess_share
    if context.goal is None:
        mixture, draws, is_short = _draw(context, state, cause, num_draws, integrand)
        cause = cause or (SPENT if is_short else None)
        proposal = behind(mixture, state.warp)
    else:
        context.evaluator.open_reserve()
        if cause is not None or not state.history:
            state = thrift.draw_the_rest(context, state)
        draws, proposal = thrift.pooled_draws(context, state), state.pool.proposals[-1]
        mixture, last_share = unwarped(proposal), thrift.mean_share(state)
    parts, searched, beyond = (), None, 0.0
    if cause is None and float(draws.ess) > 0:
        try:
            state, beyond, parts, searched = _look(context, state, mixture, draws, is_thorough)
        except BudgetExhausted as error:
            cause = str(error)
        except FAILURES as failure:
            cause = said_of(failure)
    num_repeated = NUM_REPEATED if state.design is None else surrogates.NUM_REPEATED
    case = Case(
        draws,
        proposal,
        state.mixture,
        context.evaluator,
        context.generator,
        None if last is None else (last.log_evidence, last.log_evidence_se),
        None if cause is not None else last_share,
        0.0 if last is None else last.drift,
        None if last is None else (state.pool.x[:num_repeated], state.pool.log_p[:num_repeated]),
        state.most_invalid,
        cause,
        parts,
        searched,
        state.warp,
        context.tuning,
        beyond,
    )
    return state, case


def _look(
    context: Context, state: State, mixture: Mixture, draws: WeightedDraws, is_thorough: bool
) -> tuple[State, float, tuple[Part, ...], Searched | None]:
    """Look beyond the draws; if nothing is there, search for modes that they miss. Return what has been found."""
    with in_base(context, state) as inside:
        x = np.asarray(draws.x) if state.warp is None else state.warp.to_base(np.asarray(draws.x))[0]
        seen, beyond = look_beyond(context, inside, mixture, draws, x)
        if seen is not None:
            return dataclasses.replace(state, seen=seen), beyond, (), None
        found = look_for_missed(context, inside, mixture, x, np.asarray(draws.log_ratio), is_thorough)
    return state, beyond, *found


def _draw(
    context: Context,
    state: State,
    cause: str | None,
    num_draws: int | None,
    integrand: Callable[[PyTree], Float[AnyArray, ""]] | None,
) -> tuple[Mixture, WeightedDraws, bool]:
    """Draw from the final proposal; return it, the draws, and whether there was no time for all of them."""
    mixture = final_proposal(context, state)
    if integrand is not None and cause is None:
        mixture = aim(context, state, mixture, integrand)
    context.evaluator.open_reserve()
    planned = num_draws or frugality.num_final_draws(context, state, mixture, cause == SPENT)
    draws = weigh_on_host(context.generator, context.evaluator, behind(mixture, state.warp), planned)
    return mixture, draws, draws.num_draws < planned


def with_cause(verdict: Verdict, cause: str | None) -> Verdict:
    """Say in every verdict that the work was stopped early: bad weights are most often bad for that reason."""
    if cause is None or cause in verdict.reason:
        return verdict
    reason = f"{verdict.reason} The refinement was stopped ({cause}) before its own criteria were met."
    return dataclasses.replace(verdict, reason=reason, remedy=f"Let it go on for longer. {verdict.remedy}")


def goes_on(verdict: Verdict, context: Context, state: State, case: Case) -> bool:
    """Whether what speaks against an answer can be mended by more rounds, and these can be paid for.

    What a search has found is added even where an answer without it would do, but once: how much it is was told by the
    curvature at its top alone.
    """
    tuning = context.tuning
    if not frugality.can_go_on(context.evaluator):
        return False
    if verdict.status is Status.UNCOVERED_MODE:
        return state.num_returns < tuning.missed.most_returns
    if verdict.trusted:
        return bool(case.parts) and state.num_returns == 0
    has_particles = context.can_escalate and verdict.status in ESCALATED
    return verdict.status in RETRIED and not has_particles and state.num_returns < tuning.missed.most_retries


def take_over(
    key: jax.Array, context: Context, state: State, case: Case, verdict: Verdict, shown: Progress
) -> tuple[WeightedDraws, Verdict]:
    """Let particles take over where weights have failed; where they cannot, all stays as it is."""
    if case.cause in (SPENT, INTERRUPTED) or verdict.status not in ESCALATED or not context.can_escalate:
        return case.draws, verdict
    # Few targets come here: the others do not wait for the import.
    from klover.refinement.escalation import Stranded, escalate

    shown.say("particles take over: compiling")
    # A linear warp keeps all that the approximation knows of correlations; a bent one would have to be compiled.
    is_linear = state.warp is not None and not state.warp.is_bent
    with contextlib.suppress(BudgetExhausted, KeyboardInterrupt, Stranded, *FAILURES):
        carried = escalate(
            jax.random.fold_in(key, 1),
            context.evaluator,
            state.mixture if is_linear else in_user_coordinates(state),
            case.draws.pareto_k,
            shown.tell_temperature,
            context.tuning.islands,
            context.tuning.moves,
            state.warp if is_linear else None,
        )
        return carried, judge(dataclasses.replace(case, draws=carried, parts=(), cause=None))
    return case.draws, verdict
