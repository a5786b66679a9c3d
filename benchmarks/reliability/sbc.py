r"""Simulation-based calibration (Talts et al. 2018): parameters from the prior, data from the parameters, a fit.

If posteriors are right, the rank of a drawn parameter among draws of its posterior is uniform. So are the ranks of any
function of parameters and data; the log likelihood and the log joint density see errors that no single parameter sees
(Modrák et al. 2023). Conjugate models have their evidence compared as well.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro import deterministic, handlers, sample
from scipy import stats
from scipy.special import betaln, gammaln

import klover
from benchmarks.reliability import sbc_models
from benchmarks.reliability.case import Case
from benchmarks.reliability.statistics import NUM_RANKED
from benchmarks.reliability.truth import Truth

MOST_ELEMENTS = 4
"""Elements of an array whose ranks are kept."""
RUNS_ONCE = {"xla_backend_optimization_level": 0}
"""Options of programs whose compilation takes a thousand times as long as they do."""
HIDDEN = ("predictor", "y", "time")
"""Sites that are no parameters: data, and deterministic sites that only the model needs."""

Maker = Callable[[np.random.Generator], Callable]
Conjugate = Callable[[np.random.Generator], tuple[Callable, Callable[[np.ndarray], float]]]


@dataclasses.dataclass(frozen=True, eq=False)
class Simulation:
    """A model with parameters drawn from its prior, the names of those that are sampled, and data drawn from them."""

    model: Callable
    drawn: dict[str, np.ndarray]
    latent: list[str]
    y: np.ndarray


def simulate(model: Callable, seed: int) -> Simulation:
    """Draw parameters from the prior, and data from the parameters."""
    kinds = {}

    def draw(key):
        sites = handlers.trace(handlers.seed(model, key)).get_trace()
        kinds.update({name: site["type"] for name, site in sites.items() if site["type"] != "plate"})
        return {name: sites[name]["value"] for name in kinds}

    # One program: run by itself, every operation of the model would be compiled for its shapes.
    program = jax.jit(draw, compiler_options=RUNS_ONCE)
    values = {name: np.asarray(value) for name, value in program(jax.random.key(seed)).items()}
    drawn = {name: values[name] for name in kinds if name not in HIDDEN}
    return Simulation(model, drawn, [name for name in drawn if kinds[name] == "sample"], values["y"])


def log_densities(simulation: Simulation, values: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the log likelihoods and the log joint densities of stacked parameters."""

    def both(parameters):
        given = handlers.substitute(handlers.seed(simulation.model, jax.random.key(0)), data=parameters)
        sites = handlers.trace(given).get_trace(y=simulation.y).values()
        sites = [site for site in sites if site["type"] == "sample"]
        logs = [(site["is_observed"], jnp.sum(site["fn"].log_prob(site["value"]))) for site in sites]
        return sum(log for is_observed, log in logs if is_observed), sum(log for _, log in logs)

    program = jax.jit(jax.vmap(both), compiler_options=RUNS_ONCE)
    both_at = program({name: values[name] for name in simulation.latent})
    return np.asarray(both_at[0]), np.asarray(both_at[1])


def measure(simulation: Simulation, key: int, fit: Any) -> dict[str, Any]:
    """Rank the drawn parameters, and what depends on them and on the data, among posterior draws."""
    posterior = fit.posterior(NUM_RANKED, key)
    drawn = {name: value for name, value in simulation.drawn.items() if name in posterior}
    stacked = {name: np.concatenate([posterior[name], value[None]]) for name, value in drawn.items()}
    stacked["log_likelihood"], stacked["log_joint"] = log_densities(simulation, stacked)
    generator = np.random.default_rng(key)
    ranks = {}
    for name, values in stacked.items():
        for at, column in enumerate(values.reshape(len(values), -1).T[:MOST_ELEMENTS]):
            below, equal = np.sum(column[:-1] < column[-1]), np.sum(column[:-1] == column[-1])
            label = name if values.ndim == 1 else f"{name}[{at}]"
            ranks[label] = int(below + generator.integers(equal + 1))  # ties are broken by chance
    return {"ranks": ranks, "pits": pits(drawn, fit)}


def pits(drawn: dict[str, np.ndarray], fit: Any) -> dict[str, float]:
    """Return the posterior probability below each drawn parameter, by all weighted draws of the fit.

    An interval covers the parameter if this lies between its levels.
    """
    weight = np.exp(np.asarray(fit.draws.log_weight, float))
    positions = fit.draws.positions
    found = {}
    for name, value in drawn.items():
        values = np.asarray(positions[name]).reshape(len(weight), -1)
        for at, truth in enumerate(value.ravel()[:MOST_ELEMENTS]):
            share = weight @ (values[:, at] < truth) + 0.5 * (weight @ (values[:, at] == truth))
            found[name if value.ndim == 0 else f"{name}[{at}]"] = round(float(share / weight.sum()), 5)
    return found


def calibrated(make: Maker) -> Callable[[str, np.random.Generator], Case]:
    """Turn a maker of models into a maker of cases."""

    def case(name, generator):
        return _case(name, make(generator), generator)

    return case


