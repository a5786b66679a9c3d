r"""Posteriors of models whose answers have closed forms: conjugate regressions, and hierarchies with one integral."""

import jax.numpy as jnp
import numpy as np
from scipy.special import gammaln, logsumexp, polygamma

from benchmarks.reliability.densities import Density, Moments

NUM_NODES = 1001


def conjugate_regression(generator) -> Density:
    r"""Linear regression with a normal-inverse-gamma prior; the point is (β, log σ²).

    :math:`\sigma^2\sim\mathrm{IG}(a,b)`, :math:`\beta\mid\sigma^2\sim\mathrm N(0,\sigma^2\Lambda^{-1})`, and
    :math:`y\mid\beta,\sigma^2\sim\mathrm N(X\beta,\sigma^2I)`. The posterior has :math:`\Lambda_n=X^\top X+\Lambda`,
    :math:`m=\Lambda_n^{-1}X^\top y`, :math:`a_n=a+n/2`, :math:`b_n=b+(y^\top y-m^\top\Lambda_nm)/2`, and

    .. math:: Z=(2\pi)^{-n/2}\sqrt{|\Lambda|/|\Lambda_n|}\;\frac{b^a}{b_n^{a_n}}\frac{\Gamma(a_n)}{\Gamma(a)}.

    β is then Student-t of 2a_n degrees of freedom, and log σ² the negative logarithm of a gamma variable.
    """
    num_inputs, num = int(generator.integers(1, 16)), int(generator.integers(2, 80))
    units = 10 ** generator.choice([-1.0, 0.0, 0.0, 1.0, 2.0], size=num_inputs)
    inputs = np.column_stack([np.ones(num), generator.normal(size=(num, num_inputs))[:, 1:] * units[1:]])
    shape, rate, precision = generator.uniform(1, 4), 10 ** generator.uniform(-1, 1), 10 ** generator.uniform(-2, 0)
    outputs = inputs @ (generator.normal(size=num_inputs) / units) + generator.uniform(0.2, 2) * generator.normal(
        size=num
    )
    posterior = inputs.T @ inputs + precision * np.eye(num_inputs)
    centre = np.linalg.solve(posterior, inputs.T @ outputs)
    shape_n = shape + num / 2
    rest = outputs - inputs @ centre
    rate_n = rate + 0.5 * (rest @ rest + precision * centre @ centre)
    log_evidence = 0.5 * (num_inputs * np.log(precision) - np.linalg.slogdet(posterior)[1] - num * np.log(2 * np.pi))
    log_evidence += shape * np.log(rate) - shape_n * np.log(rate_n) + gammaln(shape_n) - gammaln(shape)

    def log_prob(x):
        beta, log_variance = x[:-1], x[-1]
        squares = jnp.sum((outputs - inputs @ beta) ** 2) + precision * jnp.sum(beta**2)
        log = -0.5 * squares * jnp.exp(-log_variance) - 0.5 * (num + num_inputs) * (log_variance + np.log(2 * np.pi))
        log = log + 0.5 * num_inputs * np.log(precision) + shape * np.log(rate) - gammaln(shape)
        return log - shape * log_variance - rate * jnp.exp(-log_variance)  # the Jacobian σ² included

    covariance = np.zeros((num_inputs + 1, num_inputs + 1))
    covariance[:-1, :-1] = rate_n / (shape_n - 1) * np.linalg.inv(posterior)
    covariance[-1, -1] = polygamma(1, shape_n)
    mean = np.r_[centre, np.log(rate_n) - polygamma(0, shape_n)]
    factor = np.linalg.cholesky(np.linalg.inv(posterior))

    def sample(generator, num_draws):
        variance = rate_n / generator.gamma(shape_n, size=(num_draws, 1))
        beta = centre + np.sqrt(variance) * (generator.normal(size=(num_draws, num_inputs)) @ factor.T)
        return np.column_stack([beta, np.log(variance)])

    return Density(
        log_prob, num_inputs + 1, sample, mean, covariance, log_evidence=float(log_evidence), tail=2 * shape_n
    )


