import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import klover
from klover.paper import simulations

SHARED = Path(__file__).parents[3] / "shared" / "data" / "gmm20.json"


def test_cauchy_is_the_cauchy_density_inside_its_limit():
    target = simulations.cauchy()
    points = np.array([[-999.0], [0.0], [3.0]])
    np.testing.assert_allclose(target.log_prob(points), stats.cauchy().logpdf(points[:, 0]), rtol=1e-12)
    assert target.log_prob(np.array([1001.0])) == -np.inf


def test_two_modes_are_normalised():
    target = simulations.two_modes()
    total, _ = integrate.quad(lambda x: float(np.exp(target.log_prob(np.array([x])))), -9, 9, points=(-3.0, 3.0))
    assert total == pytest.approx(1.0, rel=1e-8)


def test_twenty_modes_are_the_known_ones():
    if not SHARED.exists():
        pytest.skip("the reference description of the mixture is not beside the checkout")
    known = json.loads(SHARED.read_text())
    np.testing.assert_array_equal(simulations.TWENTY_MODE_LOCATIONS, known["means"])
    assert known["sigma"] == simulations.TWENTY_MODE_SCALE
    mean, second = simulations.twenty_mode_moments()
    np.testing.assert_allclose(mean, known["exact_moments"]["mean"], rtol=1e-12)
    np.testing.assert_allclose(second, known["exact_moments"]["second_moment_E_x2"], rtol=1e-12)


def test_masses_count_each_mode():
    x = np.repeat(np.asarray(simulations.TWENTY_MODE_LOCATIONS), 2, axis=0)
    masses = simulations.twenty_mode_masses(x, np.full(40, 1 / 40))
    np.testing.assert_allclose(masses, 0.05)


def test_quadrature_gives_the_gaussian_divergence():
    target = klover.Target(lambda x: -0.5 * jnp.sum(x**2) - 0.5 * jnp.log(2 * jnp.pi), jnp.zeros(1))
    proposal = klover.Mixture.of(klover.Family("normal").components(jnp.array([[0.5]]), jnp.array([[4.0]])))
    # KL(N(0, 1) ‖ N(m, s²)) = log s + (1 + m²) / (2 s²) - 1/2.
    expected = np.log(2) + (1 + 0.25) / 8 - 0.5
    value = simulations.forward_kl_by_quadrature(target, proposal, -12.0, 12.0)
    assert value == pytest.approx(expected, rel=1e-6)
