"""nautilus: importance nested sampling with neural networks in the task's box, 2000 points or (tuned) 4000."""

import jax
import numpy as np
from nautilus import Sampler

from benchmarks.peers import Answer

SETTINGS = {"default": {"n_live": 2000}, "tuned": {"n_live": 4000}}


def prepare(task, n_live):
    lower, upper = task.box()
    log_p = jax.jit(jax.vmap(task.log_prob))
    log_volume = np.log(upper - lower).sum()

    def log_likelihood(x):
        return np.asarray(log_p(x)) + log_volume

    def solve(seed):
        sampler = Sampler(
            lambda u: lower + u * (upper - lower), log_likelihood, task.dim, n_live=n_live, vectorized=True, seed=seed
        )
        is_done = sampler.run(verbose=False)
        x, log_weight, _ = sampler.posterior()
        return Answer(
            x,
            log_weight,
            float(sampler.log_z),
            num_evaluations=int(sampler.n_like),
            complaint="" if is_done else "stopped before it was done",
        )

    return solve
