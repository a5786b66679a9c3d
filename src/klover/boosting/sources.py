r"""Where draws come from: the previous mixture, the current one, or the newcomer alone.

Each source g turns into weighted draws for the forward KL, with weights :math:`\hat p/g`:

- ``"previous"``: :math:`g=q_{i-1}` (Eq. 12, ``eq:old_mixture``), which does not move while the newcomer is fitted;
- ``"current"``: :math:`g=q_i=(1-\gamma)q_{i-1}+\gamma f_i` (Eq. 11, ``eq:new_mixture``);
- ``"newcomer"``: :math:`g=f_i`, the only one there is in the first round.

A newcomer is placed, and weights are corrected, on draws of a *defended* mixture, which also sees what lies around q.
"""

import dataclasses

import jax
import jax.numpy as jnp

from klover.base.shapes import AnyArray, Float, PerDraw, RandomKey, Scalar, record
from klover.mixtures.algebra import defensive_inflation, inflate, join
from klover.mixtures.mixture import Mixture
from klover.targets.target import Target, evaluate

SOURCES = ("previous", "current", "newcomer")


@record
class Draws:
    """Draws of a source g with the log densities that a fit needs; the shapes know nothing of K."""

    x: Float[AnyArray, "... draw dim"]
    log_p: Float[AnyArray, "... draw"]
    log_source: Float[AnyArray, "... draw"]
    log_previous: Float[AnyArray, "... draw"]

    @property
    def log_ratio(self) -> PerDraw:
        """Log of the importance ratios p̂/g."""
        return self.log_p - self.log_source


@record
class BoostState:
    """What the next round needs: the mixture, draws of it, and the mixture that it all began with."""

    mixture: Mixture
    draws: Draws
    anchor: Mixture


def mix(log_f: PerDraw, log_previous: PerDraw, log_gamma: Scalar) -> PerDraw:
    r"""Log density of :math:`(1-\gamma)q_{i-1}+\gamma f_i`."""
    return jnp.logaddexp(log_gamma + log_f, jnp.log1p(-jnp.minimum(jnp.exp(log_gamma), 1.0)) + log_previous)


def draw_previous(key: RandomKey, target: Target, previous: Mixture, num_draws: int) -> Draws:
    """Draw from a mixture."""
    x, log_q = previous.sample_and_log_prob(key, num_draws)
    return Draws(x, evaluate(target, x)[0], log_q, log_q)


def draw_newcomer(key: RandomKey, target: Target, previous: Mixture | None, newcomer: Mixture, num_draws: int) -> Draws:
    """Draw from the newcomer alone; without a previous mixture its density is zero."""
    x = newcomer.components.sample(key, jnp.zeros(num_draws, int))
    log_f = newcomer.component_log_prob(x)[0]
    log_previous = jnp.full_like(log_f, -jnp.inf) if previous is None else previous.log_prob(x)
    return Draws(x, evaluate(target, x)[0], log_f, log_previous)


def draw_current(key: RandomKey, target: Target, previous: Mixture, newcomer: Mixture, num_draws: int) -> Draws:
    r"""Draw from the previous mixture and the newcomer together; the newcomer's weight is :math:`\gamma`."""
    key_previous, key_newcomer, key_choice = jax.random.split(key, 3)
    log_gamma = newcomer.log_weights[0]
    is_new = jax.random.uniform(key_choice, (num_draws, 1)) < jnp.exp(log_gamma)
    x_newcomer = newcomer.components.sample(key_newcomer, jnp.zeros(num_draws, int))
    x = jnp.where(is_new, x_newcomer, previous.sample(key_previous, num_draws))
    log_previous = previous.log_prob(x)
    log_source = mix(newcomer.component_log_prob(x)[0], log_previous, log_gamma)
    return Draws(x, evaluate(target, x)[0], log_source, log_previous)


def draw_defended(key: RandomKey, target: Target, mixture: Mixture, anchor: Mixture, num_draws: int) -> Draws:
    """Draw from the defended mixture; ``log_previous`` is the density of the mixture itself."""
    draws = draw_previous(key, target, defended(mixture, anchor), num_draws)
    return dataclasses.replace(draws, log_previous=mixture.log_prob(draws.x))


def defended(mixture: Mixture, anchor: Mixture) -> Mixture:
    r"""Return half of the mixture, a quarter of inflated copies of its components, and a quarter of the anchor.

    Draws of the mixture alone never see where its tails end, and a fit to them lets the tails shrink round by round:
    without the copies, KL of Gaussian boosting on a Cauchy target *rose* from 0.06 at K = 3 to 0.10 at K = 5. Nor do
    they see a mode that the first, broader mixture (the anchor) had touched: without it, one seed in four lost one of
    twenty modes. The copies are equally weighted and :math:`1+2/\sqrt d` times as wide. Importance ratios are at most
    twice those of the mixture itself.
    """
    is_used = mixture.log_weights > -jnp.inf
    equal = jnp.where(is_used, -jnp.log(jnp.sum(is_used)), -jnp.inf)
    copies = dataclasses.replace(inflate(mixture, defensive_inflation(mixture.dim)), log_weights=equal)
    return join(join(mixture, copies, 1 / 3), anchor, 1 / 4)
