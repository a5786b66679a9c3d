import importlib.metadata
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import genpareto

from klover.importance import psis

NUM_STANDARD_ERRORS = 4.0


def normal_log_ratio(num_draws: int, spread: float, seed: int = 0) -> np.ndarray:
    return spread * np.random.default_rng(seed).normal(size=num_draws)


@pytest.fixture(scope="module")
def arviz_psislw():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it announces its refactoring at import
        arviz = pytest.importorskip("arviz")
    if int(importlib.metadata.version("arviz").split(".")[0]) >= 1:
        pytest.skip("arviz 1 gave psislw to arviz-stats, with another interface and the opposite sign of the ratios")
    return arviz.psislw


@pytest.mark.parametrize(
    ("num_draws", "expected"), [(1, 1), (5, 1), (6, 2), (100, 20), (225, 45), (226, 46), (1000, 95), (10_000, 300)]
)
def test_tail_length(num_draws, expected):
    assert psis.tail_length(num_draws) == expected


def test_reliable_k():
    assert psis.reliable_k(100) == pytest.approx(0.5)
    assert psis.reliable_k(2000) == pytest.approx(1 - 1 / np.log10(2000))
    assert psis.reliable_k(100_000) == 0.7


def test_bad_arguments():
    with pytest.raises(ValueError, match="num_draws"):
        psis.tail_length(0)
    with pytest.raises(ValueError, match="num_draws"):
        psis.reliable_k(1)
    with pytest.raises(ValueError, match="num_draws"):
        psis.smooth(np.empty(0))


@pytest.mark.parametrize("num_draws", [1, 3, 5, 15, 30, 100, 1000])
@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0, 50.0, 500.0])
def test_numpy_is_jax(num_draws, spread):
    log_ratio = normal_log_ratio(num_draws, spread)
    log_weight, k = psis.smooth(log_ratio)
    log_weight_jax, k_jax = jax.jit(psis.smooth)(jnp.asarray(log_ratio))
    assert isinstance(log_weight, np.ndarray)
    assert isinstance(log_weight_jax, jax.Array)
    np.testing.assert_allclose(log_weight_jax, log_weight, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(k_jax, k, rtol=1e-10)
    np.testing.assert_allclose(psis.pareto_k(log_ratio), k, rtol=1e-10)
    assert logsumexp(log_weight) == pytest.approx(0, abs=1e-12)


def test_ties_are_broken_alike():
    log_ratio = np.round(normal_log_ratio(2000, 1.0), 1)
    log_weight_jax, _ = jax.jit(psis.smooth)(jnp.asarray(log_ratio))
    np.testing.assert_allclose(log_weight_jax, psis.smooth(log_ratio)[0], rtol=1e-10)


def test_single_precision():
    log_ratio = normal_log_ratio(1000, 2.0)
    log_weight, k = psis.smooth(log_ratio.astype(np.float32))
    log_weight_jax, k_jax = jax.jit(psis.smooth)(jnp.asarray(log_ratio, jnp.float32))
    assert {x.dtype for x in (log_weight, k, log_weight_jax, k_jax)} == {np.dtype("float32")}
    for answer, exact in zip((log_weight, k), psis.smooth(log_ratio), strict=True):
        np.testing.assert_allclose(answer, exact, rtol=1e-4)
    np.testing.assert_allclose(k_jax, k, rtol=1e-4)


# blackjax rounds the tail length down where klover rounds it up: the two agree where 3 sqrt(S) or S / 5 is whole.
@pytest.mark.parametrize("num_draws", [25, 100, 225, 400, 10_000])
@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0, 2.0, 5.0])
def test_agrees_with_blackjax(num_draws, spread):
    log_ratio = normal_log_ratio(num_draws, spread)
    log_weight, k = psis.smooth(log_ratio)
    oracle = pytest.importorskip("blackjax").diagnostics.psis_weights
    log_weight_oracle, k_oracle = jax.jit(oracle)(jnp.asarray(log_ratio))
    np.testing.assert_allclose(k, k_oracle, rtol=0, atol=1e-10)
    if k >= 1 / 3:  # below, blackjax leaves the tail as it is
        np.testing.assert_allclose(log_weight, log_weight_oracle, rtol=0, atol=1e-10)


# arviz 0.23 counts the tail as klover does (at relative efficiency 1). It drops grid points of posterior weight below
# 10 machine epsilons, and ratios below the smallest normal number from the tail: hence 1e-10, and no larger spreads.
@pytest.mark.parametrize("num_draws", [15, 100, 333, 1000, 10_000])
@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0, 2.0, 5.0, 50.0])
def test_agrees_with_arviz(arviz_psislw, num_draws, spread):
    log_ratio = normal_log_ratio(num_draws, spread)
    log_weight, k = psis.smooth(log_ratio)
    log_weight_oracle, k_oracle = arviz_psislw(log_ratio.copy())
    np.testing.assert_allclose(k, k_oracle, rtol=1e-10)
    np.testing.assert_allclose(log_weight, log_weight_oracle, rtol=0, atol=1e-10)


