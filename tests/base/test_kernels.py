"""The GPU's kernels, step by step on a CPU, against the plain formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from klover.base import kernels, linalg


def case(key, num_draws, dim, num_components):
    """Return points, locations and upper-triangular matrices in single precision."""
    shapes = ((num_draws, dim), (num_components, dim), (num_components, dim, dim))
    keys = jax.random.split(key, 3)
    x, location, right = (jax.random.normal(*each, jnp.float32) for each in zip(keys, shapes, strict=True))
    return x, location, jnp.triu(right)


def plain(x, location, right):
    return linalg.whitened_squares(x, location, jnp.swapaxes(right, -1, -2))


@pytest.mark.parametrize(
    ("num_draws", "dim", "num_components"), [(200, 100, 3), (64, 2, 1), (65, 17, 2), (70, 200, 2), (1, 300, 1)]
)
def test_distances_have_single_precision(getkey, num_draws, dim, num_components):
    arguments = case(getkey(), num_draws, dim, num_components)
    exact = plain(*(np.asarray(each, float) for each in arguments))
    np.testing.assert_allclose(kernels.whitened_squares(*arguments), exact, rtol=2e-6)


def test_far_components_lose_nothing(getkey):
    x, location, right = case(getkey(), 3, 2, 2)
    near = kernels.whitened_squares(jnp.round(64 * x) / 64, jnp.round(64 * location) / 64, right)
    far = kernels.whitened_squares(jnp.round(64 * x) / 64 + 2**16, jnp.round(64 * location) / 64 + 2**16, right)
    np.testing.assert_array_equal(far, near)


def test_distances_of_several_sets_of_points_are_one_grid(getkey):
    x, location, right = case(getkey(), 130, 5, 3)
    sets = x.reshape(2, 65, 5)
    found = jax.vmap(kernels.whitened_squares, (0, None, None))(sets, location, right)
    np.testing.assert_allclose(found, jax.vmap(plain, (0, None, None))(sets, location, right), rtol=2e-6)


def test_the_kernel_is_asked_for_many_points_and_differentiated_as_the_formula(monkeypatch, getkey):
    arguments = case(getkey(), 50, 4, 2)
    expected = jax.grad(lambda *each: jnp.sum(jnp.log1p(plain(*each))), argnums=(0, 1, 2))(*arguments)
    asked = []
    monkeypatch.setattr(linalg, "MOST_WHITENED", 10)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(
        kernels, "whitened_squares", lambda *each: asked.append(each) or linalg._whitened_squares(*each)
    )
    found = jax.jit(jax.grad(lambda *each: jnp.sum(jnp.log1p(plain(*each))), argnums=(0, 1, 2)))(*arguments)
    assert asked
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
