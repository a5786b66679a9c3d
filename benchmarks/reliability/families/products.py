r"""Products of one-dimensional densities, most of them skewed or heavy-tailed, plain and rotated.

A kind is a JAX log density on the real line with scipy's frozen distribution for exact draws and moments; those of
positive and of bounded variables are on the scale of their logarithm or logit, as samplers see them.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats
from scipy.special import betaln, gammaln, polygamma

from benchmarks.reliability.densities import Density, push, random_dim, random_placement


@dataclasses.dataclass(frozen=True)
class Factor:
    """A density on the real line.

    Attributes
    ----------
    log_prob
        Of one number, by JAX.
    sample
        Exact draws.
    mean, variance
        Exact.
    tail
        Moments of smaller order exist.
    """

    log_prob: Callable[[Any], Any]
    sample: Callable[[np.random.Generator, int], np.ndarray]
    mean: float
    variance: float
    tail: float = np.inf


def from_scipy(log_prob, frozen, tail=np.inf) -> Factor:
    """Take draws and moments from scipy."""
    mean, variance = frozen.stats("mv")
    return Factor(log_prob, lambda generator, num: frozen.rvs(num, generator), float(mean), float(variance), tail)


def normal(generator) -> Factor:
    return from_scipy(lambda x: -0.5 * x**2 - 0.5 * np.log(2 * np.pi), stats.norm())


def logistic(generator) -> Factor:
    return from_scipy(lambda x: jax.nn.log_sigmoid(x) + jax.nn.log_sigmoid(-x), stats.logistic())


def laplace(generator) -> Factor:
    return from_scipy(lambda x: -jnp.abs(x) - np.log(2), stats.laplace())


def asymmetric_laplace(generator) -> Factor:
    k = float(np.exp(generator.normal(0, 0.7)))
    constant = -np.log(k + 1 / k)
    return from_scipy(lambda x: constant - jnp.where(x > 0, k * x, -x / k), stats.laplace_asymmetric(k))


def gumbel(generator) -> Factor:
    """The largest of many; of the logarithm of a Weibull variable it is the mirror image."""
    return from_scipy(lambda x: -x - jnp.exp(-x), stats.gumbel_r())


def log_gamma(generator) -> Factor:
    """Logarithm of a gamma variable of shape 0.3 to 10 (an exponential one's for shape 1)."""
    shape = float(generator.choice([0.3, 0.5, 1.0, 2.0, 10.0]))
    return from_scipy(lambda x: shape * x - jnp.exp(x) - gammaln(shape), stats.loggamma(shape))


def logit_beta(generator) -> Factor:
    """Logit of a beta variable: moments are differences and sums of polygammas."""
    a, b = 10 ** generator.uniform(-0.7, 1, size=2)
    variance = float(polygamma(1, a) + polygamma(1, b))

    def sample(generator, num):
        # The logarithms of two gamma variables: beta draws near 0 or 1 would be rounded onto them.
        first, second = (stats.loggamma(shape).rvs(num, generator) for shape in (a, b))
        return first - second

    mean = float(polygamma(0, a) - polygamma(0, b))
    return Factor(
        lambda x: a * jax.nn.log_sigmoid(x) + b * jax.nn.log_sigmoid(-x) - betaln(a, b), sample, mean, variance
    )


def exponential_normal(generator) -> Factor:
    """Sum of a normal and of an exponential variable K times as wide."""
    k = float(10 ** generator.uniform(-0.5, 1.3))

    def log_prob(x):
        return 0.5 / k**2 - x / k - np.log(k) + jax.scipy.stats.norm.logcdf(x - 1 / k)

    return from_scipy(log_prob, stats.exponnorm(k))


def generalised_normal(generator) -> Factor:
    """exp(-abs(x)^β): a cusp for β below 1, nearly a box for large β."""
    beta = float(generator.choice([0.7, 1.5, 4.0, 8.0]))
    constant = np.log(beta / 2) - gammaln(1 / beta)

    def log_prob(x):
        # The gradient of |x|^β at 0 is not a number to JAX for β below 1.
        distance = jnp.where(x == 0, 1.0, jnp.abs(x))
        return constant - jnp.where(x == 0, 0.0, distance**beta)

    return from_scipy(log_prob, stats.gennorm(beta))


def student(generator) -> Factor:
    df = float(generator.choice([1.0, 2.5, 3.0, 5.0, 8.0]))
    constant = gammaln((df + 1) / 2) - gammaln(df / 2) - 0.5 * np.log(df * np.pi)
    factor = from_scipy(lambda x: constant - 0.5 * (df + 1) * jnp.log1p(x**2 / df), stats.t(df), df)
    return dataclasses.replace(factor, mean=0.0)


def skew_normal(generator) -> Factor:
    skew = float(generator.normal(0, 5))
    log_prob = lambda x: np.log(2) + jax.scipy.stats.norm.logpdf(x) + jax.scipy.stats.norm.logcdf(skew * x)  # noqa: E731
    return from_scipy(log_prob, stats.skewnorm(skew))


def johnson(generator) -> Factor:
    r"""Johnson's S_U: :math:`a+b\,\mathrm{asinh}(x)` is standard normal."""
    a, b = float(generator.normal(0, 1)), float(generator.uniform(1.2, 2.5))

    def log_prob(x):
        z = a + b * jnp.arcsinh(x)
        return np.log(b) - 0.5 * jnp.log1p(x**2) - 0.5 * z**2 - 0.5 * np.log(2 * np.pi)

    return from_scipy(log_prob, stats.johnsonsu(a, b))


def log_half_cauchy(generator) -> Factor:
    """Logarithm of a half-Cauchy variable: the hyperbolic secant."""
    return from_scipy(lambda x: np.log(2 / np.pi) + x - jnp.logaddexp(0.0, 2 * x), stats.hypsecant())


FACTORS = (
    normal,
    logistic,
    laplace,
    asymmetric_laplace,
    gumbel,
    log_gamma,
    logit_beta,
    exponential_normal,
    generalised_normal,
    student,
    skew_normal,
    johnson,
    log_half_cauchy,
)


def multiply(factors: list[Factor], signs: np.ndarray) -> Density:
    """Return the density of independent coordinates, some of them mirrored."""
    kinds = {id(factor): factor for factor in factors}
    places = {name: [at for at, factor in enumerate(factors) if id(factor) == name] for name in kinds}

    def log_prob(x):
        x = x * signs
        return sum(jnp.sum(jax.vmap(kinds[name].log_prob)(x[np.array(at)])) for name, at in places.items())

    def sample(generator, num_draws):
        return signs * np.stack([factor.sample(generator, num_draws) for factor in factors], axis=1)

    tail = min(factor.tail for factor in factors)
    variance = np.array([factor.variance for factor in factors])
    return Density(
        log_prob,
        len(factors),
        sample,
        signs * np.array([factor.mean for factor in factors]) if tail > 1 else None,
        np.diag(variance) if tail > 2 else None,
        tail=tail,
        scales=None if tail > 2 else np.ones(len(factors)),
    )


def random_product(generator, dim: int) -> Density:
    """Draw one to four kinds, and the coordinates' kinds from them."""
    num = min(int(generator.integers(1, 5)), dim)
    kinds = [FACTORS[at](generator) for at in generator.choice(len(FACTORS), size=num, replace=False)]
    factors = [kinds[at] for at in generator.integers(num, size=dim)]
    return multiply(factors, generator.choice([-1.0, 1.0], size=dim))


def product(generator) -> Density:
    """Independent coordinates, scaled and shifted each for itself."""
    dim = random_dim(generator, 100, 31) if generator.random() < 0.05 else random_dim(generator)
    return push(random_product(generator, dim), random_placement(generator, dim, rotate=False))


def rotated_product(generator) -> Density:
    """Independent coordinates, rotated."""
    dim = random_dim(generator, fewest=2)
    return push(random_product(generator, dim), random_placement(generator, dim))


def tiny_product(generator) -> Density:
    """Few kinds, few dimensions, scales of 1e±3: what gradients of wild size do to a search."""
    dim = random_dim(generator, 6)
    base = random_product(generator, dim)
    placement = random_placement(generator, dim, rotate=False)
    scale = 10 ** (generator.choice([-1, 1]) * generator.uniform(2, 3)) / np.median(placement.scales)
    return push(base, dataclasses.replace(placement, shift=placement.shift * scale, scales=placement.scales * scale))
