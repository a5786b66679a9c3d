r"""Write ``references.json``: log evidence, mean and standard deviation of the posteriors in ``targets.py``.

    python -m benchmarks references [--draws 4000000]

Eight schools and the regressions are Gaussian given one or two scales: what remains is a smooth integral over the
logarithms of the scales, which the trapezium rule gives to all printed digits. The logistic regressions are importance
sampled. Their proposal, a mixture of Student-t, is fitted to draws of blackjax's NUTS, whose moments are a check.
"""

import argparse
import datetime
import json
import platform

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import norm
from sklearn.mixture import GaussianMixture

from benchmarks import targets
from klover.paper import datasets, models

jax.config.update("jax_enable_x64", True)

DIGITS = 6
NUM_CHAINS, NUM_STEPS = 8, 20_000
NUM_COMPONENTS, DF = 16, 25.0
BLOCK = 50_000


def moments(log_weight, mean, variance):
    """Mean and standard deviation of a mixture of nodes, each with its own mean and variance."""
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    centre = weight @ mean
    return {"mean": centre, "sd": np.sqrt(weight @ (variance + (mean - centre) ** 2))}


def log_sum(log_values):
    return log_values.max() + np.log(np.exp(log_values - log_values.max()).sum())


def eight_schools():
    r"""Integrate over t = log τ: given τ, :math:`y_j\sim\mathrm N(\mu,\sigma_j^2+\tau^2)` and μ, θ are Gaussian."""
    log_tau, step = np.linspace(-40, 40, 8001, retstep=True)
    tau, y, sigma = np.exp(log_tau)[:, None], targets.EFFECTS, targets.EFFECT_SDS
    marginal_sd = np.sqrt(sigma**2 + tau**2)
    precision = 1 / 25 + (marginal_sd**-2).sum(1)
    mu = (y / marginal_sd**2).sum(1) / precision
    log_joint = (
        norm.logpdf(y, mu[:, None], marginal_sd).sum(1) + norm.logpdf(mu, 0, 5) + np.log(2 * np.pi / precision) / 2
    )
    log_joint += np.log(2 / (5 * np.pi)) + log_tau - np.log1p(tau[:, 0] ** 2 / 25)
    kept = tau**2 / marginal_sd**2  # the share of y in the mean of θ given μ
    theta = mu[:, None] + kept * (y - mu[:, None])
    theta_variance = kept * sigma**2 + (1 - kept) ** 2 / precision[:, None]
    eta = tau / marginal_sd**2 * (y - mu[:, None])
    eta_variance = sigma**2 / marginal_sd**2 + (tau / marginal_sd**2) ** 2 / precision[:, None]
    hyper, hyper_variance = np.stack([log_tau, mu], 1), np.stack([0 * mu, 1 / precision], 1)
    evidence = {"log_evidence": log_sum(log_joint) + np.log(step), "log_evidence_se": 0.0, "method": "quadrature"}
    centred = moments(log_joint, np.hstack([hyper, theta]), np.hstack([hyper_variance, theta_variance]))
    noncentred = moments(log_joint, np.hstack([eta, hyper]), np.hstack([eta_variance, hyper_variance]))
    return evidence | centred, evidence | noncentred


def regression(name):
    r"""Integrate over log α and log τ: given both, :math:`w=A^\top u`, :math:`u\sim\mathrm N(0,I/\alpha)`, is Gaussian.

    The Gaussian prior has A = I and α ~ Gamma(1, 0.1); the heavy-tailed one, :math:`\mathcal T_2(0,A^\top A)`, is the
    mixture over α ~ Gamma(1, 1).
    """
    prior, dataset = name.split("_")
    split = datasets.split(datasets.load(dataset), 1)
    inputs, outputs = models.design(split.train_features), split.train_target
    num_rows, num_weights = inputs.shape
    is_heavy = prior == "heavy"
    factor = models.prior_factor(num_weights) if is_heavy else np.eye(num_weights)
    rate = 1.0 if is_heavy else 0.1
    eigenvalues, basis = np.linalg.eigh(factor @ inputs.T @ inputs @ factor.T)
    projection = basis.T @ factor @ inputs.T @ outputs

    def log_joint(log_alpha, log_tau):
        alpha, tau = np.exp(log_alpha), np.exp(log_tau)
        precision = alpha[..., None] + tau[..., None] * eigenvalues
        fitted = (tau[..., None] ** 2 * projection**2 / precision).sum(-1)
        log_likelihood = 0.5 * (num_rows * (log_tau - np.log(2 * np.pi)) - tau * (outputs @ outputs) + fitted)
        log_likelihood += 0.5 * (num_weights * log_alpha - np.log(precision).sum(-1))
        return log_likelihood + np.log(rate) + log_alpha - rate * alpha + np.log(0.1) + log_tau - 0.1 * tau

    sides = [np.linspace(-30, 15, 901), np.linspace(-5, 15, 4001)]
    values = log_joint(*np.meshgrid(*sides, indexing="ij"))
    inside = np.argwhere(values > values.max() - 60)
    lower, upper = inside.min(0) - 1, inside.max(0) + 1
    grids = [np.linspace(side[low], side[high], 601) for side, low, high in zip(sides, lower, upper, strict=True)]
    log_alpha, log_tau = (grid.ravel() for grid in np.meshgrid(*grids, indexing="ij"))
    values = log_joint(log_alpha, log_tau)
    area = np.prod([grid[1] - grid[0] for grid in grids])
    used = values > values.max() - 45
    log_alpha, log_tau = log_alpha[used], log_tau[used]
    conditional = 1 / (np.exp(log_alpha)[:, None] + np.exp(log_tau)[:, None] * eigenvalues)
    weights = np.exp(log_tau)[:, None] * conditional * projection @ (basis.T @ factor)
    weights_variance = conditional @ (basis.T @ factor) ** 2
    hyper = log_tau[:, None] if is_heavy else np.stack([log_alpha, log_tau], 1)
    evidence = {"log_evidence": log_sum(values) + np.log(area), "log_evidence_se": 0.0, "method": "quadrature"}
    return evidence | moments(values[used], np.hstack([hyper, weights]), np.hstack([0 * hyper, weights_variance]))