def test_ties_at_the_cutoff_agree_with_arviz(arviz_psislw):
    log_ratio = np.sort(normal_log_ratio(100, 1.0))
    log_ratio[76:84] = log_ratio[80]
    log_weight, k = psis.smooth(log_ratio)
    log_weight_oracle, k_oracle = arviz_psislw(log_ratio.copy())
    np.testing.assert_allclose(k, k_oracle, atol=1e-10)
    np.testing.assert_allclose(log_weight, log_weight_oracle, atol=1e-10)


@pytest.mark.parametrize("k", [-0.3, 0.0, 0.3, 0.7, 1.2])
def test_fit_recovers_known_shape_and_scale(k):
    num_draws, sigma = 4000, 2.5
    exceedances = np.sort(genpareto.rvs(k, scale=sigma, size=num_draws, random_state=1))
    k_hat, sigma_hat = psis.fit_generalised_pareto(exceedances, prior_weight=0.0)
    # Standard errors of maximum likelihood (Smith 1987), which this estimator attains as the sample grows.
    assert abs(k_hat - k) < NUM_STANDARD_ERRORS * (1 + k) / np.sqrt(num_draws)
    assert abs(sigma_hat - sigma) < NUM_STANDARD_ERRORS * sigma * np.sqrt(2 * (1 + k) / num_draws)


def test_fit_prior_counts_as_observations():
    exceedances = np.sort(genpareto.rvs(0.2, size=40, random_state=2))
    k, sigma = psis.fit_generalised_pareto(exceedances, prior_weight=0.0)
    k_prior, sigma_prior = psis.fit_generalised_pareto(exceedances)
    assert k_prior == pytest.approx((40 * k + 10 * 0.5) / 50, abs=1e-14)
    assert sigma_prior == sigma


def test_fit_leaves_out_what_is_not_positive():
    exceedances = np.sort(genpareto.rvs(0.2, size=40, random_state=3))
    padded = np.concatenate([np.zeros(60), exceedances])
    np.testing.assert_allclose(
        psis.fit_generalised_pareto(padded), psis.fit_generalised_pareto(exceedances), rtol=1e-12
    )


def test_fit_where_a_grid_point_is_exponential():
    # 20 values make 34 grid points, one of which is exactly zero where the largest is three times the fifth.
    exceedances = np.concatenate([np.linspace(0.6, 1, 5), np.linspace(1.1, 3, 15)])
    assert np.all(np.isfinite(psis.fit_generalised_pareto(exceedances)))


def test_fit_over_the_whole_range_of_numbers():
    exceedances = np.concatenate([np.geomspace(1e-320, 1e-310, 20), np.geomspace(1e-300, 1.0, 20)])
    k, sigma = psis.fit_generalised_pareto(exceedances)
    assert 1 < k < np.inf
    assert np.isfinite(sigma)


@pytest.mark.parametrize("tail_index", [10.0, 4.0, 2.0, 1.0])
def test_known_tail_index(tail_index):
    num_draws, k = 40_000, 1 / tail_index
    log_ratio = k * np.random.default_rng(4).exponential(size=num_draws)
    standard_error = (1 + k) / np.sqrt(psis.tail_length(num_draws))
    assert abs(psis.pareto_k(log_ratio) - k) < NUM_STANDARD_ERRORS * standard_error


@given(shift=st.floats(-1e4, 1e4), spread=st.sampled_from([0.2, 1.0, 4.0]))
def test_a_constant_changes_nothing(shift, spread):
    log_ratio = normal_log_ratio(200, spread)
    log_weight, k = psis.smooth(log_ratio)
    log_weight_shifted, k_shifted = psis.smooth(log_ratio + shift)
    # The sum rounds to 1e4 machine epsilons, and the fit magnifies that by its condition.
    np.testing.assert_allclose(log_weight_shifted, log_weight, rtol=0, atol=1e-8)
    np.testing.assert_allclose(k_shifted, k, rtol=0, atol=1e-8)


