import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from klover import Target
from klover.boosting import sources
from klover.importance.ratios import log_evidence
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture

LOG_Z, NUM_DRAWS = -37.5, 4000
MEAN, SCALE = np.array([0.5, -1.0]), np.array([1.0, 0.4])


def log_density(x):
    return jnp.sum(-0.5 * ((x - MEAN) / SCALE) ** 2 - np.log(SCALE * np.sqrt(2 * np.pi))) + LOG_Z


TARGET = Target(log_density, jnp.zeros(2))
# NaN on one half of the space, which counts as density zero.
HALF = Target(lambda x: jnp.where(x[0] > MEAN[0], log_density(x), jnp.nan), jnp.ones(2))


def previous_mixture():
    components = Family("student", "full", df=6.0).components(
        jnp.array([[0.0, -1.0], [1.5, 0.0], [9.0, 9.0]]), jnp.array([[2.0, 1.0], [1.0, 2.0], [1.0, 1.0]])
    )
    return Mixture(components, jnp.log(jnp.array([0.8, 0.2, 0.0])))


def newcomer_mixture(gamma=0.3, location=(0.4, -0.9)):
    components = Family("student", "full", df=6.0).components(jnp.array([location]), jnp.array([[1.5, 0.5]]))
    return Mixture(components, jnp.log(jnp.array([gamma])))


def draw_from(name):
    if name == "previous":
        return lambda key, target, previous, newcomer: sources.draw_previous(key, target, previous, NUM_DRAWS)
    draw = {"newcomer": sources.draw_newcomer, "current": sources.draw_current}[name]
    return lambda key, target, previous, newcomer: draw(key, target, previous, newcomer, NUM_DRAWS)


DRAW = {name: jax.jit(draw_from(name)) for name in sources.SOURCES}


@pytest.mark.parametrize("name", sources.SOURCES)
def test_weights_estimate_the_evidence(getkey, name):
    previous, newcomer = previous_mixture(), newcomer_mixture()
    score = []
    for _ in range(10):
        value, error = log_evidence(DRAW[name](getkey(), TARGET, previous, newcomer).log_ratio)
        score.append((value - LOG_Z) / error)
    assert np.all(np.abs(score) < 5)
    assert abs(np.mean(score)) < 5 / np.sqrt(10)


def test_where_the_target_is_invalid_its_density_is_zero(getkey):
    draws = DRAW["current"](getkey(), HALF, previous_mixture(), newcomer_mixture())
    is_inside = np.asarray(draws.x[:, 0] > MEAN[0])
    np.testing.assert_array_equal(draws.log_ratio > -np.inf, is_inside)
    value, error = log_evidence(draws.log_ratio)
    assert abs(value - (LOG_Z + np.log(0.5))) < 5 * error


@pytest.mark.parametrize("name", sources.SOURCES)
def test_log_densities_are_those_of_the_draws(getkey, name):
    previous, newcomer = previous_mixture(), newcomer_mixture()
    draws = DRAW[name](getkey(), TARGET, previous, newcomer)
    log_previous, log_f = previous.log_prob(draws.x), newcomer.components.log_prob(draws.x)[0]
    current = np.log(0.7 * np.exp(log_previous) + 0.3 * np.exp(log_f))
    expected = {"previous": log_previous, "newcomer": log_f, "current": current}[name]
    np.testing.assert_allclose(draws.log_source, expected, rtol=1e-10)
    np.testing.assert_allclose(draws.log_previous, log_previous, rtol=1e-10)
    np.testing.assert_allclose(draws.log_p, jax.vmap(log_density)(draws.x), rtol=1e-10)
    np.testing.assert_allclose(draws.log_ratio, draws.log_p - draws.log_source, rtol=1e-12)


def test_without_a_previous_mixture_its_density_is_zero(getkey):
    draws = DRAW["newcomer"](getkey(), TARGET, None, newcomer_mixture())
    assert np.all(draws.log_previous == -np.inf)
    np.testing.assert_allclose(draws.log_source, newcomer_mixture().components.log_prob(draws.x)[0])


@pytest.mark.parametrize("gamma", [0.02, 0.5, 0.97])
def test_the_newcomer_is_drawn_as_often_as_its_weight(getkey, gamma):
    # Far from everything else, so that each draw shows where it came from.
    newcomer = newcomer_mixture(gamma, (1e4, 1e4))
    draws = DRAW["current"](getkey(), TARGET, previous_mixture(), newcomer)
    share = np.mean(np.asarray(draws.x[:, 0]) > 5e3)
    assert abs(share - gamma) < 5 * np.sqrt(gamma * (1 - gamma) / NUM_DRAWS)


@pytest.mark.parametrize("gamma", [1e-300, 0.25, 1.0])
def test_mixing_adds_densities(gamma):
    log_f, log_previous = np.array([-1.0, -800.0, 3.0]), np.array([-2.0, -1.0, -np.inf])
    mixed = sources.mix(jnp.asarray(log_f), jnp.asarray(log_previous), jnp.log(gamma))
    expected = (1 - gamma) * np.exp(log_previous) + gamma * np.exp(log_f)
    np.testing.assert_allclose(np.exp(mixed), expected, rtol=1e-12)


def test_a_weight_that_rounds_above_one_is_one():
    # EM sums normalised weights, and the sum is often a rounding error above one.
    log_f = jnp.array([-1.0, 2.0])
    np.testing.assert_allclose(sources.mix(log_f, jnp.zeros(2), jnp.array(1e-15)), log_f)


draw_defended = jax.jit(sources.draw_defended, static_argnums=4)


def test_defended_draws_are_weighted_by_what_they_are_drawn_from(getkey):
    mixture, anchor = previous_mixture(), newcomer_mixture(1.0)
    draws = draw_defended(getkey(), TARGET, mixture, anchor, NUM_DRAWS)
    value, error = log_evidence(draws.log_ratio)
    assert abs(value - LOG_Z) < 5 * error
    x = np.asarray(draws.x)
    components = jax.tree.map(np.asarray, mixture.components)
    # In two dimensions the copies are 1 + √2 times as wide; the empty slot has none.
    inflated = dataclasses.replace(components, spread=type(components.spread)(components.spread.factor * (1 + 2**0.5)))
    density = 0.5 * np.exp(mixture.log_prob(x)) + 0.25 * np.exp(anchor.log_prob(x))
    density = density + 0.125 * np.exp(inflated.log_prob(x)[:2]).sum(0)
    np.testing.assert_allclose(np.exp(draws.log_source), density, rtol=1e-10)
    np.testing.assert_allclose(draws.log_previous, mixture.log_prob(x), rtol=1e-10)
    assert np.all(draws.log_ratio <= draws.log_p - draws.log_previous + np.log(2.0) + 1e-12)
