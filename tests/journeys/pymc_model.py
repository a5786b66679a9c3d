"""The first ten minutes of somebody who has a PyMC model: pip install 'klover[pymc]'."""

import arviz as az
import numpy as np
import pymc as pm

import klover

# Reaction times of a test on two kinds of paper; the truth of this simulation is -0.4.
rng = np.random.default_rng(3)
kind = np.repeat([0, 1], 60)
time = 2.0 - 0.4 * kind + rng.normal(0, 0.5, size=120)

with pm.Model(coords={"kind": ["plain", "glossy"]}) as model:
    mean = pm.Normal("mean", 0, 10, dims="kind")
    sigma = pm.HalfNormal("sigma", 5)
    pm.Deterministic("difference", mean[1] - mean[0])
    pm.Normal("time", mean[kind], sigma, observed=time)

fit = klover.refine(0, klover.from_pymc(model))
print(fit.summary())
assert fit.verdict.trusted, fit.verdict.reason

posterior = fit.posterior(4_000)
low, high = np.quantile(posterior["difference"], [0.05, 0.95])
print(f"glossy paper takes {posterior['difference'].mean():.2f} ({low:.2f} to {high:.2f}) longer")

# With priors as wide as these the difference of means is nearly Normal around that of the data.
one, two = time[kind == 0], time[kind == 1]
spread = np.sqrt((one.var(ddof=1) + two.var(ddof=1)) / 60)
assert abs(posterior["difference"].mean() - (two.mean() - one.mean())) < 0.1 * spread
assert abs(posterior["difference"].std() / spread - 1) < 0.1
assert low < -0.4 < high

results = fit.to_arviz(predictive=True)
print(az.summary(results, var_names=["mean", "sigma", "difference"], kind="stats"))
predicted = results.posterior_predictive["time"].values
assert abs(predicted.mean() - time.mean()) < 0.1
assert abs(predicted.std() / time.std() - 1) < 0.1
