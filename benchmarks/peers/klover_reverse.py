"""klover's own boosting by the reverse KL (Miller et al. 2017), whose mixture is then the proposal."""

import jax
import numpy as np

import klover
from benchmarks.peers import Answer
from klover.boosting.settings import Settings

SETTINGS = {"default": {}, "tuned": {"max_components": 10, "num_steps": 2000}}
NUM_DRAWS = 10_000


def prepare(task, **setting):
    choices = {"divergence": "reverse", "max_components": 3, "num_steps": 1000} | setting
    settings = Settings(**choices)
    num_gradients = settings.max_components * settings.num_steps * settings.num_draws_per_step

    def solve(seed):
        fit = klover.boost(jax.random.key(seed), task.target, num_draws=NUM_DRAWS, **choices)
        draws = fit.draws
        return Answer(
            np.asarray(draws.x),
            np.asarray(draws.log_weight),
            float(draws.log_evidence),
            float(draws.log_evidence_se),
            num_evaluations=NUM_DRAWS,
            num_gradients=num_gradients,
            complaint="" if fit.verdict.trusted else fit.verdict.status.name.lower(),
        )

    return solve
