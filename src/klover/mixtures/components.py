r"""Components of a mixture: Normal and Student-t, with diagonal, full or low-rank covariance.

A component with location :math:`\mu`, scale matrix :math:`\Sigma` and degrees of freedom :math:`\nu` has a density that
depends on a point only through :math:`m = (\theta-\mu)^\top\Sigma^{-1}(\theta-\mu)`. So a family is a *tail* (how the
density falls with :math:`m`) times a *spread* (how :math:`\Sigma` is written down), and components are kept stacked on
a leading axis.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from klover.base.arrays import exact_products, gammaln, namespace
from klover.base.checks import as_floats, check_choice, check_count, check_finite, check_positive
from klover.base.linalg import cholesky
from klover.base.shapes import AnyArray, Float, Int, Locations, PerComponent, Points, RandomKey, record, static
from klover.mixtures.scale import Diagonal, Full, LowRank, Spread

TAILS = ("normal", "student")
COVARIANCES = ("full", "diagonal", "low-rank")
INITIAL_DF = 5.0
NUM_CANDIDATES = 8


def _chi_square(key: RandomKey, df: Float[jax.Array, " draw"]) -> Float[jax.Array, " draw"]:
    r"""Draw chi-square numbers by the rejection method of Marsaglia & Tsang (2000), with a fixed number of candidates.

    ``jax.random.chisquare`` loops until every draw is accepted, and that loop adds a second to the compilation of every
    program that samples. Here each draw takes the first accepted one of :data:`NUM_CANDIDATES`. One is accepted with
    probability above 0.96, so all of them fail less than once in 10¹¹ draws.
    """
    key_normal, key_uniform, key_power = jax.random.split(key, 3)
    shape = (NUM_CANDIDATES, df.shape[0])
    scale = df / 2 + 1 - 1 / 3
    normal = jax.random.normal(key_normal, shape, df.dtype)
    log_uniform = -jax.random.exponential(key_uniform, shape, df.dtype)
    cube = (1 + normal / jnp.sqrt(9 * scale)) ** 3
    log_cube = jnp.log(jnp.where(cube > 0, cube, 1.0))
    is_accepted = (cube > 0) & (log_uniform < 0.5 * normal**2 + scale * (1 - cube + log_cube))
    gamma = scale * jnp.take_along_axis(cube, jnp.argmax(is_accepted, axis=0)[None], axis=0)[0]
    # A gamma number of shape a + 1, times U^(1/a), is one of shape a.
    power = -jax.random.exponential(key_power, df.shape, df.dtype) / (df / 2)
    return 2 * jnp.maximum(gamma * jnp.exp(power), jnp.finfo(df.dtype).tiny)


@record
class Components:
    """Components of one family, stacked on a leading axis; degrees of freedom are infinite for Normal tails."""

    location: Float[AnyArray, "... component dim"]
    spread: Spread
    df: Float[AnyArray, "... component"]
    tail: str = static()

    @property
    def dim(self) -> int:
        """Dimension of the space."""
        return self.location.shape[-1]

    @property
    def family_name(self) -> str:
        """Tail and covariance, as :meth:`Family.parse` reads them."""
        covariance = {Diagonal: "diagonal", Full: "full", LowRank: "low-rank"}[type(self.spread)]
        return f"{self.tail}-{covariance}"

    def canonical(self) -> "Components":
        """Return the same components, the signs of their square roots settled."""
        return dataclasses.replace(self, spread=self.spread.canonical())

    def delta(self, x: Points) -> Float[AnyArray, "component draw dim"]:
        """Return the points relative to each location."""
        return x - self.location[:, None, :]

    def log_radial(self, distance: PerComponent) -> PerComponent:
        r"""Log density as a function of the squared distance :math:`m`, the factor :math:`|\Sigma|^{-1/2}` left out.

        Normal: :math:`-\tfrac d2\log 2\pi-\tfrac m2`. Student-t:
        :math:`\log\Gamma(\tfrac{\nu+d}2)-\log\Gamma(\tfrac\nu2)-\tfrac d2\log\nu\pi-\tfrac{\nu+d}2\log(1+\tfrac m\nu)`.
        """
        xp = namespace(distance)
        if self.tail == "normal":
            return -0.5 * (distance + self.dim * math.log(2 * math.pi))
        df = self.df[:, None]
        constant = gammaln((df + self.dim) / 2) - gammaln(df / 2) - 0.5 * self.dim * xp.log(df * math.pi)
        return constant - 0.5 * (df + self.dim) * xp.log1p(distance / df)

    def squared_distance(self, x: Points) -> PerComponent:
        r"""Return :math:`m`, the squared Mahalanobis distance of every point from every component."""
        with exact_products():
            return self.spread.squared_distance(x, self.location)

    def log_prob(self, x: Points) -> PerComponent:
        """Log density of every component at every point."""
        return self.log_radial(self.squared_distance(x)) - self.spread.log_scale()[:, None]

    def sample(self, key: RandomKey, index: Int[jax.Array, " draw"]) -> Float[jax.Array, "draw dim"]:
        """Draw one point from component ``index[s]`` for each s; differentiable in location and spread, not in df."""
        key_noise, key_tail = jax.random.split(key)
        location = jnp.asarray(self.location)
        noise = jax.random.normal(key_noise, (index.shape[0], self.spread.noise_dim), location.dtype)
        if self.tail == "student":
            df = jax.lax.stop_gradient(jnp.asarray(self.df))[index]
            noise = noise * jnp.sqrt(df / _chi_square(key_tail, df))[:, None]

        def select(x, stacked):
            which, component = stacked
            return jnp.where((index == which)[:, None], component[0] + component[1].transform(noise), x), None

        stacked = (jnp.arange(location.shape[0]), (location, jax.tree.map(jnp.asarray, self.spread)))
        with exact_products():
            return jax.lax.scan(select, jnp.zeros((index.shape[0], self.dim), location.dtype), stacked)[0]

    def draw(self, generator: np.random.Generator, slot: int, num_draws: int) -> Float[np.ndarray, "draw dim"]:
        """Draw from one component on the host."""
        spread = jax.tree.map(lambda leaf: np.asarray(leaf, float)[slot], self.spread)
        noise = generator.standard_normal((num_draws, spread.noise_dim))
        if self.tail == "student":
            df = float(self.df[slot])
            noise *= np.sqrt(df / np.maximum(generator.chisquare(df, num_draws), np.finfo(float).tiny))[:, None]
        return np.asarray(self.location[slot], float) + spread.transform(noise)

    def covariance(self) -> Float[AnyArray, "component dim dim"]:
        r"""Covariance matrices: :math:`\Sigma`, times :math:`\nu/(\nu-2)` for Student-t (infinite for ν ≤ 2)."""
        xp = namespace(self.df)
        if self.tail == "normal":
            return self.spread.covariance()
        inflation = xp.where(self.df > 2, self.df / xp.where(self.df > 2, self.df - 2, 1.0), xp.inf)
        covariance = self.spread.covariance()
        return xp.where(covariance == 0, 1.0, inflation[:, None, None]) * covariance


@dataclasses.dataclass(frozen=True)
class Family:
    """Which components a mixture is made of.

    Parameters
    ----------
    tail
        ``"normal"`` or ``"student"``.
    covariance
        ``"full"``, ``"diagonal"`` or ``"low-rank"`` (diagonal plus ``rank`` directions).
    df
        Degrees of freedom of Student-t components; ``None`` fits them by the forward KL, beginning at 5.
    rank
        Number of directions of a low-rank covariance.
    """

    tail: str = "student"
    covariance: str = "full"
    df: float | None = None
    rank: int = 5

    def __post_init__(self):
        check_choice("tail", self.tail, TAILS)
        check_choice("covariance", self.covariance, COVARIANCES)
        check_count("rank", self.rank, 1)
        if self.df is not None:
            check_positive("df", self.df, "Leave it None to have it fitted; use tail='normal' for a Gaussian.")

    @classmethod
    def parse(cls, family: "str | Family") -> "Family":
        """Read ``"student"``, ``"normal-diagonal"``, ``"student-low-rank"``; a Family stays as it is."""
        if isinstance(family, Family):
            return family
        names = {f"{tail}-{covariance}": (tail, covariance) for tail in TAILS for covariance in COVARIANCES}
        names |= {tail: (tail, "full") for tail in TAILS}
        check_choice("family", family, names)
        return cls(*names[family])

    @property
    def name(self) -> str:
        """Tail and covariance, as :meth:`parse` reads them."""
        return f"{self.tail}-{self.covariance}"

    @property
    def is_df_fitted(self) -> bool:
        """Whether the degrees of freedom are free."""
        return self.tail == "student" and self.df is None

    def components(self, location: Locations, covariance: Float[AnyArray, "component dim *dim"]) -> Components:
        """Stack components at given locations; ``covariance`` holds matrices, or variances of shape (K, d)."""
        location, covariance = as_floats("location", location), as_floats("covariance", covariance)
        if location.ndim != 2 or covariance.shape not in (location.shape, (*location.shape, location.shape[1])):
            raise ValueError(
                "location must have shape (num_components, dim), and covariance that shape (variances) or "
                f"(num_components, dim, dim) (matrices), got shapes {location.shape} and {covariance.shape}."
            )
        check_finite("location", location, "Pass one location for each component.")
        check_finite("covariance", covariance, "Pass finite variances.")
        if not isinstance(covariance, Tracer):
            values = np.asarray(covariance)
            smallest = (values if values.ndim == 2 else values.diagonal(axis1=1, axis2=2)).min()
            if not smallest > 0:
                raise ValueError(f"covariance must have variances above 0, got {smallest}.")
        xp = namespace(location, covariance)
        df = xp.inf if self.tail == "normal" else (self.df or INITIAL_DF)
        df = xp.full(location.shape[0], df, dtype=location.dtype)
        return Components(location, self.spread(covariance), df, self.tail)

    def spread(self, covariance: Float[AnyArray, "component dim *dim"]) -> Spread:
        """Write covariances (matrices, or variances of shape (K, d)) down as the family does."""
        covariance = as_floats("covariance", covariance)
        if covariance.ndim not in (2, 3) or (covariance.ndim == 3 and covariance.shape[1] != covariance.shape[2]):
            raise ValueError(
                "covariance must have shape (num_components, dim) (variances) or (num_components, dim, dim) "
                f"(matrices), got shape {covariance.shape}."
            )
        xp = namespace(covariance)
        is_matrix = covariance.ndim == 3
        variance = xp.diagonal(covariance, axis1=-2, axis2=-1) if is_matrix else covariance
        if self.covariance == "diagonal":
            return Diagonal(xp.sqrt(variance))
        if self.covariance == "low-rank":
            return self._low_rank(variance)
        identity = xp.eye(variance.shape[-1], dtype=covariance.dtype)
        return Full(cholesky(covariance if is_matrix else variance[..., None] * identity))

    def _low_rank(self, variance: Locations) -> LowRank:
        """Split variances between the diagonal and a factor of smooth, linearly independent columns.

        A factor of zeros is a saddle point of factor analysis: EM would never leave it.
        """
        xp = namespace(variance)
        dim = variance.shape[-1]
        rank = min(self.rank, dim)
        columns = np.cos(np.pi * (np.arange(dim)[:, None] + 0.5) * np.arange(rank)[None, :] / dim)
        columns = xp.asarray(columns / np.sqrt(2 * (columns**2).sum(1, keepdims=True)), dtype=variance.dtype)
        scale = xp.sqrt(variance)
        return LowRank(scale / math.sqrt(2.0), scale[..., None] * columns)
