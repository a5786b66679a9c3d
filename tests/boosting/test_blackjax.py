"""The blackjax shape gives what boosting gives, under jit and vmap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.boosting.blackjax import VIAlgorithm
from klover.boosting.settings import Settings

NUM_DRAWS = 500
SETTINGS = Settings(
    max_components=2,
    family=klover.Family("student"),
    fitter="em",
    newcomer="gain",
    num_steps=5,
    num_round_draws=NUM_DRAWS,
)


def log_density(position):
    return -0.5 * (position["a"] ** 2 + jnp.sum((position["b"] - 1.0) ** 2))


def test_the_fields_are_those_of_blackjax():
    blackjax = pytest.importorskip("blackjax")
    assert VIAlgorithm._fields == blackjax.base.VIAlgorithm._fields


@pytest.mark.slow
def test_many_starts_in_one_program_and_draws_by_the_positions_structure():
    algorithm = klover.vi_algorithm(log_density, SETTINGS, start="forward")

    def run(start, key):
        state = algorithm.init(start, key)
        state, info = algorithm.step(jax.random.fold_in(key, 1), state)
        return algorithm.sample(jax.random.fold_in(key, 2), state, 4000), info

    starts = {"a": jnp.zeros(2), "b": jnp.zeros((2, 2))}
    draws, info = jax.jit(jax.vmap(run))(starts, jax.random.split(jax.random.key(0), 2))
    assert np.all(info.ess_share > 0.9)
    assert draws["a"].shape == (2, 4000)
    # A mixture that was fitted to so many draws is as exact as they are.
    assert np.all(np.abs(draws["b"].mean(1) - 1.0) < 5 / np.sqrt(NUM_DRAWS))


def test_a_whole_number_is_a_key():
    # How well it fits does not matter here, so that the smallest program will do.
    settings = Settings(max_components=2, fitter="em", newcomer="gain", weights="none", num_steps=1, num_round_draws=20)
    algorithm = klover.vi_algorithm(log_density, settings, start="forward")

    def run(key):
        state, _ = algorithm.step(key, algorithm.init({"a": 0.0, "b": jnp.zeros(2)}, key))
        return algorithm.sample(key, state, 5)

    found, expected = jax.jit(lambda: (run(7), run(jax.random.key(7))))()
    jax.tree.map(np.testing.assert_array_equal, found, expected)
