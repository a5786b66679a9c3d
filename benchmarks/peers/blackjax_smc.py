"""blackjax's adaptive tempered SMC with HMC moves, from a broad Gaussian around the start or over the box.

Every temperature keeps half of the particles effective, and moves each of them ten times. blackjax leaves the numbers
of particles, moves and leapfrogs to its users. The tuned setting has four times the particles.
"""

import blackjax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers import Answer

SETTINGS = {
    "default": {"num_particles": 1000, "num_moves": 10},
    "tuned": {"num_particles": 4000, "num_moves": 10},
}
PRIOR_SCALE, NUM_LEAPFROGS, ACCEPTANCE = 5.0, 20, 0.7


def prepare(task, num_particles, num_moves):
    if task.target.box is None:
        centre, scale = jnp.asarray(task.target.start), jnp.full(task.dim, PRIOR_SCALE)
    else:
        lower, upper = map(jnp.asarray, task.target.box)
        centre, scale = 0.5 * (lower + upper), 0.5 * (upper - lower)

    def log_prior(x):
        return jax.scipy.stats.norm.logpdf(x, centre, scale).sum()

    @jax.jit
    def program(key):
        key_start, key_run = jax.random.split(key)
        x = centre + scale * jax.random.normal(key_start, (num_particles, task.dim))
        parameters = {
            "step_size": jnp.array([0.3 / task.dim**0.25]),
            "inverse_mass_matrix": jnp.ones((1, task.dim)),
            "num_integration_steps": jnp.array([NUM_LEAPFROGS]),
        }

        def step(carry):
            key, state, log_z, num, parameters = carry
            key, key_step = jax.random.split(key)
            # Metric and step follow the particles, as blackjax's inner kernel tuning does.
            parameters = parameters | {"inverse_mass_matrix": jnp.var(state.particles, axis=0)[None] + 1e-12}
            sampler = blackjax.adaptive_tempered_smc(
                log_prior,
                lambda point: task.log_prob(point) - log_prior(point),
                blackjax.hmc.build_kernel(),
                blackjax.hmc.init,
                parameters,
                blackjax.smc.resampling.systematic,
                target_ess=0.5,
                num_mcmc_steps=num_moves,
            )
            state, info = sampler.step(key_step, state)
            size = parameters["step_size"] * jnp.exp(info.update_info.acceptance_rate.mean() - ACCEPTANCE)
            parameters = parameters | {"step_size": size}
            return key, state, log_z + info.log_likelihood_increment, num + 1, parameters

        first = blackjax.smc.tempered.init(x)
        state_of_run = key_run, first, jnp.zeros(()), 0, parameters
        _, state, log_z, num, _ = jax.lax.while_loop(
            lambda carry: (_tempering(carry[1]) < 1) & (carry[3] < 200), step, state_of_run
        )
        return state.particles, state.weights, log_z, num, _tempering(state)

    def solve(seed):
        x, weight, log_z, num, reached = map(np.asarray, program(jax.random.key(seed)))
        with np.errstate(divide="ignore"):
            log_weight = np.log(weight)
        return Answer(
            x,
            log_weight,  # the last temperature's: particles are resampled and moved before they are weighted
            log_evidence=float(log_z),
            num_evaluations=2 * int(num) * num_particles,
            num_gradients=int(num) * num_particles * (num_moves * NUM_LEAPFROGS + 1),
            complaint="" if reached >= 1 else f"stopped at temperature {float(reached):.3g}",
        )

    return solve


def _tempering(state):
    return state.tempering_param if hasattr(state, "tempering_param") else state.lmbda
