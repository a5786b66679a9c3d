import numpy as np
import pytest

from helpers import correlated_covariance
from klover.mixtures.algebra import marginal, mixture_of
from klover.mixtures.components import Family
from klover.results.density import NUM_DRAWS, bars, drawn, on_grid
from klover.warps.linear import Linear
from klover.warps.warp import Warp
from klover.warps.warped import WarpedMixture

WINDOW = np.array([[-8.0, 6.0], [-7.0, 9.0]])
MATRIX = np.array([[1.0, 0.3, 0.0], [0.0, 0.8, 0.0], [0.5, 0.0, 1.2]])


def make_mixture():
    location = np.array([[-2.0, -1.0, 0.0], [1.5, 2.0, 0.0]])
    covariance = np.stack([correlated_covariance(3, seed) for seed in (0, 1)])
    return mixture_of(Family("normal"), location, covariance, np.inf, np.array([0.4, 0.6]))


@pytest.fixture(scope="module")
def pair():
    """Return a mixture, and the same density written down behind a linear warp."""
    mixture, inverse = make_mixture(), np.linalg.inv(MATRIX)
    location = mixture.components.location @ MATRIX.T
    covariance = MATRIX @ mixture.components.spread.covariance() @ MATRIX.T
    moved = mixture_of(Family("normal"), location, covariance, np.inf, np.asarray(mixture.weights))
    warped = WarpedMixture(moved, Warp((Linear.of(np.zeros(3), MATRIX),)))
    x = np.random.default_rng(0).normal(size=(5, 3)) @ inverse
    np.testing.assert_allclose(warped.log_prob(x), mixture.log_prob(x), rtol=1e-9)
    return mixture, warped


def test_bars_are_the_density_within_the_error_of_the_draws(pair):
    mixture, warped = pair
    edges = np.linspace(-8.0, 8.0, 41)
    fine = np.linspace(-8.0, 8.0, 4001)
    density = np.exp(marginal(mixture, [1]).log_prob(fine[:, None]))
    mass = np.array([np.trapezoid(density[100 * bar : 100 * bar + 101], dx=0.004) for bar in range(40)])
    error = np.sqrt(mass * (1 - mass) / NUM_DRAWS)
    assert np.all(np.abs(bars(warped, 1, edges) * 0.4 - mass) < 5 * error + 1e-4)


def test_a_mixture_has_its_exact_density_on_the_grid(pair):
    mixture, _ = pair
    across, along, height = on_grid(mixture, 0, 2, WINDOW)
    assert height.max() == 1.0
    place = np.array([[across[30], along[100]], [across[90], along[40]]])
    density = np.exp(marginal(mixture, [0, 2]).log_prob(place))
    np.testing.assert_allclose(height[100, 30] / height[40, 90], density[0] / density[1], rtol=1e-9)


def test_behind_a_warp_draws_stand_for_the_density(pair):
    mixture, warped = pair
    (across, along, exact), (*_, estimate) = (on_grid(each, 0, 1, WINDOW) for each in (mixture, warped))
    cell = (across[1] - across[0]) * (along[1] - along[0])
    # Draws in the window, of which smearing carries next to none over its ends.
    inside = np.exp(marginal(mixture, [0, 1]).log_prob(np.array([[across[60], along[60]]])))[0] / exact[60, 60] * cell
    expected = exact * inside * NUM_DRAWS
    np.testing.assert_allclose(estimate.sum(), expected.sum(), rtol=0.01)
    # Half of the absolute difference is a total variation distance: a kernel holds sixty draws, whose number errs by
    # 1/√60, on average over Normal errors √(2/π) times that; smearing has its part.
    assert 0.5 * np.abs(estimate - expected).sum() / expected.sum() < 1.5 * 0.5 * np.sqrt(2 / np.pi / 60)


def test_draws_are_always_the_same(pair):
    np.testing.assert_array_equal(drawn(pair[1]), drawn(pair[1]))
