"""Every method on a small posterior; the ones that are right against the exact sampler."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import needs
from klover import Mixture, Target
from klover.boosting import sources
from klover.boosting.settings import Settings
from klover.fitting.divergences import PAPER_LOG_EPSILON
from klover.paper import datasets, gibbs, methods, models, problems
from klover.refinement import escalation
from klover.tuning import Islands

pytestmark = needs("blackjax")

QUICK = methods.Choices(num_steps=20, num_draws_per_step=10)


KEYS = jax.random.split(jax.random.key(0), 2)
REPEATED = ("rkl-vi", "fkl-vi", "rkl-vb3", "fkl-hmc")
SMALL = {
    "NUM_DRAWS": 500,
    "NUM_CHAIN_DRAWS": 200,
    "NUM_REFINED_DRAWS": 2000,
    # As all tests do.
    "FAST_COMPILATION": {"xla_backend_optimization_level": 0},
}


@pytest.fixture(scope="module", autouse=True)
def _small():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SMALL.items():
            patch.setattr(methods, name, value)
        yield


@functools.cache
def problem():
    return problems.load("blr", "power", (1, 2))


@functools.cache
def solved(method):
    """Solve both splits once for all tests: most of the time goes into compilation."""
    return methods.solve(method, KEYS, problem(), QUICK)


# Two components are the program of three; NUTS and the remainder's chains have tests of their own, newcomers of the
# reverse KL too, and experiments run what has one component.
@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=pytest.mark.slow if name in REPEATED else ())
        for name in methods.METHODS
        if name not in ("nuts", "rkl-vb2", "fkl-vb2")
    ],
)
def test_every_method_scores_every_split(method):
    scores, seconds = solved(method)
    assert np.isfinite(scores["log_of_mean"]).all()
    assert np.isfinite(scores["mean_of_logs"]).all()
    # Jensen: the mean of logs is never larger.
    assert np.all(scores["mean_of_logs"] <= scores["log_of_mean"] + 1e-9)
    assert seconds.shape == (2,)
    assert np.all(scores["ess"] > 0)


# These have nothing to tune on a regression: quick choices are all choices.
@pytest.mark.parametrize(
    ("method", "name"), [("fkl-em", "log_of_mean_is"), ("refine", "log_of_mean_is"), ("hmc", "log_of_mean")]
)
def test_right_methods_meet_the_exact_sampler(method, name):
    scores, _ = solved(method)
    for which, number in enumerate(problem().splits):
        split = datasets.split(datasets.load("power"), number)
        draws = gibbs.sample_linear_regression(np.random.default_rng(0), split, 2000)
        x = np.column_stack([np.log(draws["alpha"]), np.log(draws["tau"]), draws["w"]])
        alone = problems.load("blr", "power", (number,))
        exact = alone.score(x[None])
        assert scores[name][which] == pytest.approx(float(exact["log_of_mean"][0]), abs=0.003)


def test_chains_propose_the_moments_of_the_remainder(getkey):
    # A mixture that knows the left one of two modes; a grid integrates p / (q + ε).
    target = Target(lambda x: jnp.logaddexp(-0.5 * jnp.sum(x**2), -0.5 * jnp.sum((x - 4.0) ** 2)), jnp.zeros(1))
    settings = Settings(max_components=2)
    known = Mixture.of(settings.family.components(jnp.zeros((1, 1)), jnp.ones((1, 1)))).with_capacity(2)
    draws = sources.draw_previous(getkey(), target, known, 1000)
    state = sources.BoostState(known, draws, known)
    keys = jax.random.split(getkey(), 3)
    proposed = jax.jit(lambda keys: methods.propose_by_chains(keys, state, target, settings))(keys)
    grid = jnp.linspace(-15.0, 15.0, 4001)[:, None]
    log_epsilon = -0.5 * np.log(2 * np.pi * np.e) + PAPER_LOG_EPSILON
    log_remainder = target.log_prob(grid) - jnp.logaddexp(known.log_prob(grid), log_epsilon)
    weight = jax.nn.softmax(log_remainder)
    mean = float(weight @ grid[:, 0])
    sd = float(jnp.sqrt(weight @ (grid[:, 0] - mean) ** 2))
    # Chains are independent: their number bounds the error from above.
    num = methods.NUM_REMAINDER_CHAINS
    assert proposed.components.location[0, 0] == pytest.approx(mean, abs=5 * sd / np.sqrt(num))
    found = proposed.components.spread.variance()[0, 0]
    assert found == pytest.approx(sd**2, rel=5 * np.sqrt(2 / num))
    np.testing.assert_allclose(proposed.weights, [0.5], rtol=1e-12)


def test_no_split_knows_of_another_in_its_batch():
    # The same program, of which the splits have changed places.
    scores, _ = solved("fkl-vb3")
    turned, _ = methods.solve("fkl-vb3", KEYS[::-1], problems.load("blr", "power", (2, 1)), QUICK)
    np.testing.assert_allclose(turned["log_of_mean"][::-1], scores["log_of_mean"], rtol=1e-6)


@pytest.mark.slow
def test_a_batch_gives_what_each_split_gives_alone():
    together, _ = solved("rkl-vb3")
    alone, _ = methods.solve("rkl-vb3", KEYS[1:], problems.load("blr", "power", (2,)), QUICK)
    assert together["log_of_mean"][1] == pytest.approx(float(alone["log_of_mean"][0]), rel=1e-6)


@pytest.mark.parametrize("method", methods.BOOSTED)
def test_choices_reach_the_settings(method):
    settings = methods.settings_of(method, dataclasses.replace(QUICK, initial_scale=0.3))
    assert (settings.num_steps, settings.num_draws_per_step, settings.initial_scale) == (20, 10, 0.3)


@pytest.mark.slow
@needs("mlxtend")  # the Boston data
def test_particles_of_a_network_are_scored(getkey, monkeypatch):
    few = Islands(4, 8, num_sweeps=2, most_leapfrogs=10)
    for name in ("compile_ahead", "carry"):
        monkeypatch.setattr(escalation, name, functools.partial(getattr(escalation, name), tuning=few))
    monkeypatch.setattr(models, "NUM_HIDDEN", 2)
    problem = problems.load("bnn", "boston", (1,))
    scores, _ = methods.solve("refine", jax.random.split(getkey(), 1), problem, QUICK)
    assert np.isfinite(scores["log_of_mean"]).all()
    assert scores["log_evidence_spread"][0] > 0
    # A constant prediction has -3.66 on this split.
    assert scores["log_of_mean"][0] > -3.6
