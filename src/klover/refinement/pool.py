r"""The pool of all draws so far, weighted as draws of one proposal.

Draws of rounds 1, ..., R with sizes :math:`n_j` and proposals :math:`q_j` have weights :math:`p/\bar q` with the
deterministic-mixture denominator :math:`\bar q=\sum_jn_jq_j/\sum_jn_j` (Veach & Guibas 1995; Cornuet et al. 2012). No
weight is ever stale: each new proposal is evaluated at all old draws, and each new draw under all old proposals.
"""

import dataclasses

import numpy as np

from klover.base.arrays import even_comb, logsumexp
from klover.base.shapes import Float
from klover.fitting.sample import Sample
from klover.importance.ratios import effective_sample_size, log_evidence, temper, truncate
from klover.warps.warp import Warp
from klover.warps.warped import Proposal, unwarped


@dataclasses.dataclass(frozen=True)
class Pool:
    """Draws, the target's log density there, and the log density of every proposal (rows) at every draw."""

    x: Float[np.ndarray, "draw dim"]
    log_p: Float[np.ndarray, " draw"]
    log_q: Float[np.ndarray, "round draw"]
    proposals: tuple[Proposal, ...]
    sizes: tuple[int, ...]

    @classmethod
    def empty(cls, dim: int) -> "Pool":
        """Return a pool without draws."""
        return cls(np.zeros((0, dim)), np.zeros(0), np.zeros((0, 0)), (), ())

    def add(self, proposal: Proposal, x: Float[np.ndarray, "draw dim"], log_p: Float[np.ndarray, " draw"]) -> "Pool":
        """Return the pool with the draws of one more round."""
        columns = np.reshape([old.log_prob(x) for old in self.proposals], (len(self.proposals), len(x)))
        everything = np.concatenate([self.x, x])
        row = proposal.log_prob(everything)
        return Pool(
            everything,
            np.concatenate([self.log_p, log_p]),
            np.concatenate([np.concatenate([self.log_q, columns], axis=1), row[None]]),
            (*self.proposals, proposal),
            (*self.sizes, len(x)),
        )

    @property
    def fresh(self) -> "Pool":
        """The draws of the last round alone: its proposal was not fitted to them, and covers them no better than p."""
        last = slice(self.x.shape[0] - self.sizes[-1], None)
        return Pool(self.x[last], self.log_p[last], self.log_q[-1:, last], self.proposals[-1:], self.sizes[-1:])

    @property
    def log_ratio(self) -> Float[np.ndarray, " draw"]:
        """Log of target over deterministic mixture; draws so far out that no proposal knows them do not count."""
        sizes = np.array(self.sizes)
        log_mixture = logsumexp(self.log_q + np.log(sizes / sizes.sum())[:, None], axis=0)
        return np.where(np.isfinite(log_mixture), self.log_p - np.nan_to_num(log_mixture), -np.inf)

    @property
    def log_evidence(self) -> float:
        """Log evidence; biased low by fitting, so that it never is the answer."""
        return float(log_evidence(self.log_ratio)[0])

    @property
    def ess(self) -> float:
        """Effective number of draws."""
        return float(effective_sample_size(self.log_ratio))

    def weight(self, fewest: float = 0.0) -> Float[np.ndarray, " draw"]:
        """Return truncated weights that sum to one, tempered until ``fewest`` draws are effective."""
        return np.exp(temper(truncate(self.log_ratio), fewest))

    def sample(self, fewest: float = 0.0) -> Sample:
        """Return the draws in the support with such weights."""
        weight, inside = self.weight(fewest), np.isfinite(self.log_p)
        return Sample(self.x[inside], weight[inside], log_p=self.log_p[inside])

    def in_base(self, warp: Warp | None) -> "Pool":
        """Return the draws in the coordinates behind a warp, through which the last proposal was drawn from.

        The proposals before it are left in the user's coordinates.
        """
        if warp is None:
            return self
        z, log_det = warp.to_base(self.x)
        proposals = (*self.proposals[:-1], unwarped(self.proposals[-1]))
        return Pool(z, self.log_p - log_det, self.log_q - log_det, proposals, self.sizes)

    def thinned(self, generator: np.random.Generator, num: int, fewest: float = 0.0) -> Sample:
        """Return fewer draws of :meth:`sample`, chosen by an unbiased comb: those that hardly count cost as much."""
        sample = self.sample(fewest)
        index, count = np.unique(even_comb(generator, sample.weight, num), return_counts=True)
        return Sample(sample.x[index], count / count.sum(), log_p=np.asarray(sample.log_p)[index])
