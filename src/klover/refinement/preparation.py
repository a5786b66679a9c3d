"""What is settled before the first round: a goal, the numbers that suit it, and how much may be evaluated."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from klover.base.checks import in_words
from klover.mixtures.components import Family
from klover.refinement import frugality, thrift
from klover.refinement import surrogate as surrogates
from klover.refinement.defence import most_components
from klover.refinement.state import Context
from klover.targets.budget import Bound, Budget
from klover.targets.evaluator import Evaluator
from klover.targets.journal import Journal
from klover.targets.target import Target
from klover.tuning import Tuning
from klover.verdict.checks import num_evaluations_of_checks


@dataclasses.dataclass(frozen=True)
class Wishes:
    """What a user may ask of :func:`klover.refine` besides an answer; None leaves it to the engine."""

    max_components: int | None
    num_draws: int | None
    budget: Budget
    family: Family
    has_integrand: bool
    min_ess: int | None
    surrogate: bool | None
    has_start: bool
    has_usual_search: bool = False


def prepare(
    generator: np.random.Generator, target: Target, wishes: Wishes, tuning: Tuning, journal: Journal | None = None
) -> tuple[Context, bool]:
    """Return what all rounds share, and whether a surrogate proposes."""
    budget, num_draws = wishes.budget, wishes.num_draws
    has_surrogate, num_timed = surrogates.is_wanted(
        wishes.surrogate, target, wishes.min_ess, budget, wishes.has_start, journal
    )
    is_usual = num_draws is not None or wishes.has_integrand or target.dim > tuning.search.full_dim
    goal = wishes.min_ess if is_usual else thrift.goal_of(wishes.min_ess, budget, tuning, has_surrogate)
    tuning = thrift.plan(tuning, goal, target.dim, has_surrogate)
    reserve = frugality.reserve(budget, num_draws, tuning, 0 if goal is None else num_evaluations_of_checks(target.dim))
    if has_surrogate and isinstance(budget, int):
        reserve = min(surrogates.num_kept_back(target), budget // 2)
    end = tuning.ending
    # Processes that share the data have clocks of their own, and have to stop together.
    most_seconds = math.inf if target.is_shared else end.most_seconds
    bound = Bound((end.most_evaluations, most_seconds), (end.last_evaluations, end.last_seconds))
    is_thrifty = goal is not None and not wishes.has_usual_search
    evaluator = Evaluator(target, budget, reserve, is_thrifty, bound)
    evaluator.num_evaluations += num_timed
    evaluator.has_gradient &= not has_surrogate
    evaluator.measure_pace()
    evaluator.draw_prior_ahead()
    tuning = frugality.shrink(tuning, evaluator.num_affordable)
    most = wishes.max_components or most_components(target.dim, tuning.rounds)
    return Context(generator, evaluator, most, wishes.family, tuning, goal, wishes.has_usual_search), has_surrogate


@contextlib.contextmanager
def sharing(target: Target, pool: Any) -> Iterator[None]:
    """Let a pool evaluate a target meanwhile, instead of its own; processes that klover has started end with it."""
    crew = getattr(target.model_info, "crew", None)
    if crew is not None:
        with crew.replaced_by(pool):
            yield
        return
    if pool is not None:
        raise ValueError(
            f"pool= evaluates callbacks (klover.from_callback), got pool={in_words(pool)} for a density that runs in "
            "this process: one that JAX has traced uses all cores and devices already. Leave pool= out."
        )
    yield
