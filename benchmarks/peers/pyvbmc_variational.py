"""PyVBMC: variational Bayesian Monte Carlo, a Gaussian process whose posterior a mixture of Normals follows.

Its answer is the mixture and a lower bound of the log evidence with an error, both of the process and not of the
density. It says of itself whether it is stable.
"""
# pyright: reportMissingImports=false

import jax
import numpy as np
from pyvbmc import VBMC

from benchmarks.peers import Answer

SETTINGS = {"default": {}}
NUM_DRAWS = 20_000


def prepare(task):
    log_p = jax.jit(task.log_prob)

    def solve(seed):
        lower, upper = (np.asarray(corner, float) for corner in task.target.box)
        np.random.seed(seed)  # noqa: NPY002 - parts of it draw with NumPy's global generator
        count = 0

        def counted(x):
            nonlocal count
            count += 1
            return float(log_p(np.ravel(x)))

        infinite = np.full((1, task.dim), np.inf)
        begin = np.random.default_rng(seed).uniform(lower, upper)[None]
        bounds = -infinite, infinite, lower[None], upper[None]
        vbmc = VBMC(counted, begin, *bounds, options={"display": "off"}, seed=seed)
        posterior, found = vbmc.optimize()
        draws, _ = posterior.sample(NUM_DRAWS)
        return Answer(
            np.asarray(draws),
            log_evidence=float(found["elbo"]),
            log_evidence_se=float(found["elbo_sd"]),
            num_evaluations=count,
            complaint="" if found["success_flag"] else str(found["message"]),
        )

    return solve
