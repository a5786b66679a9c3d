"""blackjax's NUTS with window adaptation: four vectorised chains of 1000 + 1000."""

import blackjax
import jax
import numpy as np

from benchmarks.peers import Answer, judge_chains

SETTINGS = {"default": {}, "tuned": {"target_acceptance_rate": 0.9}}
NUM_CHAINS, NUM_STEPS = 4, 1000


def prepare(task, **setting):
    def chain(key, start):
        key_warm, key_run = jax.random.split(key)
        warm = blackjax.window_adaptation(blackjax.nuts, task.log_prob, **setting)
        (state, parameters), adapted = warm.run(key_warm, start, NUM_STEPS)
        step = blackjax.nuts(task.log_prob, **parameters).step

        def advance(state, step_key):
            state, info = step(step_key, state)
            return state, (state.position, info.num_integration_steps, info.is_divergent)

        _, (x, num, divergent) = jax.lax.scan(advance, state, jax.random.split(key_run, NUM_STEPS))
        return x, num.sum() + adapted.info.num_integration_steps.sum(), divergent.sum()

    program = jax.jit(jax.vmap(chain))

    def solve(seed):
        keys = jax.random.split(jax.random.key(seed), NUM_CHAINS)
        x, num, divergent = map(np.asarray, program(keys, task.starts(seed, NUM_CHAINS)))
        return Answer(x, num_gradients=int(num.sum()), complaint=judge_chains(x, int(divergent.sum())))

    return solve
