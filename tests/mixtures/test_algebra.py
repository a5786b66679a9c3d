"""Mixtures made out of mixtures, boxes and covariances."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from helpers import correlated_covariance
from klover.mixtures.algebra import (
    FLATTENING,
    box_variance,
    defensive_inflation,
    diffuse,
    inflate,
    join,
    marginal,
    mixture_of,
    stretch,
    take,
    widen,
)
from klover.mixtures.components import COVARIANCES, TAILS, Family
from klover.mixtures.mixture import Mixture
from klover.mixtures.scale import Diagonal, Full, LowRank

DIM = 3
FAMILIES = {f"{tail}-{covariance}": Family(tail, covariance, rank=1) for tail in TAILS for covariance in COVARIANCES}
all_families = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())


def make_mixture(family=FAMILIES["student-full"], weights=(0.5, 0.3, 0.2), seed: int = 0) -> Mixture:
    rng = np.random.default_rng(seed)
    covariance = np.stack([correlated_covariance(2, seed + slot) for slot in range(len(weights))])
    components = family.components(3 * rng.normal(size=(len(weights), 2)), covariance)
    return Mixture(components, np.log(np.asarray(weights)))


def assert_same(first, second):
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(one, other)


@all_families
@pytest.mark.parametrize("share", [0.25, 1e-9])
def test_density_of_joined_mixtures_is_the_mixed_density(family, share):
    first, second, x = (
        make_mixture(family),
        make_mixture(family, (0.6, 0.4), 5),
        np.random.default_rng(0).normal(size=(9, 2)),
    )
    joined = join(first, second, share)
    expected = np.logaddexp(np.log1p(-share) + first.log_prob(x), np.log(share) + second.log_prob(x))
    np.testing.assert_allclose(joined.log_prob(x), expected, rtol=1e-12)
    np.testing.assert_allclose(joined.weights.sum(), 1.0)


def test_mixtures_of_unlike_covariances_are_joined_by_whole_matrices():
    first, second = make_mixture(FAMILIES["student-diagonal"]), make_mixture(FAMILIES["student-low-rank"], (1.0,), 5)
    x, joined = np.random.default_rng(0).normal(size=(9, 2)), join(first, second, 0.3)
    assert isinstance(joined.components.spread, Full)
    expected = np.logaddexp(np.log1p(-0.3) + first.log_prob(x), np.log(0.3) + second.log_prob(x))
    np.testing.assert_allclose(joined.log_prob(x), expected, rtol=1e-12)


@all_families
def test_density_of_taken_components_is_conditional(family):
    mixture, x = make_mixture(family), np.random.default_rng(0).normal(size=(9, 2))
    log_joint = mixture.log_weights[:, None] + mixture.component_log_prob(x)
    for index in ([0], [2, 0], [1, 2], [0, 1, 2]):
        taken = take(mixture, np.array(index))
        expected = special.logsumexp(log_joint[index], axis=0) - np.log(mixture.weights[index].sum())
        np.testing.assert_allclose(taken.log_prob(x), expected, rtol=1e-12)
    assert_same(take(join(mixture, mixture, 0.5), np.arange(3)).components, mixture.components)


def four_parts(seed, scale=1.0):
    generator = np.random.default_rng(seed)
    factor = generator.normal(size=(4, DIM, DIM))
    covariance = (factor @ factor.swapaxes(1, 2) + 0.1 * np.eye(DIM)) * np.outer(
        scale * np.ones(DIM), scale * np.ones(DIM)
    )
    location = generator.normal(size=(4, DIM)) * scale
    return mixture_of(Family(), location, covariance, np.array([3.0, 5.0, 50.0, 9.0]), generator.uniform(0.1, 1, 4))


@given(seed=st.integers(0, 1000), factor=st.floats(1.5, 20))
def test_stretching_lengthens_the_longest_axis_alone(seed, factor):
    before = four_parts(seed)
    after = stretch(before, factor, 4.0)
    old, new = before.components.spread.covariance(), after.components.spread.covariance()
    # A change of rank one, by the factor along its own direction.
    values = np.linalg.eigvals(np.linalg.solve(old, new)).real
    np.testing.assert_allclose(np.sort(values, axis=1), [[1, 1, factor**2]] * 4, rtol=1e-6)
    np.testing.assert_array_equal(after.components.location, before.components.location)
    np.testing.assert_array_equal(after.components.df, [3.0, 4.0, 4.0, 4.0])
    np.testing.assert_allclose(after.weights.sum(), 1.0)
    assert after.weights.min() > before.weights.min()


def test_stretching_does_not_depend_on_units():
    scale = np.array([1e-3, 1.0, 1e4])
    plain, scaled = stretch(four_parts(0), 6.0, 4.0), stretch(four_parts(0, scale), 6.0, 4.0)
    np.testing.assert_allclose(
        scaled.components.spread.covariance(), plain.components.spread.covariance() * np.outer(scale, scale), rtol=1e-6
    )


def test_diagonal_copies_are_wider_in_all_directions():
    before = mixture_of(Family("student", "diagonal"), np.zeros((1, DIM)), np.ones((1, DIM)), np.ones(1), np.ones(1))
    np.testing.assert_allclose(stretch(before, 6.0, 4.0).components.spread.scale, 6.0)
    np.testing.assert_allclose(inflate(before, 2.0, 4.0).components.spread.scale, 2.0)


@given(num=st.integers(0, DIM), factor=st.floats(1.5, 20))
def test_widening_multiplies_the_first_coordinates_alone(num, factor):
    before = four_parts(0)
    after = widen(before, num, factor, 4.0)
    old, new = before.components.spread.covariance(), after.components.spread.covariance()
    scale = np.array([factor] * num + [1.0] * (DIM - num))
    np.testing.assert_allclose(new, old * np.outer(scale, scale), rtol=1e-9)
    np.testing.assert_array_equal(after.components.location, before.components.location)
    np.testing.assert_array_equal(after.components.df, [3.0, 4.0, 4.0, 4.0])
    np.testing.assert_array_equal(after.log_weights, before.log_weights)


@pytest.mark.parametrize("name", FAMILIES)
def test_widened_copies_of_any_family_are_full_matrices_of_its_tail(name):
    before = make_mixture(FAMILIES[name])
    after = widen(before, 1, 2.0, 4.0)
    scale = np.where(np.arange(before.dim) < 1, 2.0, 1.0)
    expected = before.components.spread.covariance() * np.outer(scale, scale)
    np.testing.assert_allclose(after.components.spread.covariance(), expected, rtol=1e-9)
    assert after.components.tail == before.components.tail


@pytest.mark.parametrize("tail", TAILS)
def test_stretched_weights_are_flatter(tail):
    before = make_mixture(FAMILIES[f"{tail}-full"])
    after = stretch(before, 6.0, 4.0)
    np.testing.assert_allclose(after.weights, before.weights**FLATTENING / (before.weights**FLATTENING).sum())
    assert after.components.tail == tail


@all_families
@pytest.mark.parametrize("df", [4.0, np.inf])
def test_inflated_components_are_wider_with_tails_as_heavy_as_asked(family, df):
    before = make_mixture(family)
    after = inflate(before, 1.7, df)
    np.testing.assert_allclose(
        after.components.spread.covariance(), 1.7**2 * before.components.spread.covariance(), rtol=1e-12
    )
    if family.tail == "student":
        np.testing.assert_array_equal(after.components.df, np.minimum(before.components.df, df))
    np.testing.assert_array_equal(after.components.location, before.components.location)
    np.testing.assert_array_equal(after.log_weights, before.log_weights)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_copies_of_normals_keep_their_infinite_degrees_of_freedom(covariance):
    before = make_mixture(FAMILIES[f"normal-{covariance}"])
    for copies in (inflate(before, 1.7, 4.0), stretch(before, 6.0, 4.0)):
        np.testing.assert_array_equal(copies.components.df, np.inf)


@all_families
def test_joined_and_inflated_mixtures_of_jax_are_those_of_numpy(family):
    one, other = make_mixture(family), make_mixture(family, (0.6, 0.4), 5)
    expected = inflate(join(one, other, 0.3), 2.0, 4.0)
    device = jax.jit(lambda one, other: inflate(join(one, other, 0.3), 2.0, 4.0))(
        *jax.tree.map(jnp.asarray, (one, other))
    )
    taken = take(jax.tree.map(jnp.asarray, expected), jnp.asarray([0, 2]))
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(expected))
    for found, wanted in ((device, expected), (taken, take(expected, np.array([0, 2])))):
        for leaf, same in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(leaf, same, rtol=1e-12)


@pytest.mark.parametrize(("dim", "expected"), [(1, 3.0), (4, 2.0), (100, 1.2)])
def test_the_inflation_of_a_defence_falls_with_the_dimension(dim, expected):
    assert defensive_inflation(dim) == pytest.approx(expected)


@pytest.mark.parametrize("is_matrix", [True, False], ids=["matrices", "variances"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_mixture_is_made_of_locations_and_covariances(name, is_matrix):
    tail, covariance = name.split("-", 1)
    family = Family(tail, covariance, rank=2)
    location = np.random.default_rng(0).normal(size=(2, DIM))
    matrix = np.stack([np.diag([1.0, 4.0, 9.0]), np.diag([2.0, 3.0, 4.0])])
    given_shape = matrix if is_matrix else np.diagonal(matrix, axis1=1, axis2=2)
    mixture = mixture_of(family, location, given_shape, np.array([4.0, 9.0]), np.array([3.0, 1.0]))
    np.testing.assert_allclose(mixture.weights, [0.75, 0.25])
    np.testing.assert_array_equal(mixture.components.location, location)
    np.testing.assert_allclose(mixture.components.spread.variance(), np.diagonal(matrix, axis1=1, axis2=2), rtol=1e-9)
    np.testing.assert_array_equal(mixture.components.df, [np.inf, np.inf] if tail == "normal" else [4.0, 9.0])
    expected = {"full": Full if is_matrix else Diagonal, "diagonal": Diagonal, "low-rank": LowRank}[covariance]
    assert type(mixture.components.spread) is expected
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(mixture))


def test_full_covariances_are_kept_with_their_correlations():
    matrix = np.stack([correlated_covariance(DIM, seed) for seed in range(2)])
    mixture = mixture_of(Family(), np.zeros((2, DIM)), matrix, 5.0, np.ones(2))
    np.testing.assert_allclose(mixture.components.spread.covariance(), matrix, rtol=1e-10)


def test_a_family_of_fixed_degrees_of_freedom_overrules_those_that_are_given():
    shape = np.zeros((2, DIM)), np.ones((2, DIM))
    mixture = mixture_of(Family(df=4.0), *shape, np.array([7.0, 9.0]), np.ones(2))
    np.testing.assert_array_equal(mixture.components.df, 4.0)
    free = mixture_of(Family(), *shape, 7.0, np.ones(2))
    np.testing.assert_array_equal(free.components.df, 7.0)


@all_families
@pytest.mark.parametrize("coordinates", [[0], [1], [1, 0]])
def test_a_marginal_has_the_moments_of_its_coordinates_and_the_tails_of_all(family, coordinates):
    mixture = make_mixture(family)
    part = marginal(mixture, coordinates)
    np.testing.assert_array_equal(part.components.location, mixture.components.location[:, coordinates])
    whole = mixture.components.spread.covariance()
    np.testing.assert_allclose(
        part.components.spread.covariance(), whole[:, coordinates][:, :, coordinates], rtol=1e-9, atol=1e-12
    )
    np.testing.assert_array_equal(part.components.df, mixture.components.df)
    np.testing.assert_array_equal(part.log_weights, mixture.log_weights)


def test_the_density_of_a_marginal_is_the_integral():
    mixture = make_mixture(FAMILIES["student-full"])
    x, grid = 1.3, np.linspace(-400, 400, 400_001)
    points = np.stack([np.full_like(grid, x), grid], axis=1)
    expected = np.log(np.exp(mixture.log_prob(points)).sum() * (grid[1] - grid[0]))
    assert marginal(mixture, [0]).log_prob(np.array([x])) == pytest.approx(expected, abs=1e-4)


def test_a_box_is_covered_with_a_fifth_more_than_its_deviations():
    lower, upper = np.array([-2.0, 0.0, 10.0]), np.array([4.0, 0.1, 1000.0])
    variance = box_variance(lower, upper)
    np.testing.assert_allclose(np.sqrt(variance), 1.2 * stats.uniform(lower, upper - lower).std(), rtol=1e-12)
    mixture = diffuse(lower, upper)
    np.testing.assert_allclose(mixture.components.spread.variance()[0], variance, rtol=1e-9)
    np.testing.assert_allclose(mixture.mean(), 0.5 * (lower + upper))
    assert mixture.components.tail == "student"


def test_corners_of_unlike_lengths_are_refused():
    with pytest.raises(ValueError, match="vectors of one length"):
        diffuse([0.0, 1.0], [1.0])
