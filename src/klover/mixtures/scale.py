r"""How a component's scale matrix is written down: diagonal, full, or diagonal plus a few directions.

Each spread is written by its square root, as in the paper ("Parameter transformations"); signs do not matter, so an
optimiser may step on these arrays without constraints. Spreads never look at leading axes (``...``): components are
stacked there.
"""

from typing import TypeAlias

from klover.base.arrays import namespace
from klover.base.linalg import cholesky, inverse_triangular, solve_positive, whitened_squares
from klover.base.shapes import AnyArray, Float, Int, Locations, PerComponent, Points, Scalar, Weights, record

Deltas: TypeAlias = Float[AnyArray, "component draw dim"]


@record
class Diagonal:
    r""":math:`\Sigma = \mathrm{diag}(s^2)`."""

    scale: Float[AnyArray, "... dim"]

    @property
    def noise_dim(self) -> int:
        """Number of standard normal numbers that one draw takes."""
        return self.scale.shape[-1]

    def log_scale(self) -> Float[AnyArray, "..."]:
        r"""Return :math:`\tfrac12\log|\Sigma|`."""
        xp = namespace(self.scale)
        return xp.sum(xp.log(xp.abs(self.scale)), axis=-1)

    def squared_distance(self, x: Points, location: Locations) -> PerComponent:
        r"""Return :math:`(\theta-\mu)^\top\Sigma^{-1}(\theta-\mu)`."""
        return (((x - location[:, None, :]) / self.scale[:, None, :]) ** 2).sum(-1)

    def transform(self, noise: Float[AnyArray, "draw noise"]) -> Points:
        r"""Map standard normal noise to draws with covariance :math:`\Sigma`."""
        return noise * self.scale

    def inflated(self, factor: float) -> "Diagonal":
        """Return the spread with all standard deviations multiplied."""
        return Diagonal(factor * self.scale)

    def solve(self, slot: int, delta: Points) -> Points:
        r"""Return :math:`\Sigma^{-1}\delta` of one component."""
        return delta / self.scale[slot] ** 2

    def gather(self, slots: Int[AnyArray, " draw"]) -> "Diagonal":
        """Return the spread of one component for each draw."""
        return Diagonal(self.scale[slots])

    def times(self, noise: Points) -> Points:
        r"""Multiply each draw by the square root of its own :math:`\Sigma`, as :meth:`gather` gives it."""
        return self.scale * noise

    def times_transposed(self, slope: Points) -> Points:
        """Multiply each draw by the transposed square root."""
        return self.scale * slope

    def canonical(self) -> "Diagonal":
        """Return the same spread with positive scales."""
        return Diagonal(abs(self.scale))

    def variance(self) -> Float[AnyArray, "... dim"]:
        r"""Return the diagonal of :math:`\Sigma`."""
        return self.scale**2

    def covariance(self) -> Float[AnyArray, "... dim dim"]:
        r"""Return :math:`\Sigma`."""
        xp = namespace(self.scale)
        return self.scale[..., None] ** 2 * xp.eye(self.scale.shape[-1], dtype=self.scale.dtype)

    def scatter(self, delta: Deltas, weight: PerComponent) -> tuple[Locations, ...]:
        r"""Return what :meth:`maximise` needs of :math:`S_k=\sum_s\omega_{ks}\,\delta_{ks}\delta_{ks}^\top`."""
        return (namespace(delta).einsum("ks,ksd->kd", weight, delta**2),)

    def maximise(
        self, scatter: tuple[Locations, ...], mass: Weights, prior: "Diagonal", strength: Scalar | float
    ) -> "Diagonal":
        r"""Maximise the expected log likelihood plus the prior: :math:`(S_k+\epsilon\Psi_k)/(N_k+\epsilon)`.

        :math:`S_k` is the scatter and :math:`N_k` the mass of the component, and :math:`\Psi_k` is the covariance of
        ``prior``, which counts with mass :math:`\epsilon`.
        """
        variance = (scatter[0] + strength * prior.scale**2) / (mass + strength)[:, None]
        return Diagonal(namespace(variance).sqrt(variance))


