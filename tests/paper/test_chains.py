"""Markov chains against a Gaussian."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import needs
from klover import Target
from klover.paper import chains

pytestmark = needs("blackjax")
SCALE = np.array([0.5, 1.0, 2.0])


def log_density(x):
    return -0.5 * jnp.sum(((x - 1.0) / SCALE) ** 2)


@pytest.mark.parametrize("algorithm", ["hmc", "nuts"])
def test_a_chain_finds_mean_and_scale(getkey, algorithm):
    target = Target(log_density, np.zeros(3))
    position = chains.start(getkey(), target)
    if algorithm == "hmc":
        x = jax.jit(lambda key: chains.hamiltonian(key, log_density, position, 2000))(getkey())
    else:
        x, num_steps, num_warmup_steps = jax.jit(
            lambda key: chains.adapted(key, log_density, position, 1000, num_warmup=300, max_num_doublings=8)
        )(getkey())
        assert np.all(num_steps > 0)
        assert num_warmup_steps >= 300
    num = float(chains.effective_draws(x[None]))
    assert num > 100
    np.testing.assert_allclose((x.mean(0) - 1) / SCALE, 0.0, atol=5 / np.sqrt(num))
    np.testing.assert_allclose(x.std(0) / SCALE, 1.0, atol=5 / np.sqrt(num))


def test_a_fixed_step_is_kept(getkey):
    # With a step of next to nothing the chain stays where it began.
    position = jnp.ones(3)
    x = chains.hamiltonian(getkey(), log_density, position, 10, step_size=1e-9, num_burn_in=5, num_adapted=0)
    np.testing.assert_allclose(x, 1.0, atol=1e-6)


def test_a_chain_stays_where_it_is_when_its_budget_is_spent(getkey):
    options = {"algorithm": "hmc", "num_integration_steps": 4, "num_warmup": 10, "budget": 10 * 4 + 3 * 4 - 1}
    x, num_steps, num_warmup_steps = chains.adapted(getkey(), log_density, jnp.ones(3), 8, **options)
    assert num_warmup_steps == 10 * 4
    np.testing.assert_array_equal(num_steps, [4, 4, 4, 0, 0, 0, 0, 0])
    assert np.ptp(np.asarray(x[2:]), axis=0).max() == 0.0