def conjugate(make: Conjugate) -> Callable[[str, np.random.Generator], Case]:
    """Turn a maker of models with known evidence into a maker of cases."""

    def case(name, generator):
        model, log_evidence = make(generator)
        return _case(name, model, generator, log_evidence)

    return case


def _case(name, model, generator, log_evidence: Callable[[np.ndarray], float] | None = None) -> Case:
    seed, key = (int(each) for each in generator.integers(2**31, size=2))
    simulation = simulate(model, seed)
    truth = Truth(None if log_evidence is None else float(log_evidence(simulation.y)))
    target = klover.from_numpyro(model, y=simulation.y)
    ranked = functools.partial(measure, simulation, key)
    return Case(name, target, truth, is_unimodal="mixture" not in name, measure=ranked)


def normal_mean(generator):
    """A mean with known noise."""
    num, prior_sd, noise = int(generator.integers(1, 30)), generator.uniform(0.5, 10), generator.uniform(0.2, 3)

    def model(y=None):
        mu = sample("mu", dist.Normal(0, prior_sd))
        deterministic("prediction", mu**2)
        sample("y", dist.Normal(mu, noise).expand([num]).to_event(1), obs=y)

    covariance = noise**2 * np.eye(num) + prior_sd**2
    return model, lambda y: stats.multivariate_normal(np.zeros(num), covariance).logpdf(y)


def beta_binomial(generator):
    sizes, (a, b) = generator.integers(1, 30, size=int(generator.integers(1, 8))), generator.uniform(0.5, 4, size=2)

    def model(y=None):
        share = sample("share", dist.Beta(a, b))
        deterministic("prediction", jnp.log(share) - jnp.log1p(-share))
        sample("y", dist.Binomial(sizes, share).to_event(1), obs=y)

    def log_evidence(y):
        choices = (gammaln(sizes + 1) - gammaln(y + 1) - gammaln(sizes - y + 1)).sum()
        return choices + betaln(a + y.sum(), b + (sizes - y).sum()) - betaln(a, b)

    return model, log_evidence


def gamma_poisson(generator):
    num, shape, rate = int(generator.integers(1, 20)), generator.uniform(0.5, 5), 10 ** generator.uniform(-2, 0.5)

    def model(y=None):
        mean = sample("mean", dist.Gamma(shape, rate))
        deterministic("prediction", jnp.exp(-mean))
        sample("y", dist.Poisson(mean).expand([num]).to_event(1), obs=y)

    def log_evidence(y):
        log = shape * np.log(rate) - gammaln(shape) + gammaln(shape + y.sum())
        return log - (shape + y.sum()) * np.log(rate + num) - gammaln(y + 1).sum()

    return model, log_evidence


def dirichlet_multinomial(generator):
    shape, num = generator.uniform(0.7, 4, size=int(generator.integers(2, 8))), int(generator.integers(1, 60))

    def model(y=None):
        shares = sample("shares", dist.Dirichlet(shape))
        deterministic("prediction", jnp.max(shares))
        sample("y", dist.Multinomial(num, shares), obs=y)

    def log_evidence(y):
        log = gammaln(num + 1) - gammaln(y + 1).sum() + gammaln(shape.sum()) - gammaln(shape.sum() + num)
        return log + (gammaln(shape + y) - gammaln(shape)).sum()

    return model, log_evidence


def gaussian_regression(generator):
    """A linear regression with known noise."""
    inputs, units = sbc_models.design(generator, 40, 12)
    noise = generator.uniform(0.3, 2)

    def model(y=None):
        beta = sample("beta", dist.Normal(np.zeros(len(units)), 1.5 / units).to_event(1))
        deterministic("prediction", jnp.sum(inputs[0] * beta))
        sample("y", dist.Normal(inputs @ beta, noise).to_event(1), obs=y)

    covariance = (inputs * (1.5 / units) ** 2) @ inputs.T + noise**2 * np.eye(len(inputs))
    return model, lambda y: stats.multivariate_normal(np.zeros(len(inputs)), covariance).logpdf(y)


CONJUGATE = (normal_mean, beta_binomial, gamma_poisson, dirichlet_multinomial, gaussian_regression)
MODELS = (
    sbc_models.linear,
    sbc_models.logistic,
    sbc_models.centred,
    sbc_models.poisson,
    sbc_models.noncentred,
    sbc_models.labelled_mixture,
    sbc_models.negative_binomial,
    sbc_models.ordered_mixture,
    sbc_models.autoregression,
    sbc_models.random_walk,
    sbc_models.local_level,
    sbc_models.gaussian_process,
    sbc_models.survival,
    sbc_models.robust,
    sbc_models.count_groups,
    sbc_models.varying_slopes,
    sbc_models.dose,
    sbc_models.gamma_regression,
    sbc_models.item_response,
)
FAMILIES: dict[str, Callable[[str, np.random.Generator], Case]] = {
    **{make.__name__: calibrated(make) for make in MODELS},
    **{make.__name__: conjugate(make) for make in CONJUGATE},
}
