r"""Bounded and positive parameters: through klover's bounds, and through transforms with their Jacobians as a modelling
language makes them. Also plain callbacks, with values alone.

Truths are those of the natural scale, which is what a fit reports.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats
from scipy.special import betaln, gammaln, logsumexp

import klover
from benchmarks.reliability.case import LARGEST_CONSTANT, Case
from benchmarks.reliability.densities import Density, random_dim
from benchmarks.reliability.families import ellipses
from benchmarks.reliability.truth import LARGEST_DIM, truth_of


@dataclasses.dataclass(frozen=True)
class Interval:
    """A density on an interval.

    Attributes
    ----------
    log_prob
        Of numbers inside, with the functions of the module ``xp``, NumPy's or JAX's.
    score
        Its derivative, by NumPy.
    frozen
        The same distribution by scipy, for draws and moments.
    """

    lower: float
    upper: float
    log_prob: Callable[[Any, Any], Any]
    score: Callable[[np.ndarray], np.ndarray]
    frozen: Any


def beta(generator) -> Interval:
    is_sharp = generator.random(2) < 0.3
    a, b = np.where(is_sharp, 10 ** generator.uniform(-0.6, 0, size=2), generator.uniform(1, 8, size=2))
    lower, width = float(generator.normal(0, 2)), float(10 ** generator.uniform(-1, 2))
    upper, constant = lower + width, betaln(a, b) + (a + b - 1) * np.log(width)
    return Interval(
        lower,
        upper,
        lambda x, xp: (a - 1) * xp.log(x - lower) + (b - 1) * xp.log(upper - x) - constant,
        lambda x: (a - 1) / (x - lower) - (b - 1) / (upper - x),
        stats.beta(a, b, lower, width),
    )


def uniform(generator) -> Interval:
    lower, width = float(generator.normal(0, 2)), float(10 ** generator.uniform(-1, 2))
    frozen = stats.uniform(lower, width)
    return Interval(lower, lower + width, lambda x, xp: 0 * x - np.log(width), np.zeros_like, frozen)


def truncated(generator) -> Interval:
    """A normal between two bounds, or with one of them."""
    location, scale = float(generator.normal(0, 2)), float(10 ** generator.uniform(-1, 1))
    low, high = np.sort(generator.normal(0, 1.5, size=2)) + [-0.2, 0.2]
    low, high = [(low, high), (-np.inf, high), (low, np.inf)][generator.integers(3)]
    constant = np.log(scale) + 0.5 * np.log(2 * np.pi) + np.log(stats.norm.cdf(high) - stats.norm.cdf(low))
    return Interval(
        location + low * scale,
        location + high * scale,
        lambda x, xp: -0.5 * ((x - location) / scale) ** 2 - constant,
        lambda x: -(x - location) / scale**2,
        stats.truncnorm(low, high, location, scale),
    )


def gamma(generator) -> Interval:
    shape, scale = float(generator.uniform(0.5, 6)), float(10 ** generator.uniform(-1, 2))
    constant = gammaln(shape) + shape * np.log(scale)
    return Interval(
        0.0,
        np.inf,
        lambda x, xp: (shape - 1) * xp.log(x) - x / scale - constant,
        lambda x: (shape - 1) / x - 1 / scale,
        stats.gamma(shape, scale=scale),
    )


def weibull(generator) -> Interval:
    shape, scale = float(generator.uniform(0.8, 4)), float(10 ** generator.uniform(-1, 2))
    return Interval(
        0.0,
        np.inf,
        lambda x, xp: np.log(shape / scale) + (shape - 1) * xp.log(x / scale) - (x / scale) ** shape,
        lambda x: (shape - 1) / x - shape / scale * (x / scale) ** (shape - 1),
        stats.weibull_min(shape, scale=scale),
    )


def normal(generator) -> Interval:
    location, scale = float(generator.normal(0, 2)), float(10 ** generator.uniform(-1, 1))
    constant = np.log(scale) + 0.5 * np.log(2 * np.pi)
    return Interval(
        -np.inf,
        np.inf,
        lambda x, xp: -0.5 * ((x - location) / scale) ** 2 - constant,
        lambda x: -(x - location) / scale**2,
        stats.norm(location, scale),
    )


KINDS = (beta, uniform, truncated, gamma, weibull, normal)


def random_intervals(generator, dim: int) -> tuple[list[Interval], Density]:
    """Draw independent coordinates, and the density of all of them on the natural scale (without a JAX function)."""
    parts = [KINDS[generator.integers(len(KINDS))](generator) for _ in range(dim)]

    def sample(generator, num_draws):
        return np.stack([part.frozen.rvs(num_draws, generator) for part in parts], axis=1)

    mean, variance = np.array([part.frozen.stats("mv") for part in parts]).T
    return parts, Density(lambda x: x[0], dim, sample, mean, np.diag(variance))


def callback_bounds(name: str, generator: np.random.Generator) -> Case:
    """Independent bounded coordinates as a NumPy callback with klover's bounds; half of them with gradients."""
    parts, density = random_intervals(generator, random_dim(generator, 10))
    constant = float(generator.uniform(-LARGEST_CONSTANT, LARGEST_CONSTANT))
    bounds = np.array([(part.lower, part.upper) for part in parts]).T

    def log_prob(x):
        return constant + sum(part.log_prob(x[:, at], np) for at, part in enumerate(parts))

    def gradient(x):
        return np.stack([part.score(x[:, at]) for at, part in enumerate(parts)], axis=1)

    grad = gradient if generator.random() < 0.5 else None
    target = klover.from_callback(log_prob, len(parts), grad=grad, vectorized=True, bounds=tuple(bounds))
    return _case(name, target, density, generator, constant)


