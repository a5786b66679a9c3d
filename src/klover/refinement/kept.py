"""Where an update begins: with the proposal of a fit of another target, whose draws are weighted under the new one.

A draw has to be evaluated under the new target whether it is an old one or a new one of the old proposal, and says as
much. So the first round draws from the old proposal; if its weights are fair there is nothing to search for before the
rounds, and these go on from there. If hardly any draw is effective, the proposal is still a start like any other
(:func:`~klover.refinement.start.from_given`).
"""

import dataclasses

import jax
import numpy as np

from klover.importance.ratios import effective_sample_size
from klover.refinement.coordinates import adopt
from klover.refinement.pool import Pool
from klover.refinement.start import cover, from_given, on_host
from klover.refinement.state import Context, State
from klover.warps.warped import Proposal, WarpedMixture, unwarped


@dataclasses.dataclass(frozen=True)
class Kept:
    """The proposal of a fit; ``has_usual_search`` says that the last search is not to be a thrifty one."""

    mixture: Proposal
    has_usual_search: bool


def from_kept(context: Context, kept: Kept) -> State:
    """Draw from the old proposal, and begin with these draws, or with its mixture if hardly any is effective."""
    rounds, proposal = context.tuning.rounds, jax.tree.map(np.asarray, kept.mixture)
    x = proposal.draw(context.generator, rounds.first_draws)
    pool = Pool.empty(context.dim).add(proposal, x, context.evaluator.values(x))
    if float(effective_sample_size(pool.log_ratio)) < rounds.begun_ess * len(x):
        return from_given(context, proposal)
    broad, warp = cover(context), proposal.warp if isinstance(proposal, WarpedMixture) else None
    state = adopt(State(broad, broad, pool), warp)
    return dataclasses.replace(state, mixture=on_host(context, unwarped(proposal)))
