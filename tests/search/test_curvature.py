import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from helpers import correlated_covariance
from klover import Target
from klover.search.curvature import (
    SMALLEST_EIGENVALUE,
    covariance,
    local_covariance,
    log_determinant,
    log_volume,
    precision,
    scaled_eigen,
)
from klover.targets.evaluator import Evaluator
from klover.tuning import Search

SEEDS = st.integers(0, 2**32 - 1)
few_examples = settings(max_examples=20)


def quadratic_target(scale, mean, seed: int = 0):
    correlation = correlated_covariance(len(scale), seed) if len(scale) > 1 else np.ones((1, 1))
    matrix = np.linalg.inv(correlation) / np.outer(scale, scale)
    return Target(lambda x: -0.5 * (x - mean) @ matrix @ (x - mean), jnp.zeros(len(scale))), matrix


@pytest.mark.parametrize("scale", [[1e-6], [1e6], [1e-6, 1.0, 1e6], [1e6, 1e5, 1e-5, 1e-6, 1.0]])
@pytest.mark.parametrize("shift", [0.0, 1.0, 100.0])
def test_precision_of_a_quadratic_is_exact(scale, shift):
    scale = np.asarray(scale)
    mean = shift * np.linspace(-1.0, 2.0, len(scale))
    target, matrix = quadratic_target(scale, mean)
    hessian = precision(Evaluator(target).values_and_gradients, mean + scale)
    np.testing.assert_array_equal(hessian, hessian.T)
    # Points a thousandth of the scale apart are rounded to the last bit of the point itself.
    tolerance = 100 * np.finfo(float).eps * np.max(np.abs(mean + scale) / (1e-3 * scale))
    np.testing.assert_allclose((hessian - matrix) * np.outer(scale, scale), 0.0, atol=tolerance)


@given(seed=SEEDS)
@few_examples
def test_precision_is_the_negative_hessian_of_jax(seed):
    x = np.random.default_rng(seed).normal(size=3)
    expected = -HESSIAN(x)
    # Central differences with a step h are wrong by a sixth of h squared times the fourth derivatives.
    np.testing.assert_allclose(precision(SMOOTH.values_and_gradients, x), expected, atol=1e-5 * np.abs(expected).max())


def smooth(x):
    return (
        -jnp.sum(jnp.cosh(x[:2])) - jnp.exp(0.3 * x[0] * x[2]) - x[2] ** 4 / 4 - 0.2 * jnp.sin(x[1] * x[2]) - x[2] ** 2
    )


SMOOTH = Evaluator(Target(smooth, jnp.zeros(3)))
HESSIAN = jax.jit(jax.hessian(smooth))


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e3, 1e6])
def test_precision_of_heavy_tails_of_any_scale(scale):
    # Far out the curvature is another one, so that the first guess of the steps will not do.
    target = Target(lambda x: -3.0 * jnp.log1p(jnp.sum((x / scale) ** 2) / 5), jnp.zeros(2))
    hessian = precision(Evaluator(target).values_and_gradients, np.zeros(2)) * scale**2
    np.testing.assert_allclose(hessian, 1.2 * np.eye(2), rtol=1e-2, atol=1e-2)


@given(seed=SEEDS)
@few_examples
def test_covariance_is_the_inverse_below_the_ceiling(seed):
    rng = np.random.default_rng(seed)
    matrix = stats.wishart.rvs(8, np.eye(3), random_state=rng) / 8
    scale = np.array([1e-5, 1.0, 1e5])
    made = covariance(np.linalg.inv(matrix) / np.outer(scale, scale), 1e4 * scale**2)
    np.testing.assert_allclose(made / np.outer(scale, scale), matrix, rtol=1e-6, atol=1e-6)


@given(seed=SEEDS, is_definite=st.booleans())
@few_examples
def test_covariance_is_definite_and_never_wider_than_the_ceiling(seed, is_definite):
    rng = np.random.default_rng(seed)
    values = 10.0 ** rng.uniform(-6, 6, 4) * (1.0 if is_definite else rng.choice([-1.0, 1.0], 4))
    basis, ceiling = np.linalg.qr(rng.normal(size=(4, 4)))[0], 10.0 ** rng.uniform(-4, 4, 4)
    made = covariance(basis * values @ basis.T, ceiling)
    np.testing.assert_allclose(made, made.T, rtol=1e-12)
    # In units of the ceiling all eigenvalues lie between zero and one.
    relative = np.linalg.eigvalsh(made / np.sqrt(np.outer(ceiling, ceiling)))
    assert np.all((relative > 0) & (relative < 1 + 1e-9))