@record
class Full:
    r""":math:`\Sigma = LL^\top` with a lower-triangular :math:`L`; entries above its diagonal are ignored."""

    factor: Float[AnyArray, "... dim dim"]

    @property
    def noise_dim(self) -> int:
        """Number of standard normal numbers that one draw takes."""
        return self.factor.shape[-1]

    def log_scale(self) -> Float[AnyArray, "..."]:
        r"""Return :math:`\tfrac12\log|\Sigma|`."""
        xp = namespace(self.factor)
        return xp.sum(xp.log(xp.abs(xp.diagonal(self.factor, axis1=-2, axis2=-1))), axis=-1)

    def squared_distance(self, x: Points, location: Locations) -> PerComponent:
        r"""Return :math:`(\theta-\mu)^\top\Sigma^{-1}(\theta-\mu)`."""
        return whitened_squares(x, location, inverse_triangular(namespace(self.factor).tril(self.factor)))

    def transform(self, noise: Float[AnyArray, "draw noise"]) -> Points:
        r"""Map standard normal noise to draws with covariance :math:`\Sigma`."""
        return noise @ namespace(self.factor).tril(self.factor).T

    def inflated(self, factor: float) -> "Full":
        """Return the spread with all standard deviations multiplied."""
        return Full(factor * self.factor)

    def solve(self, slot: int, delta: Points) -> Points:
        r"""Return :math:`\Sigma^{-1}\delta` of one component."""
        inverse = inverse_triangular(namespace(delta).tril(self.factor[slot]))
        return delta @ inverse.T @ inverse

    def gather(self, slots: Int[AnyArray, " draw"]) -> "Full":
        """Return the spread of one component for each draw."""
        return Full(namespace(self.factor).tril(self.factor)[slots])

    def times(self, noise: Points) -> Points:
        """Multiply each draw by its own square root."""
        return (self.factor @ noise[:, :, None])[:, :, 0]

    def times_transposed(self, slope: Points) -> Points:
        """Multiply each draw by its own transposed square root."""
        return (slope[:, None, :] @ self.factor)[:, 0, :]

    def canonical(self) -> "Full":
        """Return the Cholesky factor: lower-triangular, with a positive diagonal."""
        xp = namespace(self.factor)
        sign = xp.where(xp.diagonal(self.factor, axis1=-2, axis2=-1) < 0, -1.0, 1.0)
        return Full(xp.tril(self.factor) * sign[..., None, :])

    def variance(self) -> Float[AnyArray, "... dim"]:
        r"""Return the diagonal of :math:`\Sigma`."""
        return (namespace(self.factor).tril(self.factor) ** 2).sum(-1)

    def covariance(self) -> Float[AnyArray, "... dim dim"]:
        r"""Return :math:`\Sigma`."""
        xp = namespace(self.factor)
        lower = xp.tril(self.factor)
        return lower @ xp.swapaxes(lower, -1, -2)

    def scatter(self, delta: Deltas, weight: PerComponent) -> tuple[Float[AnyArray, "component dim dim"], ...]:
        """Return the scatter matrices.

        A matrix times itself is positive definite also where a GPU rounds its factors: this product need not be exact.
        """
        xp = namespace(delta)
        rows = xp.sqrt(weight)[..., None] * delta
        return (xp.swapaxes(rows, -1, -2) @ rows,)

    def maximise(
        self,
        scatter: tuple[Float[AnyArray, "component dim dim"], ...],
        mass: Weights,
        prior: "Full",
        strength: Scalar | float,
    ) -> "Full":
        """Maximise as :meth:`Diagonal.maximise` does, over all covariance matrices."""
        covariance = (scatter[0] + strength * prior.covariance()) / (mass + strength)[:, None, None]
        return Full(cholesky(covariance))


