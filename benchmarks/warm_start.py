"""How much warm-up NUTS needs that begins with klover's positions, metric and step size, and that begins with nothing.

    python -m benchmarks warm_start

NumPyro's NUTS, four chains of 500 draws after so many of warm-up; the largest rank-normalised R-hat of all coordinates
(median of three keys). Cold chains adapt metric and step size; warm ones the step size alone. What klover spent on the
fit is in the line of each posterior.
"""

import arviz
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

import klover

NUM_CHAINS, NUM_DRAWS, KEYS = 4, 500, (1, 2, 3)
COLD, WARM = (25, 50, 100, 200), (0, 10, 25)
GOOD = 1.01
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def inputs(num_rows: int, num_columns: int) -> np.ndarray:
    """Correlated inputs of different scales."""
    generator = np.random.default_rng(0)
    common = generator.normal(size=(num_rows, 1))
    return (generator.normal(size=(num_rows, num_columns)) + common) * np.geomspace(0.1, 10.0, num_columns)


def schools():
    mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", 8):
        numpyro.sample("y", dist.Normal(mu + tau * numpyro.sample("eta", dist.Normal(0, 1)), ERRORS), obs=EFFECTS)


def regression():
    x = inputs(100, 8)
    y = x @ np.geomspace(5.0, 0.05, 8) + np.random.default_rng(1).normal(size=100)
    slopes = numpyro.sample("slopes", dist.Normal(0, 10).expand([8]).to_event(1))
    numpyro.sample("y", dist.Normal(x @ slopes, numpyro.sample("sigma", dist.HalfNormal(2))), obs=y)


def logistic():
    x = inputs(200, 12)
    y = np.random.default_rng(1).uniform(size=200) < 1 / (1 + np.exp(-x @ np.geomspace(2.0, 0.02, 12)))
    slopes = numpyro.sample("slopes", dist.Normal(0, 5).expand([12]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ slopes), obs=y.astype(int))


def run(model, num_warmup: int, start=None) -> float:
    """Return the largest R-hat of all coordinates: the median of the keys."""
    options = {}
    if start is not None:
        options = {"inverse_mass_matrix": start.inverse_mass_matrix, "step_size": start.step_size}
        options |= {"adapt_mass_matrix": False, "adapt_step_size": num_warmup > 0}
    mcmc = MCMC(
        NUTS(model, **options),
        num_warmup=num_warmup,
        num_samples=NUM_DRAWS,
        num_chains=NUM_CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    found = []
    for key in KEYS:
        mcmc.run(jax.random.key(key), init_params=None if start is None else start.positions)
        samples = mcmc.get_samples(group_by_chain=True).values()
        columns = [column for values in samples for column in np.asarray(values).reshape(NUM_CHAINS, NUM_DRAWS, -1).T]
        found.append(max(float(arviz.rhat(column.T)) for column in columns))
    return float(np.median(found))


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    for model in (schools, regression, logistic):
        fit = klover.refine(0, klover.from_numpyro(model))
        start = fit.nuts_start(1, NUM_CHAINS)
        word = "trusted" if fit.verdict.trusted else "refused"
        print(f"{model.__name__}: d = {fit.target.dim}, fit {word}, {fit.num_evaluations} evaluations", flush=True)
        for kind, lengths, given in (("cold", COLD, None), ("warm", WARM, start)):
            for length in lengths:
                rhat = run(model, length, given)
                print(f"  {kind} {length:>4} draws of warm-up: R-hat {rhat:.4f}{' good' * (rhat <= GOOD)}", flush=True)


if __name__ == "__main__":
    main()
