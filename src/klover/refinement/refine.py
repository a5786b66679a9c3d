"""``refine``: the automatic engine. It asks for nothing but a target, and says whether its answer is to be trusted."""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from klover.base.checks import as_key, check_choice, check_count
from klover.base.shapes import AnyArray, Float, KeyLike, PyTree
from klover.importance.draws import WeightedDraws, weigh_on_host
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.refinement.aim import aim
from klover.refinement.judgement import SPENT, judge_carried, judge_fit
from klover.refinement.pool import Pool
from klover.refinement.rounds import MOST_EXPLORED_DIM, final_proposal, most_components, take_round
from klover.refinement.start import from_given, from_target, region
from klover.refinement.state import Context, RoundInfo, State
from klover.results.files import settings_of
from klover.results.fit import Fit
from klover.search.modes import NUM_STARTS
from klover.targets.evaluator import Budget, BudgetExhausted, Evaluator, check_budget
from klover.targets.loaded import as_target
from klover.targets.target import Target
from klover.verdict.status import Status

MOST_ROUNDS = 24
FEWEST_DRAWS, MOST_DRAWS = 8192, 98304
MOST_NUMBERS = 2**25
"""Numbers that the final draws may hold: 256 MiB."""
WANTED_ESS = 4000
SEARCH_EVALUATIONS = 2 * NUM_STARTS * 50
"""Kept back from a budget for the last search for modes."""
FAMILIES = ("student", "normal", "student-diagonal", "normal-diagonal")
ESCALATED = (Status.HEAVY_WEIGHTS, Status.FEW_EFFECTIVE_DRAWS)
"""Where importance sampling has failed, and particles may not."""
PROGRESS_SECONDS = 2.0


def refine(
    key: KeyLike,
    target: Target,
    start: Any = None,
    *,
    max_components: int | None = None,
    num_draws: int | None = None,
    budget: Budget = None,
    family: str = "student",
    integrand: Callable[[PyTree], Float[AnyArray, ""]] | None = None,
    callback: Callable[[RoundInfo], None] | None = None,
    progress: bool | None = None,
    checkpoint: str | os.PathLike | None = None,
) -> Fit:
    """Cover a target with a mixture, and weigh draws of it: posterior, evidence and a verdict.

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
        Most evaluations of the target (an integer; a gradient counts as one), or most time (a ``datetime.timedelta``).
    family
        ``"student"`` or ``"normal"``, with ``"-diagonal"`` where covariances shall be diagonal at once; otherwise they
        are full up to 128 dimensions, and diagonal beyond.
    integrand
        A function of a constrained position whose expectation matters most: half of the final draws are aimed at it.
    callback
        Called after each round with a :class:`~klover.refinement.state.RoundInfo`.
    progress
        Whether to show rounds on the terminal; None shows them on a terminal when the work takes long.
    checkpoint
        A file that is written after each round, and from which the work goes on if it exists.

    Returns
    -------
    A :class:`~klover.Fit`; interrupted by Ctrl-C, the best so far.
    """
    key, target = as_key(key), as_target(target)
    if max_components is not None:
        check_count("max_components", max_components, 1)
    if num_draws is not None:
        check_count("num_draws", num_draws, 2, "10,000 is a good number.")
    check_choice("family", family, FAMILIES)
    budget = check_budget(budget, 2)
    reserve = _reserve(budget, num_draws)
    evaluator = Evaluator(target, budget, reserve)
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    context = Context(generator, evaluator, max_components or most_components(target.dim), Family.parse(family))
    asked = {"key": jax.random.key_data(key).tolist(), "max_components": max_components, "family": family}
    asked["start"] = None if start is None else type(start).__name__
    report = _reporter(callback, progress)
    state, cause = _run(context, start, report, checkpoint, asked)
    _check_support(state, evaluator)
    proposal = final_proposal(context, state)
    if integrand is not None and cause is None:
        proposal = aim(context, state, proposal, integrand)
    with evaluator.overtime():
        draws = _final_draws(context, state, proposal, num_draws)
        verdict = judge_fit(context, state, proposal, draws, cause)
    if cause is None and verdict.status in ESCALATED and evaluator.has_gradient and target.dim > MOST_EXPLORED_DIM:
        # Few targets come here: the others do not wait for the import.
        from klover.refinement.escalation import Stranded, escalate

        with contextlib.suppress(BudgetExhausted, KeyboardInterrupt, Stranded):
            carried = escalate(
                jax.random.fold_in(key, 1), evaluator, state.mixture, draws.pareto_k, _teller(progress, evaluator)
            )
            draws, verdict = carried, judge_carried(context, state, proposal, carried)
    history = {
        field.name: np.asarray([getattr(info, field.name) for info in state.history])
        for field in dataclasses.fields(RoundInfo)
    }
    chosen = {"max_components": max_components, "num_draws": num_draws, "budget": budget, "family": family}
    settings = settings_of("refine", key, start=start, **chosen, integrand=integrand)
    return Fit(target, proposal, draws, history, verdict, evaluator.num_evaluations, evaluator.seconds, settings)


