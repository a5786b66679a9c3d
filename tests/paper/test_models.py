import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import klover
from helpers import needs
from klover.paper import datasets, gibbs, models

pytestmark = needs("mlxtend")  # the Boston data


@pytest.fixture(scope="module")
def split():
    return datasets.split(datasets.load("boston"), 1)


def likelihood(split, weights, tau):
    mean = models.design(split.train_features) @ weights
    return stats.norm(mean, tau**-0.5).logpdf(split.train_target).sum()


def test_linear_regression_is_the_density_of_the_paper(split):
    target = models.linear_regression(split)
    rng = np.random.default_rng(0)
    weights, alpha, tau = rng.normal(size=14), 0.7, 2.5
    # Gamma(1, 0.1) with a rate, and the Jacobian of the logarithm.
    expected = likelihood(split, weights, tau) + stats.norm(0, alpha**-0.5).logpdf(weights).sum()
    expected += sum(stats.gamma(1, scale=10).logpdf(value) + np.log(value) for value in (alpha, tau))
    point = jnp.concatenate([jnp.log(jnp.array([alpha, tau])), jnp.asarray(weights)])
    assert target.dim == 16
    assert target.log_prob(point) == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(target.flat_position(point[None])[0], [alpha, tau, *weights])


def test_heavy_tailed_regression_is_the_density_of_the_paper(split):
    target = models.heavy_tailed_regression(split)
    weights, tau = np.random.default_rng(0).normal(size=14), 2.5
    factor = models.prior_factor(14)
    expected = likelihood(split, weights, tau) + stats.multivariate_t(np.zeros(14), factor.T @ factor, 2).logpdf(
        weights
    )
    expected += stats.gamma(1, scale=10).logpdf(tau) + np.log(tau)
    assert target.dim == 15
    assert target.log_prob(jnp.array([np.log(tau), *weights])) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", datasets.DATASETS)
def test_dimensions_are_those_of_the_paper(name):
    dataset = datasets.load(name)
    split = datasets.split(dataset, 1)
    expected = {"wine": 14, "boston": 16, "concrete": 11, "power": 7}[name]
    assert models.linear_regression(split, dataset.feature_names).dim == expected
    assert models.heavy_tailed_regression(split, dataset.feature_names).dim == expected - 1


@pytest.mark.parametrize(
    ("build", "sample"),
    [
        (models.linear_regression, gibbs.sample_linear_regression),
        (models.heavy_tailed_regression, gibbs.sample_heavy_tailed_regression),
    ],
)
def test_the_exact_sampler_and_importance_sampling_agree(split, build, sample, getkey):
    target = build(split)
    if build is models.linear_regression:
        fit = klover.boost(
            getkey(), target, start="forward", max_components=1, family="student", fitter="em", newcomer="lbfgs"
        )
        # One Student component covers it.
        assert fit.ess >= 0.6 * fit.draws.num_draws
        assert fit.pareto_k < 0.5
    else:
        fit = klover.refine(getkey(), target)
    assert fit.verdict.trusted
    draws = sample(np.random.default_rng(0), split, 4000)
    exact = np.column_stack(jax.tree.leaves(draws))
    summary = fit.summary()
    # Gibbs draws of these models are nearly independent; doubling their error allows for what remains.
    error = np.hypot(summary.columns["mcse"], 2 * exact.std(0) / np.sqrt(len(exact)))
    assert np.all(np.abs(summary.columns["mean"] - exact.mean(0)) < 5 * error)
    assert np.all(np.abs(summary.columns["sd"] / exact.std(0) - 1) < 0.1)
