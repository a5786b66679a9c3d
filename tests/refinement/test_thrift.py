"""Few evaluations: a goal of effective draws plans all of the work."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.refinement import thrift
from klover.refinement.pool import Pool
from klover.refinement.stages import Look, Measurement, decide
from klover.refinement.state import Context, RoundInfo, Stage, State
from klover.targets.adapters.callback import from_callback
from klover.targets.evaluator import Evaluator
from klover.targets.target import Target
from klover.tuning import Tuning

TUNING = Tuning()
DIM = 3
LOG_Z = 0.5 * DIM * np.log(2 * np.pi) + np.log(np.prod([0.5, 1.0, 2.0]))
SCALE = np.array([0.5, 1.0, 2.0])


def log_normal(x):
    return -0.5 * np.sum(((x - 1.0) / SCALE) ** 2, -1)


def slope(x):
    return (1.0 - x) / SCALE**2


def normal(has_gradient=True):
    return from_callback(log_normal, DIM, grad=slope if has_gradient else None, vectorized=True)


CHEAP = Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2))


@pytest.mark.parametrize(("has_gradient", "most"), [(True, 1300), (False, 1700)])
def test_a_normal_takes_few_evaluations(has_gradient, most):
    fits = [klover.refine(seed, normal(has_gradient), min_ess=400) for seed in range(4)]
    for fit in fits:
        assert fit.verdict.trusted
        assert fit.draws.ess >= 400
        assert fit.num_evaluations <= most
        assert abs(fit.log_evidence - LOG_Z) < 5 * fit.log_evidence_se < 0.3
        mean = np.exp(fit.draws.log_weight) @ fit.draws.x
        np.testing.assert_allclose(mean, 1.0, atol=0.3)
    assert np.median([fit.num_evaluations for fit in fits]) <= most - 300


def test_the_same_key_gives_the_same_answer():
    first, second = (klover.refine(7, normal(), min_ess=200) for _ in range(2))
    np.testing.assert_array_equal(first.draws.x, second.draws.x)
    assert first.num_evaluations == second.num_evaluations


def test_a_resumed_fit_gives_the_same_answer(tmp_path):
    path = tmp_path / "journal"

    def stop(info):
        raise KeyboardInterrupt

    whole = klover.refine(3, normal(), min_ess=400)
    stopped = klover.refine(3, normal(), min_ess=400, journal=path, callback=stop)
    assert not stopped.verdict.trusted
    resumed = klover.refine(3, normal(), min_ess=400, journal=path)
    np.testing.assert_array_equal(resumed.draws.x, whole.draws.x)
    # Two evaluations before the first round have measured how long one takes.
    assert resumed.settings["num_replayed"] >= stopped.history["num_evaluations"][0] - 2


@pytest.mark.parametrize("budget", [500, 1000, 2000])
@pytest.mark.parametrize("has_gradient", [True, False])
def test_small_budgets_give_answers(budget, has_gradient):
    fit = klover.refine(1, normal(has_gradient), budget=budget, min_ess=400)
    assert fit.num_evaluations <= budget
    assert fit.verdict.trusted or (budget == 500 and "the budget is spent" in fit.verdict.reason)
    assert abs(fit.log_evidence - LOG_Z) < 5 * fit.log_evidence_se


@pytest.mark.parametrize(("has_gradient", "fewest"), [(True, 500), (False, 2000)])
def test_small_budgets_are_planned_in_ten_dimensions(has_gradient, fewest):
    scale = np.geomspace(0.1, 1.0, 10)

    def log_density(x):
        return -0.5 * np.sum((x / scale) ** 2, -1)

    target = from_callback(log_density, 10, grad=(lambda x: -x / scale**2) if has_gradient else None, vectorized=True)
    truth = 5 * np.log(2 * np.pi) + np.log(scale).sum()
    for budget in (fewest, 2 * fewest):
        fit = klover.refine(0, target, budget=budget)
        assert fit.num_evaluations <= budget
        assert fit.draws.ess >= 100
        assert abs(fit.log_evidence - truth) < 5 * fit.log_evidence_se
    assert fit.verdict.trusted


def test_a_round_is_as_large_as_the_budget_allows():
    context = Context(np.random.default_rng(0), Evaluator(CHEAP, 1000), 4, tuning=thrift.plan(TUNING, 400, 2), goal=400)
    state = state_of(pool_of(1.2, size=100), history=(info(),))
    whole = thrift.num_missing(context, state, 0)
    fewest = context.tuning.rounds.first_draws // 2
    assert whole > fewest + 1
    context.evaluator.charge(1000 - whole + 1)
    assert thrift.num_missing(context, state, 0) == whole - 1
    context.evaluator.charge(whole - fewest)
    assert thrift.num_missing(context, state, 0) == whole


def test_a_proposal_that_was_fair_makes_the_last_draws():
    context = Context(np.random.default_rng(0), Evaluator(CHEAP, 1000), 4, goal=400)
    state = state_of(pool_of(1.2, 3.0), history=(info(ess_share=0.9), info(ess_share=0.3)))
    assert thrift.draw_the_rest(context, state).pool.proposals[-1] is state.pool.proposals[0]
    context = dataclasses.replace(context, evaluator=Evaluator(CHEAP, 1000))
    poor = dataclasses.replace(state, history=(info(ess_share=0.4), info(ess_share=0.3)))
    fresh = thrift.draw_the_rest(context, poor).pool.proposals[-1]
    assert all(fresh is not known for known in state.pool.proposals)


def test_two_modes_are_found_and_weighed():
    def log_density(x):
        return np.logaddexp(np.log(0.3) - 0.5 * np.sum((x + 4) ** 2, -1), np.log(0.7) - 0.5 * np.sum((x - 4) ** 2, -1))

    fit = klover.refine(0, from_callback(log_density, 2, vectorized=True), min_ess=400)
    assert fit.verdict.trusted
    share = np.exp(fit.draws.log_weight) @ (fit.draws.x[:, 0] > 0)
    assert abs(share - 0.7) < 0.1
    assert abs(fit.log_evidence - np.log(2 * np.pi)) < 5 * fit.log_evidence_se


def test_the_verdict_says_what_a_small_search_may_have_missed():
    fit = klover.refine(0, Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(12)), min_ess=400)
    assert fit.verdict.searched.smallest_scale == 1
    assert "may have been missed" in str(fit.verdict.searched)


@pytest.mark.parametrize("value", [0, 99, 400.5, "many", True])
def test_a_bad_goal_is_refused(value):
    with pytest.raises((ValueError, TypeError), match="min_ess"):
        klover.refine(0, CHEAP, min_ess=value)


def test_a_goal_excludes_other_wishes_for_draws():
    with pytest.raises(ValueError, match="min_ess and num_draws exclude each other"):
        klover.refine(0, CHEAP, min_ess=400, num_draws=1000)
    with pytest.raises(ValueError, match="min_ess and integrand exclude each other"):
        klover.refine(0, CHEAP, min_ess=400, integrand=lambda x: x[0])


def test_who_has_a_goal():
    assert thrift.goal_of(None, None, TUNING) is None
    assert thrift.goal_of(None, 2000, TUNING) == 400
    assert thrift.goal_of(None, TUNING.rounds.small_budget + 1, TUNING) is None
    assert thrift.goal_of(None, 100, TUNING) == TUNING.answer.fewest_effective
    assert thrift.goal_of(700, None, TUNING) == 700
    assert thrift.goal_of(700, 100_000, TUNING) == 700
    assert thrift.goal_of(700, 2000, TUNING) == 400
    assert thrift.goal_of(700, 20, TUNING) == TUNING.answer.fewest_effective


def test_plans_are_in_proportion_to_the_goal():
    assert thrift.plan(TUNING, None, 5) is TUNING
    small, large = thrift.plan(TUNING, 400, 5), thrift.plan(TUNING, 4000, 5)
    assert small.rounds.first_draws == round(0.1 * TUNING.rounds.first_draws)
    assert (large.rounds, large.search, large.exploration) == (TUNING.rounds, TUNING.search, TUNING.exploration)
    assert thrift.plan(TUNING, 100, 60).rounds.first_draws == 4 * 60


def proposal(scale):
    return Mixture(Family("student").components(np.zeros((1, 2)), scale**2 * np.eye(2)[None]), np.zeros(1))


def pool_of(*scales, size=400):
    generator, pool = np.random.default_rng(0), Pool.empty(2)
    for scale in scales:
        x = proposal(scale).draw(generator, size)
        pool = pool.add(proposal(scale), x, -0.5 * np.sum(x**2, -1))
    return pool


def state_of(pool, **changes):
    return dataclasses.replace(State(proposal(1.0), proposal(1.0), pool), **changes)


def test_rounds_are_combined_by_their_effective_draws():
    pool = pool_of(1.2, 3.0)
    parts = thrift.batches(pool, 0)
    assert [len(part.log_p) for part in parts] == [400, 400]
    context = Context(np.random.default_rng(0), Evaluator(CHEAP), 4)
    draws = thrift.pooled_draws(context, state_of(pool))
    ess = np.array([part.ess for part in parts])
    evidences = [np.mean(np.exp(part.log_ratio)) for part in parts]
    assert np.exp(float(draws.log_evidence)) == pytest.approx(ess @ evidences / ess.sum())
    assert float(draws.log_evidence) == pytest.approx(np.log(2 * np.pi), abs=0.1)
    assert thrift.num_effective(pool, 0) == pytest.approx(float(draws.ess))
    assert float(draws.ess) == pytest.approx(ess.sum(), rel=0.05)
    assert thrift.mean_share(state_of(pool)) == pytest.approx(ess.sum() / 800)
    assert np.exp(draws.log_weight).sum() == pytest.approx(1.0)


def with_heavy(pool, which):
    """Give one round of a pool heavy weights."""
    log_q, rows = pool.log_q.copy(), slice(400 * which, 400 * (which + 1))
    log_q[which, rows] -= np.random.default_rng(1).standard_exponential(400) * 3
    return dataclasses.replace(pool, log_q=log_q)


def test_rounds_before_one_that_was_blind_or_heavy_do_not_count():
    pool = pool_of(1.2, 1.5, 2.0)
    assert [len(thrift.batches(pool, num)) for num in range(4)] == [3, 2, 1, 1]
    assert [len(thrift.batches(with_heavy(pool, which), 0)) for which in range(3)] == [2, 1, 1]
    assert len(thrift.batches(with_heavy(pool, 0), 2)) == 1


def test_surprises_double_the_goal():
    context = Context(np.random.default_rng(0), Evaluator(CHEAP), 4, goal=400)
    pool = pool_of(1.2, 1.2, 1.2)
    assert thrift.num_needed(context, state_of(pool)) == 400
    assert thrift.num_needed(context, state_of(with_heavy(pool, 0))) == 400
    assert thrift.num_needed(context, state_of(with_heavy(pool, 1))) == 800
    assert thrift.num_needed(context, state_of(pool, num_returns=2)) == 1600
    assert thrift.num_needed(context, state_of(pool, num_returns=9)) == TUNING.answer.wanted_ess
    assert thrift.num_needed(dataclasses.replace(context, goal=None), state_of(pool)) is None


def test_errors_of_standard_deviations_are_those_of_many_samples():
    generator, num = np.random.default_rng(0), 2000
    normal, student = generator.standard_normal((num, 2)), generator.standard_t(5, (num, 2))
    unit = proposal(1.0)
    light, heavy = (Pool.empty(2).add(unit, x, np.asarray(unit.log_prob(x))) for x in (normal, student))
    assert thrift.largest_sd_error(light, 0) == pytest.approx((2 * num) ** -0.5, rel=0.15)
    assert thrift.largest_sd_error(heavy, 0) > 1.3 * thrift.largest_sd_error(light, 0)


def test_standard_deviations_of_heavy_tails_are_known_as_well_as_means():
    def log_student(x):
        return -0.5 * (5 + DIM) * np.log1p(np.sum(x**2, -1) / 5)

    for seed in range(3):
        fit = klover.refine(seed, from_callback(log_student, DIM, vectorized=True), min_ess=400)
        assert fit.verdict.trusted
        weight, x = np.exp(fit.draws.log_weight), fit.draws.x
        square = (x - weight @ x) ** 2
        variance = weight @ square
        np.testing.assert_allclose(variance**0.5, (5 / 3) ** 0.5, rtol=0.2)
        error = np.sqrt(weight**2 @ (square / variance - 1) ** 2) / 2
        assert error.max() <= 400**-0.5 or fit.draws.ess >= TUNING.answer.wanted_ess


def info(**changes):
    usual = {"round": 0, "num_components": 1, "num_draws": 200, "ess_share": 0.6, "pareto_k": 0.2}
    usual |= {"log_evidence": 0.0, "log_evidence_se": 0.01, "drift": 0.0, "num_evaluations": 300, "seconds": 0.1}
    return RoundInfo(**(usual | changes))


@pytest.mark.parametrize(
    ("num_before", "pool_ess", "pareto_k", "could_stop"),
    [(1, 500.0, 0.3, True), (0, 500.0, 0.3, False), (1, 300.0, 0.3, False), (1, 500.0, 0.65, False)],
)
def test_a_pool_with_the_goal_is_enough(num_before, pool_ess, pareto_k, could_stop):
    state = state_of(Pool.empty(2), stage=Stage.POOL, history=(info(),) * num_before)
    plan = decide(Measurement(200, 0.6, pareto_k, 0.0, 0.01, pool_ess), state, 2, TUNING, 400.0)
    assert plan.could_stop is could_stop
    assert plan.look is (Look.LAST if could_stop else Look.NONE)