def _reserve(budget: Budget, num_draws: int | None) -> int:
    """Return the evaluations to keep back for the final draws."""
    if not isinstance(budget, int):
        return 0
    if num_draws is not None and num_draws >= budget:
        raise ValueError(
            f"num_draws must be smaller than the budget, got {num_draws} and {budget}. The budget pays for the "
            "search as well: give at least twice as many evaluations."
        )
    return num_draws or max(min(FEWEST_DRAWS, budget // 4), 2)


def _run(
    context: Context,
    start: Any,
    report: Callable[[RoundInfo], None],
    checkpoint: str | os.PathLike | None,
    asked: dict[str, Any],
) -> tuple[State, str | None]:
    """Take rounds until the mixture is good; return the state, and why it was stopped before, in words."""
    state = None
    cause = f"{MOST_ROUNDS} rounds"
    try:
        if checkpoint is not None and os.path.exists(checkpoint):
            state = checkpoint.load(checkpoint, context, asked)
        else:
            state = from_target(context) if start is None else from_given(context, start)
        while not state.is_done and len(state.history) < MOST_ROUNDS:
            take_round(context, state)
            if checkpoint is not None:
                checkpoint.save(checkpoint, context, state, asked)
            report(state.history[-1])
    except BudgetExhausted:
        cause = SPENT
    except KeyboardInterrupt:
        cause = "interrupted"
    if state is None:
        broad, _, _ = region(context)
        state = State(broad, broad, Pool.empty(context.dim))
    return state, None if state.is_done else cause


def _reporter(callback: Callable[[RoundInfo], None] | None, progress: bool | None) -> Callable[[RoundInfo], None]:
    def report(info: RoundInfo) -> None:
        is_shown = progress or (progress is None and sys.stderr.isatty() and info.seconds > PROGRESS_SECONDS)
        if is_shown:
            print(
                f"round {info.round:2d}  {info.num_components:3d} components  ESS {info.ess_share:6.1%}  "
                f"k̂ {info.pareto_k:5.2f}  log evidence {info.log_evidence:.3f} ± {info.log_evidence_se:.3f}  "
                f"{info.num_evaluations} evaluations  {info.seconds:.1f} s",
                file=sys.stderr,
            )
        if callback is not None:
            callback(info)

    return report


def _teller(progress: bool | None, evaluator: Evaluator) -> Callable[[np.ndarray], None]:
    def tell(beta: np.ndarray) -> None:
        if progress or (progress is None and sys.stderr.isatty()):
            print(
                f"particles at temperature {beta[0]:6.1%}  {evaluator.num_evaluations} evaluations  "
                f"{evaluator.elapsed:.1f} s",
                file=sys.stderr,
            )

    return tell


def _check_support(state: State, evaluator: Evaluator) -> None:
    """Fail with a clear message where the density is finite nowhere."""
    pool = state.pool
    if len(pool.log_p) > 0 and not np.isfinite(pool.log_p).any():
        raise ValueError(
            f"the log density is finite at none of {len(pool.log_p)} points around the start ({evaluator.num_nan} NaN, "
            f"{evaluator.num_infinite} +inf, {evaluator.num_raised} errors), so there is nothing to fit. Run "
            "target.check(key), and choose an example, a box or a start inside the support."
        )


def _final_draws(context: Context, state: State, proposal: Mixture, num_draws: int | None) -> WeightedDraws:
    """Weigh fresh draws of the final proposal, enough of them for accurate expectations."""
    evaluator = context.evaluator
    # Where rounds no longer get better, one of them may have been lucky.
    share = min((info.ess_share for info in state.history[-1 - state.num_stale :]), default=0.0)
    most = min(MOST_DRAWS, max(MOST_NUMBERS // context.dim, FEWEST_DRAWS))
    wanted = int(np.clip(WANTED_ESS / max(share, 1e-3), FEWEST_DRAWS, most))
    if evaluator.num_left is not None:
        wanted = min(wanted, max(evaluator.num_left - SEARCH_EVALUATIONS, evaluator.reserve))
    return weigh_on_host(context.generator, evaluator, proposal, num_draws or wanted)
