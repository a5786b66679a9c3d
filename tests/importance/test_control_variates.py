"""The control variate of the evidence: known mean, smaller errors, and errors that are as large as they say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from klover.importance import control_variates, ratios
from klover.importance.draws import sample_importance
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.targets.target import Target


def proposal(weights=(0.5, 0.3, 0.2), xp=np):
    components = Family("student", df=5.0).components(
        np.array([[-2.0], [0.5], [3.0]]), np.array([[[1.0]], [[4.0]], [[0.5]]])
    )
    return jax.tree.map(xp.asarray, Mixture(components, np.log(np.asarray(weights))))


def log_p(x, shift=1.3):
    """Two Normals, one of them narrower than the component that covers it, times exp(1.3)."""
    parts = [scipy.stats.norm.logpdf(x[:, 0], -2, 0.8), scipy.stats.norm.logpdf(x[:, 0], 2.5, 0.6)]
    return shift + np.logaddexp(np.log(0.6) + parts[0], np.log(0.4) + parts[1])


def estimate(mixture, generator, num_draws, function=log_p):
    """Return the estimates without and with the control variate."""
    # Independent draws, not strata: the stated errors are those of independent ones.
    x = mixture.draw(generator, 20 * num_draws)[:num_draws]
    log_q, target = mixture.log_prob(x), function(x)
    found = control_variates.control(mixture, x, log_q, target)
    return ratios.log_evidence(target - log_q), ratios.log_evidence(target - log_q, found)


def test_errors_are_smaller_and_honest():
    generator = np.random.default_rng(0)
    plain, better = np.swapaxes([estimate(proposal(), generator, 2000) for _ in range(400)], 0, 1)
    for value, error in (plain.T, better.T):
        score = (value - 1.3) / error
        # Means of 400 squares of standard Normals scatter by 0.07, their means by 0.05.
        assert abs(np.mean(score**2) - 1) < 5 * 0.07
        assert abs(score.mean()) < 5 * 0.05
    assert np.std(better[:, 0]) < 0.9 * np.std(plain[:, 0])


def test_a_target_that_is_a_combination_of_the_components_is_known_exactly():
    mixture = proposal()

    def combination(x):
        return np.log(np.exp(mixture.component_log_prob(x)).T @ [0.2, 1.0, 0.1])

    (_, plain), (value, error) = estimate(mixture, np.random.default_rng(1), 1000, combination)
    assert value == pytest.approx(np.log(1.3), abs=1e-5)
    # All is explained; a twentieth of the variance is stated nevertheless.
    assert error == pytest.approx(np.sqrt(ratios.DOUBTED) * plain, rel=0.02)


def test_components_without_draws_explain_nothing():
    # The narrow mode has the draws of one component: with 8 of them it must not be explained away, with 400 it may.
    mixture = proposal((0.495, 0.495, 0.01))
    shares = []
    for num_draws in (800, 40_000):
        x = mixture.draw(np.random.default_rng(2), num_draws)
        log_q, target = mixture.log_prob(x), scipy.stats.norm.logpdf(x[:, 0], 3.0, 0.5)
        ratio = np.exp(ratios.normalise(target - log_q)) * num_draws
        shares.append(np.max(np.abs(control_variates.control(mixture, x, log_q, target))) / ratio.max())
    assert shares[0] < 0.2
    assert shares[1] > 0.5


@pytest.mark.parametrize("values", [np.full(200, -np.inf), np.where(np.arange(200) == 7, 0.0, -np.inf)])
def test_nothing_or_one_draw_inside_the_support(values):
    mixture = proposal()
    x = mixture.draw(np.random.default_rng(0), 200)
    found = control_variates.control(mixture, x, mixture.log_prob(x), values)
    assert np.isfinite(found).all()
    value, error = ratios.log_evidence(values - mixture.log_prob(x), found)
    assert not np.isnan(value)
    assert error > 0


def test_unused_slots_are_silent_and_both_libraries_agree():
    mixture = proposal()
    x = mixture.draw(np.random.default_rng(0), 500)
    expected = control_variates.control(mixture, x, mixture.log_prob(x), log_p(x))
    roomy = proposal(xp=jnp).with_capacity(6)
    found = jax.jit(control_variates.control)(roomy, x, roomy.log_prob(x), log_p(x))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_weighed_draws_of_a_mixture_have_it(getkey):
    target = Target(lambda x: -0.5 * jnp.sum((x / 0.8) ** 2), jnp.zeros(1))
    components = Family("normal").components(jnp.zeros((2, 1)), jnp.array([[0.5], [2.0]]))
    draws = sample_importance(getkey(), target, Mixture.of(components), 4000)
    plain = ratios.log_evidence(draws.log_ratio)
    assert draws.log_evidence_se < plain[1]
    assert abs(draws.log_evidence - np.log(0.8 * np.sqrt(2 * np.pi))) < 5 * draws.log_evidence_se
