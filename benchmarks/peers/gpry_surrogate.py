"""GPry: a Gaussian process of the log posterior in a box, and a nested sampler or chains on the process (LGPL-3).

Its answer is a weighted sample of the process, with the evidence of the nested sampler where it has one. It says of
itself whether it has converged.
"""
# pyright: reportMissingImports=false

import jax
import numpy as np
from gpry.run import Runner

from benchmarks.peers import Answer

SETTINGS = {"default": {}}
WIDER = 1.0
"""Widths of the box that are added on each side: it is where starts are, not where the posterior ends."""


def prepare(task):
    log_p = jax.jit(task.log_prob)

    def solve(seed):
        lower, upper = (np.asarray(corner, float) for corner in task.target.box)
        width = upper - lower
        bounds = np.stack([lower - WIDER * width, upper + WIDER * width], 1)
        count = 0

        def counted(x):
            nonlocal count
            count += 1
            return float(log_p(np.ravel(x)))

        inside = np.stack([lower, upper], 1)
        runner = Runner(
            counted, bounds, ref_bounds=inside, params=[f"x_{place}" for place in range(task.dim)], seed=seed, verbose=0
        )
        runner.run()
        runner.generate_mc_sample()
        sample = runner.last_mc_samples(as_pandas=False)
        weight = np.asarray(sample["w"] if sample["w"] is not None else np.ones(len(sample["X"])))
        evidence = runner.last_mc_logZ()
        # The prior is uniform over the box, and GPry's evidence has it as a factor.
        volume = float(np.sum(np.log(np.ptp(bounds, axis=1))))
        value, error = (None, None) if evidence is None else evidence
        with np.errstate(divide="ignore"):
            return Answer(
                np.asarray(sample["X"]),
                np.log(weight),
                None if value is None else float(value) + volume,
                None if error is None else float(error),
                num_evaluations=count,
                complaint="" if runner.has_converged else "not converged",
            )

    return solve
