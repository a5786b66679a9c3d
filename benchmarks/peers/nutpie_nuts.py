"""nutpie's NUTS on the JAX function: its default six chains, or (tuned) with a low-rank metric."""

import jax
import numpy as np
import nutpie

from benchmarks.peers import Answer, judge_chains

SETTINGS = {"default": {}, "tuned": {"low_rank_modified_mass_matrix": True}}


def prepare(task, **setting):
    program = jax.jit(jax.value_and_grad(task.log_prob))

    def make_logp():
        def logp(x):
            value, gradient = program(x)
            return float(value), np.asarray(gradient)

        return logp

    model = nutpie.compiled_pyfunc.from_pyfunc(
        task.dim,
        make_logp,
        lambda *_: lambda x: {"x": x},
        [np.dtype("float64")],
        [(task.dim,)],
        ["x"],
        make_initial_point_fn=lambda seed: task.starts(seed, 1)[0],
    )

    def solve(seed):
        trace = nutpie.sample(model, seed=seed, cores=2, progress_bar=False, save_warmup=True, **setting)
        x = np.asarray(trace.posterior["x"])
        num = sum(int(trace[group]["n_steps"].sum()) for group in ("sample_stats", "warmup_sample_stats"))
        return Answer(x, num_gradients=num, complaint=judge_chains(x, int(trace.sample_stats["diverging"].sum())))

    return solve
