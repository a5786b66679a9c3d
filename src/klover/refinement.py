"""``refine``: the automatic engine. It asks for nothing but a target, and says whether its answer is to be trusted."""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from klover import checkpoints, psis
from klover.beginning import from_given, from_target, region
from klover.diagnostics import Verdict, judge, judge_particles, place_in_words
from klover.engine import (
    LARGEST_DRIFT,
    LARGEST_WIDTH,
    MOST_EXPLORED_DIM,
    final_proposal,
    most_components,
    take_round,
    widest,
)
from klover.evaluation import Budget, BudgetExhausted, Evaluator
from klover.exploration import inflate
from klover.families import Family
from klover.fit import Fit
from klover.importance import WeightedDraws
from klover.integrands import aim
from klover.mixture import Mixture
from klover.pool import Pool
from klover.search import NUM_STARTS, climb, log_volume
from klover.state import Context, RoundInfo, State
from klover.status import Status
from klover.storage import settings_of
from klover.target import Target
from klover.typing import AnyArray, Float, Key, PyTree
from klover.validation import check_choice, check_count, check_key

MOST_ROUNDS = 24
FEWEST_DRAWS, MOST_DRAWS = 8192, 98304
MOST_NUMBERS = 2**25
"""Numbers that the final draws may hold: 256 MiB."""
WANTED_ESS = 4000
SEARCH_INFLATION = 3.0
FAMILIES = ("student", "normal", "student-diagonal", "normal-diagonal")
SPENT = "the budget is spent"
ESCALATED = (Status.HEAVY_WEIGHTS, Status.FEW_EFFECTIVE_DRAWS)
"""Where importance sampling has failed, and particles may not."""
PROGRESS_SECONDS = 2.0
SMALLEST_MODE = 1e-3


