"""The Gaussian process of a surrogate, against multivariate Normals."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from klover.fitting.surrogate import Surrogate, kernel, quadratic

DIM, NUM = 3, 40
LOG_SCALES, PRIOR_SCALE = np.array([0.3, 0.5, 0.1, 0.2]), 20.0


@pytest.fixture(scope="module")
def data():
    generator = np.random.default_rng(0)
    z = generator.standard_normal((NUM, DIM))
    return z, -0.5 * np.sum(z**2, 1) + np.sin(2 * z[:, 0]), generator.uniform(0.05, 0.2, NUM)


def covariance(one, two):
    return kernel(one, two, LOG_SCALES) + PRIOR_SCALE**2 * quadratic(one) @ quadratic(two).T


def test_a_kernel_is_that_of_its_definition():
    one, two = np.array([[0.0, 1.0, 2.0]]), np.array([[1.0, -1.0, 2.5]])
    expected = np.exp(0.4 - 0.5 * np.sum(((one - two) / np.exp(LOG_SCALES[:-1])) ** 2))
    np.testing.assert_allclose(kernel(one, two, LOG_SCALES), [[expected]], rtol=1e-12)


def test_features_are_all_products():
    np.testing.assert_array_equal(quadratic(np.array([[2.0, 3.0]])), [[1, 2, 3, 4, 6, 9]])


def test_the_likelihood_is_that_of_a_normal(data):
    z, y, error = data
    exact = multivariate_normal(np.zeros(NUM), covariance(z, z) + np.diag(error**2)).logpdf(y)
    assert Surrogate.condition(z, y, error, LOG_SCALES, PRIOR_SCALE).log_likelihood == pytest.approx(exact, abs=1e-6)


def test_its_slope_is_that_of_differences(data):
    def value(log_scales):
        return Surrogate.condition(*data, log_scales, PRIOR_SCALE).log_likelihood

    steps = 1e-5 * np.eye(DIM + 1)
    differences = [(value(LOG_SCALES + step) - value(LOG_SCALES - step)) / 2e-5 for step in steps]
    np.testing.assert_allclose(Surrogate.condition(*data, LOG_SCALES, PRIOR_SCALE).slope, differences, rtol=1e-4)


def test_predictions_are_conditionals_of_a_normal(data):
    z, y, error = data
    new = np.random.default_rng(1).standard_normal((7, DIM))
    gain = np.linalg.solve(covariance(z, z) + np.diag(error**2), covariance(z, new)).T
    mean, variance = Surrogate.condition(z, y, error, LOG_SCALES, PRIOR_SCALE).predict(new)
    np.testing.assert_allclose(mean, gain @ y, rtol=1e-6)
    np.testing.assert_allclose(variance, np.diagonal(covariance(new, new) - gain @ covariance(z, new)), rtol=1e-4)


def test_a_quadratic_is_exact():
    generator = np.random.default_rng(2)
    z, matrix = generator.standard_normal((20, DIM)), generator.standard_normal((DIM, DIM))
    far = 5 * generator.standard_normal((10, DIM))

    def function(x):
        return 3.0 + x @ matrix[0] - 0.5 * np.sum((x @ matrix) ** 2, 1)

    found = Surrogate.condition(z, function(z), np.full(20, 1e-4), np.append(np.zeros(DIM), -8.0), 1e3)
    np.testing.assert_allclose(found.predict(far)[0], function(far), rtol=1e-4)


def test_points_are_spread_out_as_if_each_were_known(data):
    z, y, error = data
    found = Surrogate.condition(z, y, error, LOG_SCALES, PRIOR_SCALE)
    candidates = 2 * np.random.default_rng(3).standard_normal((30, DIM))
    chosen = found.spread_out(candidates, np.zeros(30), 4)
    known = z, error
    for best in chosen:
        values = np.zeros(len(known[0]))
        variance = Surrogate.condition(known[0], values, known[1], LOG_SCALES, PRIOR_SCALE).predict(candidates)[1]
        assert variance[best] == pytest.approx(variance.max(), rel=1e-3)
        known = np.concatenate([known[0], candidates[best][None]]), np.append(known[1], 1e-4)


def test_points_of_no_weight_are_not_chosen(data):
    found = Surrogate.condition(*data, LOG_SCALES, PRIOR_SCALE)
    candidates = 2 * np.random.default_rng(4).standard_normal((30, DIM))
    log_weight = np.where(np.arange(30) < 10, 0.0, -np.inf)
    assert np.all(found.spread_out(candidates, log_weight, 5) < 10)
