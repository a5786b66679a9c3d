"""`klover.refine`."""

import jax
import numpy as np

import klover
from benchmarks.peers import Answer

SETTINGS = {"default": {}}


def prepare(task):
    def solve(seed):
        fit = klover.refine(jax.random.key(seed), task.target)
        return Answer(
            np.asarray(fit.draws.x),
            np.asarray(fit.draws.log_weight),
            float(fit.log_evidence),
            float(fit.log_evidence_se),
            num_gradients=fit.num_evaluations,
            complaint="" if fit.verdict.trusted else fit.verdict.status.name.lower(),
        )

    return solve
