"""Time from nothing to an answer: a fresh process that imports, compiles, fits, draws and summarises.

    python -m benchmarks cold_start [--repeats 3]        (needs the extra `numpyro`)

klover.refine from a plain log density and from a NumPyro model, beside NumPyro's NUTS (4 chains of 1000 + 1000,
vectorised), on a logistic regression (n = 1000, d = 25) and on non-centred eight schools, without and with a warm
compilation cache. Runs are interleaved; the fastest of each is reported, with the effective draws that it delivered.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

EFFECTS = (28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0)
ERRORS = (15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0)


def logistic_data():
    """Draw features and labels of a logistic regression."""
    import numpy as np

    generator = np.random.default_rng(0)
    features = generator.normal(size=(1000, 25))
    labels = generator.uniform(size=1000) < 1 / (1 + np.exp(-features @ generator.normal(size=25) / 2))
    return features, labels.astype(float)


def klover_logistic():
    """Refine the logistic regression; return the effective number of draws."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import klover

    features, labels = logistic_data()

    def log_density(weights):
        logits = features @ weights
        return jnp.sum(labels * logits - jnp.logaddexp(0.0, logits)) - 0.5 * jnp.sum((weights / 2.5) ** 2)

    return _refined(klover, jax, klover.Target(log_density, np.zeros(25)))


def klover_schools():
    """Refine eight schools; return the effective number of draws."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import klover

    effects, errors = np.array(EFFECTS), np.array(ERRORS)

    def log_density(position):
        mu, log_tau, eta = position["mu"], position["log_tau"], position["eta"]
        tau = jnp.exp(log_tau)
        prior = -0.5 * (mu / 5) ** 2 + log_tau - jnp.log1p((tau / 5) ** 2) - 0.5 * jnp.sum(eta**2)
        return prior - 0.5 * jnp.sum(((effects - mu - tau * eta) / errors) ** 2)

    example = {"mu": 0.0, "log_tau": 0.0, "eta": np.zeros(8)}
    return _refined(klover, jax, klover.Target(log_density, example))


def klover_model_logistic():
    """Refine the logistic regression from NumPyro's model; return the effective number of draws."""
    return _refined_model(logistic_model())


def klover_model_schools():
    """Refine eight schools from NumPyro's model; return the effective number of draws."""
    return _refined_model(schools_model())


def _refined_model(model):
    import jax

    import klover

    return _refined(klover, jax, klover.from_numpyro(model))


def _refined(klover, jax, target):
    fit = klover.refine(jax.random.key(0), target)
    table = fit.summary()
    str(table)
    assert fit.verdict.trusted, str(fit.verdict)
    return float(table.columns["ess"].min())


def logistic_model():
    """Return NumPyro's logistic regression."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    features, labels = logistic_data()
    features = jnp.asarray(features)

    def model():
        weights = numpyro.sample("weights", dist.Normal(0, 2.5).expand([25]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=features @ weights), obs=labels)

    return model


def schools_model():
    """Return NumPyro's eight schools, non-centred."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    effects, errors = jnp.array(EFFECTS), jnp.array(ERRORS)

    def model():
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        tau = numpyro.sample("tau", dist.HalfCauchy(5))
        eta = numpyro.sample("eta", dist.Normal(0, 1).expand([8]).to_event(1))
        numpyro.sample("y", dist.Normal(mu + tau * eta, errors), obs=effects)

    return model


def nuts_logistic():
    """Run NUTS on the logistic regression; return the smallest effective number of draws."""
    return _sampled(logistic_model())


def nuts_schools():
    """Run NUTS on eight schools; return the smallest effective number of draws."""
    return _sampled(schools_model())


def _sampled(model):
    import jax
    import numpy as np
    from numpyro.diagnostics import summary
    from numpyro.infer import MCMC, NUTS

    mcmc = MCMC(
        NUTS(model), num_warmup=1000, num_samples=1000, num_chains=4, chain_method="vectorized", progress_bar=False
    )
    mcmc.run(jax.random.key(0))
    table = summary(mcmc.get_samples(group_by_chain=True))
    return float(min(np.min(entry["n_eff"]) for entry in table.values()))


FUNCTIONS = (klover_logistic, klover_model_logistic, nuts_logistic, klover_schools, klover_model_schools, nuts_schools)
RUNS = {function.__name__: function for function in FUNCTIONS}


def measure(name: str, cache: str | None) -> tuple[float, float]:
    """Run one fresh process; return its seconds and its effective draws."""
    environment = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
    if cache is not None:
        environment |= {
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
    began = time.perf_counter()
    command = [sys.executable, __file__, "--one", name]
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    return time.perf_counter() - began, json.loads(output)


def main() -> None:
    """Measure everything side by side, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(RUNS[options.one]()))
        return
    print("| model | cache | from a density, s | from NumPyro's model, s | NUTS, s | ratios | effective draws |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as cache:
        for kind in (None, cache):
            for model in ("logistic", "schools"):
                names = [f"klover_{model}", f"klover_model_{model}", f"nuts_{model}"]
                if kind is not None:
                    for name in names:
                        measure(name, kind)
                runs = {name: [] for name in names}
                for _ in range(options.repeats):
                    for name in names:
                        runs[name].append(measure(name, kind))
                seconds, draws = zip(*(min(runs[name]) for name in names), strict=True)
                ratios = ", ".join(f"1/{seconds[2] / own:.1f}" for own in seconds[:2])
                print(
                    f"| {model} | {'cold' if kind is None else 'warm'} | {seconds[0]:.2f} | {seconds[1]:.2f} "
                    f"| {seconds[2]:.2f} | {ratios} | {', '.join(f'{number:.0f}' for number in draws)} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
