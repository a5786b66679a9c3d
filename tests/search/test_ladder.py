"""The radial test on halos and cores of known mass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.search.ladder import FACTORS, find_scale, ladder
from klover.targets.evaluator import Evaluator

DIM = 4


def concentric(scale, mass):
    """Return two round Gaussians with one centre: the unit one, and another with a scale and a mass."""

    def log_density(x):
        square = jnp.sum((x - 1.0) ** 2)
        parts = [jnp.log1p(-mass) - 0.5 * square, jnp.log(mass) - 0.5 * square / scale**2 - DIM * jnp.log(scale)]
        return jax.nn.logsumexp(jnp.stack(parts)) - 0.5 * DIM * jnp.log(2 * jnp.pi)

    return klover.Target(log_density, jnp.zeros(DIM))


def unit(name="student"):
    family = klover.Family.parse(name)
    return klover.Mixture.of(family.components(np.ones((1, DIM)), np.ones((1, DIM))))


def search(scale, mass, name="student", smallest=0.01, num=2048):
    evaluator, mixture = Evaluator(concentric(scale, mass)), unit(name)
    return find_scale(np.random.default_rng(0), evaluator, mixture, mixture, np.log1p(-mass), num, smallest)


@pytest.mark.parametrize("name", ["student", "normal-diagonal"])
@pytest.mark.parametrize("scale", [0.02, 0.1, 20.0, 200.0])
def test_a_core_or_a_halo_is_found_with_its_scale_and_mass(scale, name):
    found = search(scale, 0.4, name)
    assert found is not None
    location, shape, log_mass = found
    np.testing.assert_array_equal(location, 1.0)
    variance = shape if shape.ndim == 1 else np.diagonal(shape)
    np.testing.assert_allclose(np.sqrt(variance), scale, rtol=0.5)
    np.testing.assert_allclose(np.exp(log_mass), 0.4, rtol=0.5)


def test_nothing_is_found_where_there_is_nothing_or_little():
    assert search(1.0, 0.4) is None
    assert search(0.05, 0.004) is None
    assert search(0.05, 0.004, smallest=1e-4, num=20_000) is not None


def test_the_ladder_has_a_copy_of_each_component_on_each_scale():
    mixture = klover.Mixture.of(klover.Family("normal").components(np.eye(2), np.array([[1.0, 4.0], [9.0, 1.0]])))
    copies = ladder(mixture)
    assert copies.capacity == 2 * len(FACTORS)
    np.testing.assert_allclose(np.exp(copies.log_weights).sum(), 1.0)
    variance = np.asarray(copies.components.spread.variance()).reshape(len(FACTORS), 2, 2)
    np.testing.assert_allclose(variance, FACTORS[:, None, None] ** 2 * np.array([[1.0, 4.0], [9.0, 1.0]]))


@pytest.mark.parametrize(("mass", "num_evaluated"), [(0.0, 64), (0.3, 512)])
def test_more_is_drawn_where_the_first_draws_have_seen_something(mass, num_evaluated):
    evaluator, mixture = Evaluator(concentric(8.0, mass)), unit("normal")
    rest = np.log1p(-mass), 64, 0.01, 512
    found = find_scale(np.random.default_rng(0), evaluator, mixture, mixture, *rest)
    assert (found is None) == (mass == 0)
    assert evaluator.num_evaluations == num_evaluated