def test_covariance_of_axes_is_clipped_one_by_one():
    hessian, ceiling = np.diag([4.0, 1e-8, -0.25, 1e4]), np.array([9.0, 9.0, 9.0, 1e-6])
    np.testing.assert_allclose(covariance(hessian, ceiling), np.diag([0.25, 9.0, 4.0, 1e-6]), rtol=1e-10)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_covariance_of_a_saddle_has_eigenvalues_in_absolute_value(sign):
    # Turned by half a right angle both coordinates have the same curvature, so that their scales are equal.
    turn = np.array([[1.0, -1.0], [1.0, 1.0]]) / np.sqrt(2)
    hessian = turn @ np.diag([sign * 4.0, -sign * 0.5]) @ turn.T
    np.testing.assert_allclose(covariance(hessian, np.full(2, 1e3)), turn @ np.diag([0.25, 2.0]) @ turn.T, rtol=1e-9)


@pytest.mark.parametrize("ceiling", [100.0, 1e-3])
def test_a_flat_coordinate_is_as_wide_as_the_ceiling(ceiling):
    made = covariance(np.diag([0.0, 1e6]), np.full(2, ceiling))
    np.testing.assert_allclose(made, np.diag([ceiling, 1e-6]), rtol=1e-9)


@given(seed=SEEDS)
@few_examples
def test_covariance_of_a_saddle_keeps_the_volume(seed):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(3, 3))
    hessian = root * rng.choice([-1.0, 1.0], 3) @ root.T
    made = covariance(hessian, np.full(3, 1e8))
    assert np.linalg.slogdet(made)[1] == pytest.approx(-np.linalg.slogdet(hessian)[1], abs=1e-6)


def test_a_saddle_without_curvature_along_an_axis_keeps_the_volume():
    made = covariance(np.array([[0.0, 1.0], [1.0, 2.0]]), np.full(2, 1e3))
    assert np.linalg.det(made) == pytest.approx(1.0, rel=1e-6)


def test_local_covariance_is_that_of_the_curvature():
    scale = np.array([1e-2, 1.0, 30.0])
    target, matrix = quadratic_target(scale, np.ones(3))
    evaluator, ceiling = Evaluator(target), np.full(3, 1e8)
    full = local_covariance(evaluator.values_and_gradients, np.ones(3), ceiling, Search())
    np.testing.assert_allclose(full / np.outer(scale, scale), np.linalg.inv(matrix) / np.outer(scale, scale), rtol=1e-6)
    variances = local_covariance(
        evaluator.values_and_gradients, np.ones(3), np.array([1e8, 0.01, 1e8]), Search(full_dim=2)
    )
    expected = 1 / np.diagonal(matrix)
    np.testing.assert_allclose(variances, [expected[0], 0.01, expected[2]], rtol=1e-6)
    assert log_determinant(variances) == pytest.approx(np.log(variances).sum())
    assert log_determinant(full) == pytest.approx(-np.linalg.slogdet(matrix)[1], rel=1e-9)


@pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
@given(seed=SEEDS)
@few_examples
def test_scaled_eigenvalues_make_up_the_matrix(xp, seed):
    rng = np.random.default_rng(seed)
    units = 10.0 ** rng.uniform(-6, 6, 4)
    matrix = np.linalg.inv(correlated_covariance(4, seed % 100)) * np.outer(units, units)
    scale, values, vectors = (np.asarray(leaf) for leaf in scaled_eigen(xp.asarray(matrix), 0.0))
    np.testing.assert_allclose(scale, np.sqrt(np.diagonal(matrix)), rtol=1e-12)
    made = (vectors * values) @ vectors.T
    np.testing.assert_allclose(made, matrix / np.outer(scale, scale), atol=1e-12)
    np.testing.assert_allclose(np.diagonal(made), 1.0, atol=1e-12)


@pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
def test_scaled_eigenvalues_are_positive_and_finite_whatever_the_matrix(xp):
    broken = np.array([[np.nan, np.inf, 0.0], [np.inf, -4.0, 0.0], [0.0, 0.0, 0.0]])
    scale, values, vectors = (np.asarray(leaf) for leaf in scaled_eigen(xp.asarray(broken), 1e-4))
    np.testing.assert_allclose(scale, [1e-2, 2.0, 1e-2])
    np.testing.assert_allclose(np.sort(values), [SMALLEST_EIGENVALUE, SMALLEST_EIGENVALUE, 1.0])
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(3), atol=1e-12)


@given(seed=SEEDS, is_definite=st.booleans(), has_ceiling=st.booleans())
@few_examples
def test_covariance_of_numpy_and_jax_agree(seed, is_definite, has_ceiling):
    rng = np.random.default_rng(seed)
    sign = 1.0 if is_definite else rng.choice([-1.0, 1.0], 3)
    basis = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    hessian = basis * (10.0 ** rng.uniform(-2, 2, 3) * sign) @ basis.T
    ceiling = np.full(3, 10.0) if has_ceiling else None
    expected = covariance(hessian, ceiling)
    found = covariance(jnp.asarray(hessian), None if ceiling is None else jnp.asarray(ceiling))
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9 * np.abs(expected).max())


@given(seed=SEEDS)
@few_examples
def test_covariance_without_a_ceiling_is_the_inverse_of_a_precision_matrix(seed):
    rng = np.random.default_rng(seed)
    matrix, scale = stats.wishart.rvs(8, np.eye(3), random_state=rng) / 8, np.array([1e-5, 1.0, 1e5])
    made = covariance(np.linalg.inv(matrix) / np.outer(scale, scale))
    np.testing.assert_allclose(made / np.outer(scale, scale), matrix, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("hessian", [np.zeros((2, 2)), np.diag([-1.0, 0.0]), np.diag([np.nan, 1.0])])
def test_covariance_without_a_ceiling_is_finite_everywhere(hessian):
    made = covariance(hessian)
    assert np.all(np.isfinite(made))
    assert np.all(np.linalg.eigvalsh(made) > 0)


@pytest.mark.parametrize("full_dim", [128, 2], ids=["full", "diagonal"])
def test_log_volume_is_that_of_laplace(full_dim):
    scale = np.array([1e-2, 1.0, 30.0])
    target, matrix = quadratic_target(scale, np.ones(3))
    used = matrix if full_dim > 3 else np.diag(np.diagonal(matrix))
    laplace = 0.5 * np.linalg.slogdet(2 * np.pi * np.linalg.inv(used))[1]
    # A ceiling far above all widths changes nothing; a near one bounds the density like a Normal of its variance.
    for ceiling, expected in (
        (1e12, laplace),
        (1e3, -0.5 * np.linalg.slogdet((used + 1e-3 * np.eye(3)) / (2 * np.pi))[1]),
    ):
        found = log_volume(
            Evaluator(target).values_and_gradients, np.ones(3), np.full(3, ceiling), Search(full_dim=full_dim)
        )
        assert found == pytest.approx(expected, abs=1e-6)


def test_log_volume_of_a_spike_has_no_floor():
    spike = Target(lambda x: -0.5 * jnp.sum((x / np.array([1e-7, 1.0])) ** 2), jnp.zeros(2))
    found = log_volume(Evaluator(spike).values_and_gradients, np.zeros(2), np.full(2, 25.0), Search())
    # A coordinate of unit width, and a ceiling of 25, have the variance 25/26 together.
    assert found == pytest.approx(np.log(2 * np.pi) + np.log(1e-7) + 0.5 * np.log(25 / 26), abs=1e-3)


def test_log_volume_of_a_flat_direction_is_that_of_the_ceiling():
    ridge = Target(lambda x: -0.5 * x[0] ** 2, jnp.zeros(2))
    found = log_volume(Evaluator(ridge).values_and_gradients, np.zeros(2), np.full(2, 25.0), Search())
    assert found == pytest.approx(np.log(2 * np.pi) + np.log(5.0) + 0.5 * np.log(25 / 26), abs=1e-6)
