import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coordinates import draw_funnel, draw_product, equal_weights
from klover import Mixture
from klover.mixtures.algebra import mixture_of
from klover.mixtures.components import Family
from klover.warps.warp import fit_warp
from klover.warps.warped import WarpedMixture, behind, unwarped

DIM = 3


def make_mixture(dim=DIM, family="student"):
    location = np.random.default_rng(0).normal(size=(2, dim))
    covariance = np.array([1.0, 0.5])[:, None, None] * np.eye(dim)
    return mixture_of(Family.parse(family), location, covariance, 7.0, np.array([1.0, 2.0]))


@pytest.fixture(scope="module")
def warp():
    return fit_warp("led", draw_funnel(2000, DIM), equal_weights(2000))


@pytest.fixture(scope="module")
def warped(warp):
    return WarpedMixture(make_mixture(), warp)


@pytest.mark.parametrize("family", ["student", "normal"])
def test_the_density_integrates_to_one(family):
    warp = fit_warp("correlated", draw_product(1000, 1), equal_weights(1000))
    warped = WarpedMixture(make_mixture(1, family), warp)
    x = np.sinh(np.linspace(-20.0, 20.0, 400_001))
    np.testing.assert_allclose(np.trapezoid(np.exp(warped.log_prob(x[:, None])), x), 1.0, atol=1e-5)


def test_a_density_of_two_coordinates_integrates_to_one():
    warp = fit_warp("led", draw_funnel(2000, 2), equal_weights(2000))
    warped = WarpedMixture(make_mixture(2, "normal"), warp)
    lead, other = np.linspace(-12.0, 12.0, 401), np.sinh(np.linspace(-9.0, 9.0, 1001))
    grid = np.stack(np.meshgrid(lead, other, indexing="ij"), axis=-1)
    density = np.exp(warped.log_prob(grid.reshape(-1, 2))).reshape(grid.shape[:2])
    np.testing.assert_allclose(np.trapezoid(np.trapezoid(density, other, axis=1), lead), 1.0, atol=1e-4)


def test_draws_are_those_of_the_density(warped):
    # E_q[r/q] = 1 for any density r that q covers: here that of another mixture behind the same warp.
    x = warped.draw(np.random.default_rng(0), 20_000)
    other = WarpedMixture(
        mixture_of(Family("normal"), np.zeros((1, DIM)), np.eye(DIM)[None], 1.0, np.ones(1)), warped.warp
    )
    ratio = np.exp(other.log_prob(x) - warped.log_prob(x))
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(len(ratio))


def test_draws_come_with_their_density(warped):
    x, log_q = jax.jit(lambda key: warped.sample_and_log_prob(key, 500))(jax.random.key(0))
    np.testing.assert_allclose(log_q, warped.log_prob(np.asarray(x)), rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(x, jax.jit(lambda key: warped.sample(key, 500))(jax.random.key(0)), rtol=1e-9)


def test_draws_are_moved_draws_of_the_mixture(warped):
    z = warped.mixture.draw(np.random.default_rng(3), 50)
    np.testing.assert_array_equal(warped.draw(np.random.default_rng(3), 50), warped.warp.from_base(z)[0])


def test_components_add_up_to_the_density(warped):
    x = warped.draw(np.random.default_rng(0), 100)
    each = warped.component_log_prob(x)
    assert each.shape == (2, 100)
    total = np.log(warped.weights @ np.exp(each))
    np.testing.assert_allclose(total, warped.log_prob(x), rtol=1e-9, atol=1e-9)


def test_one_point_many_points_and_jax_agree(warped):
    x = warped.draw(np.random.default_rng(0), 20)
    expected = warped.log_prob(x)
    np.testing.assert_allclose(warped.log_prob(x[0]), expected[0], rtol=1e-12)
    compiled = jax.jit(lambda warped, x: warped.log_prob(x))
    np.testing.assert_allclose(compiled(warped, jnp.asarray(x)), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(jax.jit(jax.vmap(warped.log_prob))(jnp.asarray(x)), expected, rtol=1e-9, atol=1e-9)


def test_it_tells_what_its_mixture_tells(warped):
    mixture = warped.mixture
    assert (warped.dim, warped.capacity, int(warped.num_components)) == (DIM, mixture.capacity, 2)
    np.testing.assert_array_equal(warped.weights, mixture.weights)
    np.testing.assert_array_equal(warped.log_weights, mixture.log_weights)


def test_points_of_another_dimension_are_refused(warped):
    for function in (warped.log_prob, warped.component_log_prob):
        with pytest.raises(ValueError, match="x must"):
            function(np.zeros((4, DIM + 1)))


def test_behind_and_unwarped_are_inverse(warp):
    mixture = make_mixture()
    assert behind(mixture, None) is mixture
    assert unwarped(mixture) is mixture
    moved = behind(mixture, warp)
    assert isinstance(moved, WarpedMixture)
    assert unwarped(moved) is mixture
    assert isinstance(unwarped(moved), Mixture)


def test_a_point_that_a_warp_sends_to_infinity_has_no_density(warped):
    x = np.array([[0.0, 0.0, 0.0], [-np.inf, np.inf, np.inf]])
    with np.errstate(all="ignore"):
        log_q, by_component = warped.log_prob(x), warped.component_log_prob(x)
    assert np.isfinite(log_q[0])
    assert log_q[1] == -np.inf
    assert not np.isnan(by_component).any()
