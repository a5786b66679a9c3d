r"""Hierarchies, funnels and skewed products in 4 to 100 dimensions: `klover.refine` with its defaults.

    python -m benchmarks reach [--targets centred30,funnel20] [--seeds 5] [--progress] [--out goals.jsonl]

A hierarchy is a regression like that of radon in houses: :math:`y_i\sim\mathrm N(a_{j(i)}+bx_i,\sigma^2)` with
:math:`a_j\sim\mathrm N(\mu,\tau^2)`, ten rows a group on average, some groups with one. Given τ and σ the rest is
Gaussian, so that evidence and moments are a quadrature over two coordinates. ``centred/60/7`` is a centred one with 60
groups and the seventh set of data: tune on such, and report those that have names. Names of the suite are known, too.
With ``--out`` every run is a line of JSON at the end of a file.
"""

import argparse
import json
import pathlib
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from scipy.special import logsumexp

import klover
from benchmarks.targets import PROBLEMS as SUITE
from benchmarks.targets import Problem, _log_normal

PRIOR_SD, TAU_SCALE, SIGMA_SCALE = 5.0, 1.0, 2.0
"""Of μ and b; of the half-Cauchy of τ; of the half-normal of σ."""
TRUTH = {"mu": 1.3, "slope": -0.6, "tau": 0.3, "sigma": 0.75}
NUM_NODES = 241


