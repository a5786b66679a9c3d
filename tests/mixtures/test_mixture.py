import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from helpers import correlated_covariance
from klover.mixtures.components import COVARIANCES, TAILS, Components, Family
from klover.mixtures.mixture import Mixture

NAMES = [f"{tail}-{covariance}" for tail in TAILS for covariance in COVARIANCES]
EACH_FAMILY = pytest.mark.parametrize("name", NAMES)
NUM, DIM = 3, 2
WEIGHTS = np.array([0.5, 0.2, 0.3])


def make_mixture(name: str = "student-full", weights=WEIGHTS, dim: int = DIM, seed: int = 0) -> Mixture:
    tail, covariance = name.split("-", 1)
    family = Family(tail, covariance, df=5.0 if tail == "student" else None, rank=1)
    matrix = np.stack([correlated_covariance(dim, seed + k) for k in range(len(weights))])
    location = np.random.default_rng(seed).normal(size=(len(weights), dim)) * 3
    with np.errstate(divide="ignore"):
        return Mixture(family.components(location, matrix), np.log(np.asarray(weights)))


def on_device(tree):
    return jax.tree.map(jnp.asarray, tree)


def on_host(tree):
    return jax.tree.map(np.asarray, tree)


def points(num_draws: int = 12, dim: int = DIM) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(num_draws, dim)) * 4


def take(components: Components, order) -> Components:
    return jax.tree.map(lambda leaf: leaf[np.asarray(order)], components)


@EACH_FAMILY
def test_log_prob_is_that_of_the_weighted_sum(name):
    mixture, x = make_mixture(name), points()
    matrix = mixture.components.spread.covariance()
    laws = [
        scipy.stats.multivariate_normal(location, sigma)
        if name.startswith("normal")
        else scipy.stats.multivariate_t(location, sigma, 5.0)
        for location, sigma in zip(mixture.components.location, matrix, strict=True)
    ]
    expected = scipy.special.logsumexp([law.logpdf(x) for law in laws], axis=0, b=WEIGHTS[:, None])
    np.testing.assert_allclose(mixture.log_prob(x), expected, rtol=1e-10)
    compiled = jax.jit(Mixture.log_prob)
    np.testing.assert_allclose(compiled(on_device(mixture), x), expected, rtol=1e-10)
    np.testing.assert_allclose(mixture.log_prob(x[0]), expected[0], rtol=1e-10)
    assert mixture.log_prob(x[0]).shape == ()


@EACH_FAMILY
def test_density_integrates_to_one_and_has_the_moments(name):
    mixture = make_mixture(name, dim=1)

    def moment(order):
        def integrand(x):
            return x**order * np.exp(mixture.log_prob(np.array([x])))

        inner = scipy.integrate.quad(integrand, -30, 30, limit=400, points=list(mixture.components.location[:, 0]))[0]
        return inner + scipy.integrate.quad(integrand, 30, np.inf)[0] + scipy.integrate.quad(integrand, -np.inf, -30)[0]

    mean = moment(1)
    assert moment(0) == pytest.approx(1, abs=1e-6)
    assert mixture.mean()[0] == pytest.approx(mean, abs=1e-5)
    assert mixture.covariance()[0, 0] == pytest.approx(moment(2) - mean**2, rel=1e-4)


@EACH_FAMILY
def test_mean_and_covariance_are_those_of_the_parts(name):
    mixture = make_mixture(name)
    location, within = mixture.components.location, mixture.components.covariance()
    mean = sum(WEIGHTS[k] * location[k] for k in range(NUM))
    second = sum(WEIGHTS[k] * (within[k] + np.outer(location[k], location[k])) for k in range(NUM))
    for candidate in (mixture, on_device(mixture)):
        np.testing.assert_allclose(candidate.mean(), mean, rtol=1e-12)
        np.testing.assert_allclose(candidate.covariance(), second - np.outer(mean, mean), rtol=1e-10)


