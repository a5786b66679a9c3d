"""The mean-field Gaussian, against targets whose best one is known."""

import jax
import jax.numpy as jnp
import numpy as np

from klover import Target
from klover.fitting.mean_field import gaussian, mean_field

LOCATION, SCALE = np.array([1.0, -2.0, 0.5]), np.array([0.3, 1.0, 2.0])


def test_a_correlated_gaussian_has_the_scales_of_its_conditionals(getkey):
    precision = np.array([[2.0, 0.8], [0.8, 1.0]])
    mixture = jax.jit(mean_field)(getkey(), Target(lambda x: -0.5 * x @ precision @ x, np.ones(2)))
    np.testing.assert_allclose(mixture.components.location[0], 0.0, atol=0.05)
    np.testing.assert_allclose(mixture.components.spread.scale[0], 1 / np.sqrt(np.diagonal(precision)), rtol=0.05)


def test_draws_outside_the_support_do_not_end_the_descent(getkey):
    def log_density(x):
        return jnp.where(x[0] > 0.4, -0.5 * jnp.sum(((x - LOCATION) / SCALE) ** 2), jnp.nan)

    mixture = jax.jit(mean_field)(getkey(), Target(log_density, np.array([1.0, 0.0, 0.0])))
    assert np.isfinite(mixture.components.location).all()
    np.testing.assert_allclose(mixture.components.location[0, 1:], LOCATION[1:], atol=0.1)


def test_a_gaussian_is_a_mixture_of_one_component():
    mixture = gaussian(jnp.asarray(LOCATION), jnp.log(SCALE))
    assert mixture.num_components == 1
    np.testing.assert_allclose(mixture.components.spread.scale[0], SCALE)
