"""dynesty: nested sampling in the task's box; static with 500 points, or (tuned) dynamic."""

import dynesty
import jax
import numpy as np

from benchmarks.peers import Answer

SETTINGS = {"default": {"sampler": "NestedSampler"}, "tuned": {"sampler": "DynamicNestedSampler"}}


def prepare(task, sampler):
    lower, upper = task.box()
    log_p = jax.jit(task.log_prob)
    log_volume = np.log(upper - lower).sum()

    def log_likelihood(x):
        return max(float(log_p(x)) + log_volume, -1e300)

    def solve(seed):
        run = getattr(dynesty, sampler)(
            log_likelihood, lambda u: lower + u * (upper - lower), task.dim, rstate=np.random.default_rng(seed)
        )
        run.run_nested(print_progress=False)
        found = run.results
        return Answer(
            np.asarray(found.samples),
            np.asarray(found.logwt),
            float(found.logz[-1]),
            float(found.logzerr[-1]),
            num_evaluations=int(np.sum(found.ncall)),
        )

    return solve
