"""Starts for NUTS: the metric is the posterior covariance, and the step size has the acceptance that it is for."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from helpers import gaussian
from klover.results.nuts import ACCEPTANCE
from klover.verdict.judge import Verdict
from klover.verdict.status import Status

KNOWN = gaussian(6)


@pytest.fixture(scope="module")
def fit():
    return klover.refine(0, KNOWN.target)


def test_the_metric_is_the_posterior_covariance(fit):
    dense, diagonal = fit.nuts_start(1, 3, dense=True), fit.nuts_start(1, 3)
    scale = np.sqrt(np.diag(KNOWN.covariance))
    error = np.abs(dense.inverse_mass_matrix - KNOWN.covariance) / np.outer(scale, scale)
    assert error.max() < 5 * np.sqrt(2 / fit.ess)
    np.testing.assert_allclose(diagonal.inverse_mass_matrix, np.diag(dense.inverse_mass_matrix))
    np.testing.assert_array_equal(diagonal.positions, fit.draws.initial_positions(1, 3))
    # Strong correlations ask for smaller steps, unless the metric knows them.
    assert diagonal.step_size < dense.step_size


@pytest.mark.parametrize("dense", [False, True])
def test_the_step_size_has_the_acceptance_that_it_is_for(fit, dense):
    blackjax = pytest.importorskip("blackjax")
    start = fit.nuts_start(2, 50, dense=dense)
    nuts = blackjax.nuts(KNOWN.target.log_prob, start.step_size, start.inverse_mass_matrix)

    def chain(key, position):
        step = lambda state, key: nuts.step(key, state)  # noqa: E731
        return jax.lax.scan(step, nuts.init(position), jax.random.split(key, 20))[1].acceptance_rate.mean()

    rates = jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(3), 50), jnp.asarray(start.positions))
    assert abs(rates.mean() - ACCEPTANCE) < 0.1


def test_other_orders_and_files(tmp_path):
    scales = {"b": np.array([2.0, 3.0]), "a": 1.0}
    target = klover.Target(
        lambda position: -0.5 * ((position["a"] / 1.0) ** 2 + jnp.sum((position["b"] / scales["b"]) ** 2)), scales
    )
    fit = klover.refine(0, target)
    start, dense = fit.nuts_start(0), fit.nuts_start(0, dense=True)
    np.testing.assert_allclose(start.in_order(["b", "a"]), [4.0, 9.0, 1.0], rtol=0.1)
    np.testing.assert_array_equal(np.diag(dense.in_order(["b", "a"])), start.in_order(["b", "a"]))
    with pytest.raises(ValueError, match=r"variables must be all that the positions have, \['a', 'b'\]"):
        start.in_order(["a"])
    start.save_metric(tmp_path / "metric.json")
    content = json.loads((tmp_path / "metric.json").read_text())
    assert content == {"inv_metric": start.inverse_mass_matrix.tolist()}


def test_a_refused_fit_is_said_loudly(fit):
    verdict = Verdict(False, "a mode is missing.", "Look there.", Status.UNCOVERED_MODE)
    with pytest.warns(UserWarning, match=r"the fit is refused: a mode is missing\. Chains that begin"):
        dataclasses.replace(fit, verdict=verdict).nuts_start(0)
