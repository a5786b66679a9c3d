"""``refine``: the automatic engine. It asks for nothing but a target, and says whether its answer is to be trusted."""

import contextlib
import dataclasses
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from klover.base.checks import (
    as_key,
    check_choice,
    check_count,
    check_flag,
    check_function,
    check_instance,
    check_path,
)
from klover.base.shapes import AnyArray, Float, KeyLike, PyTree
from klover.importance.draws import WeightedDraws, weigh_on_host
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.refinement import checkpoint as checkpoints
from klover.refinement import frugality, thrift
from klover.refinement.aim import aim, check_integrand
from klover.refinement.completion import go_on, look_for_missed
from klover.refinement.coordinates import in_base, in_user_coordinates
from klover.refinement.defence import final_proposal, most_components
from klover.refinement.pool import Pool
from klover.refinement.progress import Progress
from klover.refinement.rounds import take_round
from klover.refinement.start import cover, from_given, from_target, read_given
from klover.refinement.state import Context, RoundInfo, State
from klover.results.files import settings_of
from klover.results.fit import Fit
from klover.targets.evaluator import Budget, BudgetExhausted, Evaluator, check_budget
from klover.targets.loaded import as_target
from klover.targets.target import Target
from klover.tuning import Tuning
from klover.verdict.checks import NUM_REPEATED, SPENT, Case, num_evaluations_of_checks
from klover.verdict.judge import Verdict, judge
from klover.verdict.status import Status
from klover.warps.warped import behind, unwarped

INTERRUPTED = "interrupted"
RETRIED = (Status.HEAVY_WEIGHTS, Status.FEW_EFFECTIVE_DRAWS, Status.DOMINATED, Status.UNSTABLE_EVIDENCE)
"""What further rounds may cure, with the final draws in the pool."""
ESCALATED = (Status.HEAVY_WEIGHTS, Status.FEW_EFFECTIVE_DRAWS, Status.UNFINISHED)
"""Where importance sampling has failed, and particles may not."""


