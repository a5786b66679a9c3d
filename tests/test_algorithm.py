"""The blackjax shape gives what boosting gives."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

import klover
from klover.algorithm import VIAlgorithm

CHOICES = {"fitter": "em", "newcomer": "gain", "family": "student", "num_components": 3, "num_draws": 500}


def log_density(position):
    return -0.5 * (position["a"] ** 2 + jnp.sum((position["b"] - 1.0) ** 2))


def test_the_fields_are_those_of_blackjax():
    assert VIAlgorithm._fields == blackjax.base.VIAlgorithm._fields


def test_steps_under_jit_and_draws_by_the_positions_structure():
    algorithm = klover.vi_algorithm(log_density, first="forward", **CHOICES)
    state = jax.jit(algorithm.init)({"a": jnp.zeros(()), "b": jnp.zeros(2)}, jax.random.key(0))
    step = jax.jit(algorithm.step)
    for number in range(2):
        state, info = step(jax.random.key(number), state)
    assert state.boost.mixture.capacity == 3
    assert float(info.ess_share) > 0.9
    draws = algorithm.sample(jax.random.key(9), state, 4000)
    assert draws["a"].shape == (4000,)
    assert np.all(np.abs(draws["b"].mean(0) - 1.0) < 5 / np.sqrt(4000))


def test_many_targets_at_once():
    algorithm = klover.vi_algorithm(log_density, first="forward", **CHOICES)
    starts = {"a": jnp.zeros(2), "b": jnp.zeros((2, 2))}
    states = jax.vmap(algorithm.init)(starts, jax.random.split(jax.random.key(0), 2))
    _, info = jax.vmap(algorithm.step)(jax.random.split(jax.random.key(1), 2), states)
    assert info.ess_share.shape == (2,)
