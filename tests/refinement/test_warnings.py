"""No warning of NumPy or JAX reaches a user, whatever overflows on the way (pytest turns warnings into errors)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.targets import PROBLEMS
from jax.scipy.stats import norm

import klover
from helpers import needs

BUDGET = 20_000
QUICK = ("funnel10", "ring2", "stm20", "eight_schools_centred", "heavy_concrete")


def simulate(num: int = 200) -> np.ndarray:
    """Simulate a series whose noise grows after large values."""
    noise, series, variance = np.random.default_rng(1).normal(size=num), np.zeros(num), 1.0
    for time in range(num):
        series[time] = 1.0 + np.sqrt(variance) * noise[time]
        variance = 0.5 + 0.3 * (series[time] - 1.0) ** 2 + 0.5 * variance
    return series


def garch(series):
    """Write a GARCH(1, 1) model in NumPyro, with the flat priors that Stan's manual gives it."""
    import numpyro
    from numpyro.distributions import ImproperUniform, Normal, Uniform, constraints

    mean = numpyro.sample("mean", ImproperUniform(constraints.real, (), ()))
    level = numpyro.sample("level", ImproperUniform(constraints.positive, (), ()))
    shock = numpyro.sample("shock", Uniform(0.0, 1.0))
    memory = numpyro.sample("memory", Uniform(0.0, 1.0 - shock))

    def step(variance, last):
        variance = level + shock * (last - mean) ** 2 + memory * variance
        return variance, variance

    _, variance = jax.lax.scan(step, 1.0, series[:-1])
    numpyro.sample("series", Normal(mean, jnp.sqrt(variance)), obs=series[1:])


def arma(scale: float) -> klover.Target:
    """Make an ARMA(1, 1) model, whose errors explode where the moving average has a weight beyond one."""
    series = jnp.asarray(scale * simulate())

    def logdensity(position):
        mean, slope, weight, log_sd = position["mean"], position["slope"], position["weight"], position["log_sd"]

        def step(error, pair):
            error = pair[1] - (mean + slope * pair[0] + weight * error)
            return error, error

        _, errors = jax.lax.scan(step, 0.0, jnp.stack([series[:-1], series[1:]], axis=1))
        log_prior = norm.logpdf(mean, 0, 10) + norm.logpdf(slope, 0, 2) + norm.logpdf(weight, 0, 2)
        return log_prior + norm.logpdf(log_sd) + norm.logpdf(errors, 0.0, jnp.exp(log_sd)).sum()

    return klover.Target(logdensity, dict.fromkeys(("mean", "slope", "weight", "log_sd"), 0.0))


def check(target):
    fit = klover.refine(0, target, budget=BUDGET)
    assert fit.num_evaluations <= BUDGET
    assert target.names[0] in str(fit.summary())


@needs("numpyro")
@pytest.mark.parametrize("scale", [1e-2, pytest.param(1.0, marks=pytest.mark.slow), 1e4])
def test_garch(scale):
    check(klover.from_numpyro(garch, jnp.asarray(scale * simulate())))


@pytest.mark.parametrize("scale", [pytest.param(1.0, marks=pytest.mark.slow), 100.0])
def test_arma(scale):
    check(arma(scale))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in PROBLEMS]
)
def test_targets_of_the_suite(name):
    try:
        target = PROBLEMS[name]().target
    except FileNotFoundError as error:
        pytest.skip(str(error))
    check(target)


def test_an_expectation_that_overflows_is_infinite():
    fit = klover.refine(0, klover.Target(lambda x: -0.5 * x**2, 0.0))
    mean, error = fit.draws.expectation(lambda x: jnp.exp(500 * x))
    assert mean == np.inf
    assert not np.isfinite(error)
    mean, error = fit.draws.mean_and_error(np.where(fit.draws.x > 1.5, np.inf, 1e200))
    assert mean == np.inf
    assert not np.isfinite(error)
