"""Small budgets are spent, and end when they should."""

import datetime
import time

import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.refinement import frugality
from klover.targets.adapters.callback import from_callback
from klover.targets.evaluator import Evaluator
from klover.tuning import Ending, Tuning

TUNING = Tuning()


def normal(x):
    return -0.5 * np.sum((x - 1.0) ** 2, -1) - np.log(2 * np.pi)


def funnel():
    return klover.Target(lambda x: -0.5 * (x[0] / 3) ** 2 - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]), np.zeros(5))


TARGETS = {
    "normal": klover.Target(lambda x: -0.5 * jnp.sum(x**2), np.zeros(2)),
    "funnel": funnel(),
    "no gradient": from_callback(normal, 2, vectorized=True),
}


@pytest.mark.parametrize("budget", [10, 400, 5000, *(pytest.param(num, marks=pytest.mark.slow) for num in (100, 1000))])
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_budget_that_does_not_suffice_is_spent(getkey, target, budget):
    fit = klover.refine(getkey(), target, budget=budget)
    assert fit.num_evaluations <= budget
    assert fit.verdict.trusted or fit.num_evaluations >= 0.9 * budget
    assert fit.verdict.trusted or "the budget is spent" in fit.verdict.reason


def test_few_evaluations_give_a_fair_answer(getkey):
    fit = klover.refine(getkey(), TARGETS["normal"], budget=1000)
    assert fit.verdict.trusted
    assert abs(fit.log_evidence - np.log(2 * np.pi)) < 5 * fit.log_evidence_se < 0.2


@pytest.fixture
def clock(monkeypatch):
    """Stand in for the clock by the processor's: what a busy machine does beside is not counted."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0] + time.process_time())
    return now


def slow(clock, seconds, gradient):
    def logdensity(x):
        clock[0] += seconds
        return normal(x)

    return from_callback(logdensity, 2, grad=(lambda x: 1.0 - x) if gradient else None)


@pytest.mark.parametrize("gradient", [False, True])
def test_a_time_is_kept_with_a_slow_target(getkey, clock, gradient):
    target, limit = slow(clock, 0.05, gradient), 2.0
    began = time.perf_counter()
    fit = klover.refine(getkey(), target, budget=datetime.timedelta(seconds=limit))
    assert 0.8 * limit < time.perf_counter() - began < 1.1 * limit + 0.3
    assert 20 <= fit.num_evaluations <= 42
    assert not fit.verdict.trusted
    assert "the budget is spent" in fit.verdict.reason


def test_draws_that_there_is_no_time_for_are_said_to_be_missing(getkey, clock):
    target = slow(clock, 0.01, False)
    fit = klover.refine(getkey(), target, num_draws=1000, budget=datetime.timedelta(seconds=1.0))
    assert 2 <= fit.draws.num_draws < 100
    assert not fit.verdict.trusted
    assert "the budget is spent" in fit.verdict.reason
    assert fit.verdict.remedy.startswith("Let it go on for longer.")


def test_a_time_that_suffices_gives_a_trusted_answer(getkey):
    fit = klover.refine(getkey(), TARGETS["normal"], budget=datetime.timedelta(minutes=5))
    assert fit.verdict.trusted


def test_large_budgets_shrink_nothing():
    assert frugality.shrink(TUNING, None) is TUNING
    assert frugality.shrink(TUNING, 10**6) == TUNING


def test_small_budgets_shrink_the_beginning():
    small = frugality.shrink(TUNING, 400)
    assert (small.search.num_starts, small.rounds.first_draws) == (6, 50)
    tiny = frugality.shrink(TUNING, 0)
    assert (tiny.search.num_starts, tiny.rounds.first_draws) == (2, frugality.FEWEST_DRAWS)


def test_what_is_kept_back():
    assert frugality.reserve(None, 10, TUNING) == 0
    assert frugality.reserve(1000, None, TUNING) == 250
    assert frugality.reserve(10**6, None, TUNING) == TUNING.rounds.most_draws
    assert frugality.reserve(3, None, TUNING) == 2
    assert frugality.reserve(1000, 10, TUNING) == 10
    assert frugality.reserve(datetime.timedelta(1), 10, TUNING) == 10
    with pytest.raises(ValueError, match="num_draws must be smaller than the budget, got 10 and 10"):
        frugality.reserve(10, 10, TUNING)


def test_a_search_that_takes_too_much_is_given_up(getkey):
    # A ridge on which every climb is long.
    target = klover.Target(lambda x: -50.0 * (x[1] - x[0] ** 2) ** 2 - 1e-3 * x[0] ** 2, np.array([30.0, 0.0]))
    fit = klover.refine(getkey(), target, budget=300)
    assert 270 <= fit.num_evaluations <= 300
    assert len(fit.history["round"]) > 0


@pytest.mark.parametrize(("num_spent", "is_possible"), [(700, True), (701, False)])
def test_evaluations_must_be_left_to_go_on_after_an_answer(num_spent, is_possible):
    evaluator = Evaluator(TARGETS["normal"], 1000, 100)
    evaluator.charge(num_spent)
    assert frugality.can_go_on(evaluator) is is_possible
    assert frugality.can_go_on(Evaluator(TARGETS["normal"], None, 100))


HARD = klover.Target(lambda x: -jnp.sum(30 * (x[1:] - x[:-1] ** 2) ** 2 + 0.05 * (1 - x[:-1]) ** 2), np.zeros(6))


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (Ending(most_evaluations=40_000, last_evaluations=20_000), "40,000 evaluations, the bound"),
        (Ending(most_seconds=0.25, last_seconds=0.1), "0 s of klover's own work, the bound"),
    ],
)
def test_a_fit_without_a_budget_ends_at_its_bound(ending, words):
    fit = klover.refine(0, HARD, tuning=Tuning(ending=ending))
    assert not fit.verdict.trusted
    assert words in fit.verdict.reason
    assert fit.num_evaluations <= ending.most_evaluations + ending.last_evaluations + TUNING.answer.most_draws
    assert fit.draws.num_draws >= TUNING.rounds.most_draws


def test_a_search_takes_no_more_than_its_part_of_the_bound():
    fit = klover.refine(0, HARD, tuning=Tuning(ending=Ending(most_evaluations=6000)))
    assert fit.history["num_evaluations"][0] < 6000


def test_a_bound_that_is_far_changes_nothing():
    near, far = (klover.refine(0, TARGETS["normal"], tuning=Tuning(ending=Ending(end))) for end in (40_000, 10**9))
    np.testing.assert_array_equal(near.draws.x, far.draws.x)
    assert near.verdict.reason == far.verdict.reason


@pytest.mark.parametrize(("elapsed", "is_possible"), [(1100.0, True), (1300.0, False)])
def test_a_time_must_be_left_to_go_on_after_an_answer(elapsed, is_possible):
    evaluator = Evaluator(TARGETS["normal"], datetime.timedelta(hours=1))
    evaluator._began -= elapsed
    assert frugality.can_go_on(evaluator) is is_possible