def transformed_bounds(name: str, generator: np.random.Generator) -> Case:
    """Independent bounded coordinates through logarithms and logits with their Jacobians, traced by JAX."""
    parts, density = random_intervals(generator, random_dim(generator, 20))
    constant = float(generator.uniform(-LARGEST_CONSTANT, LARGEST_CONSTANT))

    def constrain(u):
        return jnp.stack([_natural(part, u[at])[0] for at, part in enumerate(parts)])

    def log_prob(u):
        pairs = [_natural(part, u[at]) for at, part in enumerate(parts)]
        return constant + sum(part.log_prob(x, jnp) + jac for part, (x, jac) in zip(parts, pairs, strict=True))

    target = klover.Target(log_prob, np.zeros(len(parts)), constrain=constrain)
    return _case(name, target, density, generator, constant)


def _natural(part: Interval, u):
    """Return a number inside the bounds, and the log of its derivative."""
    if np.isfinite(part.lower) and np.isfinite(part.upper):
        width = part.upper - part.lower
        return part.lower + width * jax.nn.sigmoid(u), np.log(width) + jax.nn.log_sigmoid(u) + jax.nn.log_sigmoid(-u)
    if np.isfinite(part.lower):
        return part.lower + jnp.exp(u), u
    return (part.upper - jnp.exp(u), u) if np.isfinite(part.upper) else (u, 0.0)


def simplex(name: str, generator: np.random.Generator) -> Case:
    r"""A Dirichlet of two to twelve shares x = softmax(u, 0): with the Jacobian :math:`\prod_ix_i` its density is
    :math:`\prod_ix_i^{\alpha_i}/B(\alpha)`.
    """
    dim = random_dim(generator, 11)
    shape = 10 ** generator.uniform(-0.3, 1, size=dim + 1)
    constant = float(generator.uniform(-LARGEST_CONSTANT, LARGEST_CONSTANT))
    log_beta = gammaln(shape).sum() - gammaln(shape.sum())

    def log_shares(u):
        return jax.nn.log_softmax(jnp.append(u, 0.0))

    mean, total = shape / shape.sum(), shape.sum()
    covariance = (np.diag(mean) - np.outer(mean, mean)) / (total + 1)
    density = Density(lambda x: x[0], dim, lambda generator, num: generator.dirichlet(shape, num), mean, covariance)
    target = klover.Target(
        lambda u: constant - log_beta + jnp.sum(shape * log_shares(u)),
        np.zeros(dim),
        constrain=lambda u: jnp.exp(log_shares(u)),
    )
    return _case(name, target, dataclasses.replace(density, dim=dim + 1), generator, constant)


def ordered(name: str, generator: np.random.Generator) -> Case:
    """Order statistics of two to ten normals, x_k = x_{k-1} + exp(u_k): the density of the normals, times d!."""
    dim, scale = random_dim(generator, 10, 2), 10 ** generator.uniform(-1, 1)
    constant = float(generator.uniform(-LARGEST_CONSTANT, LARGEST_CONSTANT))

    def constrain(u):
        return jnp.cumsum(jnp.append(u[:1], jnp.exp(u[1:])))

    def log_prob(u):
        log = -0.5 * jnp.sum((constrain(u) / scale) ** 2) + jnp.sum(u[1:]) + gammaln(dim + 1)
        return log + constant - dim * (np.log(scale) + 0.5 * np.log(2 * np.pi))

    def sample(generator, num_draws):
        return scale * np.sort(generator.normal(size=(num_draws, dim)), axis=1)

    density = Density(lambda x: x[0], dim, sample)
    return _case(name, klover.Target(log_prob, np.zeros(dim), constrain=constrain), density, generator, constant)


def values_only(name: str, generator: np.random.Generator) -> Case:
    """One to three Gaussians or Student-t's as a NumPy callback without gradients, in one to six dimensions."""
    dim, num = random_dim(generator, 6), int(generator.integers(1, 4))
    constant = float(generator.uniform(-LARGEST_CONSTANT, LARGEST_CONSTANT))
    weights, df = generator.dirichlet(np.full(num, 5.0)), float(generator.choice([np.inf, np.inf, 5.0]))
    locations = generator.uniform(1, 6) * generator.normal(size=(num, dim)) / np.sqrt(dim)
    factors = generator.normal(size=(num, dim, dim)) / np.sqrt(dim) + np.eye(dim)
    shapes = factors @ factors.mT
    squares, rotations = np.linalg.eigh(shapes)
    pairs = list(zip(locations, shapes, strict=True))
    parts = [stats.multivariate_t(*pair, df) if np.isfinite(df) else stats.multivariate_normal(*pair) for pair in pairs]

    def log_prob(x):
        log = np.stack([np.reshape(part.logpdf(x), len(x)) for part in parts], axis=1)
        return logsumexp(log + np.log(weights), axis=1) + constant

    density = ellipses.ellipses(weights, locations, np.sqrt(squares), rotations, df)
    return _case(name, klover.from_callback(log_prob, dim, vectorized=True), density, generator, constant)


def _case(name, target, density: Density, generator, constant: float) -> Case:
    truth = truth_of(density, generator, constant)
    is_in_reach = density.is_unimodal and target.dim <= LARGEST_DIM
    return Case(name, target, truth, density.is_unimodal, is_in_reach, density.parts, density)
