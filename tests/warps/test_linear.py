import numpy as np
import pytest

from coordinates import assert_is_change, draw_product, equal_weights
from helpers import correlated_covariance
from klover.base.linalg import moments
from klover.warps.linear import Linear, decorrelate, separate

DIM, NUM = 5, 8000
ROTATION = np.linalg.qr(np.random.default_rng(3).normal(size=(DIM, DIM)))[0]
FITS = {"decorrelate": decorrelate, "separate": separate}


def draw_gaussian(num, dim=DIM, seed=0):
    noise = np.random.default_rng(seed).normal(size=(num, dim))
    return noise @ np.linalg.cholesky(correlated_covariance(dim)).T + np.arange(dim)


@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
@pytest.mark.parametrize("scale", [1.0, 1e6], ids=["near", "far"])
def test_it_is_a_change_of_coordinates(fit, scale):
    linear = fit(draw_gaussian(500), equal_weights(500))
    assert_is_change(linear, scale * np.random.default_rng(0).normal(size=(20, DIM)))


def test_the_determinant_is_that_of_the_matrix():
    matrix = np.array([[2.0, 1.0], [0.0, -3.0]])
    linear = Linear.of(np.array([1.0, 2.0]), matrix)
    y, log_det = linear.to_base(np.array([2.0, 4.0]))
    np.testing.assert_allclose(y, [4.0, -6.0])
    np.testing.assert_allclose(log_det, np.log(6.0))


@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
def test_draws_become_white(fit):
    x, weight = draw_gaussian(2000), np.random.default_rng(0).dirichlet(np.ones(2000))
    linear = fit(x, weight)
    np.testing.assert_allclose(weight @ linear.to_base(x)[0], 0.0, atol=1e-9)
    covariance = moments(x, weight)[1]
    np.testing.assert_allclose(linear.matrix @ covariance @ linear.matrix.T, np.eye(DIM), atol=1e-9)


def test_decorrelation_keeps_the_order():
    matrix = decorrelate(draw_gaussian(500), equal_weights(500)).matrix
    np.testing.assert_allclose(matrix, np.tril(matrix), atol=1e-12)
    assert np.all(np.diagonal(matrix) > 0)


@pytest.mark.parametrize("mixing", [ROTATION, ROTATION * np.geomspace(0.5, 2.0, DIM)], ids=["rotated", "scaled"])
def test_independent_coordinates_are_found_up_to_order_and_sign(mixing):
    source = draw_product(NUM, DIM)
    linear = separate(source @ mixing.T + 7.0, equal_weights(NUM))
    found = np.abs(linear.matrix @ mixing)
    where = found.argmax(0)
    assert sorted(where) == list(range(DIM))
    # An entry of an estimated rotation has an error of order 1/√n; that of a variance of a Laplace is √(5/n).
    np.testing.assert_allclose(found[where], np.eye(DIM), atol=5 / np.sqrt(NUM))


def test_weighted_draws_are_as_repeated_ones():
    source, count = draw_product(1000, DIM) @ ROTATION.T, np.random.default_rng(0).integers(0, 4, 1000)
    repeated = np.repeat(source, count, axis=0)
    for fit in FITS.values():
        one, other = fit(source, count / count.sum()), fit(repeated, equal_weights(len(repeated)))
        # Repeated draws seem more, so that correlations are shrunk less: by 5 / 1000 at the most.
        np.testing.assert_allclose(one.matrix, other.matrix, atol=0.01)
        np.testing.assert_allclose(one.centre, other.centre, rtol=1e-9, atol=1e-9)


def test_scales_of_the_user_do_not_matter():
    source, scale = draw_product(4000, DIM) @ ROTATION.T, np.geomspace(1e-3, 1e3, DIM)
    for fit in FITS.values():
        one, other = fit(source, equal_weights(4000)), fit(source * scale, equal_weights(4000))
        z, w = one.to_base(source)[0], other.to_base(source * scale)[0]
        correlation = np.abs(z.T @ w) / len(z)
        # The same coordinates, perhaps in another order.
        np.testing.assert_allclose(np.sort(correlation.max(0)), 1.0, atol=0.01)


def test_a_near_warp_is_as_good_a_beginning():
    x, weight = draw_product(NUM, DIM) @ ROTATION.T, equal_weights(NUM)
    cold = separate(x, weight)
    again = separate(x, weight, separate(x[::2], weight[::2] * 2))
    agreement = np.abs((cold.matrix @ again.inverse)[np.arange(DIM), np.arange(DIM)])
    np.testing.assert_allclose(agreement, 1.0, atol=0.05)
