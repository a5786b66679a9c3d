import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from helpers import correlated_covariance, make_spread, spread_covariance
from klover.mixtures.components import COVARIANCES, TAILS, Components, Diagonal, Family, Full, LowRank

NAMES = [f"{tail}-{covariance}" for tail in TAILS for covariance in COVARIANCES]
EACH_FAMILY = pytest.mark.parametrize("name", NAMES)
EACH_SPREAD = pytest.mark.parametrize("covariance", COVARIANCES)
NUM, DIM = 2, 3
DF = np.array([4.5, 9.0])
SIGNIFICANCE = 1e-6
NUM_DRAWS = 10_000


def make_components(name: str, seed: int = 0) -> Components:
    tail, covariance = name.split("-", 1)
    location = np.random.default_rng(seed + 100).normal(size=(NUM, DIM)) * 2
    df = DF if tail == "student" else np.full(NUM, np.inf)
    return Components(location, make_spread(covariance, seed=seed), df, tail)


def oracle(components: Components, k: int):
    matrix = spread_covariance(components.spread)[k]
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


def assert_follows_the_density(components, k: int, x: np.ndarray) -> None:
    """The radius has a known law, and after whitening the directions are uniform."""
    delta = x - components.location[k]
    whitened = delta @ np.linalg.inv(np.linalg.cholesky(spread_covariance(components.spread)[k])).T
    squared = (whitened**2).sum(1)
    law = scipy.stats.chi2(DIM) if components.tail == "normal" else scipy.stats.f(DIM, components.df[k], scale=DIM)
    assert scipy.stats.kstest(squared, law.cdf).pvalue > SIGNIFICANCE
    direction = whitened / np.sqrt(squared)[:, None]
    products = direction[:, :, None] * direction[:, None, :] - np.eye(DIM) / DIM
    for values in (direction, products):
        assert np.all(np.abs(values.mean(0)) < 5 * values.std(0) / np.sqrt(NUM_DRAWS))


@EACH_FAMILY
@pytest.mark.parametrize("k", range(NUM))
def test_sampler_follows_the_density(name, k):
    assert_follows_the_density(make_components(name), k, sampled(name)[k])


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
        components.location[k] + 0.1, 0.6 * spread_covariance(components.spread)[k]
    )
    ratio = np.exp(narrower.logpdf(x) - components.log_prob(x)[k])
    assert abs(ratio.mean() - 1) < 5 * ratio.std() / np.sqrt(NUM_DRAWS)


@functools.cache
def drawn(name: str, k: int) -> np.ndarray:
    return make_components(name).draw(np.random.default_rng(k), k, NUM_DRAWS)


@EACH_FAMILY
@pytest.mark.parametrize("k", range(NUM))
def test_draws_on_the_host_follow_the_density(name, k):
    assert_follows_the_density(make_components(name), k, drawn(name, k))


@EACH_FAMILY
def test_draws_on_the_host_have_the_mean_and_the_covariance(name):
    components, k = make_components(name), 1
    delta = drawn(name, k) - components.location[k]
    products = delta[:, :, None] * delta[:, None, :]
    for values, expected in ((delta, 0.0), (products, components.covariance()[k])):
        assert np.all(np.abs(values.mean(0) - expected) < 5 * values.std(0) / np.sqrt(NUM_DRAWS))


@EACH_FAMILY
@pytest.mark.parametrize("k", range(NUM))
def test_ratio_to_a_narrower_density_averages_to_one_on_the_host(name, k):
    components, x = make_components(name), drawn(name, k)
    narrower = scipy.stats.multivariate_normal(
        components.location[k] + 0.1, 0.6 * spread_covariance(components.spread)[k]
    )
    ratio = np.exp(narrower.logpdf(x) - components.log_prob(x)[k])
    assert abs(ratio.mean() - 1) < 5 * ratio.std() / np.sqrt(NUM_DRAWS)


def test_draws_on_the_host_for_any_degrees_of_freedom():
    df = np.array([0.5, 1.0, 2.0, 5.0, 200.0])
    components = Components(np.zeros((len(df), 1)), Diagonal(np.ones((len(df), 1))), df, "student")
    for slot, value in enumerate(df):
        x = components.draw(np.random.default_rng(slot), slot, NUM_DRAWS)[:, 0]
        assert np.all(np.isfinite(x))
        assert scipy.stats.kstest(x, scipy.stats.t(value).cdf).pvalue > SIGNIFICANCE


@EACH_FAMILY
def test_components_of_jax_draw_the_same_on_the_host(name):
    host, device = (
        components.draw(np.random.default_rng(5), 1, 20)
        for components in (make_components(name), on_device(make_components(name)))
    )
    assert isinstance(device, np.ndarray)
    np.testing.assert_allclose(device, host, rtol=1e-12)


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
    with pytest.raises(ValueError, match=f"family must be one of 'normal-full', .*'student', got '{text}'"):
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


@pytest.mark.parametrize(
    ("location", "covariance"), [((2,), (2,)), ((1, 2), (2, 2)), ((1, 2), (1, 3, 3)), ((1, 2), (2,))]
)
def test_components_of_unlike_shapes_are_refused(location, covariance):
    with pytest.raises(ValueError, match=r"location must have shape \(num_components, dim\)"):
        Family.components.__wrapped__(Family(), np.zeros(location), np.ones(covariance))
