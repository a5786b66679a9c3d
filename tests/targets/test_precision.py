"""Single precision and strict promotion of types: no hidden mixture of either in klover or in an adapter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import klover
from helpers import needs

PRIOR, NOISE = 2.0, 0.5
X = np.linspace(-1.0, 1.0, 20)
Y = 0.5 + 2.0 * X + NOISE * np.random.default_rng(0).normal(size=20)
DESIGN = np.column_stack([np.ones(20), X])
LOG_EVIDENCE = stats.multivariate_normal(np.zeros(20), PRIOR**2 * DESIGN @ DESIGN.T + NOISE**2 * np.eye(20)).logpdf(Y)
"""Of a regression with known noise, beside a rate that the data do not know: rate ~ Exponential(1)."""


def log_density(weight, rate, xp, x, y):
    """Return the log density of weights and rate, without the Jacobian of the rate, for NumPy and for JAX."""
    log_prior = -0.5 * xp.sum((weight / PRIOR) ** 2) - np.log(2 * np.pi * PRIOR**2).item() - rate
    residual = (y - weight[0] - weight[1] * x) / NOISE
    return log_prior - 0.5 * xp.sum(residual**2) - 10 * np.log(2 * np.pi * NOISE**2).item()


def make_plain():
    x, y = jnp.asarray(X, float), jnp.asarray(Y, float)

    def logdensity(position):
        return log_density(position["weight"], jnp.exp(position["log_rate"]), jnp, x, y) + position["log_rate"]

    return klover.Target(
        logdensity,
        {"weight": np.zeros(2), "log_rate": 0.0},
        constrain=lambda position: {"weight": position["weight"], "rate": jnp.exp(position["log_rate"])},
    )


def make_callback():
    bounds = [-np.inf, -np.inf, 0.0], np.inf
    return klover.from_callback(lambda theta: log_density(theta[:2], theta[2], np, X, Y), 3, bounds=bounds)


def make_numpyro():
    import numpyro
    from numpyro import distributions

    def model(x, y):
        weight = numpyro.sample("weight", distributions.Normal(0.0, PRIOR).expand([2]).to_event(1))
        numpyro.sample("rate", distributions.Exponential(1.0))
        numpyro.sample("y", distributions.Normal(weight[0] + weight[1] * x, NOISE), obs=y)

    return klover.from_numpyro(model, jnp.asarray(X, float), jnp.asarray(Y, float))


def make_pymc():
    import pymc

    with pymc.Model() as model:
        weight = pymc.Normal("weight", 0, PRIOR, shape=2)
        pymc.Exponential("rate", 1.0)
        pymc.Normal("y", weight[0] + weight[1] * X, NOISE, observed=Y)
    return klover.from_pymc(model)


def make_stan():
    program = """
    data { vector[20] x; vector[20] y; }
    parameters { vector[2] weight; real<lower=0> rate; }
    model { weight ~ normal(0, 2); rate ~ exponential(1); y ~ normal(weight[1] + weight[2] * x, 0.5); }
    """
    return klover.from_stan(program, {"x": X, "y": Y})


def check(make, dtype):
    with jax.enable_x64(dtype == np.float64), jax.numpy_dtype_promotion("strict"):
        target = make()
        fit = klover.refine(0, target)
        rate, error = fit.draws.expectation(lambda at: at["rate"] if isinstance(at, dict) else at[2])
    assert target.start.dtype == dtype
    assert fit.verdict.trusted
    assert abs(fit.log_evidence - LOG_EVIDENCE) < 5 * fit.log_evidence_se
    assert abs(rate - 1.0) < 5 * error


def test_refine_in_double_precision_with_strict_types():
    check(make_plain, np.float64)


@pytest.mark.parametrize(
    "make",
    [
        make_plain,
        make_callback,
        pytest.param(make_numpyro, marks=needs("numpyro")),
        pytest.param(make_pymc, marks=needs("pymc")),
        pytest.param(make_stan, marks=[needs("httpstan"), pytest.mark.slow]),
    ],
)
def test_refine_in_single_precision_with_strict_types(make):
    check(make, np.float32)
