"""NumPyro's NUTS: four chains of 1000 + 1000; one after the other, or (tuned) vectorised."""

import jax
import numpy as np
import numpyro

from benchmarks.peers import Answer, judge_chains

SETTINGS = {"default": {"chain_method": "sequential"}, "tuned": {"chain_method": "vectorized"}}
NUM_CHAINS, NUM_STEPS = 4, 1000


def prepare(task, chain_method):
    kernel = numpyro.infer.NUTS(potential_fn=lambda x: -task.log_prob(x))
    mcmc = numpyro.infer.MCMC(
        kernel,
        num_warmup=NUM_STEPS,
        num_samples=NUM_STEPS,
        num_chains=NUM_CHAINS,
        chain_method=chain_method,
        progress_bar=False,
    )

    def solve(seed):
        starts = task.starts(seed, NUM_CHAINS)
        mcmc.run(jax.random.key(seed), init_params=starts, extra_fields=("num_steps", "diverging"))
        x, fields = np.asarray(mcmc.get_samples(group_by_chain=True)), mcmc.get_extra_fields()
        # Warm-up is not recorded; it is taken to need as many steps.
        num_gradients = 2 * int(fields["num_steps"].sum())
        return Answer(x, num_gradients=num_gradients, complaint=judge_chains(x, int(fields["diverging"].sum())))

    return solve
