"""Power-scaling: sensitivities by the paper's formula in closed form and by ArviZ; refits where weights are bad."""

import dataclasses

import jax
import numpy as np
import pytest
from scipy import integrate, stats

import klover
from klover.importance.distances import NUM_EQUAL, cumulative_distance
from klover.targets.model_info import ModelInfo
from klover.uses.sensitivity import DELTA
from klover.verdict.judge import Verdict
from klover.verdict.status import Status

DATA, PRIOR_SCALE = np.array([2.5, 3.5, 3.0, 3.0]), 0.5


def log_prior(x):
    return {"x": jax.scipy.stats.norm.logpdf(x, 0.0, PRIOR_SCALE)}


def log_likelihood(x):
    return {"y": jax.scipy.stats.norm.logpdf(DATA, x)}


@pytest.fixture(scope="module")
def fit():
    model_info = ModelInfo("by hand", log_prior=log_prior, log_likelihood=log_likelihood)
    density = lambda x: log_prior(x)["x"] + log_likelihood(x)["y"].sum()  # noqa: E731
    return klover.refine(0, klover.Target(density, 0.0, model_info=model_info))


def scaled(prior=1.0, likelihood=1.0):
    """Return the posterior with its parts to some power: it stays Normal."""
    precision = prior / PRIOR_SCALE**2 + likelihood * len(DATA)
    return stats.norm(likelihood * DATA.sum() / precision, precision**-0.5)


def distance(first, second):
    """Integrate the formula of the paper, between the ends of 4000 draws."""
    x = np.linspace(*first.ppf([1 / NUM_EQUAL, 1 - 1 / NUM_EQUAL]), 20_001)
    distances = []
    for tail in ("cdf", "sf"):
        p, q = (getattr(each, tail)(x) for each in (first, second))
        middle = 0.5 * (p + q)
        halves = p * np.log2(p / middle) + (q - p) / 2 / np.log(2), q * np.log2(q / middle) + (p - q) / 2 / np.log(2)
        distances.append(np.sqrt(integrate.simpson(sum(halves), x=x) / integrate.simpson(p + q, x=x)))
    return max(distances)


def test_distances_agree_with_the_formula():
    first, second = scaled(), scaled(prior=1.5)
    x = first.ppf((np.arange(20_000) + 0.5) / 20_000)
    found = cumulative_distance(x, np.ones_like(x), np.exp(second.logpdf(x) - first.logpdf(x)))
    assert found == pytest.approx(distance(first, second), rel=0.01)
    assert cumulative_distance(np.ones(5), np.ones(5), np.arange(5.0)) == 0


def test_sensitivities_agree_with_closed_forms(fit):
    found = fit.sensitivity()
    for part in ("prior", "likelihood"):
        both = [distance(scaled(), scaled(**{part: power})) for power in (1 / (1 + DELTA), 1 + DELTA)]
        error = getattr(found, f"{part}_se")[0]
        assert 0 < error < 0.02
        assert abs(getattr(found, part)[0] - sum(both) / np.log2(1 + DELTA) / 2) < 5 * error
    assert found.diagnosis == ("potential prior-data conflict",)
    for step in found.steps:
        truth = scaled(**{step.part: step.power})
        assert step.refit is None
        assert abs(step.mean[0] - truth.mean()) < 5 * step.mean_se[0]
        assert step.distance[0] == pytest.approx(distance(scaled(), truth), rel=0.1)
    assert "weighted draws of the fit" in str(found)
    assert "potential prior-data conflict" in found._repr_html_()


def test_a_step_whose_weights_are_bad_is_fitted(fit):
    prior, likelihood = fit.sensitivity(powers=(8.0,)).steps
    for step, truth in ((prior, scaled(prior=8.0)), (likelihood, scaled(likelihood=8.0))):
        assert step.pareto_k > 0.7
        assert step.refit.verdict.trusted
        assert abs(step.mean[0] - truth.mean()) < 5 * step.mean_se[0]
        assert step.sd[0] == pytest.approx(truth.std(), rel=0.05)
        assert step.distance[0] == pytest.approx(distance(scaled(), truth), rel=0.1)
        assert "fitted anew, trusted" in str(step)


def test_sensitivities_agree_with_arviz():
    az, numpyro = pytest.importorskip("arviz"), pytest.importorskip("numpyro")
    dist = numpyro.distributions

    def model(y):
        mean, scale = numpyro.sample("mean", dist.Normal(0, 1)), numpyro.sample("scale", dist.HalfNormal(1))
        with numpyro.plate("row", len(y)):
            numpyro.sample("y", dist.Normal(mean, scale), obs=y)

    fit = klover.refine(0, klover.from_numpyro(model, 3 + np.random.default_rng(0).normal(size=10)))
    found = fit.sensitivity()
    assert found.names == ("mean", "scale")
    for part in ("prior", "likelihood"):
        # Arviz 1 calls it psense, and the argument group.
        psense = (lambda tree: az.psens(tree, component=part)) if hasattr(az, "psens") else (  # noqa: B023
            lambda tree: az.psense(tree, group=part)  # noqa: B023
        )  # fmt: skip
        tables = [psense(fit.to_arviz(NUM_EQUAL, key=key)) for key in range(4)]
        theirs = np.array([[float(table[name]) for name in found.names] for table in tables])
        error = np.hypot(getattr(found, f"{part}_se"), theirs.std(axis=0, ddof=1))
        assert np.all(np.abs(getattr(found, part) - theirs.mean(axis=0)) < 5 * error)
        assert np.all(error < 0.03)


def test_what_cannot_be_asked(fit):
    with pytest.raises(ValueError, match="names must be those of quantities of the fit"):
        fit.sensitivity("unknown")
    with pytest.raises(ValueError, match="powers must be"):
        fit.sensitivity(powers=(0.0,))
    plain = dataclasses.replace(fit, target=klover.Target(lambda x: -0.5 * x**2, 0.0))
    with pytest.raises(ValueError, match="needs the prior and the likelihood apart"):
        plain.sensitivity()
    refused = Verdict(False, "a mode is missing.", "Look there.", Status.UNCOVERED_MODE)
    with pytest.warns(UserWarning, match=r"the fit is refused: a mode is missing\."):
        dataclasses.replace(fit, verdict=refused).sensitivity(powers=())
