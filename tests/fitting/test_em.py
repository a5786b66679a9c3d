import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from klover.fitting import em
from klover.fitting.sample import Sample
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture

FAMILIES = {
    f"{tail}-{covariance}": Family(tail, covariance, rank=2)
    for tail in ("normal", "student")
    for covariance in ("full", "diagonal", "low-rank")
}
DIM = 3
SEEDS = st.integers(0, 2**32 - 1)

all_families = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
few_examples = settings(max_examples=8)


def make_sample(rng, num_draws=80, has_background=False, concentration=1.0) -> Sample:
    centre = rng.choice([-2.0, 0.0, 3.0], (num_draws, 1))
    x = centre + rng.standard_t(4, (num_draws, DIM)) * np.array([1.0, 0.3, 5.0])
    weight = rng.dirichlet(np.full(num_draws, concentration))
    return Sample(x, weight, background=stats.norm.logpdf(x, 0, 6).sum(1) if has_background else None)


def make_mixture(rng, family, num_components=2, mass=1.0) -> Mixture:
    # Starts at an outlier, or narrower ones, could end on so few draws that the likelihood has no bound.
    location = rng.normal(0, [2.0, 1.0, 3.0], (num_components, DIM))
    shape = np.diag([1.5, 1.0, 4.0])
    covariance = np.stack([stats.wishart.rvs(DIM + 4, shape, random_state=rng) for _ in range(num_components)])
    components = family.components(location, covariance)
    if family.tail == "student":
        components = dataclasses.replace(components, df=rng.uniform(1.5, 20, num_components))
    return Mixture(components, np.log(mass * rng.dirichlet(np.full(num_components, 3.0))))