def refine(
    key: Key[jax.Array, ""],
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
        A typed key.
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
        Called after each round with a :class:`~klover.RoundInfo`.
    progress
        Whether to show rounds on the terminal; None shows them on a terminal when the work takes long.
    checkpoint
        A file that is written after each round, and from which the work goes on if it exists.

    Returns
    -------
    A :class:`~klover.Fit`; interrupted by Ctrl-C, the best so far.
    """
    check_key(key)
    if not isinstance(target, Target):
        raise TypeError(
            f"target must be a klover.Target, but a {type(target).__name__} came. Wrap your log density: "
            "klover.Target(logdensity, example)."
        )
    if max_components is not None:
        check_count("max_components", max_components, 1)
    if num_draws is not None:
        check_count("num_draws", num_draws, 2, "10,000 is a good number.")
    check_choice("family", family, FAMILIES)
    reserve = _reserve(budget, num_draws)
    evaluator = Evaluator(target, budget, reserve)
    generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    context = Context(generator, evaluator, max_components or most_components(target.dim), Family.parse(family))
    report = _reporter(callback, progress)
    state, cause = _run(context, start, report, checkpoint)
    _check_support(state, evaluator)
    proposal = final_proposal(context, state)
    if integrand is not None and cause is None:
        proposal = aim(context, state, proposal, integrand)
    with evaluator.overtime():
        draws = _final_draws(context, state, proposal, num_draws, reserve)
        verdict = _judge(context, state, proposal, draws, cause)
    if cause is None and verdict.status in ESCALATED and evaluator.has_gradient and target.dim > MOST_EXPLORED_DIM:
        # Few targets come here: the others do not wait for the import.
        from klover.escalation import escalate

        with contextlib.suppress(BudgetExhausted, KeyboardInterrupt):
            draws = escalate(
                jax.random.fold_in(key, 1), evaluator, state.mixture, draws.pareto_k, _teller(progress, evaluator)
            )
            verdict = judge_particles(draws)
    history = {
        field.name: np.asarray([getattr(info, field.name) for info in state.history])
        for field in dataclasses.fields(RoundInfo)
    }
    asked = {"max_components": max_components, "num_draws": num_draws, "budget": budget, "family": family}
    settings = settings_of("refine", key, start=start, **asked, integrand=integrand)
    return Fit(target, proposal, draws, history, verdict, evaluator.num_evaluations, evaluator.seconds, settings)


def _reserve(budget: Budget, num_draws: int | None) -> int:
    """Return the evaluations to keep back for the final draws."""
    if not isinstance(budget, int):
        return 0
    if num_draws is not None and num_draws >= budget:
        raise ValueError(
            f"num_draws must be smaller than the budget, but {num_draws} and {budget} came. The budget pays for the "
            "search as well: give at least twice as many evaluations."
        )
    return num_draws or min(FEWEST_DRAWS, budget // 4)


def _run(
    context: Context, start: Any, report: Callable[[RoundInfo], None], checkpoint: str | os.PathLike | None
) -> tuple[State, str | None]:
    """Take rounds until the mixture is good; return the state, and why it was stopped before, in words."""
    state = None
    cause = f"{MOST_ROUNDS} rounds"
    try:
        if checkpoint is not None and os.path.exists(checkpoint):
            state = checkpoints.load(checkpoint, context)
        else:
            state = from_target(context) if start is None else from_given(context, start)
        while not state.is_done and len(state.history) < MOST_ROUNDS:
            take_round(context, state)
            if checkpoint is not None:
                checkpoints.save(checkpoint, context, state)
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


def _final_draws(
    context: Context, state: State, proposal: Mixture, num_draws: int | None, reserve: int
) -> WeightedDraws:
    """Weigh fresh draws of the final proposal, enough of them for accurate expectations."""
    evaluator = context.evaluator
    # Where rounds no longer get better, one of them may have been lucky.
    share = min((info.ess_share for info in state.history[-1 - state.num_stale :]), default=0.0)
    most = min(MOST_DRAWS, max(MOST_NUMBERS // context.dim, FEWEST_DRAWS))
    wanted = int(np.clip(WANTED_ESS / max(share, 1e-3), FEWEST_DRAWS, most))
    num = num_draws or (wanted if evaluator.num_left is None else min(wanted, max(evaluator.num_left, reserve)))
    num_nan, num_infinite = evaluator.num_nan, evaluator.num_infinite
    x = proposal.draw(context.generator, num)
    log_p, log_q = evaluator.values(x), proposal.log_prob(x)
    log_weight, pareto_k = psis.smooth(log_p - log_q)
    return WeightedDraws(
        x,
        log_p,
        log_q,
        log_weight,
        pareto_k,
        np.asarray(evaluator.num_nan - num_nan),
        np.asarray(evaluator.num_infinite - num_infinite),
        evaluator.target,
    )


def _judge(context: Context, state: State, proposal: Mixture, draws: WeightedDraws, cause: str | None) -> Verdict:
    """Judge the draws, then everything that weights cannot see."""
    coordinate, width = widest(state.mixture)
    if width > LARGEST_WIDTH:
        return judge(draws, Status.IMPROPER, width=width, name=context.evaluator.target.coordinate_name(coordinate))
    evaluator = context.evaluator
    if evaluator.num_raised > 0:
        return judge(draws, Status.TARGET_RAISED, num_raised=evaluator.num_raised)
    verdict = judge(draws)
    if not verdict.trusted:
        return verdict
    last = state.history[-1] if state.history else None
    if cause is not None:
        if last is not None and LARGEST_DRIFT < last.drift < np.inf:
            return judge(draws, Status.DRIFTING_PARTICLES, drift=last.drift)
        return judge(draws, Status.UNFINISHED, cause=cause)
    assert last is not None
    difference = float(draws.log_evidence) - last.log_evidence
    error = float(np.hypot(draws.log_evidence_se, last.log_evidence_se))
    if abs(difference) > 5 * error and abs(difference) > 0.05:
        return judge(
            draws,
            Status.UNSTABLE_EVIDENCE,
            log_evidence=float(draws.log_evidence),
            difference=abs(difference),
            ratio=abs(difference) / error,
        )
    try:
        missed = _missed_mode(context, state.mixture, proposal, draws) if evaluator.has_gradient else None
    except BudgetExhausted:
        return judge(draws, Status.UNFINISHED, cause=SPENT)
    return verdict if missed is None else judge(draws, Status.UNCOVERED_MODE, mode=missed)


def _missed_mode(context: Context, mixture: Mixture, proposal: Mixture, draws: WeightedDraws) -> str | None:
    """Climb from far draws and from the region; name a top at which one draw would outweigh all others.

    What is known of scales and correlations by now saves most of the steps: the climb is in coordinates without them.
    """
    _, draw_starts, ceiling = region(context)
    far = inflate(proposal, SEARCH_INFLATION, 5.0).draw(context.generator, NUM_STARTS)
    starts = np.concatenate([far, draw_starts(NUM_STARTS)])
    root = mixture.root()

    def whitened(z):
        values, gradients = context.evaluator.values_and_gradients(z @ root.T)
        return values, gradients @ root

    tops, values = climb(whitened, np.linalg.solve(root, starts.T).T)
    tops = tops @ root.T
    log_ratio = np.where(np.isfinite(values), values - proposal.log_prob(tops), -np.inf)
    worst = int(np.argmax(log_ratio))
    log_evidence = float(draws.log_evidence)
    if not log_ratio[worst] > log_evidence + np.log(draws.num_draws):
        return None
    # A spike (the neck of a funnel) has a large ratio and no mass: Laplace's approximation tells.
    log_mass = values[worst] + log_volume(context.evaluator, tops[worst], ceiling)
    if log_mass < log_evidence + np.log(SMALLEST_MODE):
        return None
    return place_in_words(context.evaluator.target, tops[worst])
