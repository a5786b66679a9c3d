import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from klover.fitting import divergences
from klover.importance.ratios import forward_kl, log_evidence

DIM = 2
SEEDS = st.integers(0, 2**32 - 1)
few_examples = settings(max_examples=30)

MEAN_P, COVARIANCE_P = np.array([0.3, -0.4]), np.array([[1.0, 0.4], [0.4, 0.7]])
MEAN_Q, COVARIANCE_Q = np.array([-0.2, 0.1]), np.array([[1.5, -0.2], [-0.2, 1.1]])
LOG_Z = 2.3


def gaussian_kl(mean, covariance, other_mean, other_covariance):
    precision, delta = np.linalg.inv(other_covariance), other_mean - mean
    log_volume = np.linalg.slogdet(other_covariance)[1] - np.linalg.slogdet(covariance)[1]
    return 0.5 * (np.trace(precision @ covariance) - DIM + delta @ precision @ delta + log_volume)


def normal(mean, covariance):
    return stats.multivariate_normal(mean, covariance)


def log_p(x):
    return normal(MEAN_P, COVARIANCE_P).logpdf(x) + LOG_Z


PREVIOUS, NEWCOMER = normal(MEAN_Q, 2 * COVARIANCE_Q), normal(MEAN_P, 1.5 * COVARIANCE_P)
SHARES = {"previous": (1.0, 0.0), "current": (0.6, 0.4), "newcomer": (0.0, 1.0)}


def draw(rng, source, num_draws):
    share = np.array(SHARES[source])
    is_new = rng.random(num_draws) < share[1]
    x = np.where(is_new[:, None], NEWCOMER.rvs(num_draws, rng), PREVIOUS.rvs(num_draws, rng))
    parts = np.stack([PREVIOUS.logpdf(x), NEWCOMER.logpdf(x)])
    return x, special.logsumexp(parts, b=share[:, None], axis=0)


@pytest.mark.parametrize("source", SHARES)
def test_forward_loss_is_the_cross_entropy_of_two_gaussians(source):
    rng = np.random.default_rng(0)
    exact = gaussian_kl(MEAN_P, COVARIANCE_P, MEAN_Q, COVARIANCE_Q)
    entropy = normal(MEAN_P, COVARIANCE_P).entropy()
    losses = []
    for _ in range(40):
        x, log_source = draw(rng, source, 2000)
        log_q = normal(MEAN_Q, COVARIANCE_Q).logpdf(x)
        losses.append(divergences.forward_loss(log_p(x) - log_source, log_q))
    assert abs(np.mean(losses) - exact - entropy) < 5 * np.std(losses, ddof=1) / np.sqrt(len(losses))


def test_a_loss_less_the_entropy_of_the_weights_is_the_divergence_that_is_reported():
    x, log_q = draw(np.random.default_rng(1), "current", 500)
    log_ratio = log_p(x) - log_q
    found = divergences.forward_loss(log_ratio, log_q) - divergences.forward_loss(log_ratio, log_p(x))
    np.testing.assert_allclose(found - log_evidence(log_ratio)[0], forward_kl(log_ratio), rtol=1e-10)


def test_reverse_loss_is_the_divergence_of_two_gaussians_less_the_log_evidence():
    x = normal(MEAN_Q, COVARIANCE_Q).rvs(20_000, np.random.default_rng(2))
    log_q = normal(MEAN_Q, COVARIANCE_Q).logpdf(x)
    exact = gaussian_kl(MEAN_Q, COVARIANCE_Q, MEAN_P, COVARIANCE_P)
    error = np.std(log_q - log_p(x), ddof=1) / np.sqrt(len(x))
    assert abs(divergences.reverse_loss(log_p(x), log_q) + LOG_Z - exact) < 5 * error


def log_densities(seed, num=4, num_draws=30):
    return np.random.default_rng(seed).normal(0, 3, (num, num_draws))


@given(seed=SEEDS, shift=st.floats(-1e3, 1e3))
@few_examples
def test_a_constant_of_the_target_moves_the_reverse_loss_alone(seed, shift):
    log_ratio, target, log_q, log_previous = log_densities(seed)
    loss = divergences.forward_loss(log_ratio, log_q)
    np.testing.assert_allclose(divergences.forward_loss(log_ratio + shift, log_q), loss, atol=1e-9)
    reverse = divergences.reverse_loss(target, log_q)
    np.testing.assert_allclose(divergences.reverse_loss(target + shift, log_q), reverse - shift, atol=1e-9)
    remainder = divergences.forward_remainder_loss(target, log_previous, log_ratio, log_q)
    moved = divergences.forward_remainder_loss(target + shift, log_previous, log_ratio, log_q)
    np.testing.assert_allclose(moved, remainder, atol=1e-9)


@given(seed=SEEDS)
@few_examples
def test_losses_are_the_sums_of_the_paper(seed):
    target, log_previous, log_source, log_f = log_densities(seed)
    weight = np.exp(target - log_source)
    expected = -np.sum(weight * log_f) / np.sum(weight)
    np.testing.assert_allclose(divergences.forward_loss(target - log_source, log_f), expected, rtol=1e-10)
    weight = np.exp(target) / (np.exp(log_previous) * np.exp(log_source))
    expected = -np.sum(weight * log_f) / np.sum(weight)
    value = divergences.forward_remainder_loss(target, log_previous, log_source, log_f)
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    expected = np.mean(np.log(np.exp(log_previous) / np.exp(target)) + log_f)
    np.testing.assert_allclose(divergences.reverse_remainder_loss(target, log_previous, log_f), expected, atol=1e-10)


@pytest.mark.parametrize("namespace", [np, jnp])
def test_draws_outside_the_support_count_for_nothing(namespace):
    log_ratio, log_q = map(namespace.asarray, log_densities(3)[:2])
    padded = namespace.concatenate([log_ratio, namespace.full(2, -namespace.inf)])
    # The mixture, too, may be without mass there.
    log_q_padded = namespace.concatenate([log_q, namespace.asarray([-namespace.inf, 5.0])])
    loss = divergences.forward_loss(log_ratio, log_q)
    np.testing.assert_allclose(divergences.forward_loss(padded, log_q_padded), loss, rtol=1e-12)


def test_gradient_flows_through_q_only_and_is_finite_outside_the_support():
    log_ratio, _, log_q, _ = log_densities(4)
    log_ratio[:3], log_q[1] = -np.inf, -np.inf
    gradient = jax.grad(divergences.forward_loss, argnums=(0, 1))(jnp.asarray(log_ratio), jnp.asarray(log_q))
    np.testing.assert_array_equal(gradient[0], 0.0)
    np.testing.assert_allclose(gradient[1], -special.softmax(log_ratio), rtol=1e-12)


@given(seed=SEEDS)
@few_examples
def test_smoothing_adds_epsilon(seed):
    log_q = log_densities(seed)[0]
    np.testing.assert_array_equal(divergences.smoothed(log_q, None), log_q)
    epsilon = np.exp(divergences.PAPER_LOG_EPSILON)
    smooth = divergences.smoothed(log_q, divergences.PAPER_LOG_EPSILON)
    np.testing.assert_allclose(np.exp(smooth), np.exp(log_q) + epsilon, rtol=1e-12)


def test_smoothing_is_finite_where_nothing_is():
    log_q = np.array([-np.inf, -1e4, 0.0])
    np.testing.assert_allclose(divergences.smoothed(log_q, -10.0), [-10.0, -10.0, np.log1p(np.exp(-10.0))])
