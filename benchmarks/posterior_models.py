"""The reference posteriors' models in NumPyro, each from its statement: data as they are, flat priors flat."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints


def flat(num):
    return dist.ImproperUniform(constraints.real, (), (num,))


def flat_scale():
    return dist.ImproperUniform(constraints.positive, (), ())


def regression(columns, response, prior=None, scale_prior=None):
    """Regress on columns, the first of which is an intercept; priors are flat unless they are given."""
    design, response = np.column_stack(np.broadcast_arrays(*columns)).astype(float), np.asarray(response, float)

    def model(design, response):
        beta = numpyro.sample("beta", flat(design.shape[1]) if prior is None else prior)
        sigma = numpyro.sample("sigma", flat_scale() if scale_prior is None else scale_prior)
        numpyro.sample("y", dist.Normal(design @ beta, sigma), obs=response)

    return model, design, response


def one_hot(data, levels):
    return [data == level for level in levels]


def earn_height(data):
    return regression([1, data["height"]], data["earn"])


def logearn_interaction(data):
    height, male = data["height"], data["male"]
    return regression([1, height, male, height * male], np.log(data["earn"]))


def kidscore_interaction(data):
    school, iq = data["mom_hs"], data["mom_iq"]
    return regression([1, school, iq, school * iq], data["kid_score"], scale_prior=dist.HalfCauchy(2.5))


def kidscore_momiq(data):
    return regression([1, data["mom_iq"]], data["kid_score"], scale_prior=dist.HalfCauchy(2.5))


def kidscore_mom_work(data):
    return regression([1, *one_hot(data["mom_work"], (2, 3, 4))], data["kid_score"])


MEASURES = ("diam1", "diam2", "canopy_height", "total_height", "density")


def mesquite(data):
    return regression([1, *(data[name] for name in MEASURES), data["group"]], data["weight"])


def logmesquite(data):
    return regression([1, *(np.log(data[name]) for name in MEASURES), data["group"]], np.log(data["weight"]))


def nes(data):
    first, last = ("real_ideo", "race_adj"), ("educ1", "gender", "income")
    ages = one_hot(data["age_discrete"], (2, 3, 4))
    return regression([1, *(data[name] for name in first), *ages, *(data[name] for name in last)], data["partyid7"])


def blr(data):
    normal = dist.Normal(0.0, 10.0).expand([5]).to_event(1)
    return regression(list(data["X"].T), data["y"], normal, dist.HalfNormal(10.0))


def eight_schools_centered(data):
    def model(errors, effects):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
        with numpyro.plate("school", len(effects)):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
            numpyro.sample("y", dist.Normal(theta, errors), obs=effects)

    return model, data["sigma"], data["y"]


def eight_schools_noncentered(data):
    def model(errors, effects):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
        with numpyro.plate("school", len(effects)):
            standard = numpyro.sample("theta_trans", dist.Normal(0.0, 1.0))
            theta = numpyro.deterministic("theta", mu + tau * standard)
            numpyro.sample("y", dist.Normal(theta, errors), obs=effects)

    return model, data["sigma"], data["y"]


def auto_regression(data):
    order, series = data["K"], data["y"]
    lags = np.column_stack([series[order - lag : -lag] for lag in range(1, order + 1)])

    def model(lags, series):
        alpha = numpyro.sample("alpha", dist.Normal(0.0, 10.0))
        beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([order]).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
        numpyro.sample("y", dist.Normal(alpha + lags @ beta, sigma), obs=series)

    return model, lags, series[order:]


def kilpisjarvi(data):
    def model(years, temperatures):
        alpha = numpyro.sample("alpha", dist.Normal(data["pmualpha"], data["psalpha"]))
        beta = numpyro.sample("beta", dist.Normal(data["pmubeta"], data["psbeta"]))
        sigma = numpyro.sample("sigma", flat_scale())
        numpyro.sample("y", dist.Normal(alpha + beta * years, sigma), obs=temperatures)

    return model, data["x"], data["y"]


def gp_regr(data):
    def model(x, y):
        rho = numpyro.sample("rho", dist.Gamma(25.0, 4.0))
        alpha = numpyro.sample("alpha", dist.HalfNormal(2.0))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
        kernel = alpha**2 * jnp.exp(-0.5 * ((x[:, None] - x) / rho) ** 2) + sigma * jnp.eye(len(x))
        numpyro.sample("y", dist.MultivariateNormal(0.0, kernel), obs=y)

    return model, data["x"], data["y"]


def diamonds(data):
    columns = data["X"][:, 1:]
    centre = columns.mean(axis=0)

    def model(centred, response, centre):
        slopes = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([len(centre)]).to_event(1))
        intercept = numpyro.sample("Intercept", dist.StudentT(3.0, 8.0, 10.0))
        sigma = numpyro.sample("sigma", dist.TruncatedDistribution(dist.StudentT(3.0, 0.0, 10.0), low=0.0))
        numpyro.deterministic("b_Intercept", intercept - centre @ slopes)
        numpyro.sample("y", dist.Normal(intercept + centred @ slopes, sigma), obs=response)

    return model, columns - centre, data["Y"], centre


MODELS = {
    "earnings-earn_height": earn_height,
    "earnings-logearn_interaction": logearn_interaction,
    "kidiq-kidscore_interaction": kidscore_interaction,
    "kidiq-kidscore_momiq": kidscore_momiq,
    "kidiq_with_mom_work-kidscore_mom_work": kidscore_mom_work,
    "mesquite-mesquite": mesquite,
    "mesquite-logmesquite": logmesquite,
    "eight_schools-eight_schools_centered": eight_schools_centered,
    "eight_schools-eight_schools_noncentered": eight_schools_noncentered,
    "nes2000-nes": nes,
    "sblrc-blr": blr,
    "arK-arK": auto_regression,
    "kilpisjarvi_mod-kilpisjarvi": kilpisjarvi,
    "gp_pois_regr-gp_regr": gp_regr,
    "diamonds-diamonds": diamonds,
}
"""From a posterior's name to a function of its data that returns a model and the model's arguments."""
