import datetime
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinates import draw_funnel, equal_weights
from helpers import gaussian, linear_regression, student
from klover import Target
from klover.targets import evaluator as evaluator_module
from klover.targets.adapters.callback import from_callback
from klover.targets.evaluator import GRADIENT_BLOCKS, VALUE_BLOCK, BudgetExhausted, Evaluator
from klover.warps.warp import fit_warp

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
    evaluator.open_reserve()
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
    assert len(evaluator.values_in_time(points(5, 2))) == evaluator.num_evaluations == 2
    with pytest.raises(BudgetExhausted):
        evaluator.values(points(1, 2))
    patient = Evaluator(plain(), datetime.timedelta(hours=1))
    patient.values_and_gradients(points(3, 2))
    assert patient.num_evaluations == 3


def test_without_a_budget_nothing_is_refused():
    evaluator = Evaluator(plain(), reserve=10)
    evaluator.values(points(2000, 2))
    assert (evaluator.num_evaluations, evaluator.num_left) == (2000, None)


@pytest.fixture
def clock(monkeypatch):
    """Stand in for the clock: what a busy machine does beside is not counted."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def slow(
    clock: list[float], seconds: float, calls: list[int], gradient: bool = False, vectorized: bool = False
) -> Target:
    """Make a target whose evaluations take so long, and note how many points each call has."""

    def logdensity(x):
        calls.append(x.size // 2)
        clock[0] += seconds
        return -0.5 * np.sum(x**2, -1)

    target = from_callback(logdensity, 2, grad=(lambda x: -x) if gradient else None, vectorized=vectorized)
    calls.clear()
    return target


@pytest.mark.parametrize("gradient", [False, True])
def test_a_slow_target_is_stopped_between_points(clock, gradient):
    calls = []
    evaluator = Evaluator(slow(clock, 0.02, calls, gradient), datetime.timedelta(seconds=0.4))
    evaluator.measure_pace()
    assert (evaluator.num_evaluations, calls) == (1, [1])
    # What cannot be paid for is not begun.
    with pytest.raises(BudgetExhausted):
        evaluator.values_and_gradients(points(100, 2)) if gradient else evaluator.values(points(100, 2))
    assert len(calls) == 1
    evaluator.open_reserve()
    value = evaluator.values_in_time(points(100, 2))
    np.testing.assert_allclose(value, -0.5 * np.sum(points(100, 2)[: len(value)] ** 2, axis=1))
    assert 2 <= len(value) < 20
    assert evaluator.num_evaluations == len(calls) == 1 + len(value)
    assert evaluator.elapsed <= 0.4 + 0.02  # one evaluation more


def test_blocks_grow_where_many_points_take_no_longer_than_one(clock):
    calls = []
    evaluator = Evaluator(slow(clock, 0.01, calls, vectorized=True), datetime.timedelta(seconds=5))
    evaluator.measure_pace()
    value = evaluator.values_in_time(points(2000, 2))
    assert len(value) == 2000
    assert calls[0] == 1
    assert max(calls) > 100
    assert evaluator.num_evaluations == sum(calls) == 2001


def test_blocks_of_jax_are_small_where_an_evaluation_is_slow(clock):
    def wait(x):
        clock[0] += 0.02
        return -0.5 * x @ x

    def costly(x):
        return jax.pure_callback(wait, jax.ShapeDtypeStruct((), x.dtype), x, vmap_method="sequential")

    evaluator = Evaluator(Target(costly, jnp.zeros(2)), datetime.timedelta(seconds=0.5))
    evaluator.measure_pace()
    value = evaluator.values_in_time(points(50, 2))
    assert 2 <= len(value) < 25
    assert evaluator.elapsed < 0.5 + 0.02 + 1e-6


def test_a_quick_target_goes_in_large_blocks_against_the_clock():
    evaluator = Evaluator(plain(), datetime.timedelta(hours=1))
    evaluator.measure_pace()
    x = points(2048, 2)
    np.testing.assert_allclose(evaluator.values(x), evaluator.values_and_gradients(x)[0], rtol=1e-12)
    assert {size for _, size in evaluator._ready} == {1, VALUE_BLOCK, GRADIENT_BLOCKS[-1]}


def test_work_outside_of_the_target_is_expected_to_take_as_long_again():
    evaluator = Evaluator(plain(), datetime.timedelta(seconds=1.0))
    for _ in range(2):
        with evaluator.expect_as_long(1.5):
            time.sleep(0.3)
    # A third time, half as long again, would not end within the second.
    with pytest.raises(BudgetExhausted), evaluator.expect_as_long(1.5):
        pytest.fail("there was no time left")
    unhurried = Evaluator(plain(), 5)
    with unhurried.expect_as_long(1e9), unhurried.expect_as_long(1e9):
        pass


def test_a_part_of_the_budget():
    evaluator = Evaluator(plain(), 100, 20)
    with pytest.raises(BudgetExhausted), evaluator.part(0.5):
        evaluator.values(points(41, 2))
    with evaluator.part(0.5):
        evaluator.values(points(40, 2))
    evaluator.values(points(40, 2))
    assert evaluator.num_left == 20


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
    evaluator = Evaluator(plain())
    monkeypatch.setattr(evaluator_module, "MANY", 2048)
    # The first many points do not wait for a large block's compilation, the next do.
    seen, _ = sizes_of_blocks(monkeypatch, evaluator, 1100)
    assert seen == [VALUE_BLOCK] * 2 + [32] * 35
    seen, _ = sizes_of_blocks(monkeypatch, evaluator, 1100)
    assert seen == [VALUE_BLOCK] * 2 + [512] * 3
    seen, _ = sizes_of_blocks(monkeypatch, Evaluator(plain()), 80)
    assert seen == [VALUE_BLOCK] + [32] * 3


@pytest.mark.parametrize(("limit", "blocks"), [(0, (1, 1)), (3, (3, 3)), (20, (20, 20)), (600, (600, 512))])
def test_blocks_shrink_with_the_largest_intermediate(monkeypatch, limit, blocks):
    target = Target(lambda x: -jnp.sum((x - jnp.arange(1000.0)[:, None]) ** 2), jnp.zeros(2))
    assert target.largest_intermediate == 2000
    monkeypatch.setattr(evaluator_module, "LARGEST_INTERMEDIATE", limit * 2000 + 100)
    monkeypatch.setattr(evaluator_module, "MANY", 0)
    seen, gradient = sizes_of_blocks(monkeypatch, Evaluator(target), 2 * max(blocks))
    assert (max(seen), seen[-1]) == blocks
    np.testing.assert_allclose(gradient, np.sum(2 * np.arange(1000.0)) - 2000 * points(2 * max(blocks), 2), rtol=1e-10)


def test_the_target_is_compiled_once_for_each_size_of_block():
    target = Target(lambda x: -jnp.sum(jnp.cosh(x)), jnp.zeros(3))
    evaluator = Evaluator(target)
    before = evaluator_module._values._cache_size(), evaluator_module._values_and_gradients._cache_size()
    for num in (1, 3, 40, 1024, 1500, evaluator_module.MANY):
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


@EACH_TARGET
def test_within_other_coordinates_densities_and_gradients_are_those_of_these(make):
    target = make().target
    warp = fit_warp("led", draw_funnel(1000, target.dim), equal_weights(1000))
    evaluator, z = Evaluator(target), points(20, target.dim)

    def log_density(point):
        x, log_det = warp.from_base(point)
        return target.log_prob(x) + log_det

    expected, slopes = jax.jit(jax.vmap(jax.value_and_grad(log_density)))(z)
    with evaluator.within(warp):
        value, gradient = evaluator.values_and_gradients(z)
        np.testing.assert_allclose(evaluator.values(z), expected, rtol=1e-9)
    np.testing.assert_allclose(value, expected, rtol=1e-9)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(evaluator.values(z), jax.jit(target.log_prob)(z), rtol=1e-12)
    assert evaluator.num_evaluations == 60


def test_coordinates_are_those_before_when_something_is_raised_within_others():
    warp = fit_warp("correlated", draw_funnel(1000, 2), equal_weights(1000))
    evaluator = Evaluator(plain())
    with evaluator.within(warp):
        with evaluator.within(None):
            assert evaluator.coordinates is None
        with pytest.raises(RuntimeError, match="halfway"), evaluator.within(None):
            raise RuntimeError("halfway")
        assert evaluator.coordinates is warp
    assert evaluator.coordinates is None


def test_within_other_coordinates_what_is_invalid_stays_outside_the_support():
    warp = fit_warp("correlated", draw_funnel(1000, 2), equal_weights(1000))
    evaluator = Evaluator(Target(lambda x: jnp.where(x[0] > 0, jnp.nan, -jnp.sum(x**2)), -jnp.ones(2)))
    z = points(50, 2)
    with evaluator.within(warp):
        value, gradient = evaluator.values_and_gradients(z)
    is_nan = warp.from_base(z)[0][:, 0] > 0
    np.testing.assert_array_equal(value == -np.inf, is_nan)
    assert np.all(gradient[is_nan] == 0)
    assert evaluator.num_nan == is_nan.sum() > 0