def make_data(num_groups: int, data: int = 0, has_slope: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows' groups, features and values."""
    generator = np.random.default_rng([data, num_groups])
    share = generator.dirichlet(np.ones(num_groups))
    count = 1 + generator.multinomial(9 * num_groups, share)
    group = np.repeat(np.arange(num_groups), count)
    feature = generator.binomial(1, 0.3, len(group)).astype(float) if has_slope else np.zeros(len(group))
    own = generator.normal(TRUTH["mu"], TRUTH["tau"], num_groups)
    return group, feature, generator.normal(own[group] + TRUTH["slope"] * feature, TRUTH["sigma"])


def hierarchy(num_groups: int, is_centred: bool, data: int = 0, has_slope: bool = True) -> Problem:
    """Return a hierarchy and its exact answer; parameters are μ, log τ, log σ, b and the groups'."""
    group, feature, y = make_data(num_groups, data, has_slope)

    def logdensity(x):
        mu, log_tau, log_sigma = x[:3]
        slope, effect = (x[3], x[4:]) if has_slope else (0.0, x[3:])
        level = effect if is_centred else mu + jnp.exp(log_tau) * effect
        prior = norm.logpdf(x[0], 0.0, PRIOR_SD) + _log_scale_prior(jnp, log_tau, log_sigma)
        prior += norm.logpdf(slope, 0.0, PRIOR_SD) if has_slope else 0.0
        prior += (_log_normal(effect, mu, log_tau) if is_centred else norm.logpdf(effect)).sum()
        return prior + _log_normal(y, level[group] + slope * feature, log_sigma).sum()

    target = klover.Target(logdensity, jnp.zeros(num_groups + 3 + has_slope))
    inputs = np.column_stack([np.ones(len(y)), feature])[:, : 1 + has_slope]
    log_evidence, mean, sd = _integrate(inputs, y, group, is_centred)
    name = f"{'centred' if is_centred else 'noncentred'}/{num_groups}/{data}"
    return Problem(name, target, log_evidence, mean, sd)


def _log_scale_prior(xp, log_tau, log_sigma):
    """Log density of log τ and log σ, with the Jacobians."""
    ratio = log_tau - np.log(TAU_SCALE)
    of_tau = np.log(2 / np.pi) + ratio - xp.logaddexp(0.0, 2 * ratio)
    scaled = xp.exp(log_sigma) / SIGMA_SCALE
    return of_tau + 0.5 * np.log(2 / np.pi) - 0.5 * scaled**2 + log_sigma - np.log(SIGMA_SCALE)


def _integrate(inputs, y, group, is_centred):
    """Return log evidence, means and standard deviations by quadrature over log τ and log σ."""
    tau, sigma = np.linspace(-15, 4, NUM_NODES), np.linspace(-4, 4, NUM_NODES)
    for _ in range(2):
        grid = [(one, other) for one in tau for other in sigma]
        log_mass, _, _ = _given_scales(inputs, y, group, is_centred, grid, with_moments=False)
        log_mass = log_mass.reshape(len(tau), len(sigma))
        high = log_mass > log_mass.max() - 40
        step = tau[1] - tau[0], sigma[1] - sigma[0]
        kept = [np.flatnonzero(high.any(axis)) for axis in (1, 0)]
        tau = np.linspace(tau[kept[0][0]] - step[0], tau[kept[0][-1]] + step[0], NUM_NODES)
        sigma = np.linspace(sigma[kept[1][0]] - step[1], sigma[kept[1][-1]] + step[1], NUM_NODES)
    grid = np.array([(one, other) for one in tau for other in sigma])
    log_mass, mean, variance = _given_scales(inputs, y, group, is_centred, grid, with_moments=True)
    log_evidence = logsumexp(log_mass) + np.log((tau[1] - tau[0]) * (sigma[1] - sigma[0]))
    weight = np.exp(log_mass - logsumexp(log_mass))
    total = weight @ mean
    return float(log_evidence), total, np.sqrt(weight @ (variance + (mean - total) ** 2))


def _given_scales(inputs, y, group, is_centred, grid, with_moments):
    r"""Return, for each pair of scales, the log mass, and means and variances of all parameters.

    With :math:`e_j=a_j-\mu` integrated out, the rows of a group have covariance :math:`\sigma^2I+\tau^211^\top`.
    """
    count = np.bincount(group)
    num = inputs.shape[1]
    square, cross, total = inputs.T @ inputs, inputs.T @ y, y @ y
    sums = np.stack([np.bincount(group, column) for column in inputs.T], 1)
    sum_y = np.bincount(group, y)
    log_mass, means, variances = [], [], []
    for log_tau, log_sigma in np.asarray(grid):
        tau2, sigma2 = np.exp(2 * log_tau), np.exp(2 * log_sigma)
        shrunk = tau2 / (sigma2 + count * tau2)
        precision = (square - (sums.T * shrunk) @ sums) / sigma2 + np.eye(num) / PRIOR_SD**2
        slope = (cross - (sums.T * shrunk) @ sum_y) / sigma2
        covariance = np.linalg.inv(precision)
        mean = covariance @ slope
        quadratic = (total - shrunk @ sum_y**2) / sigma2 - slope @ mean
        volume = len(y) * np.log(2 * np.pi * sigma2) + np.log1p(count * tau2 / sigma2).sum()
        volume += num * np.log(PRIOR_SD**2) - np.linalg.slogdet(covariance)[1]
        log_mass.append(-0.5 * (quadratic + volume) + _log_scale_prior(np, log_tau, log_sigma))
        if not with_moments:
            continue
        effect = shrunk * (sum_y - sums @ mean)
        spread = shrunk * sigma2 + shrunk**2 * np.einsum("gi,ij,gj->g", sums, covariance, sums)
        if is_centred:
            spread = spread + covariance[0, 0] - 2 * shrunk * (sums @ covariance[0])
            effect = effect + mean[0]
        else:
            effect, spread = effect / np.exp(log_tau), spread / tau2
        means.append(np.concatenate([mean[:1], [log_tau, log_sigma], mean[1:], effect]))
        spreads = np.diagonal(covariance)
        variances.append(np.concatenate([spreads[:1], [0.0, 0.0], spreads[1:], spread]))
    return np.array(log_mass), np.array(means), np.array(variances)


def funnel(dim: int, scale: float = 3.0) -> Problem:
    """Neal's funnel."""

    def logdensity(x):
        return norm.logpdf(x[0], 0.0, scale) + _log_normal(x[1:], 0.0, x[0] / 2).sum()

    sd = np.array([scale, *[np.exp(scale**2 / 4)] * (dim - 1)])
    return Problem(f"funnel{dim}", klover.Target(logdensity, jnp.zeros(dim)), 0.0, np.zeros(dim), sd)


def product(dim: int, is_rotated: bool, data: int = 0) -> Problem:
    """A product of log-gammas (shape 2) and Laplaces, in turn, in the user's axes or in others."""
    from scipy.special import polygamma, psi

    generator = np.random.default_rng([data, dim])
    rotation = np.linalg.qr(generator.normal(size=(dim, dim)))[0] if is_rotated else np.eye(dim)
    is_gamma = np.arange(dim) % 2 == 0

    def logdensity(x):
        z = rotation.T @ x
        return jnp.where(is_gamma, 2 * z - jnp.exp(z), -jnp.abs(z) - np.log(2)).sum()

    mean = np.where(is_gamma, psi(2), 0.0)
    variance = np.where(is_gamma, polygamma(1, 2), 2.0)
    sd = np.sqrt(rotation**2 @ variance)
    return Problem(f"product{dim}", klover.Target(logdensity, jnp.zeros(dim)), 0.0, rotation @ mean, sd)


def horseshoe(num_features: int = 49, num_rows: int = 200, data: int = 0) -> Problem:
    """A logistic regression whose coefficients have a horseshoe prior (non-centred); nobody knows its answer."""
    generator = np.random.default_rng([data, num_features])
    inputs = generator.normal(size=(num_rows, num_features))
    coefficient = np.zeros(num_features)
    coefficient[:4] = 2.0, -1.5, 1.0, -1.0
    events = generator.uniform(size=num_rows) < 1 / (1 + np.exp(-inputs @ coefficient))
    signs = np.where(events, 1.0, -1.0)

    def log_half_cauchy(log_x, scale):
        ratio = log_x - np.log(scale)
        return np.log(2 / np.pi) + ratio - jnp.logaddexp(0.0, 2 * ratio)

    def logdensity(x):
        intercept, log_global, log_local, noise = x[0], x[1], x[2 : 2 + num_features], x[2 + num_features :]
        beta = noise * jnp.exp(log_global + log_local)
        prior = norm.logpdf(intercept, 0.0, 5.0) + norm.logpdf(noise).sum()
        prior += log_half_cauchy(log_global, 0.1) + log_half_cauchy(log_local, 1.0).sum()
        return prior + jax.nn.log_sigmoid(signs * (intercept + inputs @ beta)).sum()

    return Problem("horseshoe", klover.Target(logdensity, jnp.zeros(2 + 2 * num_features)), None, None, None)


def volatility(num_days: int = 97, data: int = 0) -> Problem:
    """Stochastic volatility with an autoregression of the log variance (centred); nobody knows its answer."""
    generator = np.random.default_rng([data, num_days])
    level = np.zeros(num_days)
    for day in range(1, num_days):
        level[day] = 0.95 * level[day - 1] + 0.25 * generator.normal()
    returns = np.exp(0.5 * level) * generator.normal(size=num_days)

    def logdensity(x):
        mu, raw, log_scale, state = x[0], x[1], x[2], x[3:]
        persistence = jnp.tanh(raw)
        prior = norm.logpdf(mu, 0.0, 2.0) + norm.logpdf(raw, 1.5, 0.5) + norm.logpdf(log_scale, -1.5, 1.0)
        stationary = log_scale - 0.5 * jnp.log1p(-(persistence**2))
        prior += _log_normal(state[0], mu, stationary)
        prior += _log_normal(state[1:], mu + persistence * (state[:-1] - mu), log_scale).sum()
        return prior + _log_normal(returns, 0.0, 0.5 * state).sum()

    return Problem("volatility", klover.Target(logdensity, jnp.zeros(3 + num_days)), None, None, None)


PROBLEMS = {
    "centred30": partial(hierarchy, 26, True),
    "noncentred30": partial(hierarchy, 26, False),
    "plain43": partial(hierarchy, 40, True, has_slope=False),
    "centred90": partial(hierarchy, 85, True),
    "noncentred90": partial(hierarchy, 85, False),
    "funnel20": partial(funnel, 20),
    "funnel50": partial(funnel, 50),
    "product20": partial(product, 20, False),
    "product_rotated20": partial(product, 20, True),
    "product_rotated30": partial(product, 30, True),
    "horseshoe": horseshoe,
    "volatility": volatility,
}


def problem_of(name: str) -> Problem:
    """Return a target by its name, or a hierarchy or a product by its kind, its size and its data."""
    if "/" not in name:
        return PROBLEMS[name]() if name in PROBLEMS else SUITE[name]()
    kind, size, data = name.split("/")
    makers = {
        "centred": partial(hierarchy, is_centred=True),
        "noncentred": partial(hierarchy, is_centred=False),
        "plain": partial(hierarchy, is_centred=True, has_slope=False),
        "product": partial(product, is_rotated=False),
        "product_rotated": partial(product, is_rotated=True),
        "funnel": lambda dim, data: funnel(dim),
    }
    return makers[kind](int(size), data=int(data))


def run(name: str, seed: int, progress: bool) -> dict:
    """Refine one target with one key; return how far it is from the truth, and what it took."""
    problem = problem_of(name)
    started, busy = time.perf_counter(), time.process_time()
    fit = klover.refine(seed, problem.target, progress=progress)
    row = {"target": name, "seed": seed, "verdict": fit.verdict.status.name.lower(), "kind": fit.draws.kind}
    row |= {"ess_share": fit.ess / fit.draws.num_draws, "pareto_k": fit.pareto_k, "num_draws": fit.draws.num_draws}
    row |= {"log_evidence": fit.log_evidence, "log_evidence_se": fit.log_evidence_se}
    if problem.log_evidence is not None:
        row["log_evidence_error"] = fit.log_evidence - problem.log_evidence
    if problem.mean is not None and problem.sd is not None:
        weight = np.exp(np.asarray(fit.draws.log_weight))
        row["worst_mean"] = np.max(np.abs(weight @ np.asarray(fit.draws.x) - problem.mean) / problem.sd)
    row |= {"evaluations": fit.num_evaluations, "cpu_seconds": time.process_time() - busy}
    row |= {"wall_seconds": time.perf_counter() - started}
    return {key: value if isinstance(value, str | int) else float(value) for key, value in row.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--targets", default=",".join(PROBLEMS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--progress", action="store_true")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for name in options.targets.split(","):
        for seed in range(options.seeds):
            row = run(name, seed, options.progress)
            words = (f"{key} {value:.4g}" if isinstance(value, float) else f"{value}" for key, value in row.items())
            print("  ".join(words), flush=True)
            if options.out is not None:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