def test_covariance_of_heavy_tails_is_infinite_unless_unused():
    components = Family("student", df=2.0).components(np.zeros((2, DIM)), np.ones((2, DIM)))
    light = Family("student", df=5.0).components(np.zeros((2, DIM)), np.ones((2, DIM)))
    mixed = Components(components.location, components.spread, np.array([5.0, 2.0]), "student")
    both = on_device(Mixture.of(mixed))
    assert np.all(np.isinf(np.diagonal(both.covariance())))
    unused = on_device(Mixture(mixed, np.array([0.0, -np.inf])))
    np.testing.assert_allclose(unused.covariance(), light.covariance()[0])


@pytest.mark.parametrize("convert", [np.asarray, jnp.asarray])
def test_equally_weighted_mixture(convert):
    mixture = Mixture.of(jax.tree.map(convert, make_mixture().components))
    np.testing.assert_allclose(mixture.weights, np.full(NUM, 1 / NUM))
    assert (mixture.capacity, mixture.dim, int(mixture.num_components)) == (NUM, DIM, NUM)


@given(order=st.permutations(range(NUM)), weights=st.lists(st.floats(0.01, 1), min_size=NUM, max_size=NUM))
def test_order_of_components_does_not_matter(order, weights):
    mixture = make_mixture("student-low-rank", np.array(weights) / sum(weights))
    order = np.asarray(order)
    permuted = Mixture(take(mixture.components, order), mixture.log_weights[order])
    np.testing.assert_allclose(permuted.log_prob(points()), mixture.log_prob(points()), rtol=1e-12)
    np.testing.assert_allclose(permuted.mean(), mixture.mean(), atol=1e-12)
    np.testing.assert_allclose(permuted.covariance(), mixture.covariance(), rtol=1e-10)


@EACH_FAMILY
def test_free_slots_change_nothing(name):
    mixture = make_mixture(name)
    roomy = on_host(mixture.with_capacity(NUM + 3))
    assert (roomy.capacity, int(roomy.num_components)) == (NUM + 3, NUM)
    np.testing.assert_array_equal(roomy.weights[NUM:], 0.0)
    np.testing.assert_allclose(roomy.log_prob(points()), mixture.log_prob(points()), rtol=1e-12)
    np.testing.assert_allclose(roomy.mean(), mixture.mean(), rtol=1e-12)
    np.testing.assert_allclose(roomy.covariance(), mixture.covariance(), rtol=1e-12)


def test_free_slots_leave_the_draws_alone(getkey):
    mixture, key = make_mixture("normal-low-rank"), getkey()
    np.testing.assert_allclose(mixture.with_capacity(NUM + 3).sample(key, 20), mixture.sample(key, 20), rtol=1e-12)


def test_capacity_cannot_shrink():
    mixture = make_mixture()
    np.testing.assert_array_equal(mixture.with_capacity(NUM).log_prob(points()), on_device(mixture).log_prob(points()))
    with pytest.raises(ValueError, match="capacity must be at least 3, the present one, got 2"):
        mixture.with_capacity(2)


@EACH_FAMILY
def test_gradients_are_finite_with_free_slots(name):
    mixture = on_device(make_mixture(name)).with_capacity(NUM + 2)

    @jax.jit
    def gradient(mixture, x):
        return jax.grad(lambda m, y: jnp.sum(m.log_prob(y)), (0, 1))(mixture, x)

    # At the last points the density underflows, and all that is left is a logarithm of it.
    far = np.concatenate([points(), [[1e3, 1e3], [-1e6, 1e6]]])
    by_mixture, by_point = gradient(mixture, far)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((by_mixture, by_point)))
    for leaf in jax.tree.leaves(by_mixture.components):
        np.testing.assert_array_equal(leaf[NUM:], 0.0)


@EACH_FAMILY
def test_append_mixes_with_the_newcomer(name):
    old, newcomer, x = make_mixture(name), make_mixture(name, np.ones(1), seed=9), points()
    append = jax.jit(Mixture.append)
    for gamma in (0.25, 1e-9):
        grown = on_host(append(old.with_capacity(NUM + 2), newcomer.components, jnp.log(gamma)))
        np.testing.assert_array_equal(grown.log_weights > -np.inf, [True] * (NUM + 1) + [False])
        expected = np.logaddexp(np.log1p(-gamma) + old.log_prob(x), np.log(gamma) + newcomer.log_prob(x))
        np.testing.assert_allclose(grown.log_prob(x), expected, rtol=1e-10)


