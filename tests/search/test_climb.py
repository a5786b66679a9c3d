"""The one climb, on NumPy arrays with gradients by hand and on JAX arrays with those of JAX."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klover import Target
from klover.search.climb import climb, value_and_gradient
from klover.targets.evaluator import Evaluator

SEEDS = st.integers(0, 2**32 - 1)
few_examples = settings(max_examples=20)
BOTH = pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])


class Hill(NamedTuple):
    """A function to climb: with its gradient at many points on NumPy, and at one point under JAX."""

    many: Callable
    one: Callable


@jax.jit(static_argnums=(0, 3))
def compiled_climb(one, starts, arguments, num_steps):
    return climb(value_and_gradient(lambda x: one(x, *arguments)), starts, num_steps)


def ascend(xp, hill: Hill, starts, num_steps: int = 150, arguments=()):
    """Climb a hill on arrays of one kind; arguments are those that the program under JAX is compiled without."""
    if xp is np:
        return climb(hill.many, starts, num_steps)
    found = compiled_climb(hill.one, jnp.asarray(starts), arguments, num_steps)
    return tuple(np.asarray(leaf) for leaf in found)


def quadratic_at(x, matrix, top):
    return -0.5 * (x - top) @ matrix @ (x - top)


def quadratic(dim: int, condition: float, seed: int = 0):
    """Return a concave quadratic of height zero, and its matrix and its top."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    matrix, top = basis * np.geomspace(1.0, condition, dim) @ basis.T, rng.normal(size=dim)

    def function(x):
        slope = -(x - top) @ matrix
        return 0.5 * np.einsum("ij,ij->i", x - top, slope), slope

    return Hill(function, quadratic_at), (matrix, top)


def rosenbrock_at(x):
    return -((1 - x[0]) ** 2) - 100 * (x[1] - x[0] ** 2) ** 2


def rosenbrock_many(x):
    first, second = x[:, 0], x[:, 1]
    value = -((1 - first) ** 2) - 100 * (second - first**2) ** 2
    return value, np.stack([2 * (1 - first) + 400 * first * (second - first**2), -200 * (second - first**2)], axis=1)


ROSENBROCK = Hill(rosenbrock_many, rosenbrock_at)
RIDGE_STARTS = np.array([[-1.2, 1.0], [0.0, 0.0], [2.0, 2.0], [-3.0, -4.0], [5.0, 5.0], [1.0, 1.0]])


@BOTH
@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("condition", [1.0, 1e3, 1e6])
@pytest.mark.parametrize("distance", [1e-3, 1.0, 1e3])
def test_climb_reaches_the_top_of_a_quadratic(xp, dim, condition, distance):
    hill, (matrix, top) = quadratic(dim, condition)
    starts = top + distance * np.random.default_rng(1).normal(size=(6, dim))
    x, value = ascend(xp, hill, starts, arguments=(matrix, top))
    # The height that is left is the squared distance in standard deviations, by half.
    assert np.all(value > -1e-3)
    np.testing.assert_allclose(value, hill.many(x)[0], rtol=1e-12, atol=1e-12)


@BOTH
def test_climb_follows_a_curved_ridge(xp):
    x, value = ascend(xp, ROSENBROCK, RIDGE_STARTS)
    np.testing.assert_allclose(x, 1.0, atol=1e-4)
    np.testing.assert_allclose(value, 0.0, atol=1e-8)


@BOTH
@given(seed=SEEDS)
@few_examples
def test_starts_do_not_disturb_each_other(xp, seed):
    starts = np.random.default_rng(seed).normal(size=(5, 2)) * 3
    together = ascend(xp, ROSENBROCK, starts)
    alone = [ascend(xp, ROSENBROCK, starts[[which]]) for which in range(5)]
    # Steps are the same; only the last bits of sums may differ.
    np.testing.assert_allclose(together[0], np.concatenate([x for x, _ in alone]), atol=1e-6)
    np.testing.assert_allclose(together[1], np.concatenate([value for _, value in alone]), atol=1e-9)


@given(seed=SEEDS, num_steps=st.integers(0, 30))
@few_examples
def test_climb_never_goes_down(seed, num_steps):
    starts = np.random.default_rng(seed).normal(size=(4, 2)) * 10
    before, after = (climb(rosenbrock_many, starts, steps)[1] for steps in (num_steps, num_steps + 1))
    assert np.all(after >= before)
    assert np.all(before >= rosenbrock_many(starts)[0])


