import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from sklearn.decomposition import FactorAnalysis

from helpers import correlated_covariance
from klover.families import COVARIANCES, TAILS, Components, Diagonal, Family, Full, LowRank

NAMES = [f"{tail}-{covariance}" for tail in TAILS for covariance in COVARIANCES]
EACH_FAMILY = pytest.mark.parametrize("name", NAMES)
EACH_SPREAD = pytest.mark.parametrize("covariance", COVARIANCES)
NUM, DIM, RANK = 2, 3, 2
DF = np.array([4.5, 9.0])
SIGNIFICANCE = 1e-6
NUM_DRAWS = 10_000


def make_spread(covariance: str, seed: int = 0):
    """Make random spreads with signs as an optimiser may leave them."""
    generator = np.random.default_rng(seed)
    scale = generator.choice([-1.0, 1.0], (NUM, DIM)) * generator.uniform(0.5, 2.0, (NUM, DIM))
    if covariance == "diagonal":
        return Diagonal(scale)
    if covariance == "full":
        return Full(generator.normal(size=(NUM, DIM, DIM)) * 0.6 + scale[..., None] * np.eye(DIM))
    return LowRank(scale, generator.normal(size=(NUM, DIM, RANK)))


def make_components(name: str, seed: int = 0) -> Components:
    tail, covariance = name.split("-", 1)
    location = np.random.default_rng(seed + 100).normal(size=(NUM, DIM)) * 2
    df = DF if tail == "student" else np.full(NUM, np.inf)
    return Components(location, make_spread(covariance, seed), df, tail)


def direct_covariance(spread) -> np.ndarray:
    if isinstance(spread, Diagonal):
        return np.stack([np.diag(scale**2) for scale in spread.scale])
    if isinstance(spread, Full):
        return np.stack([np.tril(factor) @ np.tril(factor).T for factor in spread.factor])
    pairs = zip(spread.scale, spread.factor, strict=True)
    return np.stack([np.diag(scale**2) + factor @ factor.T for scale, factor in pairs])


def oracle(components: Components, k: int):
    matrix = direct_covariance(components.spread)[k]
    if components.tail == "normal":
        return scipy.stats.multivariate_normal(components.location[k], matrix)
    return scipy.stats.multivariate_t(components.location[k], matrix, components.df[k])


def on_device(tree):
    return jax.tree.map(jnp.asarray, tree)


def points(num_draws: int = 20) -> np.ndarray:
    return np.random.default_rng(7).normal(size=(num_draws, DIM)) * np.geomspace(0.1, 30.0, num_draws)[:, None]


@EACH_FAMILY
def test_log_prob_agrees_with_scipy(name):
    components, x = make_components(name), points()
    expected = np.stack([oracle(components, k).logpdf(x) for k in range(NUM)])
    on_numpy = components.log_prob(x)
    assert isinstance(on_numpy, np.ndarray)
    np.testing.assert_allclose(on_numpy, expected, rtol=1e-10)
    np.testing.assert_allclose(on_device(components).log_prob(jnp.asarray(x)), expected, rtol=1e-10)


@EACH_FAMILY
def test_log_prob_in_one_dimension(name):
    tail, covariance = name.split("-", 1)
    family = Family(tail, covariance, df=3.0 if tail == "student" else None)
    components = family.components(np.array([[0.7]]), np.array([[4.0]]))
    law = scipy.stats.norm(0.7, 2.0) if tail == "normal" else scipy.stats.t(3.0, 0.7, 2.0)
    x = np.linspace(-9.0, 9.0, 7)
    np.testing.assert_allclose(components.log_prob(x[:, None])[0], law.logpdf(x), rtol=1e-12)


def test_student_of_many_degrees_of_freedom_is_normal():
    normal, x = make_components("normal-full"), points(10)
    student = Components(normal.location, normal.spread, np.full(NUM, 1e9), "student")
    np.testing.assert_allclose(student.log_prob(x), normal.log_prob(x), rtol=1e-5)


@functools.cache
def sampled(name: str) -> np.ndarray:
    """Draw from both components; the tests of the sampler share the draws and the compilation."""
    index = jnp.repeat(jnp.arange(NUM), NUM_DRAWS)
    x = jax.jit(Components.sample)(on_device(make_components(name)), jax.random.key(1), index)
    return np.asarray(x).reshape(NUM, NUM_DRAWS, DIM)


