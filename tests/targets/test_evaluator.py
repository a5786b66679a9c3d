import datetime

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import gaussian, linear_regression, student
from klover import Target
from klover.targets import evaluator as evaluator_module
from klover.targets.evaluator import GRADIENT_BLOCKS, VALUE_BLOCK, BudgetExhausted, Evaluator

EACH_TARGET = pytest.mark.parametrize("make", [gaussian, student, linear_regression])


def points(num: int, dim: int) -> np.ndarray:
    return np.random.default_rng(num).normal(size=(num, dim))


def standard_normal(x):
    return -0.5 * jnp.sum(x**2)


def plain(dim: int = 2) -> Target:
    return Target(standard_normal, jnp.zeros(dim))


def foreign(function, dim: int = 1) -> Target:
    """Make a target of a function that runs on the host, point by point."""

    def logdensity(x):
        return jax.pure_callback(function, jax.ShapeDtypeStruct((), x.dtype), x, vmap_method="sequential")

    return Target(logdensity, jnp.zeros(dim))


@EACH_TARGET
def test_values_are_those_of_the_target_for_any_number_of_points(make):
    target = make().target
    x = points(2 * VALUE_BLOCK + 3, target.dim)
    expected = np.asarray(jax.jit(target.log_prob)(x))
    for num in (1, 5, VALUE_BLOCK - 1, VALUE_BLOCK, VALUE_BLOCK + 1, 2 * VALUE_BLOCK, 2 * VALUE_BLOCK + 3):
        evaluator = Evaluator(target)
        value = evaluator.values(x[:num])
        assert isinstance(value, np.ndarray)
        np.testing.assert_allclose(value, expected[:num], rtol=1e-12)
        assert evaluator.num_evaluations == num


@EACH_TARGET
def test_gradients_are_those_of_jax_for_any_number_of_points(make):
    target, (small, large) = make().target, GRADIENT_BLOCKS
    x = points(2 * large + 5, target.dim)
    expected = np.asarray(jax.jit(jax.vmap(jax.grad(target.log_prob)))(x))
    for num in (1, small - 1, small, small + 1, large, 2 * large - 1, 2 * large, 2 * large + 5):
        evaluator = Evaluator(target)
        value, gradient = evaluator.values_and_gradients(x[:num])
        assert isinstance(gradient, np.ndarray)
        np.testing.assert_allclose(value, evaluator.values(x[:num]), rtol=1e-12)
        np.testing.assert_allclose(gradient, expected[:num], rtol=1e-10, atol=1e-12)
        assert evaluator.num_evaluations == 2 * num


def test_answers_are_in_float64_whatever_the_precision_of_jax():
    with jax.enable_x64(False):
        target = plain()
        assert target.start.dtype == np.float32
        value, gradient = Evaluator(target).values_and_gradients(points(3, 2))
    assert (value.dtype, gradient.dtype) == (np.float64, np.float64)
    np.testing.assert_allclose(gradient, -points(3, 2), rtol=1e-6)


VALUES = np.array([0.0, np.nan, -np.inf, np.inf, -3.0, np.nan])


def test_invalid_values_become_minus_infinity_and_are_counted():
    target = Target(lambda x: jnp.asarray(VALUES)[x[0].astype(int)], jnp.zeros(1))
    evaluator, x = Evaluator(target), np.arange(6.0)[:, None]
    np.testing.assert_array_equal(evaluator.values(x), [0.0, -np.inf, -np.inf, -np.inf, -3.0, -np.inf])
    assert (evaluator.num_nan, evaluator.num_infinite) == (2, 1)
    value, gradient = evaluator.values_and_gradients(x)
    np.testing.assert_array_equal(value, [0.0, -np.inf, -np.inf, -np.inf, -3.0, -np.inf])
    np.testing.assert_array_equal(gradient, 0.0)
    assert (evaluator.num_nan, evaluator.num_infinite) == (4, 2)
    assert evaluator.num_raised == 0


@given(is_valid=st.lists(st.booleans(), min_size=1, max_size=40))
def test_an_invalid_point_changes_no_other(is_valid):
    is_valid = np.array(is_valid)
    x = np.where(is_valid, 1.0, -1.0)[:, None] * np.arange(1.0, 1.0 + len(is_valid))[:, None]
    evaluator = Evaluator(LOGARITHM)
    value, gradient = evaluator.values_and_gradients(x)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(value, np.where(is_valid, np.log(x[:, 0]), -np.inf), rtol=1e-14)
    np.testing.assert_allclose(gradient[:, 0], np.where(is_valid, 1 / x[:, 0], 0.0), rtol=1e-14)
    assert evaluator.num_nan == (~is_valid).sum()


LOGARITHM = Target(lambda x: jnp.log(x[0]), jnp.ones(1))