@given(seed=SEEDS)
@few_examples
def test_climb_under_jax_never_goes_down(seed):
    # The number of steps belongs to the program, so few of them are compared.
    starts = np.random.default_rng(seed).normal(size=(4, 2)) * 10
    values = [ascend(jnp, ROSENBROCK, starts, steps)[1] for steps in (0, 1, 5, 6)]
    np.testing.assert_allclose(values[0], rosenbrock_many(starts)[0], rtol=1e-12)
    assert all(np.all(after >= before) for before, after in zip(values[:-1], values[1:], strict=True))


def half_plane_at(x, matrix, top):
    return jnp.where(x[0] > 0, quadratic_at(x, matrix, top), -jnp.inf)


def half_plane():
    hill, arguments = quadratic(2, 100.0)

    def function(x):
        value, slope = hill.many(x)
        inside = x[:, 0] > 0
        return np.where(inside, value, -np.inf), np.where(inside[:, None], slope, 0.0)

    return Hill(function, half_plane_at), arguments


@BOTH
def test_a_start_outside_the_support_stays(xp):
    starts = np.array([[-3.0, 1.0], [2.0, 1.0], [-0.1, -5.0]])
    hill, arguments = half_plane()
    x, value = ascend(xp, hill, starts, arguments=arguments)
    np.testing.assert_array_equal(x[[0, 2]], starts[[0, 2]])
    np.testing.assert_array_equal(value[[0, 2]], -np.inf)
    assert value[1] > hill.many(starts)[0][1]


CORNER = np.array([-1.0, 2.0])


def cut_at(x):
    return jnp.where(x[0] > 0, -0.5 * jnp.sum((x - CORNER) ** 2), -jnp.inf)


def cut_many(x):
    inside = x[:, 0] > 0
    value = -0.5 * ((x - CORNER) ** 2).sum(1)
    return np.where(inside, value, -np.inf), np.where(inside[:, None], CORNER - x, 0.0)


@BOTH
def test_climb_does_not_leave_the_support(xp):
    # The top of the quadratic lies outside, so that the highest point is on the border.
    x, value = ascend(xp, Hill(cut_many, cut_at), np.array([[1.0, 1.0], [5.0, -3.0]]))
    assert np.all(x[:, 0] > 0)
    assert np.all(np.isfinite(value))


def test_climb_leaves_the_starts_alone():
    starts = np.ones((2, 2)) * 3
    climb(rosenbrock_many, starts)
    np.testing.assert_array_equal(starts, 3.0)


FAR_TOP = np.full(20, 40.0)


def student_at(x):
    return -11 * jnp.log1p(jnp.sum((x - FAR_TOP) ** 2))


def student_many(x):
    square = ((x - FAR_TOP) ** 2).sum(1)
    return -11 * np.log1p(square), -22 * (x - FAR_TOP) / (1 + square)[:, None]


@BOTH
def test_the_far_tails_of_a_student_t_are_crossed(xp):
    # log p is convex there, so that no curvature tells how far to go.
    starts = np.random.default_rng(0).uniform(-50, 50, (8, 20))
    tops, _ = ascend(xp, Hill(student_many, student_at), starts)
    np.testing.assert_allclose(tops, np.tile(FAR_TOP, (8, 1)), atol=1e-2)


def test_an_evaluator_is_climbed_as_the_density_under_jax_is():
    starts = np.random.default_rng(0).uniform(-50, 50, (8, 20))
    evaluator = Evaluator(Target(student_at, np.zeros(20)))
    tops, values = climb(evaluator.values_and_gradients, starts)
    np.testing.assert_allclose(tops, np.tile(FAR_TOP, (8, 1)), atol=1e-2)
    expected = ascend(jnp, Hill(student_many, student_at), starts)
    np.testing.assert_allclose(values, expected[1], atol=1e-4)


