r"""Aim a proposal at one expectation.

The self-normalised estimate of :math:`I=\mathrm E_p[f]` has its smallest error for draws of
:math:`q^*\propto|f-I|\,p` (Hesterberg 1988). Forward-KL fitting to it needs nothing new: the weights of the pool times
:math:`|f-I|`. Half of the final proposal is the mixture fitted so, half the one fitted to p, which keeps all other
expectations and the evidence sound.
"""

from collections.abc import Callable

import jax
import numpy as np

from klover.base.shapes import AnyArray, Float, PyTree
from klover.fitting.growth import grow
from klover.fitting.sample import Sample
from klover.mixtures.algebra import join
from klover.mixtures.mixture import Mixture
from klover.refinement.state import Context, State
from klover.targets.evaluator import BudgetExhausted

SPLIT_ROUNDS = 3


def aim(
    context: Context, state: State, proposal: Mixture, integrand: Callable[[PyTree], Float[AnyArray, ""]]
) -> Mixture:
    """Return a proposal of which half is fitted to :math:`|f-I|p`."""
    target, tuning = context.evaluator.target, context.tuning.aim
    evaluate = jax.jit(jax.vmap(lambda x: integrand(target.position(x))))
    aimed, pool = proposal, state.pool
    for _ in range(tuning.num_rounds):
        sample = pool.sample()
        values = np.asarray(evaluate(sample.x), float)
        if values.ndim != 1:
            raise ValueError(f"integrand must return one number, got an array of shape {values.shape[1:]}.")
        weight = sample.weight * np.abs(values - sample.weight @ values)
        inside = np.isfinite(weight) & (weight > 0)
        if not inside.any():
            return proposal
        tilted = Sample(sample.x, weight, log_p=sample.log_p).where(inside)
        fitted = grow(context.generator, state.mixture, tilted, context.rules, SPLIT_ROUNDS)
        aimed = join(proposal, fitted, tuning.share)
        x = aimed.draw(context.generator, tuning.num_draws)
        try:
            pool = pool.add(aimed, x, context.evaluator.values(x))
        except BudgetExhausted:
            break
    return aimed