def hierarchy(generator) -> Density:
    r"""Normal groups: :math:`y_j\sim\mathrm N(\theta_j,s_j^2)`, :math:`\theta_j\sim\mathrm N(\mu,\tau^2)`,
    :math:`\mu\sim\mathrm N(0,m^2)`, :math:`\log\tau\sim\mathrm N(a,c^2)`; the point is (log τ, μ, θ), or with
    :math:`\theta_j=\mu+\tau\eta_j` (log τ, μ, η).

    Given τ everything is Gaussian, so that evidence and moments are sums over a grid of log τ.
    """
    num, is_centred = int(generator.integers(2, 13)), bool(generator.random() < 0.5)
    errors, spread = generator.uniform(0.5, 3, size=num), generator.uniform(0.2, 3)
    location_sd, log_centre, log_sd = generator.uniform(1, 6), generator.uniform(-1, 1), generator.uniform(0.5, 1.2)
    location, tau = generator.normal(0, location_sd), np.exp(generator.normal(log_centre, log_sd))
    data = generator.normal(location + spread * tau * generator.normal(size=num), errors)

    def log_prob(x):
        log_tau, mu, rest = x[0], x[1], x[2:]
        theta = rest if is_centred else mu + jnp.exp(log_tau) * rest
        log = -0.5 * ((log_tau - log_centre) / log_sd) ** 2 - 0.5 * (mu / location_sd) ** 2
        log = log - np.log(log_sd * location_sd) - 0.5 * jnp.sum(((data - theta) / errors) ** 2) - np.log(errors).sum()
        step = (rest - mu) * jnp.exp(-log_tau) if is_centred else rest
        log = log - 0.5 * jnp.sum(step**2) - (num * log_tau if is_centred else 0.0)
        return log - (1 + num) * np.log(2 * np.pi)

    grid = np.linspace(log_centre - 9 * log_sd, log_centre + 9 * log_sd, NUM_NODES)
    given = [_given(log_tau, data, errors, location_sd, is_centred) for log_tau in grid]
    log_weight = np.array([each[0] for each in given]) - 0.5 * ((grid - log_centre) / log_sd) ** 2 - np.log(log_sd)
    log_weight += np.log(grid[1] - grid[0]) - 0.5 * np.log(2 * np.pi)
    weight = np.exp(log_weight - logsumexp(log_weight))
    centres = np.column_stack([grid, np.stack([each[1] for each in given])])
    variances = np.column_stack([np.zeros(NUM_NODES), np.stack([each[2] for each in given])])
    mean = weight @ centres
    away = centres - mean
    variance = weight @ (variances + away**2)
    fourth = weight @ (away**4 + 6 * away**2 * variances + 3 * variances**2)
    # Given τ the density has one top, so that its tops are those of the profile: log weight less the log volumes.
    profile = log_weight - np.array([each[3] for each in given])
    num_tops = int(np.sum((profile[1:-1] > profile[:-2]) & (profile[1:-1] >= profile[2:])))
    return Density(
        log_prob,
        num + 2,
        moments=Moments(mean, np.sqrt(variance), fourth / variance**2),
        log_evidence=float(logsumexp(log_weight)),
        is_unimodal=num_tops == 1,
    )


def _given(log_tau, data, errors, location_sd, is_centred):
    r"""Return log p(y | τ), conditional means and variances of (μ, θ or η), and half the log determinant.

    With :math:`z=(\mu,\theta-\mu)` or (μ, η), the data are :math:`y=Az+\epsilon`, a linear Gaussian model.
    """
    num, tau = len(data), np.exp(log_tau)
    design = np.column_stack([np.ones(num), (1.0 if is_centred else tau) * np.eye(num)])
    prior = np.r_[location_sd**2, np.full(num, tau**2 if is_centred else 1.0)]
    # The marginal covariance of the data is diagonal and a constant: s² + τ² and m².
    marginal = np.diag(errors**2 + tau**2) + location_sd**2
    gain = np.linalg.solve(marginal, design * prior).T
    mean, covariance = gain @ data, np.diag(prior) - gain @ (design * prior)
    sign_free = np.linalg.slogdet(marginal)[1]
    log = -0.5 * (data @ np.linalg.solve(marginal, data) + sign_free + num * np.log(2 * np.pi))
    # |posterior| = |prior| |noise| / |marginal|: exact even where the covariance itself has cancelled to nothing.
    log_volume = 0.5 * (np.log(prior).sum() + 2 * np.log(errors).sum() - sign_free)
    if is_centred:
        back = np.eye(num + 1)
        back[1:, 0] = 1.0
        mean, covariance = back @ mean, back @ covariance @ back.T
    return log, mean, np.maximum(np.diagonal(covariance), 0.0), log_volume
