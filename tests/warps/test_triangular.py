import numpy as np
import pytest

from coordinates import (
    assert_is_change,
    draw_banana,
    draw_funnel,
    draw_hierarchy,
    draw_product,
    equal_weights,
)
from helpers import correlated_covariance
from klover.warps.triangular import LIMIT, NOISE, SMALLEST_SQUARE, Triangular, _signs, fit_triangular, num_features

NUM = 8000


def fitted(x):
    return fit_triangular(x, equal_weights(len(x)))


DRAWS = {
    "funnel": lambda: draw_funnel(NUM, 5),
    "banana": lambda: draw_banana(NUM),
    "hierarchy": lambda: draw_hierarchy(NUM, 8),
}


@pytest.mark.parametrize("name", DRAWS)
def test_it_is_a_change_of_coordinates(name):
    x = DRAWS[name]()
    assert_is_change(fitted(x), x[:40])


def test_it_is_a_change_of_coordinates_beyond_the_limit_of_the_leads():
    triangular = fitted(draw_funnel(NUM, 5))
    x = draw_funnel(40, 5, seed=1)
    x[:, 0] = np.where(np.arange(40) % 2, 1.0, -1.0) * np.linspace(8.0, 30.0, 40)
    assert_is_change(triangular, x)
    # The scale stays what it was at the limit.
    ends = triangular.centre + np.array([[1.0], [2.0]]) * LIMIT * triangular.scale
    points = np.concatenate([ends, np.ones((2, 4))], axis=1)
    np.testing.assert_allclose(*triangular.to_base(points)[0][:, 1:], rtol=1e-9)


def test_three_leads_are_a_change_of_coordinates_too():
    generator = np.random.default_rng(0)
    mean, log_scale = 0.1 * generator.normal(size=(2, num_features(3), 5))
    mean[:, :3] = log_scale[:, :3] = 0.0
    triangular = Triangular(np.array([4, 1, 3, 0, 2]), np.arange(3.0), np.array([0.5, 1.0, 2.0]), mean, log_scale)
    assert_is_change(triangular, generator.normal(size=(40, 5)))


def test_a_scale_leads_a_funnel():
    triangular = fitted(draw_funnel(NUM, 5))
    assert triangular.order[: triangular.num_leads].tolist() == [0]
    # log scale = x[0] / 2, at one and two standard deviations of the lead.
    lead = np.array([-3.0, -1.5, 0.0, 1.5, 3.0])[:, None]
    ends = (triangular.from_base(np.concatenate([lead, np.full((5, 4), end)], axis=1))[0] for end in (0.0, 1.0))
    log_scale = np.log(np.diff(np.stack([*ends]), axis=0)[0, :, 1:])
    # Draws beyond 1.5 standard deviations are a fifteenth of them: errors of a log scale of about 1/√(2 n/15).
    np.testing.assert_allclose(log_scale, np.tile(lead / 2, 4), atol=5 / np.sqrt(2 * NUM / 15))


def test_a_funnel_is_led_wherever_its_scale_stands():
    order = np.array([3, 1, 0, 4, 2])
    x = draw_funnel(NUM, 5)
    triangular = fitted(x[:, order])
    assert order[triangular.order[: triangular.num_leads]].tolist() == [0]
    np.testing.assert_allclose(triangular.to_base(x[:, order])[1], fitted(x).to_base(x)[1], rtol=1e-6)


def test_the_bent_coordinate_leads_a_banana():
    triangular = fitted(draw_banana(NUM))
    assert triangular.order[: triangular.num_leads].tolist() == [1]
    # Fresh draws, freed of the bend, are the noise around it, of scale 0.3.
    fresh = draw_banana(NUM, seed=1)
    y = triangular.to_base(fresh)[0]
    noise = (fresh[:, 0] - fresh[:, 1] ** 2) / 0.3
    assert np.corrcoef(y[:, 1], noise)[0, 1] > 0.999
    # The parabola goes on where there are no draws.
    far = triangular.from_base(np.array([[-4.5, 0.0, 0.0], [4.5, 0.0, 0.0]]))[0]
    np.testing.assert_allclose(far[:, 0], 4.5**2, rtol=0.02)


def test_what_follows_a_lead_is_no_second_one():
    noise = np.random.default_rng(0).normal(size=(NUM, 4))
    x = np.concatenate([noise[:, :1], noise[:, :1] ** 2 + 0.1 * noise[:, 1:]], axis=1)
    triangular = fitted(x)
    assert triangular.order[: triangular.num_leads].tolist() == [0]
    y = triangular.to_base(x)[0]
    np.testing.assert_allclose(np.corrcoef(y.T), np.eye(4), atol=5 / np.sqrt(NUM))


