"""Slopes and curvatures from values alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from helpers import correlated_covariance
from klover.search.climb import climb
from klover.search.curvature import precision
from klover.search.values import ByValues
from klover.targets.evaluator import Evaluator

SCALES = [[1.0], [0.01, 1.0, 100.0], [1e-3, 1e-2, 1.0, 3.0]]


def quadratic(scale, mean):
    matrix = np.linalg.inv(correlated_covariance(len(scale), 0) if len(scale) > 1 else np.ones((1, 1)))
    matrix = matrix / np.outer(scale, scale)
    return klover.Target(lambda x: -0.5 * (x - mean) @ matrix @ (x - mean), jnp.zeros(len(scale))), matrix


@pytest.mark.parametrize("scale", SCALES)
def test_precision_of_a_quadratic(scale):
    with jax.enable_x64(True):
        mean = np.arange(1.0, 1.0 + len(scale))
        target, matrix = quadratic(np.asarray(scale), mean)
        found = precision(ByValues(Evaluator(target), np.ones(len(scale))), mean)
        np.testing.assert_array_equal(found, found.T)
        np.testing.assert_allclose(found, matrix, rtol=1e-5, atol=1e-6 * np.abs(matrix).max())


def test_precision_takes_few_evaluations():
    dim = 6
    target, _ = quadratic(np.ones(dim), np.zeros(dim))
    evaluator = Evaluator(target)
    ByValues(evaluator, np.ones(dim)).precision(np.zeros(dim))
    # The top, two trials of steps, and all pairs on both sides.
    assert evaluator.num_evaluations <= 1 + 3 * 2 * dim + dim * (dim - 1)


@pytest.mark.parametrize("is_double", [False, True])
def test_climbs_reach_the_top(is_double):
    with jax.enable_x64(is_double):
        scale = np.array([0.3, 1.0, 2.0])
        target, _ = quadratic(scale, np.ones(3))
        starts = np.random.default_rng(0).normal(size=(4, 3))
        tops, values = climb(ByValues(Evaluator(target), np.ones(3)), starts, resolution=1e-7)
        assert np.all(np.abs(tops - 1.0) < 0.1 * scale)
        assert np.all(values > -0.01)


def test_points_that_have_not_moved_are_not_evaluated_again():
    target, _ = quadratic(np.ones(2), np.zeros(2))
    evaluator = Evaluator(target)
    function, points = ByValues(evaluator, np.ones(2)), np.arange(6.0).reshape(3, 2)
    first = function(points)
    before = evaluator.num_evaluations
    np.testing.assert_array_equal(function(points.copy())[1], first[1])
    assert evaluator.num_evaluations == before
    moved = points + np.array([[0.0], [1.0], [0.0]])
    value, gradient = function(moved)
    assert 0 < evaluator.num_evaluations - before <= 5
    np.testing.assert_array_equal(value[[0, 2]], first[0][[0, 2]])
    np.testing.assert_allclose(gradient, -moved @ np.linalg.inv(correlated_covariance(2, 0)), atol=0.05)


def test_where_the_support_ends_there_is_no_curvature():
    target = klover.Target(lambda x: jnp.where(x[0] > 0, -x[0] - 0.5 * x[1] ** 2, -jnp.inf), jnp.ones(2))
    found = ByValues(Evaluator(target), np.ones(2)).precision(np.array([1e-3, 0.0]))
    assert np.all(np.isfinite(found))
