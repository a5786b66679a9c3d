import numpy as np
import pytest
from scipy import stats

from coordinates import assert_is_change, draw_product, equal_weights
from klover.warps.marginal import FEWEST_KNOTS, MOST_KNOTS, SMALLEST_END, Marginal, fit_marginal

SCALE = np.sqrt(6) / np.pi
DENSITIES = {
    "normal": stats.norm(),
    "exponential": stats.expon(-1),
    "log-gamma": stats.loggamma(1, loc=np.euler_gamma * SCALE, scale=SCALE),
    "laplace": stats.laplace(0, np.sqrt(0.5)),
    "student": stats.t(5, scale=np.sqrt(0.6)),
}
KINKS = {"exponential": 0.015, "laplace": 0.006}
"""Nats that straight lines between ten knots may lose where the density jumps, or has a corner."""


def fitted(name, num=20_000):
    return fit_marginal(DENSITIES[name].rvs((num, 1), random_state=1), equal_weights(num))


@pytest.fixture(scope="module")
def product():
    return fit_marginal(draw_product(4000, 3), equal_weights(4000))


@pytest.mark.parametrize("scale", [1.0, 100.0], ids=["near", "far"])
def test_it_is_a_change_of_coordinates(product, scale):
    assert_is_change(product, scale * np.random.default_rng(0).normal(size=(40, 3)))


def test_far_away_the_way_back_is_still_exact(product):
    y = np.outer(np.concatenate([-np.geomspace(1e3, 1e12, 10), np.geomspace(1e3, 1e12, 10)]), np.ones(3))
    np.testing.assert_allclose(product.from_base(product.to_base(y)[0])[0], y, rtol=1e-9)


def test_values_and_slopes_are_those_at_the_knots(product):
    for place in range(product.knot.shape[1]):
        z, log_det = product.to_base(product.knot[:, place])
        np.testing.assert_allclose(z, product.value[:, place], atol=1e-12)
        np.testing.assert_allclose(log_det, np.log(product.slope[:, place]).sum(), atol=1e-12)
        np.testing.assert_allclose(product.from_base(z)[0], product.knot[:, place], atol=1e-9)


@pytest.mark.parametrize("name", DENSITIES)
def test_the_density_integrates_to_one(name):
    y = np.linspace(-100.0, 100.0, 400_001)
    z, log_slope = fitted(name, 2000).to_base(y[:, None])
    assert np.all(np.diff(z[:, 0]) > 0)
    np.testing.assert_allclose(np.trapezoid(stats.norm.pdf(z[:, 0]) * np.exp(log_slope), y), 1.0, atol=1e-6)


@pytest.mark.parametrize("name", DENSITIES)
def test_marginals_become_normal(name):
    num = 20_000
    marginal = fitted(name, num)
    y = DENSITIES[name].rvs((num, 1), random_state=2)
    z, log_slope = marginal.to_base(y)
    # Four standard errors of moments of fresh draws, and as much again for those that were fitted to.
    assert abs(z.mean()) < 4 * np.sqrt(2 / num)
    assert abs(z.var() - 1) < 4 * np.sqrt(2 * 2 / num)
    # The forward KL: the parameters' share is (knots + 1) / 2n, the rest is what the knots cannot follow.
    lost = DENSITIES[name].logpdf(y[:, 0]) - stats.norm.logpdf(z[:, 0]) - log_slope
    error = lost.std() / np.sqrt(num)
    assert -4 * error < lost.mean() < KINKS.get(name, 0.0) + 2 * (MOST_KNOTS + 1) / (2 * num) + 4 * error


def test_weights_are_as_repetitions():
    generator = np.random.default_rng(0)
    y, count = draw_product(600, 3), generator.integers(1, 4, 600)
    repeated = np.repeat(y, count, axis=0)
    weighted = fit_marginal(y, count / count.sum())
    again = fit_marginal(repeated, equal_weights(len(repeated)))
    # Knots and the roughness penalty go by effective draws, of which repeated ones seem to have more.
    fresh = draw_product(2000, 3, seed=1)
    (z, log_slope), (other, other_slope) = weighted.to_base(fresh), again.to_base(fresh)
    difference = (log_slope - 0.5 * (z**2).sum(1)) - (other_slope - 0.5 * (other**2).sum(1))
    assert abs(difference.mean()) < 3 * MOST_KNOTS / (2 * 600)


def test_draws_without_weight_count_for_nothing():
    y, weight = draw_product(500, 3), equal_weights(500)
    outside = np.full((20, 3), 50.0)
    more = fit_marginal(np.concatenate([y, outside]), np.concatenate([weight, np.zeros(20)]))
    less = fit_marginal(y, weight)
    for name in ("value", "slope"):
        np.testing.assert_allclose(getattr(more, name)[:, :-1], getattr(less, name)[:, :-1], atol=0.02)


@pytest.mark.parametrize(("num", "knots"), [(50, FEWEST_KNOTS), (800, 6), (100_000, MOST_KNOTS)])
def test_more_draws_have_more_knots(num, knots):
    assert fitted("normal", num).knot.shape == (1, knots)


def test_each_coordinate_is_fitted_alone():
    y, weight = draw_product(2000, 3), equal_weights(2000)
    together = fit_marginal(y, weight)
    for coordinate in range(3):
        alone = fit_marginal(y[:, [coordinate]], weight)
        np.testing.assert_allclose(together.slope[coordinate], alone.slope[0], atol=1e-3)


def test_ends_have_tails_on_both_sides():
    # Half of the draws are the same number: hardly anything lies below it.
    y = np.maximum(np.random.default_rng(0).normal(size=(2000, 1)), 0.0)
    marginal = fit_marginal(y - y.mean(), equal_weights(2000))
    assert marginal.value[0, 0] <= -SMALLEST_END < SMALLEST_END <= marginal.value[0, -1]
    assert_is_change(marginal, np.random.default_rng(1).normal(size=(20, 1)))


def test_draws_that_are_all_the_same_leave_it_invertible():
    marginal = fit_marginal(np.zeros((100, 2)), equal_weights(100))
    assert isinstance(marginal, Marginal)
    assert all(np.isfinite(leaf).all() for leaf in (marginal.knot, marginal.value, marginal.slope))
    assert np.all(np.diff(marginal.knot) > 0)
    assert np.all(marginal.slope > 0)


def test_draws_at_infinity_have_no_warp():
    y = np.zeros((50, 2))
    y[3, 1] = np.inf
    with pytest.raises(np.linalg.LinAlgError, match="infinity"):
        fit_marginal(y, np.full(50, 0.02))
