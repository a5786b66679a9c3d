"""The screen: starts in known basins score one, starts in others do not."""

import numpy as np
import pytest

import klover
from klover.search.screen import KNOWN, lowest, score

FAMILIES = ["student", "normal", "normal-diagonal", "normal-low-rank"]


def mixture_of(name, location, variance):
    return klover.Mixture.of(klover.Family.parse(name).components(np.asarray(location), np.asarray(variance)))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_slope_of_the_component_itself_scores_one(name):
    mixture = mixture_of(name, [[1.0, -2.0, 0.0]], [[4.0, 0.01, 1.0]])
    precision = np.linalg.inv(np.asarray(mixture.components.spread.covariance())[0])
    x = np.random.default_rng(0).normal(size=(20, 3)) * 5
    gradient = -(x - np.array([1.0, -2.0, 0.0])) @ precision
    np.testing.assert_allclose(score(mixture, x, gradient), 1.0, rtol=1e-6)


def test_a_slope_to_elsewhere_scores_by_its_angle_and_units_do_not_matter():
    x = np.array([[3.0, 0.0]])
    up, away = np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]])
    for scale in (1.0, 1e-6):
        mixture = mixture_of("normal", np.zeros((1, 2)), [[scale**2, scale**2]])
        np.testing.assert_allclose(score(mixture, scale * x, up / scale), 0.0, atol=1e-12)
        np.testing.assert_allclose(score(mixture, scale * x, away / scale), -1.0)


def test_the_nearest_component_by_angle_counts():
    mixture = mixture_of("normal", [[0.0, 0.0], [0.0, 10.0]], np.ones((2, 2)))
    np.testing.assert_allclose(score(mixture, np.array([[0.0, 3.0]]), np.array([[0.0, 1.0]])), 1.0)


def test_in_very_many_dimensions_every_component_is_asked():
    dim = 3000
    mixture = mixture_of("normal-diagonal", np.stack([np.zeros(dim), np.full(dim, 9.0)]), np.ones((2, dim)))
    x = np.full((1, dim), 1.0)
    np.testing.assert_allclose(score(mixture, x, -x), 1.0)
    np.testing.assert_allclose(score(mixture, x, 9.0 - x), 1.0)


def test_where_there_is_no_slope_nothing_is_suspected():
    mixture = mixture_of("normal", np.zeros((1, 2)), np.ones((1, 2)))
    np.testing.assert_array_equal(score(mixture, np.array([[1.0, 1.0]]), np.zeros((1, 2))), 1.0)


def test_the_lowest_scores_of_each_rung_are_taken_if_they_are_in_the_support_and_unknown():
    scores = np.array([[0.5, -1.0, 0.2, 0.3], [0.99, 0.98, 0.6, 1.0]])
    value = np.array([[0.0, -np.inf, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert KNOWN < 0.98
    assert lowest(scores, value, 2) == [(0, 2), (0, 3), (1, 2)]
    assert lowest(scores, value, 9) == [(0, 2), (0, 3), (0, 0), (1, 2)]