@pytest.mark.parametrize("weights", [WEIGHTS, np.ones(1)])
def test_append_without_a_free_slot_replaces_the_smallest(weights):
    old, newcomer = on_device(make_mixture(weights=weights)), on_device(make_mixture(weights=np.ones(1), seed=9))
    replaced = old.append(newcomer.components, jnp.log(0.4))
    smallest = int(np.argmin(weights))
    assert replaced.capacity == len(weights)
    np.testing.assert_allclose(jnp.sum(replaced.weights), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(replaced.components.location[smallest], newcomer.components.location[0])
    if len(weights) > 1:
        kept = np.delete(weights, smallest)
        np.testing.assert_allclose(np.delete(replaced.weights, smallest), 0.6 * kept / kept.sum(), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_index_follows_the_weights_and_skips_free_slots(getkey, dtype):
    weights = np.array([0.0, 0.3, 0.0, 0.0, 0.6, 0.1, 0.0])
    num_draws = 20_000
    mixture = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), make_mixture("normal-diagonal", weights))
    index = mixture.sample_index(getkey(), num_draws)
    share = np.bincount(index, minlength=len(weights)) / num_draws
    np.testing.assert_array_equal(share[weights == 0], 0.0)
    assert np.all(np.abs(share - weights) <= 5 * np.sqrt(weights * (1 - weights) / num_draws))


@pytest.mark.parametrize(("uniform", "expected"), [(0.0, 1), (1 - 2.0**-53, 4)])
def test_index_at_the_ends_of_the_unit_interval(getkey, monkeypatch, uniform, expected):
    monkeypatch.setattr(jax.random, "uniform", lambda key, shape, dtype: jnp.full(shape, uniform, dtype))
    mixture = on_device(make_mixture("normal-diagonal", np.array([0.0, 0.3, 0.0, 0.6, 0.1, 0.0])))
    np.testing.assert_array_equal(mixture.sample_index(getkey(), 3), expected)


@EACH_FAMILY
def test_sample_and_log_prob_belong_together(getkey, name):
    key, mixture = getkey(), make_mixture(name)
    draw = jax.jit(Mixture.sample_and_log_prob, static_argnums=2)
    x, log_q = draw(on_device(mixture), key, 2000)
    np.testing.assert_allclose(log_q, mixture.log_prob(np.asarray(x)), rtol=1e-10)
    # The average of (density of another) / (own density) is one where the sampler follows the density.
    reference = scipy.stats.multivariate_normal(mixture.mean(), 0.8 * mixture.components.covariance()[0])
    ratio = np.exp(reference.logpdf(x) - log_q)
    assert abs(ratio.mean() - 1) < 5 * ratio.std() / np.sqrt(len(ratio))
    standard_error = np.sqrt(np.diagonal(mixture.covariance()) / len(x))
    assert np.all(np.abs(x.mean(0) - mixture.mean()) < 5 * standard_error)


def test_sample_is_the_first_half_of_sample_and_log_prob(getkey):
    key, mixture = getkey(), make_mixture("normal-full")
    np.testing.assert_allclose(mixture.sample(key, 20), mixture.sample_and_log_prob(key, 20)[0], rtol=1e-12)


@EACH_FAMILY
def test_draws_on_the_host_follow_the_density(name):
    mixture, num_draws = make_mixture(name), 4000
    x = mixture.draw(np.random.default_rng(0), num_draws)
    assert x.shape == (num_draws, DIM)
    reference = scipy.stats.multivariate_normal(mixture.mean(), 0.8 * mixture.components.covariance()[0])
    ratio = np.exp(reference.logpdf(x) - mixture.log_prob(x))
    # Strata can only lower the variance below that of independent draws.
    assert abs(ratio.mean() - 1) < 5 * ratio.std() / np.sqrt(num_draws)
    delta = x - mixture.mean()
    products = delta[:, :, None] * delta[:, None, :]
    for values, expected in ((delta, 0.0), (products, mixture.covariance())):
        assert np.all(np.abs(values.mean(0) - expected) < 5 * values.std(0) / np.sqrt(num_draws))


def far_apart(weights) -> Mixture:
    location = 100.0 * np.arange(len(weights))[:, None]
    components = Family("normal", "diagonal").components(location, np.ones_like(location))
    with np.errstate(divide="ignore"):
        return Mixture(components, np.log(np.asarray(weights)))