def test_a_gradient_that_is_not_finite_is_zero():
    value, gradient = Evaluator(
        Target(lambda x: -jnp.sqrt(jnp.abs(x[0])) - x[1] ** 2, jnp.ones(2))
    ).values_and_gradients(np.array([[0.0, 1.0], [4.0, 1.0]]))
    np.testing.assert_allclose(value, [-1.0, -3.0], rtol=1e-12)
    np.testing.assert_allclose(gradient, [[0.0, -2.0], [-0.25, -2.0]], rtol=1e-12)


@given(budget=st.integers(1, 30), reserve=st.integers(0, 10), sizes=st.lists(st.integers(1, 12), max_size=8))
@settings(max_examples=30)
def test_budget_is_kept_to_the_last_evaluation(budget, reserve, sizes):
    target = plain()
    evaluator, spent = Evaluator(target, budget, reserve), 0
    for size in sizes:
        if spent + size > budget - reserve:
            with pytest.raises(BudgetExhausted):
                evaluator.values(points(size, 2))
        else:
            evaluator.values(points(size, 2))
            spent += size
        assert evaluator.num_evaluations == spent
        assert evaluator.num_left == budget - spent
    with evaluator.overtime():
        if budget > spent:
            evaluator.values(points(budget - spent, 2))
    with pytest.raises(BudgetExhausted):
        evaluator.values(points(1, 2))
    assert (evaluator.num_evaluations, evaluator.num_left) == (budget, 0)


def test_the_target_is_not_touched_beyond_the_budget():
    num_calls = 0

    def count(x):
        nonlocal num_calls
        num_calls += 1
        return np.asarray(0.0)

    evaluator = Evaluator(foreign(count), 3)
    with pytest.raises(BudgetExhausted):
        evaluator.values(np.zeros((4, 1)))
    with pytest.raises(BudgetExhausted):
        evaluator.values_and_gradients(np.zeros((4, 1)))
    assert (num_calls, evaluator.num_evaluations) == (0, 0)


def test_budget_of_time():
    evaluator = Evaluator(plain(), datetime.timedelta(0))
    assert evaluator.num_left is None
    with pytest.raises(BudgetExhausted):
        evaluator.values(points(1, 2))
    assert evaluator.num_evaluations == 0
    with evaluator.overtime():
        evaluator.values(points(1, 2))
    assert evaluator.num_evaluations == 1
    with pytest.raises(BudgetExhausted):
        evaluator.values(points(1, 2))
    patient = Evaluator(plain(), datetime.timedelta(hours=1))
    patient.values_and_gradients(points(3, 2))
    assert patient.num_evaluations == 3


def test_without_a_budget_nothing_is_refused():
    evaluator = Evaluator(plain(), reserve=10)
    evaluator.values(points(2000, 2))
    assert (evaluator.num_evaluations, evaluator.num_left) == (2000, None)


@pytest.mark.parametrize("budget", [0, -3, True])
def test_budget_that_allows_nothing_is_refused(budget):
    with pytest.raises(ValueError, match=f"budget must be .* of at least 1, got {budget}.*datetime.timedelta"):
        Evaluator(plain(), budget)


@pytest.mark.parametrize("budget", [1.5, "ten", np.ones(2)])
def test_budget_that_is_no_number_is_refused(budget):
    with pytest.raises(TypeError, match=r"(?s)budget must be a whole number, got .*.*datetime.timedelta"):
        Evaluator.__init__.__wrapped__(object.__new__(Evaluator), plain(), budget)


def raising_at(bad) -> Target:
    def negative(x):
        if int(x[0]) in bad:
            raise RuntimeError("no value here")
        return np.asarray(-float(x[0]))

    return foreign(negative)


@pytest.mark.parametrize(
    "bad", [[], [0], [11], [3, 4, 9], list(range(12))], ids=["none", "first", "last", "three", "all"]
)
def test_points_where_the_target_raises_are_outside_the_support(monkeypatch, bad):
    monkeypatch.setattr(evaluator_module, "VALUE_BLOCK", 16)
    evaluator, x = Evaluator(raising_at(bad)), np.arange(12.0)
    value = evaluator.values(x[:, None])
    np.testing.assert_array_equal(value, np.where(np.isin(x, bad), -np.inf, -x))
    assert (evaluator.num_raised, evaluator.num_evaluations) == (len(bad), 12)


def test_a_target_may_raise_after_it_did_not(monkeypatch):
    monkeypatch.setattr(evaluator_module, "VALUE_BLOCK", 8)
    evaluator, x = Evaluator(raising_at([9, 20])), np.arange(24.0)
    for num_raised in (2, 4):
        np.testing.assert_array_equal(evaluator.values(x[:, None]), np.where(np.isin(x, [9, 20]), -np.inf, -x))
        assert evaluator.num_raised == num_raised


