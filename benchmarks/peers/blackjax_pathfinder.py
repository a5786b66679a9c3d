"""blackjax's multi-path Pathfinder with Pareto-smoothed weights: four paths of 200 draws, or (tuned) twenty of 500."""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers import Answer, judge_weights

SETTINGS = {"default": {"num_paths": 4, "num_samples": 200}, "tuned": {"num_paths": 20, "num_samples": 500}}
NUM_ITERATIONS = 30


def prepare(task, num_paths, num_samples):
    @jax.jit
    def program(key, starts):
        state, _ = blackjax.vi.multipathfinder.multi_approximate(
            key, task.log_prob, starts, num_samples, maxiter=NUM_ITERATIONS
        )
        return state.samples.reshape(-1, task.dim), (state.logp - state.logq).ravel()

    def solve(seed):
        starts = jnp.asarray(task.starts(seed, num_paths))
        x, log_ratio = map(np.asarray, program(jax.random.key(seed), starts))
        log_weight, complaint = judge_weights(log_ratio)
        # Each iteration is judged by its own draws; line searches take at least one gradient each.
        return Answer(
            x,
            log_weight,
            num_evaluations=num_paths * NUM_ITERATIONS * num_samples,
            num_gradients=num_paths * NUM_ITERATIONS,
            complaint=complaint,
        )

    return solve
