"""Stacked posteriors and the two test scores, against NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from helpers import needs
from klover.paper import datasets, models, problems


def test_a_stack_holds_the_posterior_of_each_split(getkey):
    problem = problems.load("blr", "power", (2, 5))
    x = np.random.default_rng(0).normal(size=problem.targets.dim)
    for which, number in enumerate((2, 5)):
        alone = models.linear_regression(datasets.split(datasets.load("power"), number))
        assert problem.target(which).log_prob(x) == pytest.approx(float(alone.log_prob(x)), rel=1e-12)


@pytest.mark.parametrize("table", models.MODELS)
def test_scores_are_those_of_numpy(table):
    problem = problems.load(table, "power", (1,))
    split = datasets.split(datasets.load("power"), 1)
    x = 0.3 * np.random.default_rng(0).normal(size=(7, problem.targets.dim))
    log_ratio = np.random.default_rng(1).normal(size=7)
    log_density = []
    for point in x:
        position = problem.target(0).unravel(point)
        inputs = models.design(split.test_features)
        if table == "bnn":
            hidden = np.maximum(inputs @ position["hidden"], 0)
            mean = hidden @ position["output"][:-1] + position["output"][-1]
        else:
            mean = inputs @ position["w"]
        original = split.target_scale * mean + split.target_mean
        observed = split.target_scale * split.test_target + split.target_mean
        log_density.append(
            stats.norm(original, split.target_scale * np.exp(-0.5 * position["log_tau"])).logpdf(observed)
        )
    log_density = np.array(log_density)
    weight = np.exp(log_ratio - logsumexp(log_ratio))
    found = problem.score(jnp.asarray(x)[None], jnp.asarray(log_ratio)[None])
    assert found["mean_of_logs"][0] == pytest.approx(log_density.mean())
    assert found["log_of_mean"][0] == pytest.approx((logsumexp(log_density, axis=0) - np.log(7)).mean())
    assert found["mean_of_logs_is"][0] == pytest.approx((weight @ log_density).mean())
    assert found["log_of_mean_is"][0] == pytest.approx(logsumexp(log_density, axis=0, b=weight[:, None]).mean())
    equal = problem.score(jnp.asarray(x)[None])
    assert equal["log_of_mean"] == pytest.approx(found["log_of_mean"])


@needs("mlxtend")  # the Boston data
def test_validation_never_sees_the_test_rows():
    whole = datasets.load("boston")
    split, inner = datasets.split(whole, 3), problems._inner(whole, 3)
    train = split.train_target * split.target_scale + split.target_mean
    seen = np.concatenate([inner.train_target, inner.test_target]) * inner.target_scale + inner.target_mean
    np.testing.assert_allclose(np.sort(seen), np.sort(train))
    assert len(inner.test_target) == len(train) - round(0.9 * len(train))


def test_an_unknown_table_or_data_set_is_refused():
    with pytest.raises(ValueError, match="'blr', 'bnn', 'heavy'"):
        problems.load("blp", "boston", (1,))
    with pytest.raises(ValueError, match="'wine', 'boston'"):
        problems.load("blr", "oslo", (1,))
