"""``sampler="klover"`` in bilby, which finds ``Klover`` by the entry point ``bilby.samplers`` of this package."""

import os
from typing import Any

import numpy as np

from klover.base import optional
from klover.plugins.answer import Answer, in_plain_words, warning
from klover.refinement.refine import refine
from klover.targets.adapters.prior_transform import from_prior_transform
from klover.targets.target import Target

NEED = "klover.plugins.bilby needs"
base_sampler: Any = optional.load("bilby.core.sampler.base_sampler", NEED, "bilby")

NUM_PRIOR_DRAWS = 200_000
"""Draws of the prior that tell which part of it meets the constraints."""
IMPOSSIBLE = np.nan_to_num(-np.inf)
"""What bilby writes for a log likelihood of -inf."""


class Klover(base_sampler.NestedSampler):
    """klover as a sampler of bilby: ``bilby.run_sampler(likelihood, priors, sampler="klover", seed=0)``.

    The result has the log evidence with its error, posterior samples of equal weight (as many as are effective), the
    weighted ones as ``nested_samples``, and the verdict in ``result.meta_data["klover"]``. A refused answer is returned
    like any other, with a warning. Priors with a periodic boundary are circles; a reflective one needs no treatment.

    Parameters
    ----------
    seed
        Of klover's random numbers; chosen by bilby's own generator if None.
    resume
        Whether a file in the output folder keeps the state, from which an interrupted run goes on.
    budget, min_ess, search, progress
        As in :func:`klover.refine`.
    """

    sampler_name = "klover"
    sampling_seed_key = "seed"
    default_kwargs = {
        "seed": None,
        "budget": None,
        "min_ess": None,
        "search": "auto",
        "progress": None,
        "resume": False,
    }

    def log_likelihood(self, theta: np.ndarray) -> float:
        """Return the log likelihood, -inf where it is impossible or a constraint of the prior is not met."""
        value = super().log_likelihood(theta)
        return -np.inf if value <= IMPOSSIBLE else value

    def make_target(self) -> Target:
        """Make the target that klover fits."""
        keys = self.search_parameter_keys
        return from_prior_transform(
            self.log_likelihood,
            self.prior_transform,
            self.ndim,
            names=keys,
            periodic=[key for key in keys if self.priors[key].boundary == "periodic"],
            **({"pool": self.npool} if (self.npool or 1) > 1 else {}),
        )

    def run_sampler(self) -> Any:
        """Run klover, and fill bilby's result."""
        options = dict(self.kwargs)
        seed = options.pop("seed")
        if seed is None:
            seed = int(optional.load("bilby.core.utils.random", NEED, "bilby").rng.integers(2**31))
        if options.pop("resume"):
            os.makedirs(self.outdir, exist_ok=True)
            options["journal"] = os.path.join(self.outdir, f"{self.label}_klover.journal")
        fit = refine(seed, self.make_target(), **options)
        self._fill(fit, seed)
        if not fit.verdict.trusted:
            base_sampler.logger.warning(warning(fit))
        return self.result

    def _fill(self, fit: Any, seed: int) -> None:
        answer, result = Answer.of(fit), self.result
        index = answer.resample(seed, max(int(fit.ess), 1))
        log_share, share_error = self._allowed_share()
        result.samples = answer.parameters[index]
        result.log_likelihood_evaluations = answer.log_likelihood[index]
        result.nested_samples = optional.pandas().DataFrame(answer.parameters, columns=self.search_parameter_keys)
        result.nested_samples["weights"] = answer.weight
        result.nested_samples["log_likelihood"] = answer.log_likelihood
        result.log_evidence = fit.log_evidence - log_share
        result.log_evidence_err = float(np.hypot(fit.log_evidence_se, share_error))
        result.information_gain = answer.information + log_share
        result.num_likelihood_evaluations = fit.num_evaluations
        result.meta_data["klover"] = in_plain_words(fit)

    def _allowed_share(self) -> tuple[float, float]:
        """Return the log of the part of the prior that meets its constraints, by which bilby divides, and its error."""
        if not self.constraint_parameter_keys:
            return 0.0, 0.0
        draws = self.priors.sample_subset(self.search_parameter_keys, NUM_PRIOR_DRAWS)
        allowed = np.asarray(self.priors.evaluate_constraints(draws), bool)
        share = float(np.mean(allowed))
        if share == 0.0:
            raise ValueError(f"priors meet their constraints at none of {NUM_PRIOR_DRAWS} draws: loosen them.")
        return float(np.log(share)), float(np.sqrt((1.0 - share) / (share * NUM_PRIOR_DRAWS)))
