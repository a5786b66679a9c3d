"""Whitened slopes against the chain rule, and how often the target is asked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.search.slopes import slopes
from klover.targets.evaluator import Evaluator

CENTRE, ROOT = np.array([1.0, -2.0, 0.5]), np.array([[2.0, 0.0, 0.0], [0.3, 0.5, 0.0], [-1.0, 0.2, 0.1]])


def log_density(x):
    return -jnp.sum(jnp.cosh(0.3 * x)) + 0.2 * x[0] * x[1]


def without_gradient():
    return klover.from_callback(
        lambda x: -np.sum(np.cosh(0.3 * x), axis=1) + 0.2 * x[:, 0] * x[:, 1], 3, vectorized=True
    )


@pytest.mark.parametrize("make", [lambda: klover.Target(log_density, jnp.zeros(3)), without_gradient])
def test_slopes_obey_the_chain_rule_with_and_without_gradients(make):
    z = np.random.default_rng(0).normal(size=(5, 3))
    value, gradient = slopes(Evaluator(make()), CENTRE, ROOT)(z)
    expected = jax.vmap(jax.value_and_grad(lambda z: log_density(CENTRE + ROOT @ z)))(z)
    np.testing.assert_allclose(value, expected[0], rtol=1e-12)
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-5, atol=1e-7)


def test_a_look_takes_differences_to_one_side():
    evaluator = Evaluator(without_gradient())
    z = np.random.default_rng(0).normal(size=(5, 3))
    value, gradient = slopes(evaluator, CENTRE, ROOT, is_central=False)(z)
    expected = jax.vmap(jax.value_and_grad(lambda z: log_density(CENTRE + ROOT @ z)))(z)
    assert evaluator.num_evaluations == 5 * (3 + 1)
    np.testing.assert_allclose(value, expected[0], rtol=1e-12)
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-2, atol=1e-2)  # a thousandth of a second derivative


def test_points_that_have_not_moved_are_not_evaluated_again():
    evaluator = Evaluator(klover.Target(log_density, jnp.zeros(3)))
    function = slopes(evaluator, CENTRE, ROOT)
    z = np.random.default_rng(0).normal(size=(5, 3))
    first = function(z)
    moved = z.copy()
    moved[3] += 1
    second = function(moved)
    assert evaluator.num_evaluations == 6
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(np.delete(one, 3, axis=0), np.delete(other, 3, axis=0))
    np.testing.assert_array_equal(function(moved)[0], second[0])
    assert evaluator.num_evaluations == 6


def test_a_difference_over_the_edge_of_the_support_is_no_slope():
    target = klover.from_callback(lambda x: np.where(x[:, 0] > 0, -x[:, 0], -np.inf), 1, start=[1.0], vectorized=True)
    value, gradient = slopes(Evaluator(target), np.zeros(1), np.eye(1))(np.array([[1e-4], [1.0]]))
    np.testing.assert_allclose(value, [-1e-4, -1.0])
    np.testing.assert_allclose(gradient, [[0.0], [-1.0]], rtol=1e-6)
