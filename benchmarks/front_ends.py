"""One posterior through four front ends: NumPyro, PyMC, Stan and a plain callback on NumPy arrays.

    python -m benchmarks front_ends [--posteriors ../shared/data/posteriordb]   (needs the extras numpyro, pymc, stan)

Non-centred eight schools, kidiq and arK. Log densities have to agree to 1e-8 up to a constant at random points of the
unconstrained space, and posterior means within five standard errors of their difference.
"""

import argparse
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

import klover

STAN = {
    "schools": """
data { int J; vector[J] y; vector[J] sigma; }
parameters { real mu; real<lower=0> tau; vector[J] eta; }
model { mu ~ normal(0, 5); tau ~ cauchy(0, 5); eta ~ normal(0, 1); y ~ normal(mu + tau * eta, sigma); }
""",
    "kidiq": """
data { int N; vector[N] y; vector[N] x; }
parameters { vector[2] beta; real<lower=0> sigma; }
model { sigma ~ cauchy(0, 2.5); y ~ normal(beta[1] + beta[2] * x, sigma); }
""",
    "arK": """
data { int K; int T; vector[T] y; }
parameters { real alpha; vector[K] beta; real<lower=0> sigma; }
model {
  alpha ~ normal(0, 10); beta ~ normal(0, 10); sigma ~ cauchy(0, 2.5);
  for (t in (K + 1):T) {
    real mu = alpha;
    for (k in 1:K) mu += beta[k] * y[t - k];
    y[t] ~ normal(mu, sigma);
  }
}
""",
}


def lags(y, num_lags):
    """Return what follows, and the columns of the values 1, 2, ... steps before."""
    return y[num_lags:], np.column_stack([y[num_lags - lag : len(y) - lag] for lag in range(1, num_lags + 1)])


def numpyro_model(name, data):
    """Return the target by NumPyro."""
    import numpyro
    from numpyro import distributions as dist

    def schools():
        mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
        eta = numpyro.sample("eta", dist.Normal(0, 1).expand([data["J"]]))
        numpyro.sample("y", dist.Normal(mu + tau * eta, data["sigma"]), obs=data["y"])

    def kidiq():
        beta = numpyro.sample("beta", dist.ImproperUniform(dist.constraints.real_vector, (), (2,)))
        sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
        numpyro.sample("y", dist.Normal(beta[0] + beta[1] * data["x"], sigma), obs=data["y"])

    def ark():
        following, before = lags(data["y"], data["K"])
        alpha = numpyro.sample("alpha", dist.Normal(0, 10))
        beta = numpyro.sample("beta", dist.Normal(0, 10).expand([data["K"]]))
        sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
        numpyro.sample("y", dist.Normal(alpha + before @ beta, sigma), obs=following)

    return klover.from_numpyro({"schools": schools, "kidiq": kidiq, "arK": ark}[name])


def pymc_model(name, data):
    """Return the target by PyMC."""
    import pymc

    with pymc.Model() as model:
        if name == "schools":
            mu, tau = pymc.Normal("mu", 0, 5), pymc.HalfCauchy("tau", 5)
            eta = pymc.Normal("eta", 0, 1, shape=data["J"])
            pymc.Normal("y", mu + tau * eta, data["sigma"], observed=data["y"])
        elif name == "kidiq":
            beta, sigma = pymc.Flat("beta", shape=2), pymc.HalfCauchy("sigma", 2.5)
            pymc.Normal("y", beta[0] + beta[1] * data["x"], sigma, observed=data["y"])
        else:
            following, before = lags(data["y"], data["K"])
            alpha, beta = pymc.Normal("alpha", 0, 10), pymc.Normal("beta", 0, 10, shape=data["K"])
            sigma = pymc.HalfCauchy("sigma", 2.5)
            pymc.Normal("y", alpha + before @ beta, sigma, observed=following)
    return klover.from_pymc(model)