def test_foreign_code_has_no_gradient():
    assert not Evaluator(foreign(lambda x: np.asarray(0.0))).has_gradient


@EACH_TARGET
def test_targets_of_jax_have_a_gradient(make):
    assert Evaluator(make().target).has_gradient


def test_counts_go_on_where_another_evaluator_stopped():
    target = Target(lambda x: jnp.asarray(VALUES)[x[0].astype(int)], jnp.zeros(1))
    first, second = Evaluator(target, 10), Evaluator(target, 10)
    first.values(np.arange(6.0)[:, None])
    counts = first.counts()
    assert {name: counts[name] for name in evaluator_module.COUNTS[:4]} == {
        "num_evaluations": 6,
        "num_nan": 2,
        "num_infinite": 1,
        "num_raised": 0,
    }
    assert 0 < counts["seconds"] <= counts["elapsed"] <= first.elapsed
    second.set_counts(counts)
    again = second.counts()
    assert {name: again[name] for name in evaluator_module.COUNTS} == {
        name: counts[name] for name in evaluator_module.COUNTS
    }
    assert again["elapsed"] >= counts["elapsed"]
    assert second.num_left == 4
    with pytest.raises(BudgetExhausted):
        second.values(np.zeros((5, 1)))


def test_time_goes_on_where_another_evaluator_stopped():
    evaluator = Evaluator(plain(), datetime.timedelta(hours=1))
    evaluator.set_counts(dict.fromkeys(evaluator_module.COUNTS, 0.0) | {"elapsed": 3500.0})
    evaluator.values(points(1, 2))
    evaluator.set_counts(dict.fromkeys(evaluator_module.COUNTS, 0.0) | {"elapsed": 3600.0})
    with pytest.raises(BudgetExhausted):
        evaluator.values(points(1, 2))


def sizes_of_blocks(monkeypatch, evaluator, num):
    seen, x = [], points(num, evaluator.target.dim)
    with monkeypatch.context() as patch:
        for name in ("_values", "_values_and_gradients"):
            program = getattr(evaluator_module, name)
            patch.setattr(
                evaluator_module, name, lambda target, x, program=program: (seen.append(len(x)), program(target, x))[1]
            )
        value, gradient = evaluator.values(x), evaluator.values_and_gradients(x)[1]
    np.testing.assert_allclose(value, evaluator.target.log_prob(x), rtol=1e-12)
    return seen, gradient


def test_blocks_are_few_and_of_few_sizes(monkeypatch):
    seen, _ = sizes_of_blocks(monkeypatch, Evaluator(plain()), 1100)
    assert seen == [VALUE_BLOCK] * 2 + [512] * 3
    seen, _ = sizes_of_blocks(monkeypatch, Evaluator(plain()), 80)
    assert seen == [VALUE_BLOCK] + [32] * 3


@pytest.mark.parametrize(("limit", "blocks"), [(0, (1, 1)), (3, (3, 3)), (20, (20, 20)), (600, (600, 512))])
def test_blocks_shrink_with_the_largest_intermediate(monkeypatch, limit, blocks):
    target = Target(lambda x: -jnp.sum((x - jnp.arange(1000.0)[:, None]) ** 2), jnp.zeros(2))
    assert target.largest_intermediate == 2000
    monkeypatch.setattr(evaluator_module, "LARGEST_INTERMEDIATE", limit * 2000 + 100)
    seen, gradient = sizes_of_blocks(monkeypatch, Evaluator(target), 2 * max(blocks))
    assert (max(seen), seen[-1]) == blocks
    np.testing.assert_allclose(gradient, np.sum(2 * np.arange(1000.0)) - 2000 * points(2 * max(blocks), 2), rtol=1e-10)


def test_the_target_is_compiled_once_for_each_size_of_block():
    target = Target(lambda x: -jnp.sum(jnp.cosh(x)), jnp.zeros(3))
    evaluator = Evaluator(target)
    before = evaluator_module._values._cache_size(), evaluator_module._values_and_gradients._cache_size()
    for num in (1, 3, 40, 1024, 1500, 2000):
        evaluator.values(points(num, 3))
        evaluator.values_and_gradients(points(num, 3))
    after = evaluator_module._values._cache_size(), evaluator_module._values_and_gradients._cache_size()
    assert (after[0] - before[0], after[1] - before[1]) == (1, 2)


def test_a_precision_that_holds_for_a_block_of_code_compiles_nothing_twice():
    compiled = []

    def listen(event, _, fun_name="", **__):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        with jax.enable_x64(False):
            evaluator = Evaluator(Target(lambda x: -jnp.sum(jnp.cosh(0.7 * x)), np.zeros(3)))
            evaluator.values(points(5, 3))
            evaluator.values_and_gradients(points(5, 3))
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert sorted(compiled) == ["jit(_values)", "jit(_values_and_gradients)"]
