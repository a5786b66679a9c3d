"""Adversarial cases: what no method can promise, and what must be refused. They are counted apart.

Where there is no posterior (improper, stateful), the only right answer is to refuse. Where a part of the density is
hidden from the engine (NaN, exceptions), the truth is that of the whole density.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats
from scipy.special import gammaln, ndtr, polygamma

import klover
from benchmarks.reliability.case import Case, from_density
from benchmarks.reliability.densities import Affine, Density, push, random_dim, random_placement
from benchmarks.reliability.families import ellipses, warps
from benchmarks.reliability.truth import Truth

NO_POSTERIOR = Truth(None, is_proper=False)


def standard(dim: int, df: float = np.inf) -> Density:
    """Return a standard normal, or Student-t."""
    return ellipses.ellipses([1.0], np.zeros((1, dim)), np.ones((1, dim)), df=df)


def standard_truth(dim: int) -> Truth:
    """Return the moments of a normalised standard normal."""
    return Truth(0.0, np.zeros(dim), np.ones(dim))


def log_normal(x, xp=np):
    """Log density of a standard normal at points (..., dim)."""
    return -0.5 * xp.sum(x**2, axis=-1) - 0.5 * x.shape[-1] * np.log(2 * np.pi)


def needle(name, generator) -> Case:
    """A wide Gaussian and a needle 100 to 10,000 times narrower somewhere inside of it."""
    dim, weight = random_dim(generator, 10), generator.uniform(0.05, 0.5)
    locations = np.stack([np.zeros(dim), generator.normal(size=dim)])
    scales = np.stack([np.ones(dim), np.full(dim, 10 ** generator.uniform(-4, -2))])
    return from_density(name, ellipses.ellipses([1 - weight, weight], locations, scales), generator)


def far_narrow(name, generator) -> Case:
    """A unit Gaussian and a mode 3 to 20 times narrower, 10 to 100 units away."""
    dim, weight = random_dim(generator, 20), generator.uniform(0.1, 0.6)
    return from_density(
        name, _two(generator, dim, weight, 10 ** generator.uniform(1, 2), 10 ** -generator.uniform(0.5, 1.3)), generator
    )


def far_pair(name, generator) -> Case:
    """Two unit Gaussians 20 to 300 units apart, no box; the example lies on one of them."""
    dim = random_dim(generator, 20)
    return from_density(
        name, _two(generator, dim, generator.uniform(0.2, 0.8), 10 ** generator.uniform(1.3, 2.5), 1.0), generator
    )


def _two(generator, dim, weight, distance, scale) -> Density:
    """Return a unit Gaussian at the origin and another one in a random direction."""
    direction = generator.normal(size=dim)
    locations = np.stack([np.zeros(dim), distance * direction / np.linalg.norm(direction)])
    scales = np.stack([np.ones(dim), np.full(dim, scale)])
    return ellipses.ellipses([1 - weight, weight], locations, scales)


def noisy(name, generator) -> Case:
    """A standard normal whose log density has noise of 0.1 to 2, new at every call: by klover's own count, log Z of it
    would be too high by half of the noise's variance.
    """
    dim, noise, random = random_dim(generator, 6), generator.uniform(0.1, 2), np.random.default_rng(generator)
    target = klover.from_callback(lambda x: log_normal(x) + noise * random.normal(size=len(x)), dim, vectorized=True)
    return Case(name, target, standard_truth(dim))


def hidden_half(name, generator) -> Case:
    """A standard normal that is NaN, or raises, beyond a plane through its flank."""
    dim, edge = random_dim(generator, 6), generator.uniform(-0.5, 1.5)
    kind = generator.choice(["trace", "value", "exception"])
    if kind == "trace":
        density = lambda x: jnp.where(x[0] > edge, jnp.nan, log_normal(x, jnp))  # noqa: E731
        return Case(name, klover.Target(density, np.full(dim, -1.0)), standard_truth(dim))

    def log_prob(x):
        if x[0] > edge and kind == "exception":
            raise ZeroDivisionError("the simulator failed")
        return np.nan if x[0] > edge else log_normal(x)

    return Case(name, klover.from_callback(log_prob, dim, start=np.full(dim, -1.0)), standard_truth(dim))


def improper(name, generator) -> Case:
    """A density without an integral: a plateau, a heavy tail, a flat direction, a ramp, a flat prior on log τ."""
    dim = random_dim(generator, 6)
    level = generator.uniform(4, 14)
    tails = {
        "plateau": lambda x: jnp.logaddexp(log_normal(x, jnp), -level),
        "heavy": lambda x: -0.5 * dim * jnp.log1p(jnp.sum(x**2)),
        "direction": lambda x: log_normal(x[: dim - 1], jnp) if dim > 1 else 0.0 * x[0],
        "ramp": lambda x: log_normal(x[1:], jnp) + jax.nn.log_sigmoid(x[0]),
        "schools": _schools(generator),
    }
    kind = generator.choice(list(tails))
    example = np.zeros(10 if kind == "schools" else dim)
    return Case(name, klover.Target(tails[kind], example), NO_POSTERIOR)


def _schools(generator):
    """Eight groups, non-centred, with a flat prior on log τ: improper as τ goes to zero."""
    effects, errors = 10 * generator.normal(size=8), generator.uniform(5, 18, size=8)

    def log_prob(x):
        log_tau, mu, eta = x[0], x[1], x[2:]
        theta = mu + jnp.exp(log_tau) * eta
        return -0.5 * jnp.sum(((effects - theta) / errors) ** 2) - 0.5 * jnp.sum(eta**2) - 0.5 * (mu / 5) ** 2

    return log_prob


def stateful(name, generator) -> Case:
    """A normal whose log density drifts with every call, or moves after some thousands: no density at all."""
    dim, count = random_dim(generator, 5), [0]
    kind, speed = generator.choice(["drift", "jump"]), 10 ** generator.uniform(-4.5, -3)
    change = int(generator.integers(2000, 12_000))

    def log_prob(x):
        count[0] += len(x)
        if kind == "drift":
            return log_normal(x) + speed * (count[0] - len(x) + np.arange(len(x)))
        return log_normal(x - 2.0 * (count[0] > change))

    return Case(name, klover.from_callback(log_prob, dim, vectorized=True), NO_POSTERIOR)


def sharp_beta(name, generator) -> Case:
    """Beta variables whose mass is at the bounds: shapes of 0.01 to 0.2, through klover's bounds."""
    dim = random_dim(generator, 4)
    a, b = 10 ** generator.uniform(-2, -0.7, size=(2, dim))
    truth = Truth(0.0, stats.beta.mean(a, b), stats.beta.std(a, b))
    is_float32 = bool(generator.random() < 0.3)
    with jax.enable_x64(not is_float32):
        log_prob = lambda x: stats.beta.logpdf(x, a, b).sum(-1)  # noqa: E731
        target = klover.from_callback(log_prob, dim, vectorized=True, bounds=(0, 1))
    return Case(name, target, truth, is_float32=is_float32)


