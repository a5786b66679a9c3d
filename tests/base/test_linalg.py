import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import correlated_covariance
from klover.base import linalg

BOTH = pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])


@BOTH
def test_inverse_triangular_undoes_the_factor(xp):
    generator = np.random.default_rng(0)
    factor = np.tril(generator.normal(size=(4, 5, 5))) + 3 * np.eye(5)
    inverse = linalg.inverse_triangular(xp.asarray(factor))
    np.testing.assert_allclose(inverse @ factor, np.broadcast_to(np.eye(5), factor.shape), atol=1e-12)


@BOTH
def test_inverse_triangular_with_rows_of_any_size(xp):
    generator = np.random.default_rng(1)
    lower = np.tril(generator.uniform(-0.5, 0.5, size=(5, 5)), -1) + np.eye(5)
    size = np.array([1e8, 1e-8, 1.0, 1e-12, 1e12])
    inverse = linalg.inverse_triangular(xp.asarray(size[:, None] * lower))
    np.testing.assert_allclose(inverse * size, np.linalg.inv(lower), atol=1e-13)


def test_the_inverse_of_triangular_matrices_is_that_of_numpy():
    factor = np.tril(np.random.default_rng(0).normal(size=(3, 5, 5))) + 3 * np.eye(5)
    np.testing.assert_allclose(linalg.inverse_triangular(jnp.asarray(factor)), np.linalg.inv(factor), rtol=1e-10)


def test_the_derivative_of_the_inverse_is_that_of_the_solver():
    factor = jnp.asarray(np.tril(np.random.default_rng(0).normal(size=(4, 4))) + 3 * np.eye(4))
    ours = jax.grad(lambda value: jnp.sum(linalg.inverse_triangular(jnp.tril(value)) ** 3))(factor)
    theirs = jax.grad(lambda value: jnp.sum(jnp.linalg.inv(jnp.tril(value)) ** 3))(factor)
    np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-12)


def test_no_batch_of_systems_waits_for_the_pool_that_it_runs_in():
    def both(matrix, right):
        return linalg.inverse_triangular(matrix), linalg.solve_positive(matrix @ jnp.swapaxes(matrix, 1, 2), right)

    program = jax.jit(both).lower(jnp.zeros((3, 4, 4)), jnp.zeros((3, 4, 1))).compile()
    assert "trsm" not in program.as_text()


def test_positive_systems_are_solved_as_by_numpy():
    matrix = np.random.default_rng(0).normal(size=(3, 4, 4))
    matrix = matrix @ matrix.swapaxes(1, 2) + np.eye(4)
    right = np.ones((3, 4, 2))
    found = linalg.solve_positive(jnp.asarray(matrix), jnp.asarray(right))
    np.testing.assert_allclose(found, linalg.solve_positive(matrix, right), rtol=1e-10)


def test_distances_in_single_precision_do_not_suffer_from_far_components():
    location = np.array([[0.0, 0.0], [1e5, -1e5]], "float32")
    x = location[1] + np.array([[0.5, 1.0]], "float32")
    inverse = np.broadcast_to(np.eye(2, dtype="float32"), (2, 2, 2))
    squares = linalg.whitened_squares(*map(jnp.asarray, (x, location, inverse)))
    np.testing.assert_allclose(squares[1], 1.25, rtol=1e-6)


def test_distances_of_many_points_are_those_of_few(monkeypatch, getkey):
    x, location = jax.random.normal(getkey(), (23, 3)), jax.random.normal(getkey(), (2, 3))
    inverse = jnp.tril(jax.random.normal(getkey(), (2, 3, 3)))

    def squares(x):
        return linalg.whitened_squares(x, location, inverse)

    at_once, slopes = squares(x), jax.grad(lambda x: jnp.sum(squares(x) ** 2))(x)
    monkeypatch.setattr(linalg, "MOST_WHITENED", 5 * location.size)
    np.testing.assert_allclose(squares(x), at_once, rtol=1e-12)
    np.testing.assert_allclose(jax.grad(lambda x: jnp.sum(squares(x) ** 2))(x), slopes, rtol=1e-12)


def test_cholesky_of_scales_far_apart():
    size = np.array([1e-8, 1.0, 1e8])
    matrix = correlated_covariance(3)
    for convert in (np.asarray, jnp.asarray):
        factor = linalg.cholesky(convert(matrix * size[:, None] * size))
        np.testing.assert_allclose(factor / size[:, None], np.linalg.cholesky(matrix), rtol=1e-12, atol=1e-14)