def callback(name, data):
    """Return the target by a NumPy function of the parameters on their natural scale, all in a row."""
    normal = scipy.stats.norm.logpdf

    def schools(x):
        mu, tau, eta = x[0], x[1], x[2:]
        prior = normal(mu, 0, 5) + scipy.stats.halfcauchy.logpdf(tau, 0, 5) + normal(eta).sum()
        return prior + normal(data["y"], mu + tau * eta, data["sigma"]).sum()

    def kidiq(x):
        prior = scipy.stats.halfcauchy.logpdf(x[2], 0, 2.5)
        return prior + normal(data["y"], x[0] + x[1] * data["x"], x[2]).sum()

    def ark(x):
        following, before = lags(data["y"], data["K"])
        prior = normal(x[:-1], 0, 10).sum() + scipy.stats.halfcauchy.logpdf(x[-1], 0, 2.5)
        return prior + normal(following, x[0] + before @ x[1:-1], x[-1]).sum()

    dim = {"schools": data.get("J", 0) + 2, "kidiq": 3, "arK": data.get("K", 0) + 2}[name]
    positive = {"schools": 1, "kidiq": 2, "arK": dim - 1}[name]
    lower = np.full(dim, -np.inf)
    lower[positive] = 0.0
    return klover.from_callback({"schools": schools, "kidiq": kidiq, "arK": ark}[name], dim, bounds=(lower, np.inf))


ORDER = {"schools": ("mu", "tau", "eta"), "kidiq": ("beta", "sigma"), "arK": ("alpha", "beta", "sigma")}


def in_order(position, name):
    """Return a constrained position in the order of the callback."""
    if isinstance(position, dict) and "x" not in position:
        return jnp.concatenate([jnp.ravel(position[each]) for each in ORDER[name]])
    return jnp.ravel(jax.tree.leaves(position)[0])


def flat_like(target, name, natural):
    """Return the flat point of a front end at which it has the given constrained position."""
    sizes = {each: 1 for each in ORDER[name]}
    sizes |= {"schools": {"eta": len(natural) - 2}, "kidiq": {"beta": 2}, "arK": {"beta": len(natural) - 2}}[name]
    ends = np.cumsum([sizes[each] for each in ORDER[name]])
    parts = dict(zip(ORDER[name], np.split(natural, ends[:-1]), strict=True))
    vectors = {"eta", "beta"}
    parts = {each: part if each in vectors else part[0] for each, part in parts.items()}
    if target.model_info.name == "callback":
        parts = {"x": natural}
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(target.model_info.unconstrain(parts))])


def data_of(name, folder):
    """Read the data of a posterior."""
    file = {
        "schools": "eight_schools-eight_schools_noncentered",
        "kidiq": "kidiq-kidscore_momiq",
        "arK": "arK-arK",
    }[name]
    data = json.loads((folder / f"{file}.json").read_text())["data"]
    if name == "kidiq":
        return {"N": data["N"], "y": np.array(data["kid_score"], float), "x": np.array(data["mom_iq"], float)}
    return {each: np.array(value, float) if isinstance(value, list) else value for each, value in data.items()}


def main():
    """Compare the front ends, and print one line for each."""
    jax.config.update("jax_enable_x64", True)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--posteriors", type=pathlib.Path, default=pathlib.Path("../shared/data/posteriordb"))
    folder = parser.parse_args().posteriors
    for name, source in STAN.items():
        data = data_of(name, folder)
        targets = {
            "numpyro": numpyro_model(name, data),
            "pymc": pymc_model(name, data),
            "callback": callback(name, data),
            "stan": klover.from_stan(source, data),
        }
        compare(name, targets)


def compare(name, targets):
    """Print the largest difference of the log densities up to a constant, and of the means in standard errors."""
    first = targets["numpyro"]
    fit = klover.refine(jax.random.key(0), first)
    points = fit.draws.resample_unconstrained(1, 20)
    natural = [np.asarray(in_order(first.position(x), name)) for x in points]
    expected = np.array([float(first.log_prob(x)) for x in points])
    mean, error = fit.draws.expectation(lambda position: in_order(position, name))
    for model_info, target in targets.items():
        x = np.stack([flat_like(target, name, each) for each in natural])
        difference = np.array([float(target.log_prob(point)) for point in x]) - expected
        other = fit if model_info == "numpyro" else klover.refine(jax.random.key(2), target)
        other_mean, other_error = other.draws.expectation(lambda position: in_order(position, name))
        ratio = np.max(np.abs(mean - other_mean) / np.hypot(error, other_error))
        print(
            f"{name:<8} {model_info:<9} log density {np.ptp(difference):.1e}   means {ratio:4.1f} se   "
            f"log evidence {other.log_evidence:.3f} ± {other.log_evidence_se:.3f}   {str(other.verdict)[:8]}",
            flush=True,
        )


if __name__ == "__main__":
    main()
