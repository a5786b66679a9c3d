r"""Mixtures of fixed capacity: :math:`q(\theta)=\sum_k\lambda_k f_k(\theta)` (Eq. 6, ``eq:mixture_family``).

The arrays have room for ``capacity`` components from the start. A slot that is not used yet has log-weight -inf and
valid parameters, so the mixture can grow inside one compiled program, and gradients stay finite.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from klover.base.arrays import even_comb, logsumexp, namespace, over_blocks
from klover.base.checks import as_floats, as_key, check_count, check_instance, check_points, in_words
from klover.base.shapes import AnyArray, Float, Int, KeyLike, PerComponent, PerDraw, Points, Weights, record
from klover.mixtures.components import Components
from klover.mixtures.scale import Full


@record
class Mixture:
    """A mixture of components of one family, with normalised log-weights; -inf marks an unused slot."""

    components: Components
    log_weights: Float[AnyArray, "... component"]

    @classmethod
    def of(cls, components: Components) -> "Mixture":
        """Return the equally weighted mixture of the given components."""
        check_instance("components", components, Components, "Make them with klover.Family(...).components(...).")
        xp = namespace(components.location)
        num = components.location.shape[0]
        return cls(components, xp.full(num, -np.log(num), dtype=components.location.dtype))

    @property
    def capacity(self) -> int:
        """Number of slots."""
        return self.log_weights.shape[0]

    @property
    def dim(self) -> int:
        """Dimension of the space."""
        return self.components.dim

    @property
    def num_components(self) -> Int[AnyArray, ""]:
        """Number of components with a weight above zero."""
        xp = namespace(self.log_weights)
        return xp.sum(self.log_weights > -xp.inf)

    @property
    def weights(self) -> Weights:
        """The weights; zero in unused slots."""
        return namespace(self.log_weights).exp(self.log_weights)

    def component_log_prob(self, x: Points) -> PerComponent:
        """Log density of every slot's component, its weight left out."""
        return self.components.log_prob(check_points("x", x, self.dim, (2,)))

    def log_prob(self, x: Float[AnyArray, "*draw dim"]) -> Float[AnyArray, "*draw"]:
        """Log density at one point of shape (d,) or at points of shape (S, d)."""
        x = check_points("x", x, self.dim)
        xp = namespace(x, self.log_weights)

        def of_block(points):
            return logsumexp(self.log_weights[:, None] + self.components.log_prob(points), axis=0)

        log_density = xp.concatenate(over_blocks(of_block, xp.atleast_2d(x)))
        return log_density[0] if x.ndim == 1 else log_density

    def sample(self, key: KeyLike, num_draws: int) -> Float[jax.Array, "draw dim"]:
        """Draw ``num_draws`` independent points."""
        key = as_key(key)
        check_count("num_draws", num_draws, 1)
        key_index, key_draw = jax.random.split(key)
        return self.components.sample(key_draw, self.sample_index(key_index, num_draws))

    def draw(self, generator: np.random.Generator, num_draws: int) -> Float[np.ndarray, "draw dim"]:
        """Draw on the host, in random order, with each component's share of the draws as near to its weight as can be.

        Nothing is compiled, and drawing by strata lowers the variance of every estimate.
        """
        if not isinstance(generator, np.random.Generator):
            raise TypeError(
                f"generator must be a NumPy generator, got {in_words(generator)}. Make one with "
                "np.random.default_rng(0)."
            )
        check_count("num_draws", num_draws, 1)
        weights = np.asarray(self.weights, float)
        counts = np.bincount(even_comb(generator, weights, num_draws), minlength=self.capacity)
        slots = np.flatnonzero(counts).tolist()
        parts = [self.components.draw(generator, slot, int(counts[slot])) for slot in slots]
        return generator.permutation(np.concatenate(parts))

    def sample_index(self, key: KeyLike, num_draws: int) -> Int[jax.Array, " draw"]:
        """Draw component numbers by their weights."""
        key = as_key(key)
        check_count("num_draws", num_draws, 1)
        cumulative = jnp.cumsum(jnp.asarray(self.weights))
        uniform = jax.random.uniform(key, (num_draws,), cumulative.dtype) * cumulative[-1]
        # Counting the slots that end at or below u never lands on an empty slot, not even at u = 0.
        return jnp.minimum(jnp.sum(cumulative[None, :] <= uniform[:, None], axis=1), self.capacity - 1)

    def sample_and_log_prob(self, key: KeyLike, num_draws: int) -> tuple[Points, PerDraw]:
        """Draw points and return them with the log density of the whole mixture there."""
        x = self.sample(key, num_draws)
        return x, self.log_prob(x)

    def append(self, newcomer: Components, log_gamma: Float[AnyArray, ""]) -> "Mixture":
        r"""Return :math:`(1-\gamma)q+\gamma f`, with the newcomer in the first free slot (``eq:mixture_forward_kl``).

        Where no slot is free, the newcomer takes the place of the component with the smallest weight.
        """
        check_instance("newcomer", newcomer, Components, "Make it with klover.Family(...).components(...).")
        if jax.tree.structure(newcomer) != jax.tree.structure(self.components) or newcomer.dim != self.dim:
            raise ValueError(
                f"newcomer must be of the family {self.components.family_name!r} and of dimension {self.dim}, got "
                f"{newcomer.family_name!r} and {newcomer.dim}."
            )
        log_gamma = as_floats("log_gamma", log_gamma)
        if log_gamma.ndim > 0 or not (isinstance(log_gamma, Tracer) or log_gamma <= 0):
            raise ValueError(f"log_gamma must be the log of a weight, one number of at most 0, got {log_gamma}.")
        slot = jnp.argmin(self.log_weights)
        components = jax.tree.map(lambda old, new: jnp.asarray(old).at[slot].set(new[0]), self.components, newcomer)
        kept = jnp.asarray(self.log_weights).at[slot].set(-jnp.inf)
        log_weights = kept - logsumexp(kept) + jnp.log1p(-jnp.exp(log_gamma))
        log_weights = log_weights.at[slot].set(log_gamma)
        return Mixture(components, log_weights - logsumexp(log_weights))

    def with_capacity(self, capacity: int) -> "Mixture":
        """Return the same density with more free slots."""
        extra = check_count("capacity", capacity, 1) - self.capacity
        if extra < 0:
            raise ValueError(f"capacity must be at least {self.capacity}, the present one, got {capacity}.")
        padded = jax.tree.map(lambda leaf: jnp.concatenate([leaf, jnp.repeat(leaf[:1], extra, 0)]), self.components)
        return Mixture(padded, jnp.concatenate([self.log_weights, jnp.full(extra, -jnp.inf, self.log_weights.dtype)]))

    def mean(self) -> Float[AnyArray, " dim"]:
        """Mean of the mixture (for Student-t, of its locations)."""
        return self.weights @ self.components.location

    def covariance(self) -> Float[AnyArray, "dim dim"]:
        """Covariance of the mixture; infinite where a component's is."""
        xp = namespace(self.log_weights)
        delta = self.components.location - self.mean()
        used = (self.log_weights > -xp.inf)[:, None, None]
        within = xp.where(used, self.weights[:, None, None] * self.components.covariance(), 0.0).sum(0)
        return within + xp.einsum("k,ki,kj->ij", self.weights, delta, delta)

    def root(self) -> Float[np.ndarray, "dim *dim"]:
        """Square root of the covariance of the mixture, its tails taken as those of Normals: always finite.

        In many dimensions, where spreads are not full, correlations are left out: standard deviations alone.
        """
        spread, weights = self.components.spread, np.asarray(self.weights)
        delta = np.asarray(self.components.location - self.mean())
        if not isinstance(spread, Full):
            return np.sqrt(weights @ (spread.variance() + delta**2))
        covariance = np.einsum("k,kij->ij", weights, spread.covariance())
        return np.linalg.cholesky(covariance + np.einsum("k,ki,kj->ij", weights, delta, delta))
