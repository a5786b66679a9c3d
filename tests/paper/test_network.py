"""The GPU's kernels for the neural network, step by step on a CPU, against the plain formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from klover.paper import models
from klover.paper.network import network


def plain(hidden, output, inputs):
    return models.predict({"hidden": hidden, "output": output}, inputs)


def case(key, num_rows, num_inputs, num_units, batch=()):
    shapes = ((num_inputs, num_units), (num_units + 1,), (num_rows, num_inputs))
    return [
        jax.random.normal(each, (*batch, *shape), jnp.float32)
        for each, shape in zip(jax.random.split(key, 3), shapes, strict=True)
    ]


def weighted(function):
    """Return a scalar that has all outputs in it, with different slopes."""
    return lambda *arguments: jnp.sum(jnp.sin(function(*arguments)))


@pytest.mark.parametrize(
    ("num_rows", "num_inputs", "num_units"), [(455, 14, 50), (300, 5, 50), (1, 1, 3), (20, 17, 70)]
)
def test_the_kernels_give_the_formula_and_its_derivative(getkey, num_rows, num_inputs, num_units):
    arguments = case(getkey(), num_rows, num_inputs, num_units)
    np.testing.assert_allclose(network(*arguments), plain(*arguments), rtol=1e-5, atol=1e-5 * num_units**0.5)
    for found, expected in zip(
        jax.grad(weighted(network), argnums=(0, 1))(*arguments),
        jax.grad(weighted(plain), argnums=(0, 1))(*arguments),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * float(jnp.abs(expected).max()))


def test_draws_of_several_splits_are_one_grid(getkey):
    hidden, output, _ = case(getkey(), 0, 4, 50, (2, 3))
    inputs = jax.random.normal(getkey(), (2, 260, 4), jnp.float32)
    both = lambda function: jax.vmap(jax.vmap(jax.value_and_grad(weighted(function)), (0, 0, None)))  # noqa: E731
    found, expected = both(network)(hidden, output, inputs), both(plain)(hidden, output, inputs)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * float(jnp.abs(other).max()))
