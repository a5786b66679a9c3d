r"""A Gaussian with a diagonal covariance by the reverse KL, fitted with draws of itself.

Adam on location μ and log scale, with the gradient of :math:`\theta=\mu+s\epsilon` (Kingma & Welling 2014): the score
:math:`g=\nabla\log p(\theta)` of a draw pulls μ by :math:`g`, and log s by :math:`gs\epsilon+1`.
"""

import jax
import jax.numpy as jnp

from klover.base.shapes import Point, RandomKey
from klover.fitting.adam import Rate, minimise
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.targets.target import Target

NUM_STEPS, BATCH, LEARNING_RATE, FIRST_SCALE = 1500, 32, 0.02, 0.1
"""Steps of Adam, draws of each, its first rate, and the scale at which it begins."""
MEMORY = 0.99
"""Of Adam's squared gradients: from a start far out a longer one leaves the Gaussian on its way."""
NUM_EVALUATIONS = NUM_STEPS * BATCH
RATES: dict[str, Rate] = {"location": LEARNING_RATE, "log_scale": LEARNING_RATE}


def mean_field(key: RandomKey, target: Target) -> Mixture:
    """Fit one Gaussian with a diagonal covariance to a target, beginning near its start."""
    key_first, key_steps = jax.random.split(key)
    start = jnp.asarray(target.start)
    first = start + FIRST_SCALE * jax.random.normal(key_first, start.shape, start.dtype)
    params = {"location": first, "log_scale": jnp.full_like(start, jnp.log(FIRST_SCALE))}

    def loss(key, params):
        """Return what has the gradient of the reverse KL; its value means nothing."""
        noise = jax.random.normal(key, (BATCH, target.dim), start.dtype)
        x = params["location"] + jnp.exp(params["log_scale"]) * noise
        score = jax.vmap(jax.grad(target.log_prob))(jax.lax.stop_gradient(x))
        # A draw outside the support must not end the descent.
        score = jnp.where(jnp.isfinite(score), score, 0.0)
        return -jnp.sum(score * x) / BATCH - jnp.sum(params["log_scale"])

    fitted, _ = minimise(key_steps, loss, params, RATES, NUM_STEPS, is_stochastic=True, is_cooled=True, memory=MEMORY)
    return gaussian(fitted["location"], fitted["log_scale"])


def gaussian(location: Point, log_scale: Point) -> Mixture:
    """Return the Gaussian with these locations and scales as a mixture of one component."""
    return Mixture.of(Family("normal", "diagonal").components(location[None], jnp.exp(2 * log_scale)[None]))
