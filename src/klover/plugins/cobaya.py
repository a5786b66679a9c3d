"""``sampler: klover:`` in Cobaya, which asks the package of that name for ``get_cobaya_class``.

The options and their defaults are in ``cobaya.yaml`` beside this file, where Cobaya reads them.
"""

import os
import re
from typing import Any

import numpy as np

from klover.base import optional
from klover.base.version import __version__
from klover.plugins.answer import Answer, in_plain_words, warning
from klover.refinement.refine import refine
from klover.results.fit import Fit
from klover.targets.adapters.prior_transform import from_prior_transform

NEED = "klover.plugins.cobaya needs"
sampler, collection, mpi, yaml = (
    optional.load(f"cobaya.{name}", NEED, "cobaya") for name in ("sampler", "collection", "mpi", "yaml")
)
Base: Any = sampler.Sampler

EVIDENCE = ".logZ"
"""Ending of the file with the evidence and the verdict."""


class Klover(Base):
    """klover as a sampler of Cobaya: a weighted chain that GetDist reads, the evidence with its error, and a verdict.

    Periodic parameters are circles. The evidence is that of the one-dimensional priors, which Cobaya normalises; an
    external prior multiplies the likelihood as it is. Under MPI the first process does the work.
    """

    file_base_name = "cobaya"
    sampler_type = "nested"  # for GetDist: draws that are weighted, and not a Markov chain
    supports_periodic_params = True

    seed: Any
    budget: Any
    min_ess: Any
    search: str

    def initialize(self) -> None:
        """Make the target, and evaluate it once."""
        info = self.model.parameterization.sampled_params_info()
        self._seen: dict[bytes, Any] = {}
        self.fit: Fit | None = None
        self.collection: Any = None
        self.target = from_prior_transform(
            self._log_likelihood,
            self._parameters,
            self.model.prior.d(),
            names=list(info),
            periodic=[name for name, about in info.items() if about.get("periodic")],
            vectorized=True,
        )

    def _parameters(self, u: np.ndarray) -> np.ndarray:
        """Go from the unit cube to the parameters, many points at once: scipy takes long to begin."""
        return np.stack([pdf.ppf(column) for pdf, column in zip(self.model.prior.pdf, u.T, strict=True)], axis=1)

    def _log_likelihood(self, parameters: np.ndarray) -> np.ndarray:
        """Sum likelihoods and external priors at each point; the first of the priors is that of the cube."""
        return np.array([self._sum(self._posterior(each)) for each in parameters])

    @staticmethod
    def _sum(found: Any) -> float:
        # Where a prior is zero, Cobaya evaluates no likelihood.
        return float(sum(found.loglikes) + sum(found.logpriors[1:])) if len(found.loglikes) else -np.inf

    def _posterior(self, point: np.ndarray) -> Any:
        """Evaluate Cobaya's model, and keep what it says: the chain needs every likelihood and derived parameter."""
        key = point.tobytes()
        if key not in self._seen:
            self._seen[key] = self.model.logposterior(point, cached=False)
        return self._seen[key]

    def run(self) -> None:
        """Run klover, and fill the chain."""
        if not mpi.is_main_process():
            return
        self.fit = refine(
            int(self._rng.integers(2**31)),
            self.target,
            budget=self.budget,
            min_ess=self.min_ess,
            search=self.search,
        )
        answer = Answer.of(self.fit)
        self.collection = collection.SampleCollection(self.model, self.output, name="1", sample_type="nested")
        for point, weight in zip(answer.parameters, answer.weight, strict=True):
            self.collection.add(point, logpost=self._posterior(point), weight=weight)
        self.collection.out_update()
        if self.output:
            path = os.path.join(self.output.folder, self.output.prefix + EVIDENCE)
            yaml.yaml_dump_file(path, self._evidence(), error_if_exists=False)
        self.log.info("log Z = %.4f ± %.4f", self.fit.log_evidence, self.fit.log_evidence_se)
        if not self.fit.verdict.trusted:
            self.log.warning(warning(self.fit))

    def _evidence(self) -> dict[str, Any]:
        fit = self.fit
        assert fit is not None
        return {"logZ": fit.log_evidence, "logZstd": fit.log_evidence_se, "klover": in_plain_words(fit)}

    def samples(self, combined: bool = False, skip_samples: float = 0.0, to_getdist: bool = False) -> Any:
        """Return the chain, as GetDist's if asked for; nothing of it is to be skipped."""
        return self.collection.to_getdist() if to_getdist and self.collection is not None else self.collection

    def products(self, combined: bool = False, skip_samples: float = 0.0, to_getdist: bool = False) -> dict[str, Any]:
        """Return the chain (``sample``), the evidence (``logZ``, ``logZstd``) and the verdict (``klover``)."""
        if self.fit is None:
            return {}
        return self._evidence() | {"sample": self.samples(combined, skip_samples, to_getdist)}

    @classmethod
    def output_files_regexps(cls, output: Any, info: Any = None, minimal: bool = False) -> list[tuple[Any, None]]:
        """Name the files that a new run replaces."""
        evidence = re.compile(re.escape(output.prefix + EVIDENCE) + "$")
        return [] if minimal else [(output.collection_regexp(name=None), None), (evidence, None)]

    @classmethod
    def get_version(cls) -> str:
        """Return klover's version."""
        return __version__


def get_cobaya_class() -> type[Klover]:
    """Return the sampler, by the name under which Cobaya asks for it."""
    return Klover
