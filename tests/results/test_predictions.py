"""Predictions for new inputs: closed forms of regressions, from every front end, and the model stays as it was."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.verdict.judge import Verdict
from klover.verdict.status import Status

pytest.importorskip("xarray")

X, NOISE, SCALE = np.linspace(-1.0, 1.0, 12), 0.5, 2.0
Y = 1.5 * X + NOISE * np.cos(7 * X)
NEW = np.array([0.0, 1.0, 3.0, -4.0])


def check(tree):
    """Compare the mean and the variance of new observations with those of a regression through the origin."""
    precision = X @ X / NOISE**2 + 1 / SCALE**2
    mean, variance = NEW * (X @ Y / NOISE**2) / precision, NEW**2 / precision + NOISE**2
    found = tree["predictions"]["y"].values[0]
    assert np.all(np.abs(found.mean(axis=0) - mean) < 5 * np.sqrt(variance / len(found)))
    assert np.all(np.abs(found.var(axis=0) / variance - 1) < 5 * np.sqrt(2 / len(found)))


def numpyro_model(x, y=None):
    import numpyro
    from numpyro import distributions as dist

    slope = numpyro.sample("slope", dist.Normal(0.0, SCALE))
    with numpyro.plate("row", len(x)):
        numpyro.sample("y", dist.Normal(slope * x, NOISE), obs=y)


@functools.cache
def numpyro_fit():
    pytest.importorskip("numpyro")
    return klover.refine(0, klover.from_numpyro(numpyro_model, X, Y))


def test_numpyro():
    fit = numpyro_fit()
    tree = fit.predict(jnp.asarray(NEW), key=1)
    check(tree)
    assert set(tree.children) == {"predictions", "predictions_constant_data"}
    assert tree["predictions"]["y"].dims == ("chain", "draw", "row")
    np.testing.assert_array_equal(tree["predictions_constant_data"]["x"], NEW)
    np.testing.assert_array_equal(tree["predictions"]["y"], fit.predict(NEW, None, key=1)["predictions"]["y"])


def test_numpyro_agrees_with_its_own_predictive():
    from numpyro.infer import Predictive

    fit = numpyro_fit()
    samples = {"slope": jnp.asarray(fit.posterior(4000)["slope"])}
    theirs = Predictive(numpyro_model, samples)(jax.random.key(2), jnp.asarray(NEW))["y"]
    ours = fit.predict(NEW)["predictions"]["y"].values[0]
    np.testing.assert_allclose(ours.mean(axis=0), theirs.mean(axis=0), atol=5 * 1.3 * np.sqrt(2 / 4000))
    np.testing.assert_allclose(ours.std(axis=0), theirs.std(axis=0), rtol=5 * np.sqrt(1 / 4000))


def test_pymc():
    pm = pytest.importorskip("pymc")
    with pm.Model(coords={"row": np.arange(len(X))}) as model:
        x = pm.Data("x", X, dims="row")
        mean = pm.Normal("slope", 0, SCALE) * x
        pm.Normal("y", mean, NOISE, observed=Y, dims="row")
        pm.Normal("far", mean, 1e6, observed=Y, shape=mean.shape)
    fit = klover.refine(0, klover.from_pymc(model))
    tree = fit.predict({"x": NEW}, coords={"row": list("abcd")})
    check(tree)
    np.testing.assert_array_equal(tree["predictions_constant_data"]["x"], NEW)
    np.testing.assert_array_equal(model["x"].get_value(), X)
    assert tree["predictions"]["row"].values.tolist() == list("abcd")
    assert tree["predictions"]["far"].shape == (1, 4000, 4)
    with pytest.raises(ValueError, match=r"new values by the names of the model's pm.Data, \['x'\], got \['z'\]"):
        fit.predict({"z": NEW})


PROGRAM = f"""
data {{ int N; vector[N] x; vector[N] y; int M; vector[M] x_new; }}
parameters {{ real slope; }}
model {{ slope ~ normal(0, {SCALE}); y ~ normal(slope * x, {NOISE}); }}
generated quantities {{ array[M] real y_rep = normal_rng(slope * x_new, {NOISE}); }}
"""


@pytest.mark.slow  # the C++ compiler
def test_stan():
    pytest.importorskip("httpstan")
    data = {"N": len(X), "x": X, "y": Y, "M": 1, "x_new": [0.0]}
    fit = klover.refine(0, klover.from_stan(PROGRAM, data))
    check(fit.predict({"M": len(NEW), "x_new": NEW}))


def test_what_cannot_be_predicted():
    fit = numpyro_fit()
    plain = dataclasses.replace(fit, target=klover.Target(lambda x: -0.5 * x**2, 0.0))
    with pytest.raises(ValueError, match="needs a model that can be run with new inputs"):
        plain.predict(NEW)
    with pytest.raises(TypeError) as caught:
        fit.predict(NEW, None, 3)
    assert "fit.predict takes the arguments of the model" in caught.value.__notes__[0]
    refused = Verdict(False, "a mode is missing.", "Look there.", Status.UNCOVERED_MODE)
    with pytest.warns(UserWarning, match=r"the fit is refused: a mode is missing\."):
        dataclasses.replace(fit, verdict=refused).predict(NEW, num_draws=10)
