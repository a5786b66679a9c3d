"""Weighted draws that a mixture is fitted to."""

import numpy as np

from klover.base.shapes import AnyArray, Float, record
from klover.fitting.em import WeightedSample


@record
class Sample:
    """Weighted draws with the log density of the target there; weights sum to one."""

    x: Float[np.ndarray, "draw dim"]
    log_p: Float[np.ndarray, " draw"]
    weight: Float[np.ndarray, " draw"]

    def __len__(self) -> int:
        """Return the number of draws."""
        return len(self.weight)

    @property
    def ess(self) -> float:
        """Effective number of draws."""
        return float(1 / np.sum(self.weight**2))

    def where(self, chosen: np.ndarray) -> "Sample":
        """Return some of the draws, weights renormalised."""
        weight = self.weight[chosen]
        return Sample(self.x[chosen], self.log_p[chosen], weight / weight.sum())

    def join(self, other: "Sample", share: float) -> "Sample":
        """Put another sample beside this one, with a share of the weight."""
        return Sample(
            np.concatenate([self.x, other.x]),
            np.concatenate([self.log_p, other.log_p]),
            np.concatenate([(1 - share) * self.weight, share * other.weight]),
        )

    @property
    def without_target(self) -> WeightedSample:
        """What EM sees."""
        return WeightedSample(self.x, self.weight, np.full(len(self), -np.inf))


def equal(x: Float[np.ndarray, "draw dim"], log_p: Float[np.ndarray, " draw"]) -> Sample:
    """Return equally weighted draws."""
    return Sample(x, log_p, np.full(len(x), 1 / len(x)))


def moments(
    x: Float[np.ndarray, "draw dim"], weight: Float[AnyArray, " draw"]
) -> tuple[Float[AnyArray, " dim"], Float[AnyArray, "dim dim"]]:
    """Weighted mean and covariance, correlations shrunk as much as few effective draws make them uncertain."""
    weight = weight / weight.sum()
    mean = weight @ x
    delta = x - mean
    covariance = delta.T @ (weight[:, None] * delta)
    noise = x.shape[1] * np.sum(weight**2)
    shrinkage = noise / (1 + noise)
    return mean, (1 - shrinkage) * covariance + (shrinkage + 1e-10) * np.diag(np.diagonal(covariance))
