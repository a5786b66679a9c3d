import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from coordinates import draw_funnel, equal_weights
from klover.base.linalg import moments
from klover.fitting.sample import Sample, equal
from klover.warps.warp import fit_warp

DIM = 2
SEEDS = st.integers(0, 2**32 - 1)
few_examples = settings(max_examples=5)


def weighted_draws(rng, num_draws: int = 120) -> Sample:
    x = rng.choice([-2.0, 3.0], (num_draws, 1)) + rng.standard_t(5, (num_draws, DIM))
    return Sample(x, rng.dirichlet(np.ones(num_draws)), log_p=stats.norm.logpdf(x, 0, 3).sum(1))


@given(seed=SEEDS)
@few_examples
def test_samples_are_chosen_and_joined_by_weight(seed):
    rng = np.random.default_rng(seed)
    one, other = weighted_draws(rng), weighted_draws(rng, 50)
    assert (len(one), len(other)) == (120, 50)
    assert one.ess == pytest.approx(one.weight.sum() ** 2 / (one.weight**2).sum())
    both = one.join(other, 0.3)
    assert both.weight.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(both.weight @ both.x, 0.7 * one.weight @ one.x + 0.3 * other.weight @ other.x)
    chosen = np.arange(170) >= 120
    back = both.where(chosen)
    np.testing.assert_array_equal(back.x, other.x)
    np.testing.assert_array_equal(back.log_p, other.log_p)
    np.testing.assert_allclose(back.weight, other.weight, rtol=1e-12)


def test_equal_weights_are_all_effective():
    sample = equal(np.zeros((7, DIM)), np.zeros(7))
    np.testing.assert_allclose(sample.weight, 1 / 7)
    assert sample.ess == pytest.approx(7)


@given(seed=SEEDS, num_draws=st.integers(2, 50))
@few_examples
def test_moments_are_those_of_the_weights_with_correlations_shrunk(seed, num_draws):
    rng = np.random.default_rng(seed)
    x, weight = rng.normal(size=(num_draws, 4)) * np.geomspace(1e-4, 1e4, 4), rng.dirichlet(np.ones(num_draws))
    mean, covariance = moments(x, 5 * weight)
    np.testing.assert_allclose(mean, np.average(x, axis=0, weights=weight), rtol=1e-9)
    plain = np.cov(x.T, aweights=weight, ddof=0)
    np.testing.assert_allclose(np.diagonal(covariance), np.diagonal(plain), rtol=1e-8)
    scale = np.sqrt(np.diagonal(plain))
    ratio = (covariance / plain)[np.triu_indices(4, 1)]
    # Four dimensions over the effective draws count as noise beside one.
    noise = 4 / (weight.sum() ** 2 / (weight**2).sum())
    np.testing.assert_allclose(ratio, 1 / (1 + noise), rtol=1e-6)
    assert np.linalg.eigvalsh(covariance / np.outer(scale, scale)).min() > 0


def test_a_background_is_chosen_and_joined_with_its_draws():
    rng = np.random.default_rng(0)
    one, other = (dataclasses.replace(weighted_draws(rng, num), background=rng.normal(size=num)) for num in (30, 20))
    both = one.join(other, 0.5)
    np.testing.assert_array_equal(both.background, np.concatenate([one.background, other.background]))
    chosen = np.arange(50) % 3 == 0
    part = both.where(chosen)
    np.testing.assert_array_equal(part.background, np.asarray(both.background)[chosen])
    assert part.weight.sum() == pytest.approx(1.0)


def test_what_a_sample_does_not_know_stays_unknown():
    sample = Sample(np.zeros((4, DIM)), np.full(4, 0.25))
    assert (sample.log_p, sample.background) == (None, None)
    part = sample.where(np.array([0, 2]))
    assert (part.log_p, part.background) == (None, None)
    assert len(part) == 2


def test_a_sample_is_a_pytree():
    sample = weighted_draws(np.random.default_rng(0))
    device = jax.jit(lambda sample: jax.tree.map(lambda leaf: 2 * leaf, sample))(jax.tree.map(jnp.asarray, sample))
    np.testing.assert_allclose(device.log_p, 2 * sample.log_p)
    assert device.background is None


def test_behind_a_warp_points_and_densities_are_those_of_its_coordinates():
    x = draw_funnel(200, 3)
    warp = fit_warp("led", x, equal_weights(200))
    z, log_det = warp.to_base(x)
    log_z = stats.multivariate_normal(np.zeros(3)).logpdf(z)
    # A density of z is, in x, that of z with the determinant; weights are nobody's coordinates.
    sample = Sample(x, equal_weights(200), log_p=log_z + log_det)
    inside = sample.in_base(warp)
    np.testing.assert_array_equal(inside.x, z)
    np.testing.assert_allclose(inside.log_p, log_z, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(inside.weight, sample.weight)
    again = inside.from_base(warp)
    np.testing.assert_allclose(again.x, x, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(again.log_p, sample.log_p, rtol=1e-9, atol=1e-9)


def test_without_a_warp_or_a_density_nothing_is_added():
    sample = Sample(np.zeros((2, 3)), np.full(2, 0.5))
    assert sample.in_base(None) is sample
    assert sample.from_base(None) is sample
    warp = fit_warp("correlated", draw_funnel(100, 3), equal_weights(100))
    assert sample.in_base(warp).log_p is None
    assert sample.from_base(warp).log_p is None
