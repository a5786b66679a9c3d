"""``refine``: the automatic engine. It asks for nothing but a target, and says whether its answer is to be trusted."""

import contextlib
import dataclasses
import datetime
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
from klover.base.linalg import FAILURES, said_of
from klover.base.processes import check_agreement
from klover.base.shapes import AnyArray, Float, KeyLike, PyTree, RandomKey
from klover.mixtures.components import Family
from klover.refinement import frugality, thrift
from klover.refinement import surrogate as surrogates
from klover.refinement.aim import check_integrand
from klover.refinement.answer import INTERRUPTED, answer, goes_on, take_over, with_cause
from klover.refinement.completion import go_on
from klover.refinement.kept import Kept, from_kept
from klover.refinement.pool import Pool
from klover.refinement.preparation import Wishes, prepare, sharing
from klover.refinement.progress import Progress
from klover.refinement.rounds import WORDS, take_round
from klover.refinement.start import cover, from_given, from_target, read_given
from klover.refinement.state import Context, RoundInfo, State
from klover.results.files import settings_of
from klover.results.fit import Fit
from klover.targets.budget import Budget, BudgetExhausted, check_budget
from klover.targets.evaluator import Evaluator
from klover.targets.journal import Journal
from klover.targets.loaded import as_target
from klover.targets.target import Target
from klover.tuning import Tuning
from klover.verdict.judge import judge, with_hints


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
    journal: str | os.PathLike | None = None,
    min_ess: int | None = None,
    surrogate: bool | None = None,
    pool: Any = None,
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
        Fresh draws of the final mixture; enough for 4000 effective ones if None (6144 to 98304).
    budget
        Most evaluations of the target (an integer; a gradient counts as one), or most time (a ``datetime.timedelta``;
        a compilation that has begun is not interrupted; not where processes share the data). An answer that it does not
        suffice for is refused. Up to 10,000 evaluations are planned as with ``min_ess``. Without a budget the work ends
        after 20 million evaluations, or two minutes of klover's own (``Tuning.ending``).
    family
        Of the components: a :class:`~klover.Family` or its name, such as ``"student"``, ``"normal-diagonal"`` or
        ``"student-low-rank"``. Beyond 128 dimensions full covariances come from gradients, where there are any
        (:mod:`klover.refinement.whitening`), and are diagonal otherwise.
    integrand
        A function of a constrained position whose expectation matters most: half of the final draws are aimed at it.
    callback
        Called after each round with a :class:`~klover.refinement.state.RoundInfo`.
    progress
        Whether to say on stderr what is being done and how far it is; None says so on a terminal when it takes long.
    search
        How hard to look for missed modes at the end: ``"auto"`` looks thoroughly (about 80,000 evaluations for
        each known mode, four times as many at the most) where several modes are known and evaluations are cheap,
        ``"thorough"`` always.
    journal
        A file to which every evaluation is added when it is made. After a crash, a kill or Ctrl-C the same call takes
        from it what it needs, evaluates the rest, and gives the same answer, to the last bit; with a larger budget it
        goes on. Replayed evaluations count as the others do (``settings["num_replayed"]`` tells how many there were).
        A file of another density or of other data is refused. What depends on a clock may differ: a time
        budget is that of this call, and so is the bound of two minutes without a budget. Only evaluations are spared:
        klover's own work is done again, and so are particles beyond 30 dimensions (``docs/scale.md``). Not where
        processes share the data.
    min_ess
        Effective draws that are enough, 100 or more, where evaluations are expensive
        (:mod:`klover.refinement.thrift`): on simple targets two to five times as many evaluations (gradients) do.
        Targets with heavy tails or several modes take many more. The search is smaller, too: a narrow mode far from
        the others may be missed, and the answer trusted, where an ordinary fit finds it: 1 of 57 test cases.
    surrogate
        Whether a Gaussian process for the log density proposes where to evaluate it, in up to 8 dimensions, together
        with ``min_ess`` (:mod:`klover.refinement.surrogate`): many smooth targets take two evaluations for each
        effective draw; where it is wrong it is dropped, and the work begins anew. It takes
        seconds, and the search for other modes is smaller still. None takes it where an
        evaluation is measured to take 0.1 s or more, or where there are no gradients and the budget is too small for
        the other way; what is decided by a clock may differ from run to run, True and False do not.
    pool
        Who evaluates a target of :func:`klover.from_callback` in this fit, as its argument of that name has it.
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
    check_counts(tuning, max_components, num_draws, min_ess, integrand is not None)
    check_choice("search", search, ("auto", "thorough"))
    if integrand is not None:
        check_integrand(target, integrand)
    if callback is not None:
        check_function("callback", callback, "what a round has measured (a RoundInfo)")
    if progress is not None:
        check_flag("progress", progress)
    if journal is not None:
        journal = check_path("journal", journal)
    parsed, budget = Family.parse(family), check_budget(budget, 2)
    numbers = max_components, num_draws, min_ess, surrogate, search, str(family), tuning
    _check_shared(key, target, budget, journal, numbers)
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    given = start if start is None or isinstance(start, Kept) else read_given(target, start, generator)
    has_usual_search = isinstance(given, Kept) and given.has_usual_search
    is_aimed, has_start = integrand is not None, start is not None
    wishes = Wishes(
        max_components, num_draws, budget, parsed, is_aimed, min_ess, surrogate, has_start, has_usual_search
    )
    with contextlib.ExitStack() as stack:
        kept = None if journal is None else stack.enter_context(Journal(journal, target.dim, target.start.dtype))
        stack.enter_context(sharing(target, pool))
        context, has_surrogate = prepare(generator, target, wishes, tuning, kept)
        if kept is not None:
            stack.enter_context(context.evaluator.keeping(kept))
        is_told = progress if jax.process_index() == 0 or not target.is_shared else False
        shown = stack.enter_context(Progress(callback, is_told, context.evaluator))
        context = dataclasses.replace(context, tell=shown.say)
        shown.say("searching for modes")
        state, cause = _begin(context, given, has_surrogate)
        context.evaluator.has_gradient |= state.design is None and context.evaluator.is_differentiable
        while True:
            state, cause = _take_rounds(context, state, cause, shown)
            shown.say("final draws")
            state, case = answer(context, state, cause, num_draws, integrand, search == "thorough")
            verdict = with_cause(judge(case), case.cause)
            if not goes_on(verdict, context, state, case):
                break
            context.evaluator.close_reserve()
            try:
                state = go_on(context, state, case)
            except (BudgetExhausted, *FAILURES):
                break
        draws, verdict = take_over(key, context, state, case, verdict, shown)
        verdict = with_hints(verdict, dataclasses.replace(case, draws=draws))
    history = {
        field.name: np.asarray([getattr(info, field.name) for info in state.history])
        for field in dataclasses.fields(RoundInfo)
    }
    chosen = {"max_components": max_components, "num_draws": num_draws, "budget": budget, "family": str(family)}
    if kept is not None:
        chosen["num_replayed"] = kept.num_replayed
    settings = settings_of(
        "refine", key, start=start, **chosen, search=search, integrand=integrand, min_ess=min_ess, surrogate=surrogate
    )
    spent = context.evaluator.num_evaluations, context.evaluator.seconds
    return Fit(target, case.proposal, draws, history, verdict, *spent, settings)


