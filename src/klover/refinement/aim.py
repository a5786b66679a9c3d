r"""Aim a proposal at one expectation.

The self-normalised estimate of :math:`I=\mathrm E_p[f]` has its smallest error for draws of
:math:`q^*\propto|f-I|\,p` (Hesterberg 1988). Forward-KL fitting to it needs nothing new: the weights of the pool times
:math:`|f-I|`. Half of the final proposal is the mixture fitted so, half the one fitted to p, which keeps all other
expectations and the evidence sound.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from klover.base.checks import check_function
from klover.base.processes import to_host
from klover.base.shapes import AnyArray, Float, PyTree
from klover.fitting.growth import grow
from klover.fitting.sample import Sample
from klover.mixtures.algebra import join
from klover.mixtures.mixture import Mixture
from klover.refinement.state import Context, State
from klover.targets.evaluator import BudgetExhausted
from klover.targets.target import Target
from klover.warps.warped import behind

NUM_ROUNDS = 2


def check_integrand(target: Target, integrand: Any) -> None:
    """Refuse what is no function from a constrained position to one number, before anything is evaluated."""
    check_function("integrand", integrand, "one constrained position")
    try:
        found = jax.eval_shape(lambda x: integrand(target.position(x)), jnp.asarray(target.start))
    except Exception as error:
        raise TypeError(
            f"integrand must be a function that JAX can trace, of one constrained position, got {type(error).__name__} "
            f"at the example: {error} Write it with jax.numpy, and without branches on values."
        ) from error
    if getattr(found, "shape", None) != ():
        what = f"an array of shape {found.shape}" if hasattr(found, "shape") else found
        raise ValueError(f"integrand must return one number, got {what}. Return one quantity, or a sum.")


def aim(
    context: Context, state: State, proposal: Mixture, integrand: Callable[[PyTree], Float[AnyArray, ""]]
) -> Mixture:
    """Return a proposal of which half is fitted to :math:`|f-I|p`, in the coordinates of the state's mixture."""
    target = context.evaluator.target
    evaluate = jax.jit(jax.vmap(lambda target, x: integrand(target.position(x)), (None, 0)))
    aimed, pool = proposal, state.pool
    for _ in range(NUM_ROUNDS):
        sample = pool.sample()
        values = np.asarray(to_host(evaluate(target, sample.x)), float)
        weight = sample.weight * np.abs(values - sample.weight @ values)
        inside = np.isfinite(weight) & (weight > 0)
        if not inside.any():
            return proposal
        tilted = Sample(sample.x, weight, log_p=sample.log_p).where(inside)
        try:
            fitted = grow(context.generator, state.mixture, tilted.in_base(state.warp), context.rules)
            aimed = join(proposal, fitted, 0.5)
            outside = behind(aimed, state.warp)
            x = outside.draw(context.generator, context.tuning.rounds.fitted_draws)
            pool = pool.add(outside, x, context.evaluator.values(x))
        except BudgetExhausted:
            break
    return aimed