@EACH_FAMILY
@pytest.mark.parametrize("k", range(NUM))
def test_sampler_follows_the_density(name, k):
    components = make_components(name)
    delta = sampled(name)[k] - components.location[k]
    # The radius has a known law, and after whitening the directions are uniform.
    whitened = delta @ np.linalg.inv(np.linalg.cholesky(direct_covariance(components.spread)[k])).T
    squared = (whitened**2).sum(1)
    law = scipy.stats.chi2(DIM) if components.tail == "normal" else scipy.stats.f(DIM, components.df[k], scale=DIM)
    assert scipy.stats.kstest(squared, law.cdf).pvalue > SIGNIFICANCE
    direction = whitened / np.sqrt(squared)[:, None]
    products = direction[:, :, None] * direction[:, None, :] - np.eye(DIM) / DIM
    for values in (direction, products):
        assert np.all(np.abs(values.mean(0)) < 5 * values.std(0) / np.sqrt(NUM_DRAWS))


@EACH_FAMILY
def test_sampler_has_the_mean_and_the_covariance(name):
    components, k = make_components(name), 1  # nine degrees of freedom: the fourth moments are finite
    delta = sampled(name)[k] - components.location[k]
    products = delta[:, :, None] * delta[:, None, :]
    for values, expected in ((delta, 0.0), (products, components.covariance()[k])):
        assert np.all(np.abs(values.mean(0) - expected) < 5 * values.std(0) / np.sqrt(NUM_DRAWS))


@EACH_FAMILY
@pytest.mark.parametrize("k", range(NUM))
def test_ratio_to_a_narrower_density_averages_to_one(name, k):
    components, x = make_components(name), sampled(name)[k]
    narrower = scipy.stats.multivariate_normal(
        components.location[k] + 0.1, 0.6 * direct_covariance(components.spread)[k]
    )
    ratio = np.exp(narrower.logpdf(x) - components.log_prob(x)[k])
    assert abs(ratio.mean() - 1) < 5 * ratio.std() / np.sqrt(NUM_DRAWS)


def test_student_draws_for_any_degrees_of_freedom():
    df = np.array([0.5, 1.0, 2.0, 5.0, 200.0])
    spread = Diagonal(np.ones((len(df), 1)))
    components = on_device(Components(np.zeros((len(df), 1)), spread, df, "student"))
    x = jax.jit(Components.sample)(components, jax.random.key(2), jnp.repeat(jnp.arange(len(df)), NUM_DRAWS))
    assert np.all(np.isfinite(x))
    for draws, value in zip(np.asarray(x).reshape(len(df), NUM_DRAWS), df, strict=True):
        assert scipy.stats.kstest(draws, scipy.stats.t(value).cdf).pvalue > SIGNIFICANCE


def test_each_draw_comes_from_its_own_component(getkey):
    location = np.array([[-50.0] * DIM, [50.0] * DIM])
    components = on_device(Components(location, make_spread("low-rank"), np.full(NUM, np.inf), "normal"))
    index = np.random.default_rng(0).integers(0, NUM, 30)
    x = components.sample(getkey(), jnp.asarray(index))
    np.testing.assert_array_equal(np.asarray(x[:, 0] > 0), index == 1)


@EACH_SPREAD
def test_draws_move_with_location_and_spread(getkey, covariance):
    key, index = getkey(), jnp.array([0, 1, 1])
    components = on_device(make_components(f"student-{covariance}"))

    def draw(location, inflation):
        spread = jax.tree.map(lambda leaf: leaf * inflation, components.spread)
        return Components(location, spread, components.df, components.tail).sample(key, index)

    one = jnp.ones(())
    shift = jnp.arange(1.0, 1 + NUM * DIM).reshape(NUM, DIM)
    x, moved = jax.jit(lambda: jax.jvp(draw, (components.location, one), (shift, 3 * one)))()
    np.testing.assert_allclose(moved, shift[index] + 3 * (x - components.location[index]), rtol=1e-12)


@EACH_FAMILY
def test_gradients_are_finite_even_at_the_location(name):
    components = on_device(make_components(name))
    x = components.location
    gradient, by_point = jax.jit(jax.grad(lambda c, y: jnp.sum(c.log_prob(y)), (0, 1)))(components, x)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((gradient, by_point)))


