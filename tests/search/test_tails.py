"""Probes along the axes: what is proper passes, what is not is named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.search.tails import endless_coordinate
from klover.targets.evaluator import Evaluator


def probe(log_density, dim=2, scale=1.0):
    return endless_coordinate(
        Evaluator(klover.Target(log_density, jnp.zeros(dim))), np.zeros(dim), np.full(dim, float(scale))
    )


PROPER = {
    "normal": lambda x: -0.5 * jnp.sum(x**2),
    "cauchy": lambda x: -jnp.sum(jnp.log1p(x**2)),
    "heavy": lambda x: -0.55 * jnp.sum(jnp.log1p(x**2)),
    "laplace": lambda x: -jnp.sum(jnp.abs(x)),
    "log gamma": lambda x: jnp.sum(x - jnp.exp(x)),
    "wide box": lambda x: jnp.where(jnp.all(jnp.abs(x) < 1e7), 0.0, -jnp.inf),
    "floor": lambda x: jnp.logaddexp(-0.5 * jnp.sum(x**2), -200.0),
}
IMPROPER = {
    "flat": (lambda x: -0.5 * x[0] ** 2, 1),
    "plateau to the left": (lambda x: jnp.logaddexp(-0.5 * jnp.sum(x**2), jnp.where(x[0] < 0, -12.0, -jnp.inf)), 0),
    "one over r": (lambda x: -0.5 * x[0] ** 2 - 0.5 * jnp.log1p(x[1] ** 2), 1),
    "log scale without data": (lambda x: -0.5 * (x[0] ** 2) / (1 + jnp.exp(2 * x[1])) - jax.nn.softplus(2 * x[1]), 1),
}


@pytest.mark.parametrize("name", PROPER)
def test_proper_densities_pass(name):
    assert probe(PROPER[name]) is None
    assert probe(PROPER[name], scale=0.1) is None


@pytest.mark.parametrize("name", IMPROPER)
def test_improper_densities_are_named_by_their_coordinate(name):
    log_density, coordinate = IMPROPER[name]
    assert probe(log_density) == coordinate


def test_it_costs_two_evaluations_a_coordinate_where_the_target_falls_off():
    evaluator = Evaluator(klover.Target(PROPER["normal"], jnp.zeros(3)))
    endless_coordinate(evaluator, np.zeros(3), np.ones(3))
    assert evaluator.num_evaluations == 1 + 2 * 3
