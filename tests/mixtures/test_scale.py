import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import correlated_covariance, make_spread, spread_covariance
from klover.mixtures.components import COVARIANCES, Family
from klover.mixtures.scale import Full, LowRank

EACH_SPREAD = pytest.mark.parametrize("covariance", COVARIANCES)
NUM, DIM = 2, 3


def on_device(tree):
    return jax.tree.map(jnp.asarray, tree)


@EACH_SPREAD
def test_covariance_and_log_scale(covariance):
    for spread in (make_spread(covariance), on_device(make_spread(covariance))):
        expected = spread_covariance(jax.tree.map(np.asarray, spread))
        np.testing.assert_allclose(spread.covariance(), expected, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(spread.variance(), np.diagonal(expected, axis1=-2, axis2=-1), rtol=1e-12)
        np.testing.assert_allclose(spread.log_scale(), 0.5 * np.linalg.slogdet(expected)[1], rtol=1e-10)


@EACH_SPREAD
def test_squared_distance_is_the_quadratic_form(covariance):
    generator = np.random.default_rng(0)
    spread, x, location = make_spread(covariance), generator.normal(size=(10, DIM)), generator.normal(size=(NUM, DIM))
    delta = x - location[:, None]
    expected = np.einsum("ksi,kij,ksj->ks", delta, np.linalg.inv(spread_covariance(spread)), delta)
    np.testing.assert_allclose(spread.squared_distance(x, location), expected, rtol=1e-10)
    on_jax = on_device(spread).squared_distance(jnp.asarray(x), jnp.asarray(location))
    np.testing.assert_allclose(on_jax, expected, rtol=1e-10)


@EACH_SPREAD
def test_transform_is_a_square_root(covariance):
    stacked = make_spread(covariance)
    for k in range(NUM):
        spread = jax.tree.map(lambda leaf, k=k: leaf[k], stacked)
        root = spread.transform(np.eye(spread.noise_dim))
        np.testing.assert_allclose(root.T @ root, spread_covariance(stacked)[k], rtol=1e-12, atol=1e-14)


@EACH_SPREAD
def test_canonical_form_settles_the_signs(covariance):
    spread = make_spread(covariance)
    settled = spread.canonical()
    np.testing.assert_allclose(spread_covariance(settled), spread_covariance(spread), rtol=1e-12, atol=1e-14)
    if isinstance(settled, Full):
        np.testing.assert_allclose(settled.factor, np.linalg.cholesky(spread_covariance(spread)), atol=1e-12)
    else:
        assert np.all(settled.scale > 0)


@EACH_SPREAD
def test_inflated_multiplies_every_standard_deviation(covariance):
    spread = make_spread(covariance)
    for wide in (spread.inflated(3.0), on_device(spread).inflated(3.0)):
        np.testing.assert_allclose(wide.covariance(), 9.0 * spread_covariance(spread), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(wide.log_scale(), spread.log_scale() + DIM * np.log(3.0), rtol=1e-12)


@EACH_SPREAD
@pytest.mark.parametrize("slot", range(NUM))
def test_solve_undoes_the_covariance(covariance, slot):
    spread, delta = make_spread(covariance), np.random.default_rng(0).normal(size=(10, DIM))
    expected = np.linalg.solve(spread_covariance(spread)[slot], delta.T).T
    np.testing.assert_allclose(spread.solve(slot, delta), expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(on_device(spread).solve(slot, jnp.asarray(delta)), expected, rtol=1e-10, atol=1e-12)


SLOTS = np.array([1, 0, 0, 1, 1])


def gathered_roots(spread) -> np.ndarray:
    """Return the square root of each draw's spread, column by column."""
    own, identity = spread.gather(SLOTS), np.eye(DIM)
    columns = [own.times(np.tile(identity[column], (len(SLOTS), 1))) for column in range(DIM)]
    return np.stack(columns, axis=-1)


@EACH_SPREAD
def test_each_draw_is_multiplied_by_a_root_of_its_own_covariance(covariance):
    spread = make_spread(covariance)
    matrix = spread_covariance(spread)[SLOTS]
    if covariance == "low-rank":
        matrix = matrix * np.eye(DIM)
    root = gathered_roots(spread)
    np.testing.assert_allclose(root @ np.swapaxes(root, 1, 2), matrix, rtol=1e-12, atol=1e-14)


@EACH_SPREAD
def test_transposed_product_is_the_adjoint(covariance):
    spread, generator = make_spread(covariance), np.random.default_rng(1)
    noise, slope = generator.normal(size=(2, len(SLOTS), DIM))
    for candidate in (spread, on_device(spread)):
        own = candidate.gather(SLOTS)
        forward, backward = (own.times(noise) * slope).sum(1), (noise * own.times_transposed(slope)).sum(1)
        np.testing.assert_allclose(forward, backward, rtol=1e-12)


@EACH_SPREAD
def test_scatter_is_additive_over_draws(covariance):
    spread, (delta, weight, _) = make_spread(covariance), weighted_points()
    whole = spread.scatter(delta, weight)
    parts = [spread.scatter(delta[:, part], weight[:, part]) for part in (slice(0, 13), slice(13, None))]
    for total, one, other in zip(whole, *parts, strict=True):
        np.testing.assert_allclose(one + other, total, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-9), (np.float32, 1e-2)])
def test_low_rank_distance_with_a_narrow_diagonal(dtype, tolerance):
    # With orthonormal columns the distance along and across them is known without any cancellation.
    generator = np.random.default_rng(3)
    basis = np.linalg.qr(generator.normal(size=(6, 2)))[0].astype(dtype)
    width, narrow = np.array([1.0, 0.3]), 1e-4
    along, across = generator.normal(size=(50, 2)), generator.normal(size=(50, 6))
    delta = ((along * width) @ basis.T + narrow * across).astype(dtype)
    spread = LowRank(np.full((1, 6), narrow, dtype), (basis * width)[None].astype(dtype))
    projection = delta.astype(float) @ basis.astype(float)
    outside = (delta - projection @ basis.astype(float).T) / narrow
    expected = (projection**2 / (narrow**2 + width**2)).sum(1) + (outside**2).sum(1)
    origin = np.zeros((1, 6), dtype)
    np.testing.assert_allclose(spread.squared_distance(delta, origin)[0], expected, rtol=tolerance)
    on_jax = on_device(spread).squared_distance(jnp.asarray(delta), jnp.asarray(origin))
    np.testing.assert_allclose(on_jax[0], expected, rtol=tolerance)


def weighted_points(seed: int = 0):
    generator = np.random.default_rng(seed)
    delta = generator.normal(size=(NUM, 40, DIM)) @ np.linalg.cholesky(correlated_covariance(DIM)).T
    weight = generator.dirichlet(np.ones(40), size=NUM) * np.array([[0.7], [0.3]])
    return delta, weight, weight.sum(1) * 0.9


def maximise(spread, delta, weight, mass, prior, strength):
    return spread.maximise(spread.scatter(delta, weight), mass, prior, strength)


def wanted_covariance(delta, weight, mass, prior, strength) -> np.ndarray:
    scatter = np.stack([np.cov(d.T, aweights=w, ddof=0) for d, w in zip(delta, weight, strict=True)])
    # np.cov centres, and divides by the sum of the weights; undo both.
    mean = np.einsum("ks,ksd->kd", weight, delta) / weight.sum(1)[:, None]
    scatter = (scatter + mean[:, :, None] * mean[:, None, :]) * weight.sum(1)[:, None, None]
    return (scatter + strength * spread_covariance(prior)) / (mass + strength)[:, None, None]


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize("strength", [0.0, 0.3])
def test_maximise_gives_weighted_moments_plus_prior(covariance, strength):
    delta, weight, mass = weighted_points()
    prior = make_spread(covariance, seed=5)
    expected = wanted_covariance(delta, weight, mass, prior, strength)
    if covariance == "diagonal":
        expected = expected * np.eye(DIM)
    spread = make_spread(covariance)
    for start, *arguments in ((spread, delta, weight, mass, prior), on_device((spread, delta, weight, mass, prior))):
        spread = maximise(start, *arguments, strength)
        np.testing.assert_allclose(spread.covariance(), expected, rtol=1e-12, atol=1e-14)


def test_maximise_with_scales_far_apart():
    delta, weight, mass = weighted_points()
    size = np.array([1e-8, 1.0, 1e8])
    spread = maximise(make_spread("full"), delta * size, weight, mass, Full(np.zeros((NUM, DIM, DIM))), 0.0)
    expected = wanted_covariance(delta, weight, mass, make_spread("full"), 0.0)
    np.testing.assert_allclose(spread.covariance() / (size[:, None] * size), expected, rtol=1e-10)


def factor_objective(spread, mass, strength, wanted) -> np.ndarray:
    matrix = spread_covariance(jax.tree.map(np.asarray, spread))
    trace = np.einsum("kij,kji->k", np.linalg.inv(matrix), wanted)
    return -0.5 * (mass + strength) * (np.linalg.slogdet(matrix)[1] + trace)


@pytest.mark.parametrize("strength", [0.0, 0.3])
def test_maximise_raises_the_objective_of_factor_analysis(strength):
    delta, weight, mass = weighted_points()
    prior, spread = make_spread("low-rank", seed=5), make_spread("low-rank")
    wanted = wanted_covariance(delta, weight, mass, prior, strength)
    values = [factor_objective(spread, mass, strength, wanted)]
    for _ in range(20):
        spread = maximise(spread, delta, weight, mass, prior, strength)
        values.append(factor_objective(spread, mass, strength, wanted))
    assert np.all(np.diff(values, axis=0) > -1e-12)
    assert np.all(values[1] > values[0] + 1e-3)
    once = maximise(*on_device((make_spread("low-rank"), delta, weight, mass, prior)), strength)
    np.testing.assert_allclose(factor_objective(once, mass, strength, wanted), values[1], rtol=1e-10)


def test_maximise_converges_to_factor_analysis():
    generator = np.random.default_rng(2)
    dim, num_draws = 6, 200
    x = generator.normal(size=(num_draws, 2)) @ generator.normal(size=(2, dim)) + 0.5 * generator.normal(
        size=(num_draws, dim)
    )
    delta = (x - x.mean(0))[None]
    weight, mass = np.full((1, num_draws), 1 / num_draws), np.ones(1)
    spread = Family("normal", "low-rank", rank=2).components(np.zeros((1, dim)), x.var(0)[None]).spread
    for _ in range(1000):
        spread = maximise(spread, delta, weight, mass, spread, 0.0)
    expected = (
        pytest.importorskip("sklearn.decomposition")
        .FactorAnalysis(2, tol=1e-10, max_iter=5000, svd_method="lapack")
        .fit(x)
    )
    np.testing.assert_allclose(spread.covariance()[0], expected.get_covariance(), rtol=1e-3, atol=1e-4)