def refine(
    key: KeyLike,
    target: Target,
    start: Any = None,
    *,
    max_components: int | None = None,
    num_draws: int | None = None,
    budget: Budget = None,
    family: str | Family = "student",
    integrand: Callable[[PyTree], Float[AnyArray, ""]] | None = None,
    callback: Callable[[RoundInfo], None] | None = None,
    progress: bool | None = None,
    search: str = "auto",
    checkpoint: str | os.PathLike | None = None,
    min_ess: int | None = None,
    tuning: Tuning | None = None,
) -> Fit:
    r"""Cover a target with a mixture, and weigh draws of it: posterior, evidence and a verdict.

    For a target :math:`\hat p=Zp` it grows a mixture :math:`q` that lowers :math:`\mathrm{KL}(p\|q)`: on weighted draws
    that is to raise their likelihood, :math:`\sum_sw_s\log q(\theta_s)`. Fresh draws :math:`\theta_s\sim q` with
    :math:`r_s=\hat p(\theta_s)/q(\theta_s)` then give the answer:

    .. math:: \mathrm E_p[f]\approx\frac{\sum_sr_sf(\theta_s)}{\sum_sr_s},\qquad Z\approx\frac1S\sum_sr_s.

    Parameters
    ----------
    key
        A typed key, or a whole number as its seed.
    target
        The target. A ``box`` helps where modes may be far apart.
    start
        An approximation to begin with: a :class:`~klover.Mixture`, a :class:`~klover.Fit`, draws of the unconstrained
        parameters (an array or a pytree, alone or in a pair with weights), weighted draws, an ArviZ object with a
        posterior, a pair of a NumPyro autoguide and its SVI result, a PyMC approximation, a Pathfinder state.
    max_components
        Largest number of components; chosen by the dimension if None.
    num_draws
        Fresh draws of the final mixture; enough for 4000 effective ones if None (8192 to 98304).
    budget
        Most evaluations of the target (an integer; a gradient counts as one), or most time (a ``datetime.timedelta``;
        a compilation that has begun is not interrupted). An answer that it does not suffice for is refused.
    family
        Of the components: a :class:`~klover.Family` or its name, such as ``"student"``, ``"normal-diagonal"`` or
        ``"student-low-rank"``. Full covariances become diagonal beyond 128 dimensions.
    integrand
        A function of a constrained position whose expectation matters most: half of the final draws are aimed at it.
    callback
        Called after each round with a :class:`~klover.refinement.state.RoundInfo`.
    progress
        Whether to show rounds on the terminal; None shows them on a terminal when the work takes long.
    search
        How hard to look for missed modes at the end: ``"auto"`` looks thoroughly (about 100,000 evaluations) where
        several modes are known and evaluations are cheap, ``"thorough"`` always.
    checkpoint
        A file that is written after each round, and from which the work goes on if it exists.
    min_ess
        Effective draws that are enough, 100 or more, where evaluations are expensive
        (:mod:`klover.refinement.thrift`): on simple targets two to five times as many evaluations (gradients) do.
        Targets with heavy tails or several modes take many more. The search is smaller, too: a narrow mode far from
        the others may be missed, and the answer trusted, where an ordinary fit finds it: 1 of 57 test cases.
    tuning
        The numbers of the engine, for experiments with it.

    Returns
    -------
    A :class:`~klover.Fit`; interrupted by Ctrl-C, the best so far.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import klover
    >>> fit = klover.refine(0, klover.Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2)))
    >>> fit.verdict.trusted, round(fit.log_evidence, 1)  # the truth is log 2π = 1.8
    (True, 1.8)
    """
    key, target = as_key(key), as_target(target)
    tuning = Tuning() if tuning is None else check_instance("tuning", tuning, Tuning)
    if max_components is not None:
        check_count("max_components", max_components, 1)
    if num_draws is not None:
        check_count("num_draws", num_draws, 2, "10,000 is a good number.")
    if min_ess is not None:
        check_count("min_ess", min_ess, tuning.answer.fewest_effective, "400 is a good number.")
        if num_draws is not None or integrand is not None:
            other = "integrand" if num_draws is None else "num_draws"
            raise ValueError(f"min_ess and {other} exclude each other: one is for few evaluations. Leave one out.")
    check_choice("search", search, ("auto", "thorough"))
    if integrand is not None:
        check_integrand(target, integrand)
    if callback is not None:
        check_function("callback", callback, "what a round has measured (a RoundInfo)")
    if progress is not None:
        check_flag("progress", progress)
    if checkpoint is not None:
        checkpoint = check_path("checkpoint", checkpoint)
    parsed, budget = Family.parse(family), check_budget(budget, 2)
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    given = None if start is None else read_given(target, start, generator)
    goal = thrift.goal_of(min_ess, budget, tuning)
    tuning = thrift.plan(tuning, goal, target.dim)
    reserve = frugality.reserve(budget, num_draws, tuning, 0 if goal is None else num_evaluations_of_checks(target.dim))
    evaluator = Evaluator(target, budget, reserve, goal is not None)
    evaluator.measure_pace()
    evaluator.draw_prior_ahead()
    tuning = frugality.shrink(tuning, evaluator.num_affordable)
    most = max_components or most_components(target.dim, tuning.rounds)
    context = Context(generator, evaluator, most, parsed, tuning, goal)
    asked = {"key": jax.random.key_data(key).tolist(), "max_components": max_components, "family": str(family)}
    asked["min_ess"] = min_ess
    asked["start"] = None if start is None else type(start).__name__
    shown = Progress(callback, progress, evaluator)
    state, cause = _begin(context, given, checkpoint, asked)
    while True:
        state, cause = _take_rounds(context, state, cause, shown, checkpoint, asked)
        state, case = _answer(context, state, cause, num_draws, integrand, search == "thorough")
        verdict = _with_cause(judge(case), case.cause)
        if not _goes_on(verdict, context, state):
            break
        evaluator.close_reserve()
        state = go_on(context, state, case)
    draws = case.draws
    if case.cause not in (SPENT, INTERRUPTED) and verdict.status in ESCALATED and context.can_escalate:
        draws, verdict = _escalate(key, context, state, case, verdict, shown)
    history = {
        field.name: np.asarray([getattr(info, field.name) for info in state.history])
        for field in dataclasses.fields(RoundInfo)
    }
    chosen = {"max_components": max_components, "num_draws": num_draws, "budget": budget, "family": str(family)}
    settings = settings_of("refine", key, start=start, **chosen, search=search, integrand=integrand, min_ess=min_ess)
    return Fit(target, case.proposal, draws, history, verdict, evaluator.num_evaluations, evaluator.seconds, settings)


def _begin(context: Context, given: Any, checkpoint: str | None, asked: dict[str, Any]) -> tuple[State, str | None]:
    """Return the first state, and why not even that could be made as it should be, in words."""
    try:
        if checkpoint is not None and os.path.exists(checkpoint):
            return checkpoints.load(checkpoint, context, asked), None
        return (from_target(context) if given is None else from_given(context, given)), None
    except BudgetExhausted:
        cause = SPENT
    except KeyboardInterrupt:
        cause = INTERRUPTED
    broad = cover(context)
    return State(broad, broad, Pool.empty(context.dim)), cause


