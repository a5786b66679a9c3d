"""``sampler = klover`` in CosmoSIS, which imports this file where its parameter file says so.

In the section ``[runtime]``: ``sampler = klover`` and ``import_samplers = PATH``, the path of this file, which
``python -c "import klover; print(klover.__path__[0] + '/plugins/cosmosis.py')"`` prints.
"""

from typing import Any

import numpy as np

from klover.base import optional
from klover.plugins.answer import Answer, warning
from klover.refinement.refine import refine
from klover.targets.adapters.prior_transform import from_prior_transform

NEED = "klover.plugins.cosmosis needs"
samplers, logs = (optional.load(f"cosmosis.{name}", NEED, "cosmosis") for name in ("samplers", "runtime.logs"))
Base: Any = samplers.ParallelSampler


class KloverSampler(Base):
    """klover as a sampler of CosmoSIS: weighted samples, the evidence with its error, and the verdict.

    The section ``[klover]`` takes ``budget`` and ``min_ess`` (as :func:`klover.refine`; 0 is none), ``search`` and
    ``seed``. The first process does the work. At the end of the output are ``log_z``, ``log_z_error``, ``trusted``
    and ``verdict``.
    """

    parallel_output = False
    sampler_outputs = (("log_weight", float), ("prior", float), ("post", float))

    def config(self) -> None:
        """Read the options."""
        self.converged = False
        self.seed = self.read_ini("seed", int, 0)
        self.options = {"search": self.read_ini("search", str, "auto")}
        self.options |= {name: self.read_ini(name, int, 0) or None for name in ("budget", "min_ess")}

    def execute(self) -> None:
        """Run klover, and write the samples."""
        self._seen: dict[bytes, Any] = {}
        target = from_prior_transform(
            self._log_likelihood,
            self.pipeline.denormalize_vector_from_prior,
            self.pipeline.nvaried,
            names=[str(parameter) for parameter in self.pipeline.varied_params],
        )
        fit = refine(self.seed, target, **self.options)
        answer = Answer.of(fit)
        for point, log_weight in zip(answer.parameters, np.log(answer.weight), strict=True):
            found = self._results(point)
            extra = [number for each in found.extra for number in np.atleast_1d(each)]
            self.output.parameters(point, extra, log_weight, found.prior, found.post)
        self.output.final("log_z", fit.log_evidence)
        self.output.final("log_z_error", fit.log_evidence_se)
        self.output.final("trusted", fit.verdict.trusted)
        self.output.final("verdict", fit.verdict.reason)
        if not fit.verdict.trusted:
            logs.error(warning(fit))
        self.converged = True

    def _log_likelihood(self, point: np.ndarray) -> float:
        return self._results(point).like

    def _results(self, point: np.ndarray) -> Any:
        """Run the pipeline, and keep what it says: the output needs every derived number."""
        key = point.tobytes()
        if key not in self._seen:
            self._seen[key] = self.pipeline.run_results(point)
            self._seen[key].block = None  # all that the pipeline has computed, which would fill the memory
        return self._seen[key]

    def is_converged(self) -> bool:
        """Whether the run is over: one execution is all there is."""
        return self.converged