@given(
    st.lists(
        st.one_of(st.floats(-1000, 1000), st.integers(-3, 3).map(float), st.just(-np.inf)), min_size=1, max_size=60
    )
)
def test_any_ratios_give_weights(values):
    log_ratio = np.array(values)
    log_weight, k = psis.smooth(log_ratio)
    assert not np.isnan(k)
    np.testing.assert_array_equal(log_weight == -np.inf, log_ratio == -np.inf)
    if np.any(log_ratio > -np.inf):
        assert logsumexp(log_weight) == pytest.approx(0, abs=1e-12)
        body = np.argsort(log_ratio)[: -psis.tail_length(len(values))]
        body = body[np.isfinite(log_ratio[body])]
        offsets = log_weight[body] - log_ratio[body]
        np.testing.assert_allclose(offsets, offsets[:1].repeat(len(body)), rtol=0, atol=1e-10)


@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
def test_smoothing_keeps_the_order_and_the_largest_ratio(spread):
    log_ratio = np.sort(normal_log_ratio(500, spread))
    log_weight, _ = psis.smooth(log_ratio)
    assert np.all(np.diff(log_weight) >= 0)
    # The body moves by the constant of normalisation alone, and measures it.
    assert log_weight[-1] - (log_weight[0] - log_ratio[0]) <= log_ratio[-1] + 1e-12


@pytest.mark.parametrize("num_outside", [1, 100, 900, 5000])
def test_draws_outside_the_support_change_nothing(num_outside):
    inside = normal_log_ratio(100, 1.0)
    log_ratio = np.concatenate([inside, np.full(num_outside, -np.inf)])
    order = np.random.default_rng(5).permutation(len(log_ratio))
    log_weight, k = psis.smooth(log_ratio[order])
    log_weight_inside, k_inside = psis.smooth(inside)
    np.testing.assert_allclose(k, k_inside, atol=1e-12)
    np.testing.assert_allclose(log_weight[np.argsort(order)][:100], log_weight_inside, atol=1e-12)
    np.testing.assert_allclose(jax.jit(psis.pareto_k)(jnp.asarray(log_ratio)), k_inside, atol=1e-12)


def both(log_ratio: np.ndarray):
    yield psis.smooth(log_ratio)
    yield jax.jit(psis.smooth)(jnp.asarray(log_ratio))


def test_every_draw_outside_the_support():
    for log_weight, k in both(np.full(50, -np.inf)):
        assert np.all(log_weight == -np.inf)
        assert k == np.inf


@pytest.mark.parametrize("num_finite", [5, 30, 500])
def test_constant_ratios_are_not_heavy(num_finite):
    log_ratio = np.concatenate([np.full(num_finite, -3e3), np.full(20, -np.inf)])
    for log_weight, k in both(log_ratio):
        np.testing.assert_allclose(log_weight[:num_finite], -np.log(num_finite), rtol=1e-12)
        assert k == 0.0


def test_rounding_is_not_a_tail():
    log_ratio = 1e-13 * np.random.default_rng(6).standard_cauchy(size=200)
    for log_weight, k in both(log_ratio):
        np.testing.assert_allclose(log_weight, -np.log(200), rtol=1e-9)
        assert k == 0.0


def test_plateau_of_largest_ratios_is_not_heavy():
    log_ratio = np.concatenate([np.zeros(200), normal_log_ratio(800, 1.0) - 50])
    for _, k in both(log_ratio):
        assert k == 0.0


@pytest.mark.parametrize(
    "log_ratio",
    [
        np.zeros(4),
        np.array([0.0, 0.1, 0.2, 0.3] + 96 * [-np.inf]),
        np.array([0.0, 0.0, -1.0, -2.0, -3.0]),
        normal_log_ratio(20, 1.0),
        np.array([3.0, 2.0, 1.0, 0.5] + 96 * [0.0]),
        np.concatenate([[0.0], np.full(99, -800.0) - np.arange(99)]),
    ],
    ids=["four draws", "four inside", "five draws", "twenty draws", "four above ties", "one carries all"],
)
def test_too_few_tail_values_to_say(log_ratio):
    for log_weight, k in both(log_ratio):
        assert k == np.inf
        np.testing.assert_allclose(log_weight, log_ratio - logsumexp(log_ratio), atol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_ratio_is_not_hidden(bad):
    for log_weight, k in both(np.concatenate([normal_log_ratio(100, 1.0), [bad]])):
        assert np.any(np.isnan(log_weight))
        assert k == np.inf


def test_vmap_is_a_loop():
    log_ratio = np.stack([normal_log_ratio(100, spread) for spread in (0.0, 0.5, 2.0, 8.0)])
    log_ratio[1, :70] = -np.inf
    log_weight, k = jax.jit(jax.vmap(psis.smooth))(jnp.asarray(log_ratio))
    for row in range(len(log_ratio)):
        log_weight_row, k_row = psis.smooth(log_ratio[row])
        np.testing.assert_allclose(log_weight[row], log_weight_row, atol=1e-12)
        np.testing.assert_allclose(k[row], k_row, atol=1e-12)