def check_counts(
    tuning: Tuning, max_components: int | None, num_draws: int | None, min_ess: int | None, has_integrand: bool
) -> None:
    """Refuse numbers of components and draws that cannot be."""
    if max_components is not None:
        check_count("max_components", max_components, 1)
    if num_draws is not None:
        check_count("num_draws", num_draws, 2, "10,000 is a good number.")
    if min_ess is not None:
        check_count("min_ess", min_ess, tuning.answer.fewest_effective, "400 is a good number.")
        if num_draws is not None or has_integrand:
            other = "integrand" if num_draws is None else "num_draws"
            raise ValueError(f"min_ess and {other} exclude each other: one is for few evaluations. Leave one out.")


def _check_shared(key: RandomKey, target: Target, budget: Budget, journal: str | None, numbers: tuple) -> None:
    """Refuse what processes that share the data cannot do together, and arguments that differ between them."""
    if not target.is_shared:
        return
    if isinstance(budget, datetime.timedelta):
        raise ValueError(
            f"budget must be a number of evaluations where processes share the data, got {budget!r}: each of them has "
            "a clock of its own, and they have to stop together."
        )
    if journal is not None:
        raise ValueError(
            f"journal must be None where processes share the data, got {journal!r}: a kill would leave each of them "
            "another part of the evaluations, and they have to make the same ones."
        )
    remedy = "All of them have to call refine with the same key and arguments, on data of the same shape."
    check_agreement(remedy, jax.random.key_data(key), target, budget, numbers)


def _begin(context: Context, given: Any, has_surrogate: bool) -> tuple[State, str | None]:
    """Return the first state, and why not even that could be made as it should be, in words."""
    try:
        if has_surrogate:
            return surrogates.begin(context), None
        if isinstance(given, Kept):
            return from_kept(context, given), None
        return (from_target(context) if given is None else from_given(context, given)), None
    except BudgetExhausted as error:
        cause = str(error)
    except KeyboardInterrupt:
        cause = INTERRUPTED
    except FAILURES as failure:
        cause = said_of(failure)
    broad = cover(context)
    return State(broad, broad, Pool.empty(context.dim)), cause


def _take_rounds(context: Context, state: State, cause: str | None, shown: Progress) -> tuple[State, str | None]:
    """Take rounds until the mixture is good; return the state, and why it was stopped before, in words."""
    most_rounds = context.tuning.rounds.most_rounds * (1 + state.num_returns)
    try:
        while cause is None and not state.is_done:
            if len(state.history) >= most_rounds:
                cause = f"{most_rounds} rounds"
                break
            with context.evaluator.expect_as_long(frugality.LONGER):
                state = take_round(context, state)
            shown.report(state.history[-1], WORDS[state.stage], _how_far(context, state))
    except BudgetExhausted as error:
        cause = None if thrift.suffices(context, state) else str(error)
    except KeyboardInterrupt:
        cause = INTERRUPTED
    except FAILURES as failure:
        cause = said_of(failure)
    _check_support(state, context.evaluator)
    return state, cause


def _how_far(context: Context, state: State) -> str:
    """Say how many draws are effective, and how many are wanted: of a round's, or where there is a goal of all."""
    needed = thrift.num_needed(context, state)
    if needed is None:
        return f"ESS {state.history[-1].ess_share:.1%} of {context.tuning.rounds.good_ess:.0%} wanted"
    return f"ESS {thrift.num_effective(state.pool, state.num_blind):.0f} of {needed:.0f} wanted"


def _check_support(state: State, evaluator: Evaluator) -> None:
    """Fail with a clear message where the density is finite nowhere."""
    pool = state.pool
    if len(pool.log_p) > 0 and not np.isfinite(pool.log_p).any():
        raise ValueError(
            f"the log density is finite at none of {len(pool.log_p)} points around the start ({evaluator.num_nan} NaN, "
            f"{evaluator.num_infinite} +inf, {evaluator.num_raised} errors), so there is nothing to fit. Run "
            "target.check(key), and choose an example, a box or a start inside the support."
        )