def ill_conditioned(name, generator) -> Case:
    """A Gaussian with a condition number of 1e8 to 1e14."""
    dim, decades = random_dim(generator, 15, 2), generator.uniform(4, 7)
    scales = 10 ** np.linspace(-decades / 2, decades / 2, dim)
    placement = dataclasses.replace(random_placement(generator, dim), scales=scales)
    return from_density(name, push(standard(dim), placement), generator)


def spike(name, generator) -> Case:
    r"""An infinite peak with an integral: :math:`\prod_i|x_i|^{a-1}e^{-|x_i|}/2\Gamma(a)` with a = 0.05 to 0.5."""
    dim, shape = random_dim(generator, 4), generator.uniform(0.05, 0.5)

    def log_prob(x):
        distance = jnp.abs(x) + 1e-300
        return jnp.sum((shape - 1) * jnp.log(distance) - distance) - dim * (np.log(2) + gammaln(shape))

    def sample(generator, num_draws):
        sign = generator.choice([-1.0, 1.0], size=(num_draws, dim))
        return sign * generator.gamma(shape, size=(num_draws, dim))

    density = Density(log_prob, dim, sample, np.zeros(dim), shape * (shape + 1) * np.eye(dim))
    return from_density(name, density, generator, example=np.ones(dim))


def jump(name, generator) -> Case:
    """A standard normal, e to the 3rd to 10th times as high beyond a plane at 1 to 4 standard deviations."""
    dim, height, edge = random_dim(generator, 8), generator.uniform(3, 10), generator.uniform(1, 4)
    beyond = ndtr(-edge)
    total = 1 - beyond + np.exp(height) * beyond
    density = stats.norm.pdf(edge)
    # Truncated moments: E[x; x > e] = φ(e) and E[x²; x > e] = Φ(-e) + e φ(e).
    mean = (np.exp(height) - 1) * density / total
    square = 1 + (np.exp(height) - 1) * edge * density / total
    first = np.sqrt(square - mean**2)
    truth = Truth(float(np.log(total)), np.r_[mean, np.zeros(dim - 1)], np.r_[first, np.ones(dim - 1)])
    log_prob = lambda x: log_normal(x, jnp) + jnp.where(x[0] > edge, height, 0.0)  # noqa: E731
    return Case(name, klover.Target(log_prob, np.zeros(dim)), truth)


