"""Remedies that help: the parameter that others depend on by its name, and a call of NUTS that runs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.search.necks import scale_coordinate
from klover.targets.adapters.callback import from_callback
from klover.targets.evaluator import Evaluator
from klover.tuning import Ending, Tuning
from klover.verdict.status import NUTS, Status


def log_funnel(x):
    scale = jnp.exp(x["log_tau"])
    return -0.5 * (x["log_tau"] / 1.5) ** 2 - 0.5 * jnp.sum((x["theta"] / scale) ** 2) - 5 * x["log_tau"]


FUNNEL = klover.Target(log_funnel, {"log_tau": 0.0, "theta": np.zeros(5)})
NORMAL = klover.Target(lambda x: -0.5 * jnp.sum(x**2), np.zeros(3))
SOON = Tuning(ending=Ending(most_evaluations=8000, last_evaluations=20_000))


@pytest.fixture(name="stopped", scope="module")
def _stopped():
    return klover.refine(0, FUNNEL, tuning=SOON)


def test_the_parameter_that_others_depend_on_is_named(stopped):
    assert not stopped.verdict.trusted
    assert "depend on log_tau: non-centre them" in stopped.verdict.remedy
    assert "theta = mu + exp(log_tau) * eta" in stopped.verdict.remedy


def test_scales_are_told_from_other_coordinates():
    scale = np.ones(6)
    assert scale_coordinate(Evaluator(FUNNEL), np.zeros(6), scale) == 0
    assert scale_coordinate(Evaluator(NORMAL), np.zeros(3), np.ones(3)) is None
    # The curvature of a banana grows towards both ends, that of a Student-t falls.
    banana = klover.Target(lambda x: -0.5 * x[0] ** 2 - 0.5 * (x[1] - x[0] ** 2) ** 2, np.zeros(2))
    student = klover.Target(lambda x: -3.0 * jnp.log1p(jnp.sum(x**2)), np.zeros(3))
    assert scale_coordinate(Evaluator(banana), np.array([0.0, 1.0]), np.array([1.0, 1.7])) is None
    assert scale_coordinate(Evaluator(student), np.zeros(3), np.ones(3)) is None
    assert scale_coordinate(Evaluator(FUNNEL), np.zeros(6), np.zeros(6)) is None


def test_no_gradient_no_nuts():
    target = from_callback(lambda x: -0.5 * np.sum((x / np.geomspace(0.01, 1, 8)) ** 2, -1), 8, vectorized=True)
    fit = klover.refine(0, target, tuning=SOON)
    assert not fit.verdict.trusted
    assert NUTS not in fit.verdict.remedy
    assert klover.explain(fit).code == ()


def test_a_spent_budget_needs_a_larger_one_first():
    fit = klover.refine(0, FUNNEL, budget=8000)
    assert not fit.verdict.trusted
    assert NUTS not in fit.verdict.remedy


def run(fit, **names):
    """Run the lines that an explanation prints, with fewer draws."""
    code = "\n".join(klover.explain(fit).code)
    assert code in str(klover.explain(fit))
    assert code.count("=1000") == 2
    names |= {"fit": fit}
    exec(code.replace("=1000", "=200").replace('"vectorized")', '"vectorized", progress_bar=False)'), names)
    return names["mcmc"].get_samples()


def refused(fit):
    """Return the fit as if its weights had been heavy."""
    verdict = dataclasses.replace(fit.verdict, trusted=False, remedy=NUTS, status=Status.HEAVY_WEIGHTS)
    return dataclasses.replace(fit, verdict=verdict)


def test_the_printed_call_runs_for_a_target(stopped):
    pytest.importorskip("numpyro")
    assert NUTS in stopped.verdict.remedy
    draws = run(stopped)
    assert {name: values.shape for name, values in draws.items()} == {"log_tau": (800,), "theta": (800, 5)}
    flat = run(refused(klover.refine(0, NORMAL)))
    # Eight hundred draws of three coordinates, hardly correlated.
    np.testing.assert_allclose(flat.mean(0), 0.0, atol=0.25)
    np.testing.assert_allclose(flat.std(0), 1.0, atol=0.2)


def test_the_printed_call_runs_for_a_numpyro_model():
    numpyro = pytest.importorskip("numpyro")
    data = (np.array([1.0, 2.0, 4.0]),)

    def model(y):
        sigma = numpyro.sample("sigma", numpyro.distributions.HalfNormal(2.0))
        numpyro.sample(
            "y", numpyro.distributions.Normal(numpyro.sample("mu", numpyro.distributions.Normal()), sigma), obs=y
        )

    fit = refused(klover.refine(jax.random.key(0), klover.from_numpyro(model, *data)))
    draws = run(fit, model=model, data=data)
    assert {name: values.shape for name, values in draws.items()} == {"mu": (800,), "sigma": (800,)}
    assert np.all(np.asarray(draws["sigma"]) > 0)