@pytest.mark.parametrize("num_steps", [0, 1, 2, 5, 12])
def test_numpy_and_jax_take_the_same_steps(num_steps):
    hill, arguments = quadratic(5, 1e3)
    starts = np.random.default_rng(2).normal(size=(7, 5)) * np.geomspace(1e-2, 1e2, 7)[:, None]
    # Rounding grows from step to step, by the condition of the quadratic and by the bends of the ridge.
    for each, begin, given_too in ((hill, starts, arguments), (ROSENBROCK, RIDGE_STARTS, ())):
        (x, value), (other, other_value) = (ascend(xp, each, begin, num_steps, given_too) for xp in (np, jnp))
        np.testing.assert_allclose(other, x, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(other_value, value, rtol=1e-9, atol=1e-9)


def test_numpy_and_jax_end_on_the_same_tops():
    (x, value), (other, other_value) = (ascend(xp, ROSENBROCK, RIDGE_STARTS) for xp in (np, jnp))
    np.testing.assert_allclose(other, x, atol=1e-6)
    np.testing.assert_allclose(other_value, value, atol=1e-9)


def test_climb_without_a_compiler_around_it_is_the_compiled_one():
    plain = climb(value_and_gradient(rosenbrock_at), jnp.asarray(RIDGE_STARTS))
    assert all(isinstance(leaf, jax.Array) for leaf in plain)
    for one, other in zip(plain, ascend(jnp, ROSENBROCK, RIDGE_STARTS), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)


def test_vmap_over_targets_is_a_loop_over_them():
    # Each target has starts of its own; a climb that is done waits for the others.
    problems = [quadratic(3, condition, seed)[1] for seed, condition in enumerate([1.0, 1e2, 1e4])]
    matrix, top = (jnp.stack(leaves) for leaves in zip(*problems, strict=True))
    starts = top[:, None] + jnp.asarray(np.random.default_rng(3).normal(size=(3, 4, 3)))
    x, value = jax.jit(jax.vmap(lambda *one: climb(value_and_gradient(lambda x: quadratic_at(x, *one[1:])), one[0])))(
        starts, matrix, top
    )
    assert np.all(value > -1e-3)
    for which in range(3):
        alone = compiled_climb(quadratic_at, starts[which], (matrix[which], top[which]), 150)
        np.testing.assert_allclose(x[which], alone[0], atol=1e-6)
        np.testing.assert_allclose(value[which], alone[1], atol=1e-9)


def test_every_start_may_have_arguments_of_its_own():
    tops, starts = jnp.asarray([[1.0, 2.0], [-3.0, 0.5], [40.0, 0.0]]), jnp.zeros((3, 2))
    x, value = climb(value_and_gradient(lambda x, top: -0.5 * jnp.sum((x - top) ** 2), tops), starts)
    np.testing.assert_allclose(x, tops, atol=1e-3)
    np.testing.assert_allclose(value, 0.0, atol=1e-6)


@pytest.mark.parametrize(("height", "expected"), [(np.nan, -np.inf), (np.inf, -np.inf), (-np.inf, -np.inf)])
def test_what_is_no_number_is_a_point_to_turn_back_from(height, expected):
    def log_density(x):
        return jnp.where(x[0] > 0, -jnp.sqrt(x[0]), height)

    value, gradient = value_and_gradient(log_density)(jnp.asarray([[-1.0], [4.0]]))
    np.testing.assert_array_equal(value, [expected, -2.0])
    np.testing.assert_array_equal(gradient, [[0.0], [-0.25]])


def test_a_gradient_that_is_not_finite_is_zero():
    value, gradient = value_and_gradient(lambda x: -jnp.sum(jnp.sqrt(x)))(jnp.asarray([[0.0, 4.0]]))
    np.testing.assert_array_equal(value, [-2.0])
    np.testing.assert_array_equal(gradient, [[0.0, -0.25]])


@BOTH
def test_a_coarse_resolution_ends_a_climb_early(xp):
    # Gains below a thousandth of the height cannot be seen, so that none is sought.
    def high(x):
        value, slope = rosenbrock_many(x)
        return value + 1e3, slope

    def high_at(x):
        return rosenbrock_at(x) + 1e3

    def steps(resolution):
        calls = []
        if xp is np:
            climb(lambda x: calls.append(0) or high(x), RIDGE_STARTS, resolution=resolution)
            return len(calls)
        counted = value_and_gradient(high_at)

        def function(x):
            jax.debug.callback(lambda: calls.append(0))
            return counted(x)

        climb(function, jnp.asarray(RIDGE_STARTS), resolution=resolution)[1].block_until_ready()
        jax.effects_barrier()
        return len(calls)

    assert steps(1e-3) < 0.5 * steps(0.0)


def test_single_precision_stays_single_and_ends_near_the_top():
    hill, (matrix, top) = quadratic(3, 100.0)
    starts = jnp.asarray(top + np.random.default_rng(1).normal(size=(4, 3)), "float32")
    x, value = compiled_climb(quadratic_at, starts, (jnp.asarray(matrix, "float32"), jnp.asarray(top, "float32")), 150)
    assert (x.dtype, value.dtype) == (jnp.float32, jnp.float32)
    assert np.all(np.asarray(hill.many(np.asarray(x, float))[0]) > -1e-3)


def test_a_climb_on_the_host_calls_the_function_with_the_settings_of_its_caller():
    seen = []

    def function(x):
        seen.append(jax.config.jax_default_matmul_precision)
        return rosenbrock_many(x)

    climb(function, RIDGE_STARTS)
    assert set(seen) == {jax.config.jax_default_matmul_precision}
