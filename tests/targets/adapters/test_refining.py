"""Refining what other tools give: wrong weights of modes, too narrow a guide, few draws of a chain."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover

blackjax = pytest.importorskip("blackjax")

MODES = np.array([[-5.0, 0.0], [5.0, 0.0]])


def two_modes(x):
    return jax.nn.logsumexp(-0.5 * jnp.sum((x - MODES) ** 2, axis=1))


@pytest.mark.slow
def test_weights_of_modes_that_pathfinder_gets_wrong():
    # Six starts in one basin and two in the other: the paths' draws hold the second mode with a quarter.
    basin = np.repeat([0, 1], [6, 2])
    starts = MODES[basin] + 0.5 * jax.random.normal(jax.random.key(0), (8, 2))
    state, _ = blackjax.vi.multipathfinder.multi_approximate(jax.random.key(1), two_modes, jnp.asarray(starts))
    assert np.mean(np.asarray(state.samples)[..., 0] > 0) < 0.3
    fit = klover.refine(jax.random.key(2), klover.Target(two_modes, jnp.zeros(2)), state, num_draws=50_000)
    share, error = fit.draws.expectation(lambda x: x[0] > 0)
    assert fit.verdict.trusted
    assert error < 0.003
    assert abs(share - 0.5) < 0.01


def test_a_mean_field_guide_of_a_correlated_posterior():
    numpyro = pytest.importorskip("numpyro")
    from numpyro import distributions
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal
    from numpyro.optim import Adam

    covariance = np.full((10, 10), 0.95) + 0.05 * np.eye(10)

    def model():
        numpyro.sample("x", distributions.MultivariateNormal(jnp.zeros(10), covariance))

    guide = AutoNormal(model)
    result = SVI(model, guide, Adam(0.02), Trace_ELBO()).run(jax.random.key(0), 2000, progress_bar=False)
    narrow = guide.sample_posterior(jax.random.key(1), result.params, sample_shape=(2000,))["x"]
    assert np.all(np.var(narrow, axis=0) < 0.2)
    fit = klover.refine(jax.random.key(2), klover.from_numpyro(model), (guide, result))
    assert fit.verdict.trusted
    found = fit.draws.expectation(lambda position: jnp.outer(position["x"], position["x"]))[0]
    np.testing.assert_allclose(found, covariance, atol=0.05)
    assert abs(fit.log_evidence) < 0.02


def test_a_few_draws_of_a_chain_give_the_evidence():
    # A t density in five dimensions, with 200 draws of NUTS.
    def log_density(x):
        return -0.5 * (7.0 + 5.0) * jnp.log1p(jnp.sum(x**2) / 7.0)

    truth = jax.scipy.special.gammaln(3.5) - jax.scipy.special.gammaln(6.0) + 2.5 * np.log(7.0 * np.pi)
    warmup = blackjax.window_adaptation(blackjax.nuts, log_density)
    (state, parameters), _ = warmup.run(jax.random.key(0), jnp.ones(5), 300)
    kernel = blackjax.nuts(log_density, **parameters)
    _, x = jax.lax.scan(
        lambda state, key: (lambda new: (new, new.position))(kernel.step(key, state)[0]),
        state,
        jax.random.split(jax.random.key(1), 200),
    )
    fit = klover.refine(jax.random.key(2), klover.Target(log_density, jnp.zeros(5)), x)
    assert fit.verdict.trusted
    assert abs(fit.log_evidence - truth) < 0.02
