import importlib
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy import stats

bilby = pytest.importorskip("bilby")
from bilby.core import prior  # noqa: E402

from klover.plugins.bilby import Klover  # noqa: E402

TIMES = np.linspace(0.0, 10.0, 30)
DATA = 0.5 * TIMES + 0.2 + np.random.default_rng(0).normal(size=30)


class Line(bilby.Likelihood):
    """bilby's example of a linear regression, without its deprecated ways to hold parameters."""

    def log_likelihood(self, parameters):
        residual = DATA - parameters["slope"] * TIMES - parameters["level"]
        return -0.5 * (residual @ residual + 30 * np.log(2 * np.pi))


class Density(bilby.Likelihood):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def log_likelihood(self, parameters):
        return self.function(**parameters)


def run(likelihood, priors, folder, **options):
    sampler = Klover(likelihood, priors, outdir=str(folder), label="run", **{"seed": 1} | options)
    return bilby.run_sampler(likelihood, priors, sampler=sampler, outdir=str(folder), label="run", save=False)


def test_a_linear_regression_agrees_with_its_closed_form(tmp_path):
    priors = prior.PriorDict({"slope": prior.Normal(0, 2), "level": prior.Normal(0, 1), "zero": prior.DeltaFunction(0)})
    result = run(Line(), priors, tmp_path, min_ess=1000, resume=True)
    assert (tmp_path / "run_klover.journal").exists()
    design, scale = np.column_stack([TIMES, np.ones(30)]), np.diag([4.0, 1.0])
    truth = stats.multivariate_normal(np.zeros(30), design @ scale @ design.T + np.eye(30)).logpdf(DATA)
    covariance = np.linalg.inv(design.T @ design + np.linalg.inv(scale))
    assert abs(result.log_evidence - truth) < 4 * result.log_evidence_err < 0.2
    num = len(result.posterior)
    error = np.sqrt(np.diag(covariance) / num)
    names = ["slope", "level"]
    assert np.all(np.abs(result.posterior[names].mean() - covariance @ design.T @ DATA) < 5 * error)
    np.testing.assert_allclose(result.posterior[names].cov(), covariance, rtol=0.25)
    # Likelihoods belong to their samples, and the nested ones carry weights.
    each = [Line().log_likelihood(row) for row in result.posterior[:20].to_dict("records")]
    np.testing.assert_allclose(result.posterior["log_likelihood"][:20], each, rtol=1e-9)
    weights = result.nested_samples["weights"]
    assert weights.sum() == pytest.approx(1.0)
    information = weights @ result.nested_samples["log_likelihood"] - result.log_evidence
    assert result.information_gain == pytest.approx(information)
    assert result.meta_data["klover"]["trusted"]
    assert result.num_likelihood_evaluations > num


def test_constraints_conditions_and_circles():
    """The evidence is that of the prior which bilby normalises over what its constraints allow."""

    def below(reference_params, a):
        return {"minimum": 0.0, "maximum": a}

    def convert(sample):
        return sample | {"sum": sample["a"] + sample["b"]}

    priors = prior.ConditionalPriorDict(
        {
            "a": prior.Uniform(0, 1, boundary="periodic"),
            "b": prior.ConditionalUniform(below, minimum=0.0, maximum=1.0),
            "sum": prior.Constraint(0.0, 1.0),
        },
        conversion_function=convert,
    )
    sampler = Klover(Density(lambda a, b: 3.0), priors)
    # All of b < a is allowed where a < 1/2, and the part (1 - a)/a of it above: log 2 of the prior.
    log_share, error = sampler._allowed_share()
    assert abs(log_share - np.log(np.log(2))) < 4 * error < 0.01
    assert sampler.log_likelihood([0.4, 0.3]) == 3.0
    assert sampler.log_likelihood([0.8, 0.3]) == -np.inf
    target = sampler.make_target()
    assert target.dim == 3
    a, b = target.flat_position(target.model_info.prior(jax.random.key(0), 500)).T
    assert stats.kstest(a, "uniform").pvalue > 1e-3
    assert stats.kstest(b / a, "uniform").pvalue > 1e-3


def test_evidence_under_a_constraint(tmp_path):
    def convert(sample):
        return sample | {"difference": sample["a"] - sample["b"]}

    sides = {"a": prior.Uniform(0, 1), "b": prior.Uniform(0, 1), "difference": prior.Constraint(0.0, 1.0)}
    result = run(Density(lambda a, b: np.log(a)), prior.PriorDict(sides, conversion_function=convert), tmp_path)
    assert abs(result.log_evidence - np.log(2 / 3)) < 4 * result.log_evidence_err < 0.05
    assert np.all(result.posterior["a"] > result.posterior["b"])


def test_a_refused_answer_is_returned_and_said_loudly(tmp_path, caplog):
    priors = prior.PriorDict({"x": prior.Uniform(0, 1), "y": prior.Uniform(0, 1)})
    result = run(Density(lambda x, y: -100 * (x - y**2) ** 2), priors, tmp_path, budget=100)
    assert not result.meta_data["klover"]["trusted"]
    assert "klover REFUSES this answer" in caplog.text


def test_the_package_says_where_the_sampler_is():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, name = project["entry-points"]["bilby.samplers"]["klover"].split(":")
    assert getattr(importlib.import_module(module), name) is Klover
