"""The first ten minutes of somebody who has a function of NumPy arrays: pip install 'klover[plots]'."""

import numpy as np

import klover
from klover import plots

# A cup of coffee cools: the temperature of the room, 20 degrees, is known; start and rate are not.
minutes = np.array([0.0, 2, 5, 10, 15, 20, 30])
degrees = np.array([86.1, 78.9, 69.7, 57.6, 47.8, 41.7, 32.3])


def log_density(point):
    """Log posterior: noise of half a degree, and a flat prior inside of the bounds."""
    start, rate = point
    predicted = 20 + (start - 20) * np.exp(-rate * minutes)
    return -0.5 * np.sum(((degrees - predicted) / 0.5) ** 2)


target = klover.from_callback(log_density, 2, bounds=([50, 0.01], [100, 0.2]), names=["start", "rate"])
target.check(0)
fit = klover.refine(0, target)
print(fit.summary())
assert fit.verdict.trusted, fit.verdict.reason

# Two parameters can be integrated on a grid: means and evidence are known.
start, rate = np.meshgrid(np.linspace(80, 92, 400), np.linspace(0.04, 0.08, 400), indexing="ij")
log_p = np.array([log_density(point) for point in np.column_stack([start.ravel(), rate.ravel()])])
p = np.exp(log_p - log_p.max())
cell = (12 / 399) * (0.04 / 399)
posterior = fit.posterior(4_000)
for name, grid in (("start", start.ravel()), ("rate", rate.ravel())):
    mean = np.average(grid, weights=p)
    sd = np.sqrt(np.average((grid - mean) ** 2, weights=p))
    assert abs(posterior[name].mean() - mean) < 0.1 * sd, name
    assert abs(posterior[name].std() / sd - 1) < 0.1, name
log_evidence = log_p.max() + np.log(p.sum() * cell)
assert abs(fit.log_evidence - log_evidence) < 5 * fit.log_evidence_se + 0.01

import matplotlib.pyplot as plt  # noqa: E402

figure, axes = plt.subplots()
plots.plot_pair(axes, fit, 0, 1)
figure.savefig("coffee.png")
fit.save("coffee.klover")
assert klover.load("coffee.klover").log_evidence == fit.log_evidence
