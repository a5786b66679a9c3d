r"""Smooth warps: shears, which keep volumes (and so the number of modes), sinh-arcsinh maps, funnels and bananas."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from benchmarks.reliability.densities import Affine, Density, push, random_dim, random_placement
from benchmarks.reliability.families import ellipses, products


@dataclasses.dataclass(frozen=True, eq=False)
class Shear:
    r""":math:`x_j=y_j+b\,f(y_i)` for the places j ≠ i, with f a parabola, a wave or a bend that ends; its determinant
    is one.
    """

    source: int
    strengths: np.ndarray
    """b, for each coordinate; zero at the source."""
    shape: str

    @property
    def growth(self) -> float:
        return 2.0 if self.shape == "parabola" else 1.0

    def bend(self, y, xp):
        z = y[..., self.source]
        bent = {"parabola": lambda: z**2 - 1, "wave": lambda: xp.sin(2 * z), "turn": lambda: 2 * xp.tanh(z)}
        return self.strengths * bent[self.shape]()[..., None]

    def forward(self, y):
        return y + self.bend(y, np)

    def inverse(self, x):
        return x - self.bend(x, np if isinstance(x, np.ndarray) else jnp)

    def log_det_inverse(self, x):
        return 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class SinhArcsinh:
    r""":math:`x=\sinh((\mathrm{asinh}\,y+\epsilon)/\delta)` for each coordinate (Jones & Pewsey 2009).

    Of a standard normal y it makes a unimodal x, skewed for ε ≠ 0, with heavier tails for δ < 1.
    """

    skew: np.ndarray
    tail: np.ndarray

    @property
    def growth(self) -> float:
        return float(np.max(1 / self.tail, initial=1.0))

    def forward(self, y):
        return np.sinh((np.arcsinh(y) + self.skew) / self.tail)

    def inverse(self, x):
        xp = np if isinstance(x, np.ndarray) else jnp
        return xp.sinh(self.tail * xp.arcsinh(x) - self.skew)

    def log_det_inverse(self, x):
        angle = self.tail * jnp.arcsinh(x) - self.skew
        # log cosh without overflow.
        log_cosh = jnp.abs(angle) + jnp.log1p(jnp.exp(-2 * jnp.abs(angle))) - np.log(2)
        return jnp.sum(np.log(self.tail) + log_cosh - 0.5 * jnp.log1p(x**2))


def random_shear(generator, dim: int, strength: float) -> Shear:
    """Bend one coordinate into one to three others."""
    source = int(generator.integers(dim))
    others = np.setdiff1d(np.arange(dim), [source])
    bent = generator.choice(others, size=min(int(generator.integers(1, 4)), len(others)), replace=False)
    strengths = np.zeros(dim)
    strengths[bent] = strength * generator.normal(size=len(bent))
    return Shear(source, strengths, str(generator.choice(["parabola", "wave", "turn"])))


def random_sinh_arcsinh(generator, dim: int) -> SinhArcsinh:
    """Draw mild to strong skewness and tails; some coordinates stay as they are."""
    skew = generator.choice([0.0, 1.0], size=dim) * generator.normal(0, 0.6, size=dim)
    return SinhArcsinh(skew, np.exp(generator.choice([0.0, 1.0], size=dim) * generator.normal(0, 0.25, size=dim)))


def banana(generator) -> Density:
    """Independent normals, one to three shears, then an affine map: unimodal ridges, up to very thin ones."""
    dim = random_dim(generator, fewest=2)
    density = ellipses.ellipses([1.0], np.zeros((1, dim)), np.ones((1, dim)))
    for _ in range(int(generator.integers(1, 4))):
        density = push(density, random_shear(generator, dim, float(generator.choice([0.3, 1.0, 3.0]))))
    return push(density, random_placement(generator, dim))


def sinh_arcsinh(generator) -> Density:
    """Independent normals through sinh-arcsinh maps, then perhaps a shear, then an affine map: unimodal."""
    dim = random_dim(generator)
    density = ellipses.ellipses([1.0], np.zeros((1, dim)), np.ones((1, dim)))
    density = push(density, random_sinh_arcsinh(generator, dim))
    if dim > 1 and generator.random() < 0.5:
        density = push(density, random_shear(generator, dim, 0.5))
    return push(density, random_placement(generator, dim))


def warped_product(generator) -> Density:
    """A product of skewed densities, sheared by waves and turns, which leave every moment finite."""
    dim = random_dim(generator, fewest=2)
    density = products.random_product(generator, dim)
    for _ in range(int(generator.integers(1, 3))):
        shear = random_shear(generator, dim, 1.0)
        density = push(density, dataclasses.replace(shear, shape=str(generator.choice(["wave", "turn"]))))
    return push(density, random_placement(generator, dim))


def warped_mixture(generator) -> Density:
    """A mixture of unequal modes through shears and a sinh-arcsinh map."""
    dim = random_dim(generator)
    density = ellipses.mixture(generator, dim)
    # Wide modes would be stretched to any length by the sinh, so all is first brought to the scale of 1.
    density = push(density, _standardise(density))
    if generator.random() < 0.5:
        density = push(density, random_sinh_arcsinh(generator, dim))
    if dim > 1:
        density = push(density, random_shear(generator, dim, float(generator.choice([0.2, 0.7]))))
    return push(density, random_placement(generator, dim, decades=1.0))


def warped_student(generator) -> Density:
    """A Student-t through bounded shears."""
    dim = random_dim(generator, fewest=2)
    df = ellipses.random_df(generator)
    density = ellipses.ellipses([1.0], np.zeros((1, dim)), np.ones((1, dim)), df=df)
    shear = dataclasses.replace(random_shear(generator, dim, 1.0), shape=str(generator.choice(["wave", "turn"])))
    return push(push(density, shear), random_placement(generator, dim))


def neal(dim: int, width: float) -> Density:
    r"""Neal's funnel: :math:`v\sim\mathrm N(0,s^2)`, :math:`x_i\mid v\sim\mathrm N(0,e^v)`.

    The variance of :math:`x_i` is :math:`e^{s^2/2}`; its kurtosis :math:`3e^{s^2}`.
    """

    def log_prob(x):
        neck, rest = x[0], x[1:]
        log = -0.5 * (neck / width) ** 2 - np.log(width) - 0.5 * dim * np.log(2 * np.pi)
        return log - 0.5 * jnp.sum(rest**2) * jnp.exp(-neck) - 0.5 * (dim - 1) * neck

    def sample(generator, num_draws):
        x = generator.normal(size=(num_draws, dim))
        x[:, 0] *= width
        x[:, 1:] *= np.exp(x[:, :1] / 2)
        return x

    covariance = np.diag(np.r_[width**2, np.full(dim - 1, np.exp(width**2 / 2))])
    return Density(log_prob, dim, sample, np.zeros(dim), covariance)


def funnel(generator) -> Density:
    """Neal's funnel with s = 0.5 to 3, scaled and shifted, and rotated at times."""
    dim, width = random_dim(generator, fewest=2), generator.uniform(0.5, 3)
    rotate = generator.random() < 0.3
    return push(neal(dim, width), random_placement(generator, dim, decades=1.0, rotate=rotate))


def _standardise(density: Density):
    assert density.mean is not None
    assert density.covariance is not None
    sd = np.sqrt(np.diagonal(density.covariance))
    return Affine(-density.mean / sd, 1 / sd)