def misleading(name, generator) -> Case:
    """An example a thousand to a million scales away, or on a decoy: a tiny mode of no mass."""
    dim = random_dim(generator, 10)
    distance = 10 ** generator.uniform(3, 6)
    direction = generator.normal(size=dim)
    example = distance * direction / np.linalg.norm(direction)
    if generator.random() < 0.5:
        return from_density(name, standard(dim), generator, example=example)
    example *= 30 / distance
    density = ellipses.ellipses([1 - 1e-9, 1e-9], np.stack([np.zeros(dim), example]), np.ones((2, dim)))
    return from_density(name, density, generator, example=example)


def slab(name, generator) -> Case:
    """A uniform slab, 30 to 3000 times wider than thick; the example is inside."""
    dim, ratio = random_dim(generator, 6, 2), 10 ** generator.uniform(1.5, 3.5)

    def sample(generator, num_draws):
        return generator.uniform(-1, 1, size=(num_draws, dim))

    inside = lambda x: jnp.where(jnp.all(jnp.abs(x) < 1), 0.0, -jnp.inf)  # noqa: E731
    cube = Density(inside, dim, sample, np.zeros(dim), np.eye(dim) / 3, log_evidence=dim * np.log(2))
    scales = np.r_[1 / ratio, np.ones(dim - 1)]
    return from_density(
        name, push(cube, Affine(np.zeros(dim), scales, random_placement(generator, dim).rotation)), generator
    )


def wild_tail(name, generator) -> Case:
    """A Student-t of 0.2 to 0.8 degrees of freedom: not even the mean of its logarithm's exponential exists."""
    dim = random_dim(generator, 6)
    return from_density(name, standard(dim, float(generator.uniform(0.2, 0.8))), generator)


def wide_funnel(name, generator) -> Case:
    """A funnel of 21 to 60 dimensions, s = 1.5 to 3."""
    dim, width = random_dim(generator, 60, 21), generator.uniform(1.5, 3)
    return from_density(name, warps.neal(dim, width), generator)


def wrong_gradient(name, generator) -> Case:
    """A Gaussian callback with a gradient of the wrong sign, of the wrong scale, or of zeros."""
    dim, factor = random_dim(generator, 6), float(generator.choice([-1.0, 0.0, 10.0, 0.1]))
    target = klover.from_callback(log_normal, dim, grad=lambda x: -factor * x, vectorized=True)
    return Case(name, target, standard_truth(dim))


def coarse_numbers(name, generator) -> Case:
    """A normal in float32 with a constant of 1e4 to 1e7 in its log density, or far from zero in its own units."""
    dim, kind = random_dim(generator, 5), generator.choice(["constant", "shift"])
    size = np.float32(10 ** generator.uniform(4, 7))
    with jax.enable_x64(False):
        shift = size if kind == "shift" else np.float32(0)
        constant = size if kind == "constant" else np.float32(0)
        log_prob = lambda x: log_normal(x - shift, jnp) + constant  # noqa: E731
        target = klover.Target(log_prob, np.full(dim, shift, np.float32))
    truth = Truth(float(constant), np.full(dim, float(shift)), np.ones(dim))
    return Case(name, target, truth, is_float32=True)


def log_uniform(name, generator) -> Case:
    """A gamma variable of shape 0.02 on the logarithmic scale: a plateau fifty units long that ends in a cliff."""
    dim, shape = random_dim(generator, 5), 10 ** generator.uniform(-2, -1)
    density = Density(
        lambda x: jnp.sum(shape * x - jnp.exp(x)) - dim * gammaln(shape),
        dim,
        lambda generator, num: stats.loggamma(shape).rvs((num, dim), generator),
        np.full(dim, polygamma(0, shape)),
        polygamma(1, shape) * np.eye(dim),
    )
    return from_density(name, density, generator)


MAKERS = (
    needle,
    far_narrow,
    far_pair,
    noisy,
    hidden_half,
    improper,
    stateful,
    sharp_beta,
    ill_conditioned,
    spike,
    jump,
)
MAKERS += (misleading, slab, wild_tail, wide_funnel, wrong_gradient, coarse_numbers, log_uniform)
FAMILIES: dict[str, Callable[[str, np.random.Generator], Case]] = {make.__name__: make for make in MAKERS}
