r"""Equally weighted particles of the target, from independent islands.

Each island is a sequential Monte Carlo run of its own, and their scatter is the error of an answer. The evidence is the
mean of M unbiased estimates :math:`\hat Z_1,\dots,\hat Z_M`, its error is theirs divided by :math:`\sqrt M`; so for
an expectation, with the means of the islands.
"""

import numpy as np

from klover.base.arrays import logsumexp
from klover.base.shapes import AnyArray, Float, Scalar, record
from klover.importance.draws import WeightedDraws, check_values
from klover.importance.ratios import MeanAndError


@record
class ParticleDraws(WeightedDraws):
    """Particles: draws of the target itself.

    The fields of :class:`~klover.WeightedDraws` are there too: weights are equal, all ratios are the evidence, and
    ``pareto_k`` is that of the importance draws which were refused. Draws are ordered by island, equally many in each;
    ``drift`` is by how many standard errors the mean log density still moved in the last sweeps.
    """

    island_log_evidence: Float[AnyArray, " island"]
    drift: Scalar

    @property
    def kind(self) -> str:
        """What the draws are."""
        return "particles"

    @property
    def num_islands(self) -> int:
        """Number of islands."""
        return self.island_log_evidence.shape[0]

    @property
    def spread(self) -> float:
        """Standard deviation of the islands' log evidences."""
        return float(np.std(self.island_log_evidence, ddof=1))

    @property
    def log_evidence(self) -> Scalar:
        """Log of the mean of the islands' evidences."""
        return logsumexp(self.island_log_evidence) - np.log(self.num_islands)

    @property
    def log_evidence_se(self) -> Scalar:
        """Standard error of the log evidence, from the scatter of the islands."""
        share = np.exp(self.island_log_evidence - logsumexp(self.island_log_evidence))
        return np.sqrt(np.sum((share - 1 / self.num_islands) ** 2) * self.num_islands / (self.num_islands - 1))

    @property
    def ess(self) -> Scalar:
        r"""Effective number of draws: :math:`\sigma^2/\mathrm{se}^2` of the coordinates' means, averaged over them."""
        x = np.asarray(self.x)
        variance = np.maximum(x.var(0), np.finfo(float).tiny)
        error = self.mean_and_error(x)[1]
        return np.minimum(1 / np.maximum(np.mean(error**2 / variance), 1e-300), float(self.num_draws))

    def mean_and_error(self, values: Float[AnyArray, "draw ..."]) -> MeanAndError:
        """Mean over all draws, and its error from the scatter of the islands' means."""
        values = np.asarray(check_values(values, self.num_draws))
        means = values.reshape(self.num_islands, -1, *values.shape[1:]).mean(1)
        return means.mean(0), means.std(0, ddof=1) / np.sqrt(self.num_islands)