@record
class LowRank:
    r""":math:`\Sigma = \mathrm{diag}(s^2) + FF^\top` with a factor of few columns."""

    scale: Float[AnyArray, "... dim"]
    factor: Float[AnyArray, "... dim rank"]

    @property
    def noise_dim(self) -> int:
        """Number of standard normal numbers that one draw takes."""
        return self.scale.shape[-1] + self.factor.shape[-1]

    def _inner_factor(self) -> tuple[Float[AnyArray, "... dim rank"], Float[AnyArray, "... rank rank"]]:
        r"""Return :math:`D^{-1}F` and the Cholesky factor of :math:`I+F^\top D^{-1}F` (Woodbury)."""
        xp = namespace(self.scale)
        scaled = self.factor / self.scale[..., None] ** 2
        inner = xp.swapaxes(self.factor, -1, -2) @ scaled
        return scaled, xp.linalg.cholesky(inner + xp.eye(inner.shape[-1], dtype=inner.dtype))

    def log_scale(self) -> Float[AnyArray, "..."]:
        r"""Return :math:`\tfrac12\log|\Sigma|`."""
        xp = namespace(self.scale)
        _, inner = self._inner_factor()
        return Diagonal(self.scale).log_scale() + xp.log(xp.diagonal(inner, axis1=-2, axis2=-1)).sum(-1)

    def squared_distance(self, x: Points, location: Locations) -> PerComponent:
        r"""Return :math:`(\theta-\mu)^\top\Sigma^{-1}(\theta-\mu)`."""
        xp = namespace(self.scale)
        scaled, inner = self._inner_factor()
        inverse = inverse_triangular(inner)
        delta = x - location[:, None, :]
        # The textbook difference of two squares cancels where the diagonal is narrow; residual plus scores does not.
        score = (delta @ scaled) @ xp.swapaxes(inverse, -1, -2) @ inverse
        residual = delta - score @ xp.swapaxes(self.factor, -1, -2)
        return ((residual / self.scale[:, None, :]) ** 2).sum(-1) + (score**2).sum(-1)

    def transform(self, noise: Float[AnyArray, "draw noise"]) -> Points:
        r"""Map standard normal noise to draws with covariance :math:`\Sigma`."""
        dim = self.scale.shape[-1]
        return noise[:, :dim] * self.scale + noise[:, dim:] @ self.factor.T

    def inflated(self, factor: float) -> "LowRank":
        """Return the spread with all standard deviations multiplied."""
        return LowRank(factor * self.scale, factor * self.factor)

    def solve(self, slot: int, delta: Points) -> Points:
        r"""Return :math:`\Sigma^{-1}\delta` of one component."""
        own = LowRank(self.scale[slot], self.factor[slot])
        return (delta - (delta @ own._loading()) @ own.factor.T) / own.scale**2

    def gather(self, slots: Int[AnyArray, " draw"]) -> Diagonal:
        """Return the diagonal of the spread of one component for each draw."""
        return Diagonal(namespace(self.scale).sqrt(self.variance())[slots])

    def canonical(self) -> "LowRank":
        """Return the same spread with positive scales."""
        return LowRank(abs(self.scale), self.factor)

    def variance(self) -> Float[AnyArray, "... dim"]:
        r"""Return the diagonal of :math:`\Sigma`."""
        return self.scale**2 + (self.factor**2).sum(-1)

    def covariance(self) -> Float[AnyArray, "... dim dim"]:
        r"""Return :math:`\Sigma`."""
        return Diagonal(self.scale).covariance() + self.factor @ namespace(self.factor).swapaxes(self.factor, -1, -2)

    def _loading(self) -> Float[AnyArray, "... dim rank"]:
        r"""Return :math:`B=\Sigma^{-1}F`."""
        scaled, inner = self._inner_factor()
        inverse = inverse_triangular(inner)
        return scaled @ namespace(scaled).swapaxes(inverse, -1, -2) @ inverse

    def scatter(self, delta: Deltas, weight: PerComponent) -> tuple[Float[AnyArray, "component dim rank"], Locations]:
        """Return the scatter times the loading, and the diagonal of the scatter: the matrix itself is never formed."""
        xp = namespace(delta)
        product = xp.swapaxes(delta, -1, -2) @ (weight[..., None] * (delta @ self._loading()))
        return product, xp.einsum("ks,ksd->kd", weight, delta**2)

    def maximise(
        self,
        scatter: tuple[Float[AnyArray, "component dim rank"], Locations],
        mass: Weights,
        prior: "LowRank",
        strength: Scalar | float,
    ) -> "LowRank":
        r"""Raise the objective of :meth:`Diagonal.maximise` by one EM step of factor analysis.

        With :math:`B=\Sigma^{-1}F` and the target covariance :math:`C=(S_k+\epsilon\Psi_k)/(N_k+\epsilon)`:
        :math:`F \leftarrow CB\,(I-F^\top B+B^\top CB)^{-1}`, :math:`s^2 \leftarrow \mathrm{diag}(C - F(CB)^\top)`.
        """
        xp = namespace(mass)
        loading = self._loading()
        total = (mass + strength)[:, None, None]
        anchored = prior.scale[..., None] ** 2 * loading + prior.factor @ (xp.swapaxes(prior.factor, -1, -2) @ loading)
        product = (scatter[0] + strength * anchored) / total
        diagonal = (scatter[1] + strength * prior.variance()) / total[..., 0]
        identity = xp.eye(self.factor.shape[-1], dtype=self.factor.dtype)
        second = identity - xp.swapaxes(self.factor, -1, -2) @ loading + xp.swapaxes(loading, -1, -2) @ product
        factor = xp.swapaxes(solve_positive(second, xp.swapaxes(product, -1, -2)), -1, -2)
        variance = diagonal - (factor * product).sum(-1)
        return LowRank(xp.sqrt(xp.maximum(variance, 1e-12 * diagonal)), factor)


Spread: TypeAlias = Diagonal | Full | LowRank
