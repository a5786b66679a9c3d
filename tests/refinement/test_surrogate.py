"""A surrogate proposes, the target weighs."""

import time

import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.refinement import learning, surrogate, thrift
from klover.refinement.state import Context, RoundInfo, State
from klover.refinement.surrogate_model import fit_model
from klover.targets.adapters.callback import from_callback
from klover.targets.evaluator import Evaluator
from klover.tuning import Tuning

BANANA_LOG_Z = np.log(2 * np.pi) + np.log(0.5)


def log_banana(x):
    return -0.5 * (x[..., 0] - 1) ** 2 - 2 * (x[..., 1] - 0.5 * x[..., 0] ** 2) ** 2


def banana(**options):
    return from_callback(log_banana, 2, vectorized=True, **options)


def log_modes(x):
    return jnp.logaddexp(-0.5 * jnp.sum(x**2), -0.5 * jnp.sum((x - 6.0) ** 2))


@pytest.fixture(scope="module")
def counted():
    """A fit, and the points at which the density was called; blocks are filled with copies of the last one."""
    points = []

    def log_density(x):
        points.append(x)
        return log_banana(x)

    fit = klover.refine(0, from_callback(log_density, 2, vectorized=True), min_ess=200, surrogate=True)
    return fit, np.concatenate(points)


@pytest.fixture
def fit(counted):
    return counted[0]


def test_a_curved_target_takes_few_evaluations(fit):
    assert fit.verdict.trusted
    assert fit.ess >= 200
    assert fit.num_evaluations <= 400
    assert abs(fit.log_evidence - BANANA_LOG_Z) < 5 * fit.log_evidence_se < 0.3
    mean = np.exp(fit.draws.log_weight) @ fit.draws.x
    assert np.all(np.abs(mean - [1.0, 1.0]) < 5 * np.array([1.0, 1.4]) / np.sqrt(fit.ess))


def test_all_evaluations_are_counted(counted):
    fit, points = counted
    assert len(np.unique(points, axis=0)) <= fit.num_evaluations <= len(points)


def test_the_same_key_gives_the_same_answer(fit):
    again = klover.refine(0, banana(), min_ess=200, surrogate=True)
    np.testing.assert_array_equal(fit.draws.x, again.draws.x)
    assert again.num_evaluations == fit.num_evaluations


def test_the_answer_is_weighed_by_the_target(fit):
    np.testing.assert_allclose(fit.draws.log_p, log_banana(np.asarray(fit.draws.x)), rtol=1e-10)


def test_a_small_budget_without_gradients_is_enough():
    fit = klover.refine(1, banana(), min_ess=400, budget=500)
    assert fit.verdict.trusted
    assert fit.num_evaluations <= 500
    assert abs(fit.log_evidence - BANANA_LOG_Z) < 5 * fit.log_evidence_se
    refused = klover.refine(1, banana(), min_ess=400, budget=500, surrogate=False)
    assert refused.ess < fit.ess


def test_where_the_process_is_dropped_the_rounds_go_on(monkeypatch):
    monkeypatch.setattr(learning, "is_poor", lambda context, state: True)
    fit = klover.refine(0, banana(), min_ess=100, surrogate=True)
    assert fit.verdict.trusted
    assert abs(fit.log_evidence - BANANA_LOG_Z) < 5 * fit.log_evidence_se


def test_two_poor_rounds_end_it():
    def info(share):
        return RoundInfo(0, 1, 100, share, 0.5, 0.0, 0.1, 0.0, 100, 0.0)

    context = Context(np.random.default_rng(0), Evaluator(banana(), is_thrifty=True), 8, goal=200)
    state = surrogate.begin(context)
    assert surrogate.is_used(state)
    for shares, is_poor in (((0.05,), False), ((0.05, 0.5), False), ((0.5, 0.05, 0.05), True)):
        history = tuple(map(info, shares))
        assert surrogate.is_poor(context, State(state.mixture, state.broad, state.pool, history=history)) == is_poor
    fallen = surrogate.fall_back(context, state)
    assert fallen.design is None
    assert len(fallen.mixture.log_weights) > len(state.mixture.log_weights)


def test_a_target_outside_of_whose_support_it_begins_is_left_to_the_other_way():
    def log_density(x):
        return np.where(np.all(np.abs(x - 20) < 1, -1), 0.0, -np.inf)

    context = Context(np.random.default_rng(0), Evaluator(from_callback(log_density, 2, vectorized=True)), 8, goal=200)
    assert surrogate.begin(context).design is None


def test_a_mode_that_the_process_does_not_know_is_found_or_admitted():
    box = np.full(2, -10.0), np.full(2, 10.0)
    target = klover.Target(log_modes, jnp.zeros(2), box=box)
    fit = klover.refine(0, target, min_ess=200, surrogate=True)
    is_right = abs(fit.log_evidence - np.log(4 * np.pi)) < 5 * fit.log_evidence_se
    assert is_right or not fit.verdict.trusted or "may have been missed" in str(fit.verdict.searched)


def test_deep_values_do_not_bend_the_process():
    generator = np.random.default_rng(0)
    x = generator.standard_normal((30, 2))
    far = np.array([[40.0, 0.0], [0.0, -60.0]])
    log_p = np.append(-0.5 * np.sum(x**2, 1), [-1e6, -3e5])
    model = fit_model(np.concatenate([x, far]), log_p, np.zeros(2), np.eye(2))
    new = generator.standard_normal((20, 2))
    mean, variance = model.predict(new)
    np.testing.assert_allclose(mean + log_p.max(), -0.5 * np.sum(new**2, 1), atol=0.05)
    assert np.all(variance < 0.05)


def test_a_slow_target_has_a_surrogate_and_a_fast_one_has_none():
    def slow(x):
        time.sleep(0.12 * len(x))
        return log_banana(x)

    assert surrogate.is_wanted(None, from_callback(slow, 2, vectorized=True), 200, None, False) == (True, 2)
    assert surrogate.is_wanted(None, banana(), 200, None, False) == (False, 2)
    assert surrogate.is_wanted(None, banana(), None, None, False) == (False, 0)
    assert surrogate.is_wanted(None, banana(), 200, 500, False) == (True, 0)
    assert surrogate.is_wanted(False, banana(), 200, 500, False) == (False, 0)


def test_what_it_cannot_do_is_refused_at_the_door():
    with pytest.raises(TypeError, match="surrogate"):
        klover.refine(0, banana(), min_ess=200, surrogate="yes")
    with pytest.raises(ValueError, match="needs min_ess"):
        klover.refine(0, banana(), surrogate=True)
    many = klover.Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(9))
    with pytest.raises(ValueError, match="at most 8 dimensions"):
        klover.refine(0, many, min_ess=200, surrogate=True)
    with pytest.raises(ValueError, match="with a start"):
        klover.refine(0, banana(), klover.diffuse([-3.0, -3.0], [3.0, 3.0]), min_ess=200, surrogate=True)


def test_the_goal_is_planned_for_a_surrogate():
    tuning = Tuning()
    assert thrift.goal_of(400, 500, tuning, True) == 175
    assert thrift.goal_of(400, 500, tuning) == 100
    assert thrift.plan(tuning, 200, 3, True).rounds.first_draws == 120


def test_ratios_that_hardly_vary_are_fair_whatever_their_tail():
    log_ratio = 1e-3 * np.linspace(0.01, 1, 100) ** -1.0
    batch = thrift.Batch(np.zeros((100, 1)), log_ratio, np.zeros(100))
    assert batch.ess > 99
    assert not batch.is_fair()
    assert batch.is_fair(thrift.GOOD_SHARE)
