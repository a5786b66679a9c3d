r"""Shapes without a top of their own: shells, flat bodies with hard edges, staircases.

Their moments are known by symmetry and one integral or sum.
"""

import jax.numpy as jnp
import numpy as np
from scipy import stats
from scipy.special import gammaln, logsumexp

from benchmarks.reliability.densities import Density, push, random_dim, random_placement

NUM_NODES = 20_001


def shell(generator) -> Density:
    r"""A shell: :math:`p(x)\propto\exp(-(|x|-R)^2/2w^2)`, R = 1 and w = 0.03 to 0.5, in two to twelve dimensions.

    The radius has density :math:`\propto r^{d-1}\exp(-(r-R)^2/2w^2)`, and a coordinate the variance
    :math:`\mathrm E r^2/d`.
    """
    dim, width = random_dim(generator, 12, 2), 10 ** generator.uniform(-1.5, -0.3)
    radius = np.linspace(0, 1 + 12 * width, NUM_NODES)
    with np.errstate(divide="ignore"):
        log_density = (dim - 1) * np.log(radius) - 0.5 * ((radius - 1) / width) ** 2
    log_integral = logsumexp(log_density) + np.log(radius[1])
    log_sphere = np.log(2) + 0.5 * dim * np.log(np.pi) - gammaln(dim / 2)
    weight = np.exp(log_density - logsumexp(log_density))
    # Where half of a node's mass is on either side, so that interpolation inverts the trapezoidal rule.
    cumulative = np.cumsum(weight) - 0.5 * weight

    def log_prob(x):
        # The gradient of the norm does not exist at the origin.
        return -0.5 * ((jnp.sqrt(jnp.sum(x**2) + 1e-30) - 1) / width) ** 2

    def sample(generator, num_draws):
        direction = generator.normal(size=(num_draws, dim))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        return direction * np.interp(generator.uniform(size=(num_draws, 1)), cumulative, radius)

    covariance = (weight @ radius**2 / dim) * np.eye(dim)
    log_evidence = float(log_integral + log_sphere)
    base = Density(log_prob, dim, sample, np.zeros(dim), covariance, log_evidence=log_evidence, is_unimodal=False)
    return push(base, random_placement(generator, dim, decades=1.0))


def flat_body(generator) -> Density:
    """A uniform cube or ball, or a Gaussian cut off at one plane through its flank: zero outside of a hard edge."""
    dim, kind = random_dim(generator, 10), generator.choice(["cube", "ball", "cut"])
    base = {"cube": _cube, "ball": _ball, "cut": _cut}[kind](dim, generator)
    placement = random_placement(generator, dim, decades=1.0)
    # The example, the origin, has to lie inside.
    shift = placement.forward(0.3 * generator.uniform(-1, 1, size=dim) / np.sqrt(dim)) - placement.shift
    return push(base, type(placement)(shift, placement.scales, placement.rotation))


def _cube(dim, generator) -> Density:
    def log_prob(x):
        return jnp.where(jnp.all(jnp.abs(x) < 1), 0.0, -jnp.inf)

    def sample(generator, num_draws):
        return generator.uniform(-1, 1, size=(num_draws, dim))

    return Density(log_prob, dim, sample, np.zeros(dim), np.eye(dim) / 3, log_evidence=dim * np.log(2))


def _ball(dim, generator) -> Density:
    def log_prob(x):
        return jnp.where(jnp.sum(x**2) < 1, 0.0, -jnp.inf)

    def sample(generator, num_draws):
        direction = generator.normal(size=(num_draws, dim))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        return direction * generator.uniform(size=(num_draws, 1)) ** (1 / dim)

    log_volume = float(0.5 * dim * np.log(np.pi) - gammaln(dim / 2 + 1))
    return Density(log_prob, dim, sample, np.zeros(dim), np.eye(dim) / (dim + 2), log_evidence=log_volume)


def _cut(dim, generator) -> Density:
    """A standard normal of which only the part above the plane x_1 = c is left, moved so that 0 is inside."""
    edge = float(generator.uniform(-1.5, 0.5))
    tail = stats.truncnorm(edge, np.inf)
    mean, variance = tail.stats("mv")

    def log_prob(x):
        first = x[0] + mean
        log = -0.5 * first**2 - 0.5 * jnp.sum(x[1:] ** 2) - 0.5 * dim * np.log(2 * np.pi)
        return jnp.where(first > edge, log, -jnp.inf)

    def sample(generator, num_draws):
        x = generator.normal(size=(num_draws, dim))
        x[:, 0] = tail.rvs(num_draws, generator) - mean
        return x

    covariance = np.diag(np.r_[variance, np.ones(dim - 1)])
    return Density(
        log_prob, dim, sample, np.zeros(dim), covariance, log_evidence=float(stats.norm.logsf(edge)), is_unimodal=True
    )


def staircase(generator) -> Density:
    r"""Steps: :math:`\log p=-h\sum_i\lfloor|x_i|/w\rfloor`, whose gradient is zero almost everywhere.

    Each side of a coordinate is a geometric number of steps and a uniform rest:
    :math:`Z=(2w/(1-e^{-h}))^d`, and with :math:`q=e^{-h}` the square has the mean
    :math:`w^2(\mathrm E k^2+\mathrm E k+1/3)`, :math:`\mathrm E k=q/(1-q)`, :math:`\mathrm E k^2=q(1+q)/(1-q)^2`.
    """
    dim, height, width = random_dim(generator, 5), generator.uniform(0.2, 1.0), 10 ** generator.uniform(-0.7, 0.3)
    keep = np.exp(-height)
    first, second = keep / (1 - keep), keep * (1 + keep) / (1 - keep) ** 2

    def log_prob(x):
        return -height * jnp.sum(jnp.floor(jnp.abs(x) / width))

    def sample(generator, num_draws):
        step = generator.geometric(1 - keep, size=(num_draws, dim)) - 1
        sign = generator.choice([-1.0, 1.0], size=(num_draws, dim))
        return sign * width * (step + generator.uniform(size=(num_draws, dim)))

    covariance = width**2 * (second + first + 1 / 3) * np.eye(dim)
    log_evidence = dim * float(np.log(2 * width) - np.log1p(-keep))
    base = Density(log_prob, dim, sample, np.zeros(dim), covariance, log_evidence=log_evidence)
    return push(base, random_placement(generator, dim, decades=1.0))
