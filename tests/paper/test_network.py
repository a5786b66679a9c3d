"""The GPU's kernels for the neural network, step by step on a CPU, against the plain formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from klover.paper import models
from klover.paper.network import squared_error


def case(key, num_rows, num_inputs, num_units, batch=()):
    shapes = (((num_inputs + 1) * num_units + 3,), (num_rows, num_inputs), (num_rows,))
    return [
        jax.random.normal(each, (*batch, *shape), jnp.float32)
        for each, shape in zip(jax.random.split(key, 3), shapes, strict=True)
    ]


def slopes(function):
    return jax.value_and_grad(lambda *arguments: jnp.sin(1e-3 * function(*arguments)))


def assert_close(found, expected):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * float(jnp.abs(other).max()))


@pytest.mark.parametrize(
    ("num_rows", "num_inputs", "num_units"), [(455, 14, 50), (300, 5, 50), (1, 1, 3), (20, 17, 70)]
)
def test_the_kernels_give_the_formula_and_its_derivative(getkey, num_rows, num_inputs, num_units):
    arguments = case(getkey(), num_rows, num_inputs, num_units)
    assert_close(slopes(squared_error)(*arguments), slopes(models.squared_error)(*arguments))


def test_draws_of_several_splits_are_one_grid(getkey):
    weights, _, _ = case(getkey(), 0, 4, 50, (2, 3))
    _, inputs, outputs = case(getkey(), 260, 4, 50, (2,))
    both = lambda function: jax.vmap(jax.vmap(slopes(function), (0, None, None)))  # noqa: E731
    arguments = weights, inputs, outputs
    assert_close(both(squared_error)(*arguments), both(models.squared_error)(*arguments))