def test_scale_and_mean_lead_a_centred_hierarchy():
    triangular = fitted(draw_hierarchy(NUM, 8))
    assert triangular.order[: triangular.num_leads].tolist() == [1, 0]


@pytest.mark.parametrize("name", DRAWS)
def test_what_was_led_is_free_of_its_leads(name):
    x = DRAWS[name]()
    triangular = fitted(x)
    y, num = triangular.to_base(x)[0], triangular.num_leads
    lead, others = y[:, :num], y[:, num:]
    np.testing.assert_allclose(others.mean(0), 0.0, atol=5 / np.sqrt(NUM))
    np.testing.assert_allclose((others**2).mean(0), 1.0, atol=5 * np.sqrt(2 / NUM))
    # A correlation is worth n/2 times its square, in nats: what is left may be worth the price of bends, but no more.
    price = np.log(NUM) * (num_features(num) - 1 - num)
    for each in lead.T:
        for values in (others, others**2):
            correlation = [np.corrcoef(each, column)[0, 1] for column in values.T]
            np.testing.assert_allclose(correlation, 0.0, atol=np.sqrt(2 * price / NUM))


@pytest.mark.parametrize("seed", range(5))
def test_nothing_leads_a_gaussian(seed):
    noise = np.random.default_rng(seed).normal(size=(4000, 6))
    assert fitted(noise @ np.linalg.cholesky(correlated_covariance(6, seed)).T) is None


def test_nothing_leads_a_product():
    assert fitted(draw_product(4000, 6)) is None


def test_nothing_leads_one_coordinate():
    assert fitted(draw_product(4000, 1)) is None


def test_weighted_draws_are_as_repeated_ones():
    x, count = draw_funnel(3000, 4), np.full(3000, 2)
    one = fit_triangular(x, count / count.sum())
    repeated = np.repeat(x, count, axis=0)
    other = fit_triangular(repeated, equal_weights(len(repeated)))
    np.testing.assert_array_equal(one.order, other.order)
    np.testing.assert_allclose(one.to_base(x)[0], other.to_base(x)[0], atol=0.02)
    np.testing.assert_allclose(one.centre, other.centre, rtol=1e-9)


def test_draws_without_weight_count_for_nothing():
    x, weight = draw_funnel(3000, 4), equal_weights(3000)
    outside = np.random.default_rng(0).normal(size=(200, 4)) * 40
    more = fit_triangular(np.concatenate([x, outside]), np.concatenate([weight, np.zeros(200)]))
    np.testing.assert_allclose(more.to_base(x)[0], fit_triangular(x, weight).to_base(x)[0], rtol=1e-9, atol=1e-9)


def test_a_change_of_location_and_scale_changes_nothing_else():
    x = draw_funnel(3000, 4)
    scale, shift = np.array([0.1, 10.0, 3.0, 1.0]), np.array([5.0, -100.0, 0.0, 1.0])
    one, other = fitted(x), fitted(x * scale + shift)
    np.testing.assert_array_equal(one.order, other.order)
    y, z = one.to_base(x)[0], other.to_base(x * scale + shift)[0]
    np.testing.assert_allclose(z[:, 1:], y[:, 1:], atol=1e-8)
    np.testing.assert_allclose(z[:, 0], y[:, 0] * 0.1 + 5.0, rtol=1e-9)


def test_few_draws_lead_nothing_astray():
    # Twenty draws in six coordinates: no warp, or one with finite numbers.
    triangular = fitted(draw_funnel(20, 6))
    if triangular is not None:
        assert all(np.isfinite(leaf).all() for leaf in triangular.to_base(draw_funnel(20, 6, seed=1)))


def test_signs_are_squared_correlations_with_squares_and_bends():
    generator = np.random.default_rng(0)
    u = draw_funnel(500, 4) / np.std(draw_funnel(500, 4), axis=0)
    u[:, 2] += 0.3 * u[:, 1] ** 2
    rest, weight = generator.normal(size=u.shape) * np.exp(0.3 * u[:, :1]), generator.gamma(1.0, size=len(u))
    weight /= weight.sum()

    def correlation(one, other):
        covariance = np.cov(one, other, aweights=weight, ddof=0)
        return covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])

    expected = np.zeros(4)
    for lead in range(4):
        for other in {0, 1, 2, 3} - {lead}:
            left = u[:, other] - np.cov(u[:, lead], u[:, other], aweights=weight, ddof=0)[0, 1] * u[:, lead]
            size = np.log(rest[:, other] ** 2 + SMALLEST_SQUARE)
            explained = correlation(u[:, lead], size) ** 2 + correlation(u[:, lead] ** 2, left) ** 2
            expected[lead] += max(explained / (weight @ weight) - NOISE, 0.0)
    np.testing.assert_allclose(_signs(u, rest, weight), expected, rtol=1e-9)
    assert expected.max() > 0