@EACH_SPREAD
def test_covariance_and_log_scale(covariance):
    for spread in (make_spread(covariance), on_device(make_spread(covariance))):
        expected = direct_covariance(jax.tree.map(np.asarray, spread))
        np.testing.assert_allclose(spread.covariance(), expected, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(spread.log_scale(), 0.5 * np.linalg.slogdet(expected)[1], rtol=1e-10)


@EACH_FAMILY
def test_canonical_form_is_the_same_density(name):
    for components in (make_components(name), on_device(make_components(name))):
        settled, x = components.canonical(), points()
        np.testing.assert_allclose(settled.log_prob(x), components.log_prob(x), rtol=1e-12)
        np.testing.assert_allclose(settled.covariance(), components.covariance(), rtol=1e-12, atol=1e-14)
        spread = settled.spread
        if isinstance(spread, Full):
            np.testing.assert_allclose(spread.factor, np.linalg.cholesky(spread.covariance()), atol=1e-12)
        else:
            assert np.all(np.asarray(spread.scale) > 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@EACH_FAMILY
def test_precision_is_kept(name, dtype):
    def compute(location, x):
        components = Family.parse(name).components(location, location**2 + 1)
        return *jax.tree.leaves(components), components.log_prob(x), components.covariance()

    def draw(location):
        return Family.parse(name).components(location, location**2 + 1).sample(jax.random.key(0), jnp.zeros(4, int))

    location, x = np.zeros((NUM, DIM), dtype), np.ones((4, DIM), dtype)
    results = [*compute(location, x), *jax.eval_shape(compute, location, x), jax.eval_shape(draw, location)]
    assert {leaf.dtype for leaf in results} == {np.dtype(dtype)}


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
    np.testing.assert_allclose(spread.squared_distance(delta[None])[0], expected, rtol=tolerance)
    on_jax = on_device(spread).squared_distance(jnp.asarray(delta)[None])
    np.testing.assert_allclose(on_jax[0], expected, rtol=tolerance)


def weighted_points(seed: int = 0):
    generator = np.random.default_rng(seed)
    delta = generator.normal(size=(NUM, 40, DIM)) @ np.linalg.cholesky(correlated_covariance(DIM)).T
    weight = generator.dirichlet(np.ones(40), size=NUM) * np.array([[0.7], [0.3]])
    return delta, weight, weight.sum(1) * 0.9


def wanted_covariance(delta, weight, mass, prior, strength) -> np.ndarray:
    scatter = np.stack([np.cov(d.T, aweights=w, ddof=0) for d, w in zip(delta, weight, strict=True)])
    # np.cov centres, and divides by the sum of the weights; undo both.
    mean = np.einsum("ks,ksd->kd", weight, delta) / weight.sum(1)[:, None]
    scatter = (scatter + mean[:, :, None] * mean[:, None, :]) * weight.sum(1)[:, None, None]
    return (scatter + strength * direct_covariance(prior)) / (mass + strength)[:, None, None]


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize("strength", [0.0, 0.3])
def test_maximise_gives_weighted_moments_plus_prior(covariance, strength):
    delta, weight, mass = weighted_points()
    prior = make_spread(covariance, seed=5)
    expected = wanted_covariance(delta, weight, mass, prior, strength)
    if covariance == "diagonal":
        expected = expected * np.eye(DIM)
    for arguments in ((delta, weight, mass, prior), on_device((delta, weight, mass, prior))):
        spread = on_device(make_spread(covariance)).maximise(*arguments, strength)
        np.testing.assert_allclose(spread.covariance(), expected, rtol=1e-12, atol=1e-14)


def test_maximise_with_scales_far_apart():
    delta, weight, mass = weighted_points()
    size = np.array([1e-8, 1.0, 1e8])
    spread = make_spread("full").maximise(delta * size, weight, mass, Full(np.zeros((NUM, DIM, DIM))), 0.0)
    expected = wanted_covariance(delta, weight, mass, make_spread("full"), 0.0)
    np.testing.assert_allclose(spread.covariance() / (size[:, None] * size), expected, rtol=1e-10)


def factor_objective(spread, mass, strength, wanted) -> np.ndarray:
    matrix = direct_covariance(jax.tree.map(np.asarray, spread))
    trace = np.einsum("kij,kji->k", np.linalg.inv(matrix), wanted)
    return -0.5 * (mass + strength) * (np.linalg.slogdet(matrix)[1] + trace)


@pytest.mark.parametrize("strength", [0.0, 0.3])
def test_maximise_raises_the_objective_of_factor_analysis(strength):
    delta, weight, mass = weighted_points()
    prior, spread = make_spread("low-rank", seed=5), make_spread("low-rank")
    wanted = wanted_covariance(delta, weight, mass, prior, strength)
    values = [factor_objective(spread, mass, strength, wanted)]
    for _ in range(20):
        spread = spread.maximise(delta, weight, mass, prior, strength)
        values.append(factor_objective(spread, mass, strength, wanted))
    assert np.all(np.diff(values, axis=0) > -1e-12)
    assert np.all(values[1] > values[0] + 1e-3)
    arguments = on_device((delta, weight, mass, prior))
    once = on_device(make_spread("low-rank")).maximise(*arguments, strength)
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
        spread = spread.maximise(delta, weight, mass, spread, 0.0)
    expected = FactorAnalysis(2, tol=1e-10, max_iter=5000, svd_method="lapack").fit(x)
    np.testing.assert_allclose(spread.covariance()[0], expected.get_covariance(), rtol=1e-3, atol=1e-4)


@EACH_FAMILY
@pytest.mark.parametrize("is_matrix", [True, False])
def test_family_makes_components_of_the_given_covariance(name, is_matrix):
    matrix = np.stack([correlated_covariance(DIM, seed) for seed in range(NUM)])
    variance = np.diagonal(matrix, axis1=1, axis2=2)
    location = np.arange(NUM * DIM, dtype=float).reshape(NUM, DIM)
    for convert in (np.asarray, jnp.asarray):
        components = Family.parse(name).components(convert(location), convert(matrix if is_matrix else variance))
        assert components.family_name == name
        assert components.dim == DIM
        np.testing.assert_array_equal(components.location, location)
        np.testing.assert_array_equal(components.df, np.full(NUM, np.inf if components.tail == "normal" else 5.0))
        made = components.spread.covariance()
        np.testing.assert_allclose(np.diagonal(made, axis1=1, axis2=2), variance, rtol=1e-12)
        if name.endswith("full") and is_matrix:
            np.testing.assert_allclose(made, matrix, rtol=1e-12)
        elif not name.endswith("low-rank"):
            np.testing.assert_allclose(made, variance[..., None] * np.eye(DIM), atol=1e-14)


@pytest.mark.parametrize(("rank", "dim", "expected"), [(2, 4, 2), (5, 3, 3), (1, 1, 1)])
def test_low_rank_columns_are_independent(rank, dim, expected):
    spread = Family("normal", "low-rank", rank=rank).components(np.zeros((1, dim)), np.ones((1, dim))).spread
    assert isinstance(spread, LowRank)
    assert spread.factor.shape == (1, dim, expected)
    assert np.linalg.matrix_rank(spread.factor[0]) == expected
    assert spread.noise_dim == dim + expected


@pytest.mark.parametrize(("df", "factor"), [(4.0, 2.0), (2.5, 5.0), (2.0, np.inf), (1.0, np.inf)])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_student_covariance_is_inflated(covariance, df, factor):
    components = Family("student", covariance, df=df).components(np.zeros((1, 2)), np.array([[1.0, 4.0]]))
    for candidate in (components, on_device(components)):
        matrix = np.asarray(candidate.covariance())[0]
        np.testing.assert_allclose(np.diagonal(matrix), factor * np.array([1.0, 4.0]))
        assert not np.any(np.isnan(matrix))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("student", Family("student", "full")),
        ("normal", Family("normal", "full")),
        ("normal-diagonal", Family("normal", "diagonal")),
        ("student-low-rank", Family("student", "low-rank")),
        (Family("student", "low-rank", 3.0, 7), Family("student", "low-rank", 3.0, 7)),
    ],
)
def test_parse(text, expected):
    assert Family.parse(text) == expected


@pytest.mark.parametrize("text", ["cauchy", "student-", "normal-lowrank", "", "full"])
def test_parse_names_the_families(text):
    with pytest.raises(ValueError, match=f"family must be one of 'normal-full', .*'student', but '{text}' came"):
        Family.parse(text)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"tail": "laplace"}, "tail must be one of 'normal', 'student'"),
        ({"covariance": "banded"}, "covariance must be one of 'full', 'diagonal', 'low-rank'"),
        ({"rank": 0}, "rank must be a whole number of at least 1"),
        ({"df": 0.0}, "df must be one finite number above 0.*fitted.*tail='normal'"),
        ({"df": np.inf}, "df must be one finite number above 0"),
        ({"df": np.nan}, "df must be one finite number above 0"),
    ],
)
def test_family_that_is_refused(choices, message):
    with pytest.raises(ValueError, match=message):
        Family(**choices)


@pytest.mark.parametrize(
    ("family", "expected"),
    [(Family(), True), (Family(df=4.0), False), (Family("normal"), False), (Family("normal", df=4.0), False)],
)
def test_df_is_fitted_only_where_it_is_free(family, expected):
    assert family.is_df_fitted is expected