def nuts(key, target):
    """Draws of NUTS, chain by chain, of shape (chain, step, dim)."""
    key_warmup, key_run = jax.random.split(key)
    warmup = blackjax.window_adaptation(blackjax.nuts, target.log_prob, is_mass_matrix_diagonal=False)
    (state, parameters), _ = warmup.run(key_warmup, target.start, num_steps=3000)
    kernel = blackjax.nuts(target.log_prob, **parameters)

    def step(states, key):
        states, _ = jax.vmap(kernel.step)(jax.random.split(key, NUM_CHAINS), states)
        return states, states.position

    states = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], NUM_CHAINS, 0), state)
    return jax.jit(lambda states: jax.lax.scan(step, states, jax.random.split(key_run, NUM_STEPS))[1])(states).swapaxes(
        0, 1
    )


def logistic_regression(name, num_draws):
    """Importance sampling from a mixture of Student-t fitted to draws of NUTS."""
    target = targets.PROBLEMS[name]().target
    chains = np.asarray(nuts(jax.random.key(0), target))
    draws = chains.reshape(-1, target.dim)
    centre, factor = draws.mean(0), np.linalg.cholesky(np.cov(draws.T))
    fit = GaussianMixture(NUM_COMPONENTS, random_state=0, reg_covar=1e-3)
    fit.fit(np.linalg.solve(factor, (draws - centre).T).T)
    locations, scales = centre + fit.means_ @ factor.T, factor @ fit.covariances_ @ factor.T
    proposal = targets.mixture("proposal", locations, scales, weights=fit.weights_, df=DF)
    log_ratio = jax.jit(lambda x: target.log_prob(x) - proposal.target.log_prob(x))
    generator = np.random.default_rng(0)
    sums, shift, largest = 0.0, None, 0.0
    for _ in range(num_draws // BLOCK):
        delta = proposal.sample(generator, BLOCK) - centre
        log_weight = np.asarray(log_ratio(centre + delta))
        shift = log_weight.max() if shift is None else shift
        weight = np.exp(log_weight - shift)
        largest = max(largest, weight.max())
        sums = sums + np.concatenate([[weight.sum(), weight @ weight], weight @ delta, weight @ delta**2])
    total, squares, (first, second) = sums[0], sums[1], sums[2:].reshape(2, -1) / sums[0]
    share = total**2 / squares / num_draws
    error = np.sqrt((1 / share - 1) / num_draws)
    answer = {"log_evidence": shift + np.log(total / num_draws), "log_evidence_se": error}
    answer |= {"mean": centre + first, "sd": np.sqrt(second - first**2)}
    between = chains.mean(1).std(0, ddof=1) / np.sqrt(NUM_CHAINS)
    print(
        f"{name}: log Z {answer['log_evidence']:.5f} ± {error:.5f}, ESS {share:.3f}, largest weight"
        f" {largest / total:.1e}; NUTS against this: means within"
        f" {np.abs((draws.mean(0) - answer['mean']) / answer['sd']).max():.4f} sd (its own error"
        f" {(between / answer['sd']).max():.4f}), sds within {np.abs(draws.std(0) / answer['sd'] - 1).max():.4f}",
        flush=True,
    )
    return answer | {"method": f"importance sampling, {num_draws} draws, ESS {share:.2f}"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--draws", type=int, default=4_000_000)
    num_draws = parser.parse_args().draws
    answers = dict(zip(("eight_schools_centred", "eight_schools_noncentred"), eight_schools(), strict=True))
    answers |= {name: regression(name) for name in targets.REGRESSIONS}
    answers |= {name: logistic_regression(name, num_draws) for name in ("german_credit", "breast_cancer")}
    rounded = {
        name: {key: value if key == "method" else np.round(value, DIGITS).tolist() for key, value in answer.items()}
        for name, answer in answers.items()
    }
    record = {
        "command": f"python -m benchmarks references --draws {num_draws}",
        "machine": f"{platform.machine()}, Python {platform.python_version()}, jax {jax.__version__}",
        "date": datetime.date.today().isoformat(),
        "targets": {name: rounded[name] for name in targets.PROBLEMS if name in rounded},
    }
    targets.REFERENCES.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