@given(
    weights=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8).filter(lambda weights: sum(weights) > 0.1),
    num_draws=st.integers(1, 300),
    seed=st.integers(0, 2**32 - 1),
)
def test_each_component_has_its_share_of_the_draws_to_less_than_one(weights, num_draws, seed):
    weights = np.array(weights) / sum(weights)
    x = far_apart(weights).draw(np.random.default_rng(seed), num_draws)
    counts = np.bincount(np.rint(x[:, 0] / 100).astype(int), minlength=len(weights))
    assert counts.sum() == num_draws
    assert np.all(np.abs(counts - num_draws * weights) < 1 + 1e-9)
    np.testing.assert_array_equal(counts[weights == 0], 0)


def test_counts_on_the_host_are_right_on_average():
    weights, num_draws, num_seeds = np.array([0.5, 0.23, 0.27]), 7, 400
    mixture = far_apart(weights)
    counts = np.stack(
        [
            np.bincount(np.rint(mixture.draw(np.random.default_rng(seed), num_draws)[:, 0] / 100).astype(int), None, 3)
            for seed in range(num_seeds)
        ]
    )
    assert np.all(np.abs(counts.mean(0) - num_draws * weights) < 5 * counts.std(0) / np.sqrt(num_seeds))


def test_draws_on_the_host_come_in_random_order():
    num_draws = 1000
    slot = np.rint(far_apart([0.5, 0.5]).draw(np.random.default_rng(0), num_draws)[:, 0] / 100)
    first = slot[: num_draws // 2].mean()
    # Without replacement the share of a half has a quarter of the variance of one draw, per draw.
    assert abs(first - 0.5) < 5 * np.sqrt(0.25 / num_draws)


def test_draws_on_the_host_are_those_of_the_seed_and_of_the_used_slots():
    mixture = make_mixture("student-low-rank")
    x = mixture.draw(np.random.default_rng(3), 50)
    np.testing.assert_array_equal(mixture.draw(np.random.default_rng(3), 50), x)
    roomy = mixture.with_capacity(NUM + 2).draw(np.random.default_rng(3), 50)
    np.testing.assert_allclose(roomy, x, rtol=1e-12)


def test_vmap_is_a_loop(getkey):
    mixtures = [on_device(make_mixture("normal-low-rank", seed=seed)).with_capacity(NUM + 1) for seed in range(3)]
    keys, x = jax.random.split(getkey(), 3), points()

    def answers(key, mixture):
        return (*mixture.sample_and_log_prob(key, 20), mixture.log_prob(x), mixture.mean(), mixture.covariance())

    batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *mixtures)
    batched, single = jax.jit(jax.vmap(answers))(keys, batch), jax.jit(answers)
    for row, mixture in enumerate(mixtures):
        for together, alone in zip(batched, single(keys[row], mixture), strict=True):
            np.testing.assert_allclose(together[row], alone, rtol=1e-10)


def test_bad_arguments(getkey):
    mixture, key = make_mixture(), getkey()
    with pytest.raises(ValueError, match="num_draws must be a whole number of at least 1"):
        mixture.sample(key, 0)
    with pytest.raises(ValueError, match=r"x must be a point of shape \(2,\).*got shape \(4, 3\)"):
        mixture.log_prob(np.zeros((4, 3)))
    with pytest.raises(ValueError, match=r"got shape \(2, 4, 2\)"):
        mixture.log_prob(np.zeros((2, 4, 2)))


@pytest.mark.parametrize("family", ["normal", "student", "normal-diagonal"])
def test_root_of_the_covariance(family):
    location = np.array([[0.0, 1.0], [3.0, -1.0]])
    mixture = Mixture.of(Family.parse(family).components(location, np.array([[1.0, 2.0], [0.5, 1.0]])))
    gaussian = Mixture.of(Family("normal", "full").components(location, np.array([[1.0, 2.0], [0.5, 1.0]])))
    root, expected = mixture.root(), gaussian.covariance()
    if family == "normal-diagonal":
        np.testing.assert_allclose(root**2, np.diag(expected), rtol=1e-12)
        return
    np.testing.assert_allclose(root @ root.T, expected, rtol=1e-12)