def assert_close(first, second, tolerance=1e-9):
    """Compare densities and weights, since two factors may stand for one covariance."""
    np.testing.assert_allclose(first.weights, second.weights, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(first.components.location, second.components.location, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(first.components.df, second.components.df, rtol=1e3 * tolerance)
    covariance = first.components.spread.covariance(), second.components.spread.covariance()
    np.testing.assert_allclose(*covariance, rtol=tolerance, atol=tolerance)


def take(tree, index):
    return jax.tree.map(lambda leaf: leaf[index], tree)


@all_families
@pytest.mark.parametrize("has_background", [False, True], ids=["alone", "background"])
@pytest.mark.parametrize("strength", [0.0, 0.05])
@given(seed=SEEDS)
@few_examples
def test_objective_rises_at_every_step(family, has_background, strength, seed):
    rng = np.random.default_rng(seed)
    sample = make_sample(rng, has_background=has_background)
    mixture = make_mixture(rng, family, mass=0.6 if has_background else 1.0)
    prior = mixture.components.spread
    value = em.objective(mixture, sample, prior, strength)
    for _ in range(6):
        mixture = em.step(mixture, sample, prior, strength)
        risen = em.objective(mixture, sample, prior, strength)
        # Without a prior a component may end on fewer draws than dimensions, where the likelihood has no bound.
        if strength == 0 and np.linalg.cond(mixture.components.spread.covariance()).max() > 1e8:
            break
        assert risen >= value - 1e-9
        value = risen


@pytest.mark.parametrize("is_df_fitted", [False, True])
def test_degrees_of_freedom_move_only_where_they_are_fitted(is_df_fitted):
    rng = np.random.default_rng(0)
    sample = make_sample(rng)
    mixture = make_mixture(rng, FAMILIES["student-full"])
    fitted = em.fit(mixture, sample, 3, is_df_fitted=is_df_fitted)
    assert np.all(fitted.components.df != mixture.components.df) == is_df_fitted


@pytest.mark.parametrize("covariance_type", ["full", "diag"])
@pytest.mark.parametrize("num_steps", [1, 7])
def test_agrees_with_scikit_learn(covariance_type, num_steps):
    rng = np.random.default_rng(1)
    num_draws, num_components = 300, 3
    sample = dataclasses.replace(make_sample(rng, num_draws), weight=np.full(num_draws, 1 / num_draws))
    family = FAMILIES["normal-full" if covariance_type == "full" else "normal-diagonal"]
    start = make_mixture(rng, family, num_components)
    precision = np.linalg.inv(start.components.covariance())
    reference = pytest.importorskip("sklearn.mixture").GaussianMixture(
        num_components,
        covariance_type=covariance_type,
        reg_covar=0.0,
        tol=0.0,
        max_iter=num_steps,
        weights_init=start.weights / start.weights.sum(),
        means_init=start.components.location,
        precisions_init=precision if covariance_type == "full" else np.diagonal(precision, axis1=1, axis2=2),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pytest.importorskip("sklearn.exceptions").ConvergenceWarning)
        reference.fit(sample.x)
    fitted = em.fit(start, sample, num_steps)
    covariance = fitted.components.covariance()
    np.testing.assert_allclose(fitted.weights, reference.weights_, atol=1e-8)
    np.testing.assert_allclose(fitted.components.location, reference.means_, atol=1e-8)
    np.testing.assert_allclose(
        covariance if covariance_type == "full" else np.diagonal(covariance, axis1=1, axis2=2),
        reference.covariances_,
        rtol=1e-8,
        atol=1e-8,
    )


def test_low_rank_reaches_the_maximum_of_factor_analysis():
    rng = np.random.default_rng(2)
    dim, rank, num_draws = 8, 2, 500
    x = rng.standard_normal((num_draws, rank)) @ rng.standard_normal((rank, dim))
    x = x + rng.standard_normal((num_draws, dim)) * rng.uniform(0.3, 0.7, dim)
    sample = Sample(x, np.full(num_draws, 1 / num_draws))
    start = Mixture.of(Family("normal", "low-rank", rank=rank).components(np.zeros((1, dim)), np.ones((1, dim))))
    fitted = em.fit(start, sample, 1000)
    reference = (
        pytest.importorskip("sklearn.decomposition")
        .FactorAnalysis(rank, svd_method="lapack", tol=1e-9, max_iter=5000)
        .fit(x)
    )
    np.testing.assert_allclose(fitted.log_prob(x).mean(), reference.score(x), rtol=1e-8)
    np.testing.assert_allclose(fitted.covariance(), reference.get_covariance(), atol=1e-4)


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@given(seed=SEEDS)
@few_examples
def test_one_normal_step_keeps_the_moments_of_the_draws(covariance, seed):
    rng = np.random.default_rng(seed)
    sample = make_sample(rng)
    fitted = em.step(*_with_prior(make_mixture(rng, Family("normal", covariance), 3), sample))
    mean = sample.weight @ sample.x
    delta = sample.x - mean
    np.testing.assert_allclose(fitted.mean(), mean, atol=1e-9)
    scatter, reached = delta.T @ (sample.weight[:, None] * delta), fitted.covariance()
    if covariance == "diagonal":
        scatter, reached = np.diag(scatter), np.diag(reached)
    np.testing.assert_allclose(reached, scatter, rtol=1e-9, atol=1e-9)


def _with_prior(mixture, sample):
    return mixture, sample, mixture.components.spread


@all_families
def test_newcomer_with_background_is_two_component_em(family):
    rng = np.random.default_rng(3)
    sample = make_sample(rng, has_background=True, concentration=0.5)
    start = make_mixture(rng, family, 1, mass=0.3)
    fitted = em.fit(start, sample, 1)

    weight, x = sample.weight, sample.x
    location, sigma = start.components.location[0], start.components.spread.covariance()[0]
    gamma = start.weights[0]
    df, delta = fitted.components.df[0], x - location
    if family.tail == "normal":
        density = stats.multivariate_normal.pdf(x, location, sigma)
        tail = np.ones(len(x))
    else:
        density = stats.multivariate_t.pdf(x, location, sigma, start.components.df[0])
        tail = (df + DIM) / (df + np.einsum("si,ij,sj->s", delta, np.linalg.inv(sigma), delta))
    newcomer = gamma * density
    responsibility = newcomer / (newcomer + (1 - gamma) * np.exp(sample.background))
    mass = weight @ responsibility
    scaled = weight * responsibility * tail
    new_location = scaled @ x / scaled.sum()
    scatter = (x - new_location).T @ (scaled[:, None] * (x - new_location)) / mass
    np.testing.assert_allclose(fitted.weights, [mass], rtol=1e-10)
    np.testing.assert_allclose(fitted.components.location[0], new_location, rtol=1e-10)
    reached = fitted.components.spread.covariance()[0]
    if family.covariance == "full":
        np.testing.assert_allclose(reached, scatter, rtol=1e-9, atol=1e-10)
    elif family.covariance == "diagonal":
        np.testing.assert_allclose(reached, np.diag(np.diag(scatter)), rtol=1e-9)
    else:
        spread = start.components.spread
        loading = np.linalg.solve(sigma, spread.factor[0])
        second = np.eye(2) - loading.T @ spread.factor[0] + loading.T @ scatter @ loading
        factor = scatter @ loading @ np.linalg.inv(second)
        np.testing.assert_allclose(fitted.components.spread.factor[0], factor, rtol=1e-8)
        scale = np.sqrt(np.diag(scatter - factor @ (scatter @ loading).T))
        np.testing.assert_allclose(fitted.components.spread.scale[0], scale, rtol=1e-8)
    if family.tail == "student":
        _assert_stationary_in_df(df, responsibility * weight, delta, sigma)


def _assert_stationary_in_df(df, weight, delta, sigma):
    def expected(log_df):
        return weight @ stats.multivariate_t.logpdf(delta, np.zeros(DIM), sigma, np.exp(log_df))

    grid = np.linspace(np.log(em.SMALLEST_DF), np.log(em.LARGEST_DF), 400)
    assert expected(np.log(df)) >= max(expected(point) for point in grid) - 1e-10


@all_families
@given(seed=SEEDS)
@few_examples
def test_order_of_draws_and_of_components_does_not_matter(family, seed):
    rng = np.random.default_rng(seed)
    sample = make_sample(rng, has_background=True)
    mixture = make_mixture(rng, family, 3, mass=0.8)
    fitted = em.fit(mixture, sample, 2, 0.1)
    shuffled = em.fit(mixture, take(sample, rng.permutation(len(sample.x))), 2, 0.1)
    assert_close(shuffled, fitted)
    order = rng.permutation(3)
    assert_close(em.fit(take(mixture, order), sample, 2, 0.1), take(fitted, order))


@all_families
@given(seed=SEEDS)
@few_examples
def test_a_draw_counts_by_its_weight_alone(family, seed):
    rng = np.random.default_rng(seed)
    sample = make_sample(rng)
    mixture = make_mixture(rng, family)
    stacked = jax.tree.map(lambda leaf: np.concatenate([leaf, leaf, leaf]), sample)
    # A third of each weight, two thirds, and copies elsewhere that weigh nothing.
    split = dataclasses.replace(
        stacked,
        x=np.concatenate([sample.x, sample.x, sample.x + 50.0]),
        weight=np.concatenate([sample.weight / 3, sample.weight * 2 / 3, 0 * sample.weight]),
    )
    assert_close(em.fit(mixture, split, 2, 0.1), em.fit(mixture, sample, 2, 0.1))


@all_families
@given(seed=SEEDS)
@few_examples
def test_units_of_the_coordinates_do_not_matter(family, seed):
    rng = np.random.default_rng(seed)
    unit, shift = np.exp(rng.normal(0, 3, DIM)), rng.normal(0, 5, DIM)
    sample = make_sample(rng)
    mixture = make_mixture(rng, family)

    def convert(given):
        components = given.components
        factor = {
            "scale": lambda leaf: leaf * unit,
            "factor": lambda leaf: leaf * unit[:, None],
        }
        fields = {
            field.name: factor[field.name](getattr(components.spread, field.name))
            for field in dataclasses.fields(components.spread)
        }
        spread = dataclasses.replace(components.spread, **fields)
        moved = dataclasses.replace(components, location=components.location * unit + shift, spread=spread)
        return Mixture(moved, given.log_weights)

    moved = em.fit(convert(mixture), dataclasses.replace(sample, x=sample.x * unit + shift), 2, 0.1)
    back = Mixture(
        dataclasses.replace(moved.components, location=(moved.components.location - shift) / unit), moved.log_weights
    )
    expected = em.fit(mixture, sample, 2, 0.1)
    np.testing.assert_allclose(back.weights, expected.weights, rtol=1e-6)
    np.testing.assert_allclose(back.components.location, expected.components.location, rtol=1e-6, atol=1e-6)
    covariance = moved.components.spread.covariance() / (unit[:, None] * unit)
    np.testing.assert_allclose(covariance, expected.components.spread.covariance(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["normal-full", "normal-diagonal", "student-full", "student-diagonal"])
@given(seed=SEEDS)
@few_examples
def test_prior_bounds_every_covariance_from_below(name, seed):
    rng = np.random.default_rng(seed)
    strength = 0.02
    # Most of the weight sits on one draw or two.
    sample = make_sample(rng, concentration=0.02)
    mixture = make_mixture(rng, FAMILIES[name])
    fitted = em.fit(mixture, sample, 30, strength)
    bound = strength / (1 + strength) * mixture.components.spread.covariance()
    assert np.all(np.linalg.eigvalsh(fitted.components.spread.covariance() - bound) > -1e-10)


@all_families
def test_one_heavy_draw_collapses_a_component_without_a_prior_only(family):
    rng = np.random.default_rng(4)
    sample = make_sample(rng)
    weight = np.full(len(sample.x), 1e-9)
    weight[0] = 1 - weight[1:].sum()
    sample = dataclasses.replace(sample, weight=weight)
    covariance = np.eye(DIM)[None]
    start = Mixture.of(family.components(sample.x[:1] + 0.5, covariance))
    held, free = (em.fit(start, sample, 2, strength, is_df_fitted=False) for strength in (0.1, 0.0))
    for _ in range(30):
        held = em.step(held, sample, start.components.spread, 0.1, is_df_fitted=False)
    assert np.linalg.slogdet(held.components.spread.covariance()[0])[1] > DIM * np.log(0.05)
    assert np.linalg.slogdet(free.components.spread.covariance()[0])[1] < DIM * np.log(1e-3)


@all_families
def test_components_without_mass_keep_their_parameters(family):
    rng = np.random.default_rng(5)
    sample = make_sample(rng)
    mixture = make_mixture(rng, family, 4)
    far = mixture.components.location.copy()
    far[2] += 1e4
    components = dataclasses.replace(mixture.components, location=far, df=np.full(4, 50.0))
    log_weights = np.array([np.log(0.5), -np.inf, np.log(0.2), np.log(0.3)])
    fitted = em.fit(Mixture(components, log_weights), sample, 3, 0.1)
    empty = [1, 2]
    for kept, old in zip(jax.tree.leaves(fitted.components), jax.tree.leaves(components), strict=True):
        np.testing.assert_array_equal(kept[empty], old[empty])
    assert np.all(fitted.log_weights[empty] == -np.inf)
    np.testing.assert_allclose(fitted.weights.sum(), 1.0)
    # The others do not notice.
    others = Mixture(take(components, [0, 3]), log_weights[[0, 3]])
    assert_close(em.fit(others, sample, 3, 0.1), take(fitted, [0, 3]), 1e-8)


@all_families
def test_numpy_and_jax_agree(family):
    rng = np.random.default_rng(6)
    sample = make_sample(rng, has_background=True)
    mixture = make_mixture(rng, family, 3, mass=0.7)
    log_weights = mixture.log_weights.copy()
    log_weights[1] = -np.inf
    mixture = dataclasses.replace(mixture, log_weights=log_weights)
    expected = em.fit(mixture, sample, 4, 0.1)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(expected))
    compiled = jax.jit(em.fit, static_argnums=2)(*jax.tree.map(jnp.asarray, (mixture, sample)), 4, 0.1)
    for one, other in zip(jax.tree.leaves(compiled), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("df", [1.5, 4.0, 12.0])
def test_degrees_of_freedom_are_recovered(df):
    rng = np.random.default_rng(7)
    num_draws, scale = 4000, 1.7
    x = 0.4 + scale * rng.standard_t(df, (num_draws, 1))
    sample = Sample(x, np.full(num_draws, 1 / num_draws))
    start = Mixture.of(FAMILIES["student-full"].components(np.zeros((1, 1)), np.ones((1, 1))))
    fitted = em.fit(start, sample, 200)
    estimate = np.array([fitted.components.location[0, 0], fitted.components.spread.factor[0, 0, 0]])
    estimate = np.append(estimate, fitted.components.df)
    score = _student_score(x[:, 0], *estimate)
    error = np.sqrt(np.diag(np.linalg.inv(score @ score.T)))
    assert np.all(np.abs(estimate - np.array([0.4, scale, df])) < 5 * error)
    # At the maximum the likelihood is flat on the scale of its own error.
    assert np.all(np.abs(score.sum(1)) * error < 1e-2)


def _student_score(x, location, scale, df):
    z = (x - location) / scale
    pull = (df + 1) / (df + z**2)
    constant = special.digamma((df + 1) / 2) - special.digamma(df / 2) - 1 / df
    score_df = 0.5 * (constant - np.log1p(z**2 / df) + pull * z**2 / df)
    return np.stack([pull * z / scale, (pull * z**2 - 1) / scale, score_df])


@given(seed=SEEDS)
@few_examples
def test_prior_counts_like_effective_draws(seed):
    log_weight = np.random.default_rng(seed).normal(0, 2, 50)
    weight = np.exp(log_weight)
    effective = weight.sum() ** 2 / (weight**2).sum()
    np.testing.assert_allclose(em.prior_strength(log_weight, DIM, 2.5), 2.5 * (DIM + 1) / effective)


@all_families
def test_no_background_is_one_of_density_zero(family):
    rng = np.random.default_rng(8)
    sample, mixture = make_sample(rng), make_mixture(rng, family)
    empty = dataclasses.replace(sample, background=np.full(len(sample), -np.inf))
    for one, other in zip(em.responsibilities(mixture, sample), em.responsibilities(mixture, empty), strict=True):
        np.testing.assert_array_equal(one, other)
    assert_close(em.fit(mixture, sample, 2), em.fit(mixture, empty, 2), 1e-12)


def test_responsibilities_and_the_background_sum_to_one():
    rng = np.random.default_rng(9)
    sample, mixture = make_sample(rng, has_background=True), make_mixture(rng, FAMILIES["student-full"], mass=0.6)
    responsibility, distance, log_density = em.responsibilities(mixture, sample)
    rest = 0.4 * np.exp(sample.background - log_density)
    np.testing.assert_allclose(responsibility.sum(0) + rest, 1.0, rtol=1e-12)
    np.testing.assert_allclose(distance, mixture.components.squared_distance(sample.x), rtol=1e-12)
    expected = np.logaddexp(mixture.log_prob(sample.x), np.log(0.4) + sample.background)
    np.testing.assert_allclose(log_density, expected, rtol=1e-12)