def _take_rounds(
    context: Context,
    state: State,
    cause: str | None,
    shown: Progress,
    checkpoint: str | None,
    asked: dict[str, Any],
) -> tuple[State, str | None]:
    """Take rounds until the mixture is good; return the state, and why it was stopped before, in words."""
    most_rounds = context.tuning.rounds.most_rounds * (1 + state.num_returns)
    try:
        while cause is None and not state.is_done:
            if len(state.history) >= most_rounds:
                cause = f"{most_rounds} rounds"
                break
            with context.evaluator.expect_as_long(frugality.LONGER):
                state = take_round(context, state)
            if checkpoint is not None:
                checkpoints.save(checkpoint, context, state, asked)
            shown.report(state.history[-1])
    except BudgetExhausted:
        cause = None if thrift.suffices(context, state) else SPENT
    except KeyboardInterrupt:
        cause = INTERRUPTED
    except (np.linalg.LinAlgError, ArithmeticError) as error:
        cause = f"a computation failed: {error}"
    _check_support(state, context.evaluator)
    return state, cause


def _with_cause(verdict: Verdict, cause: str | None) -> Verdict:
    """Say in every verdict that the work was stopped early: bad weights are most often bad for that reason."""
    if cause is None or cause in verdict.reason:
        return verdict
    reason = f"{verdict.reason} The refinement was stopped ({cause}) before its own criteria were met."
    return dataclasses.replace(verdict, reason=reason, remedy=f"Let it go on for longer. {verdict.remedy}")


def _answer(
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
    parts, searched = (), None
    if cause is None and float(draws.ess) > 0:
        try:
            with in_base(context, state) as inside:
                x = np.asarray(draws.x) if state.warp is None else state.warp.to_base(np.asarray(draws.x))[0]
                parts, searched = look_for_missed(context, inside, mixture, x, np.asarray(draws.log_ratio), is_thorough)
        except BudgetExhausted:
            cause = SPENT
    case = Case(
        draws,
        proposal,
        state.mixture,
        context.evaluator,
        context.generator,
        None if last is None else (last.log_evidence, last.log_evidence_se),
        None if cause is not None else last_share,
        0.0 if last is None else last.drift,
        None if last is None else (state.pool.x[:NUM_REPEATED], state.pool.log_p[:NUM_REPEATED]),
        state.most_invalid,
        cause,
        parts,
        searched,
        state.warp,
        context.tuning,
    )
    return state, case


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


def _goes_on(verdict: Verdict, context: Context, state: State) -> bool:
    """Whether what speaks against an answer can be mended by more rounds, and these can be paid for."""
    tuning = context.tuning
    if not frugality.can_go_on(context.evaluator):
        return False
    if verdict.status is Status.UNCOVERED_MODE:
        return state.num_returns < tuning.missed.most_returns
    has_particles = context.can_escalate and verdict.status in ESCALATED
    return verdict.status in RETRIED and not has_particles and state.num_returns < tuning.missed.most_retries


def _escalate(
    key: jax.Array, context: Context, state: State, case: Case, verdict: Verdict, shown: Progress
) -> tuple[WeightedDraws, Verdict]:
    """Let particles take over; where they cannot, all stays as it is."""
    # Few targets come here: the others do not wait for the import.
    from klover.refinement.escalation import Stranded, escalate

    with contextlib.suppress(BudgetExhausted, KeyboardInterrupt, Stranded):
        carried = escalate(
            jax.random.fold_in(key, 1),
            context.evaluator,
            in_user_coordinates(state),
            case.draws.pareto_k,
            shown.tell_temperature,
            context.tuning.islands,
            context.tuning.moves,
        )
        return carried, judge(dataclasses.replace(case, draws=carried, parts=(), cause=None))
    return case.draws, verdict


def _check_support(state: State, evaluator: Evaluator) -> None:
    """Fail with a clear message where the density is finite nowhere."""
    pool = state.pool
    if len(pool.log_p) > 0 and not np.isfinite(pool.log_p).any():
        raise ValueError(
            f"the log density is finite at none of {len(pool.log_p)} points around the start ({evaluator.num_nan} NaN, "
            f"{evaluator.num_infinite} +inf, {evaluator.num_raised} errors), so there is nothing to fit. Run "
            "target.check(key), and choose an example, a box or a start inside the support."
        )
