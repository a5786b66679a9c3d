"""A mixture behind a warp: what :class:`~klover.Mixture` is, in the user's coordinates."""

import jax
import numpy as np

from klover.base.arrays import namespace
from klover.base.checks import check_points
from klover.base.shapes import AnyArray, Float, Int, KeyLike, PerComponent, PerDraw, Points, Weights, record
from klover.mixtures.mixture import Mixture
from klover.warps.linear import Linear
from klover.warps.low_rank import LowRankLinear
from klover.warps.marginal import Marginal
from klover.warps.triangular import Triangular
from klover.warps.warp import Warp


def _density(log_q, log_det):
    """Return the log density in the user's coordinates; a point that the warp sends to infinity has none."""
    xp = namespace(log_q)
    total = log_q + log_det
    return xp.where(xp.isnan(total), -xp.inf, total)


@record
class WarpedMixture:
    r"""The density :math:`q(x)=q_z(z(x))\,|\partial z/\partial x|` of a mixture :math:`q_z` of base coordinates z."""

    mixture: Mixture
    warp: Warp

    @property
    def dim(self) -> int:
        """Dimension of the space."""
        return self.mixture.dim

    @property
    def capacity(self) -> int:
        """Number of slots."""
        return self.mixture.capacity

    @property
    def num_components(self) -> Int[AnyArray, ""]:
        """Number of components with a weight above zero."""
        return self.mixture.num_components

    @property
    def log_weights(self) -> Weights:
        """Log weights of the components."""
        return self.mixture.log_weights

    @property
    def weights(self) -> Weights:
        """The weights; zero in unused slots."""
        return self.mixture.weights

    def component_log_prob(self, x: Points) -> PerComponent:
        """Log density of every slot's component, its weight left out."""
        z, log_det = self.warp.to_base(check_points("x", x, self.dim, (2,)))
        return _density(self.mixture.component_log_prob(z), log_det)

    def log_prob(self, x: Float[AnyArray, "*draw dim"]) -> Float[AnyArray, "*draw"]:
        """Log density at one point of shape (d,) or at points of shape (S, d)."""
        z, log_det = self.warp.to_base(check_points("x", x, self.dim))
        return _density(self.mixture.log_prob(z), log_det)

    def sample(self, key: KeyLike, num_draws: int) -> Float[jax.Array, "draw dim"]:
        """Draw ``num_draws`` independent points."""
        return self.warp.from_base(self.mixture.sample(key, num_draws))[0]

    def draw(self, generator: np.random.Generator, num_draws: int) -> Float[np.ndarray, "draw dim"]:
        """Draw on the host, as :meth:`klover.Mixture.draw`."""
        return self.warp.from_base(self.mixture.draw(generator, num_draws))[0]

    def sample_and_log_prob(self, key: KeyLike, num_draws: int) -> tuple[Points, PerDraw]:
        """Draw points and return them with the log density of the whole mixture there."""
        z, log_q = self.mixture.sample_and_log_prob(key, num_draws)
        x, log_det = self.warp.from_base(z)
        return x, log_q - log_det


RECORDS = (Linear, LowRankLinear, Marginal, Triangular, Warp, WarpedMixture)
"""What a file may hold of a warp."""
Proposal = Mixture | WarpedMixture
"""What draws can come from."""


def unwarped(proposal: Proposal) -> Mixture:
    """Return the mixture of base coordinates of a proposal."""
    return proposal.mixture if isinstance(proposal, WarpedMixture) else proposal


def behind(mixture: Mixture, warp: Warp | None) -> Proposal:
    """Return a mixture of base coordinates in those of the user."""
    return mixture if warp is None else WarpedMixture(mixture, warp)
