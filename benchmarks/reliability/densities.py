r"""Densities with everything known about them, and maps that keep it known.

A density is normalised up to ``log_evidence`` and has an exact sampler or exact moments. A map :math:`x=T(y)` with a
known Jacobian turns it into another one,

.. math:: \log p_x(x)=\log p_y(T^{-1}x)+\log|\det\partial T^{-1}/\partial x|,

so that the evidence stays as it is and exact draws stay exact. Arrays that functions capture are NumPy's, so that the
same density can be traced in float64 and in float32.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import numpy as np

Sampler = Callable[[np.random.Generator, int], np.ndarray]


@dataclasses.dataclass(frozen=True, eq=False)
class Parts:
    """The modes of a mixture.

    Attributes
    ----------
    weights, locations, covariances
        Of shapes (part,), (part, dim), (part, dim, dim); of a warped part the covariance is that of the linearised map.
    shares
        From points (draw, dim) to each part's posterior probability there (draw, part).
    """

    weights: np.ndarray
    locations: np.ndarray
    covariances: np.ndarray
    shares: Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Moments:
    """Means, standard deviations and kurtoses of the coordinates, with the standard errors of the first two."""

    mean: np.ndarray
    sd: np.ndarray
    kurtosis: np.ndarray
    mean_se: np.ndarray | float = 0.0
    sd_se: np.ndarray | float = 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class Density:
    """A density on R^d.

    Attributes
    ----------
    log_prob
        A JAX function of one point.
    sample
        Exact draws (draw, dim); None where ``moments`` are known without.
    mean, covariance
        Exact; None where they have to be estimated from exact draws.
    moments
        Known by quadrature; None where the fields above tell them.
    log_evidence
        Log of the integral of exp(log_prob).
    tail
        Moments of smaller order exist.
    is_unimodal
        Whether the sets {p ≥ c} are connected.
    scales
        Standard deviations (or scales, where those do not exist) along the principal axes, if they are not those of
        ``covariance``.
    """

    log_prob: Callable[[jax.Array], jax.Array]
    dim: int
    sample: Sampler | None = None
    mean: np.ndarray | None = None
    covariance: np.ndarray | None = None
    moments: Moments | None = None
    log_evidence: float = 0.0
    tail: float = np.inf
    is_unimodal: bool = True
    parts: Parts | None = None
    scales: np.ndarray | None = None


class Map(Protocol):
    """A smooth bijection of R^d; ``forward`` takes points (..., dim) of NumPy, the others one point of JAX.

    ``growth`` is the power of abs(y) that abs(x) grows with: moments exist to that many times smaller an order.
    """

    @property
    def growth(self) -> float: ...

    def forward(self, y: Any) -> Any: ...

    def inverse(self, x: Any) -> Any: ...

    def log_det_inverse(self, x: Any) -> Any: ...


@dataclasses.dataclass(frozen=True, eq=False)
class Affine:
    """x = shift + Q (scales · y) with Q orthogonal (the identity if None), so that the inverse is exact."""

    shift: np.ndarray
    scales: np.ndarray
    rotation: np.ndarray | None = None

    @property
    def growth(self) -> float:
        return 1.0

    def forward(self, y):
        scaled = self.scales * y
        return self.shift + (scaled if self.rotation is None else scaled @ self.rotation.T)

    def inverse(self, x):
        centred = x - self.shift
        return (centred if self.rotation is None else centred @ self.rotation) / self.scales

    def log_det_inverse(self, x):
        return -np.log(self.scales).sum()

    @property
    def linear(self) -> np.ndarray:
        """The matrix that differences are multiplied by."""
        return (np.eye(len(self.scales)) if self.rotation is None else self.rotation) * self.scales


def push(density: Density, through: Map) -> Density:
    """Return the density of x = T(y). Moments stay closed forms under an affine map, and are estimated after others."""

    def log_prob(x):
        return density.log_prob(through.inverse(x)) + through.log_det_inverse(x)

    def sample(generator, num_draws):
        assert density.sample is not None
        return through.forward(density.sample(generator, num_draws))

    mean = covariance = None
    scales = np.ones(density.dim)
    if isinstance(through, Affine):
        linear = through.linear
        if density.mean is not None:
            mean = through.forward(density.mean)
        if density.covariance is not None:
            covariance = linear @ density.covariance @ linear.T
        scales = None if density.scales is None else np.linalg.svd(linear * density.scales, compute_uv=False)
    return dataclasses.replace(
        density,
        log_prob=log_prob,
        sample=sample,
        mean=mean,
        covariance=covariance,
        scales=scales,
        tail=density.tail / through.growth,
        parts=None if density.parts is None else _push_parts(density.parts, through),
    )


def _push_parts(parts: Parts, through: Map) -> Parts:
    if isinstance(through, Affine):
        slopes = through.linear
    else:
        slopes = jax.vmap(jax.jacfwd(through.inverse))(through.forward(parts.locations))
        slopes = np.linalg.inv(np.asarray(slopes, float))
    return Parts(
        parts.weights,
        np.asarray(through.forward(parts.locations)),
        slopes @ parts.covariances @ slopes.mT,
        lambda x: parts.shares(np.asarray(through.inverse(x))),
    )


def random_dim(generator: np.random.Generator, most: int = 30, fewest: int = 1) -> int:
    """Draw a dimension, log-uniform, so that small ones are as frequent as large ones."""
    return int(np.floor(np.exp(generator.uniform(np.log(fewest), np.log(most + 1)))))


def random_rotation(generator: np.random.Generator, dim: int) -> np.ndarray:
    """Draw from the uniform distribution on the orthogonal matrices."""
    matrix, triangle = np.linalg.qr(generator.normal(size=(dim, dim)))
    return matrix * np.sign(np.diagonal(triangle))


def random_placement(generator: np.random.Generator, dim: int, decades: float = 3.0, rotate: bool = True) -> Affine:
    """Draw an affine map: an overall scale within 10^±decades or near 1, axes that differ, a shift by a few scales."""
    scale = 10 ** (generator.uniform(-decades, decades) if generator.random() < 0.3 else generator.normal(0, 0.3))
    spread = generator.choice([0.0, 0.15, 0.5])
    scales = scale * np.clip(10 ** generator.normal(0, spread, size=dim), 0.02, 50)
    reach = generator.choice([0.0, 1.0, 3.0, 20.0], p=[0.15, 0.4, 0.35, 0.1])
    rotation = random_rotation(generator, dim) if rotate and dim > 1 and generator.random() < 0.7 else None
    # Along the axes, so that no shift is thousands of the smallest scales long.
    centre = reach * scales * generator.normal(size=dim)
    return Affine(centre if rotation is None else rotation @ centre, scales, rotation)
