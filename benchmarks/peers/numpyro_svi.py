"""NumPyro's SVI with a Gaussian of full covariance (AutoMultivariateNormal), then smoothed importance sampling."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoMultivariateNormal

from benchmarks.peers import Answer, judge_weights

SETTINGS = {"default": {"num_steps": 2000, "num_particles": 1}, "tuned": {"num_steps": 10_000, "num_particles": 10}}
NUM_DRAWS, LEARNING_RATE = 10_000, 0.01


def prepare(task, num_steps, num_particles):
    def model():
        x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), (task.dim,)))
        numpyro.factor("log_p", task.log_prob(x))

    guide = AutoMultivariateNormal(model)
    loss = numpyro.infer.Trace_ELBO(num_particles=num_particles)
    svi = numpyro.infer.SVI(model, guide, numpyro.optim.Adam(LEARNING_RATE), loss)
    log_p = jax.jit(jax.vmap(task.log_prob))
    run = jax.jit(lambda state: jax.lax.scan(lambda now, _: svi.update(now), state, length=num_steps)[0])

    def solve(seed):
        key_fit, key_draw = jax.random.split(jax.random.key(seed))
        start = {"auto_loc": task.starts(seed, 1)[0]}
        posterior = guide.get_posterior(svi.get_params(run(svi.init(key_fit, init_params=start))))
        x = posterior.sample(key_draw, (NUM_DRAWS,))
        log_ratio = np.asarray(log_p(x) - posterior.log_prob(x))
        log_weight, complaint = judge_weights(log_ratio)
        largest = log_ratio.max()
        log_evidence = float(largest + np.log(np.mean(np.exp(log_ratio - largest))))
        return Answer(
            np.asarray(x),
            log_weight,
            log_evidence,
            num_evaluations=NUM_DRAWS,
            num_gradients=num_steps * num_particles,
            complaint=complaint,
        )

    return solve
