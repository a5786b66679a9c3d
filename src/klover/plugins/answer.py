"""What other programs want of a fit: its draws as parameters with likelihoods and weights, and the verdict in words."""

import dataclasses
from typing import Any

import numpy as np

from klover.base.shapes import Float, KeyLike
from klover.importance.resampling import resample
from klover.results.fit import Fit
from klover.targets.adapters.prior_transform import log_prior


@dataclasses.dataclass(frozen=True)
class Answer:
    """Draws of positive weight of a fit to a target of :func:`klover.from_prior_transform`."""

    parameters: Float[np.ndarray, "draw parameter"]
    log_likelihood: Float[np.ndarray, " draw"]
    weight: Float[np.ndarray, " draw"]
    information: float
    """Kullback-Leibler divergence of the posterior from the prior."""

    @classmethod
    def of(cls, fit: Fit) -> "Answer":
        """Read a fit; its weights sum to one."""
        draws = fit.draws
        weight = np.exp(np.asarray(draws.log_weight, float))
        x, weight, log_p = (np.asarray(each)[weight > 0] for each in (draws.x, weight, draws.log_p))
        if len(x) == 0:
            raise ValueError(f"the fit has no draw of positive weight: {fit.verdict}")
        log_likelihood = log_p - log_prior(x)
        weight = weight / weight.sum()
        information = float(weight @ log_likelihood) - fit.log_evidence
        return cls(np.asarray(fit.target.flat_position(x)), log_likelihood, weight, information)

    def resample(self, key: KeyLike, num_draws: int) -> np.ndarray:
        """Return indices of draws that stand for the posterior with equal weights, in random order."""
        index = np.asarray(resample(key, np.log(self.weight), num_draws, "systematic"))
        return np.random.default_rng(len(index)).permutation(index)


def in_plain_words(fit: Fit) -> dict[str, Any]:
    """Return the verdict and the figures behind it, as any file format can hold them."""
    verdict = fit.verdict
    return {
        "trusted": bool(verdict.trusted),
        "status": verdict.status.name,
        "reason": verdict.reason,
        "remedy": verdict.remedy,
        "pareto_k": fit.pareto_k,
        "ess": fit.ess,
        "num_evaluations": fit.num_evaluations,
    }


def warning(fit: Fit) -> str:
    """Return what a program should say loudly of an answer that is not to be trusted."""
    return f"klover REFUSES this answer: {fit.verdict.reason} {fit.verdict.remedy}"
