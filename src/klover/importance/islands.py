r"""Equally weighted particles of the target, from independent islands.

Each island is a sequential Monte Carlo run of its own, and their scatter is the error of an answer. The evidence is the
mean of M unbiased estimates :math:`\hat Z_1,\dots,\hat Z_M`, its error is theirs divided by :math:`\sqrt M`; so for
an expectation, with the means of the islands. An error from few islands is itself uncertain: the answer's distance to
the truth in units of it is a Student-t variable with M - 1 degrees of freedom, of variance :math:`(M-1)/(M-3)`. So
errors are stated larger by the root of that, and distances have unit variance.

Estimates that scatter by s on the logarithmic scale are log-normal (Bérard, Del Moral & Doucet 2014): nearly every one
is too small, by :math:`s^2/2` in the logarithm, and few large ones make up for it, which M islands need not contain.
That much is added to the error.
"""

import dataclasses

import jax
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
    ``drift`` is by how many standard errors the mean log density still moved after the particles had arrived;
    ``agreement`` is the chance that starts which end alike differ by as much as the narrow and the wide ones do.
    """

    island_log_evidence: Float[AnyArray, " island"]
    drift: Scalar
    agreement: Scalar | float = dataclasses.field(default=1.0, kw_only=True)

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
        scatter = np.sqrt(np.sum((share - 1 / self.num_islands) ** 2) * self.num_islands / (self.num_islands - 1))
        return np.hypot(_widening(self.num_islands) * scatter, self.spread**2 / 2)

    @property
    def ess(self) -> Scalar:
        r"""Effective number of draws: :math:`\sigma^2/\mathrm{se}^2` of the coordinates' means, averaged over them."""
        x = np.asarray(self.x)
        variance = np.maximum(x.var(0), np.finfo(float).tiny)
        error = self.mean_and_error(x)[1] / _widening(self.num_islands)
        return np.minimum(1 / np.maximum(np.mean(error**2 / variance), 1e-300), float(self.num_draws))

    def mean_and_error(self, values: Float[AnyArray, "draw ..."]) -> MeanAndError:
        """Mean over all draws, and its error from the scatter of the islands' means."""
        values = np.asarray(check_values(values, self.num_draws))
        means = values.reshape(self.num_islands, -1, *values.shape[1:]).mean(1)
        error = means.std(0, ddof=1) / np.sqrt(self.num_islands)
        return means.mean(0), _widening(self.num_islands) * error


def _widening(num_islands: int) -> float:
    """Return the standard deviation of a Student-t variable; up to three islands have none, and get that of four."""
    num = max(num_islands, 4)
    return np.sqrt((num - 1) / (num - 3))


def agreement(values: Float[np.ndarray, "start island quantity"]) -> float:
    """Return the chance that islands of several starts, if all were alike, differ as much in any quantity.

    The first and the last start are compared by a t-test in each quantity, with the scatter within all starts, and the
    smallest chance is multiplied by their number (Bonferroni). It is 1 where there is one start only.
    """
    num_starts, num_islands, num_quantities = values.shape
    if num_starts == 1:
        return 1.0
    difference = values[-1].mean(0) - values[0].mean(0)
    variance = np.maximum(values.var(1, ddof=1).mean(0), np.finfo(float).tiny)
    score, df = difference / np.sqrt(2 * variance / num_islands), num_starts * (num_islands - 1)
    chance = jax.lax.betainc(df / 2, 0.5, df / (df + np.max(score**2)))
    return min(float(chance) * num_quantities, 1.0)
