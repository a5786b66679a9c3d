"""What draws come from: the mixture, defended by wider copies, so that it sees what lies around it."""

import numpy as np

from klover.fitting.splits import num_parameters
from klover.mixtures.algebra import defensive_inflation, inflate, join, stretch, widen
from klover.mixtures.mixture import Mixture
from klover.refinement.state import Context, State
from klover.tuning import Rounds
from klover.warps.warped import is_behind, unwarped

FEWEST_COMPONENTS, MOST_COMPONENTS, MOST_TILES = 4, 32, 64


def most_components(dim: int, rounds: Rounds) -> int:
    """Return the number of components that the draws of a round can tell apart."""
    if dim <= rounds.tiled_dim:
        return MOST_TILES
    return int(np.clip(rounds.most_draws / num_parameters(dim), FEWEST_COMPONENTS, MOST_COMPONENTS))


def next_proposal(context: Context, state: State) -> Mixture:
    """Return what the next round draws from: the mixture, defended.

    The defence is inflated copies of the components, the box where the target has one, and the frontier.
    """
    if not state.history:
        return state.mixture
    defence = context.tuning.defence
    copies = inflate(state.mixture, defensive_inflation(context.dim), defence.df)
    if state.was_hard:
        copies = join(copies, stretch(state.mixture, defence.length, defence.df), 0.5)
    proposal = join(state.mixture, copies, defence.share)
    if state.warp is not None and state.warp.num_leads > 0:
        wide = widen(state.mixture, state.warp.num_leads, defence.lead_width, defence.df)
        proposal = join(proposal, wide, defence.lead_share)
    if context.evaluator.target.box is not None:
        proposal = join(proposal, state.broad, defence.box_share)
    return proposal if state.frontier is None else join(proposal, state.frontier, defence.frontier_share)


def final_proposal(context: Context, state: State) -> Mixture:
    """Return what the final draws come from.

    In few dimensions, and where the target was hard, a good mixture is used exactly as it was measured. Elsewhere a
    part of the draws comes from slightly wider copies: few components leave some skewness, and with it a tail of
    weights. In many dimensions, where fits no longer get better, they differ by chance alone, and the mixture of the
    last ones is safer than any of them.
    """
    if not state.is_done:
        return next_proposal(context, state)
    defence, rounds = context.tuning.defence, context.tuning.rounds
    is_chance = not context.is_explored and state.num_stale >= rounds.patience
    last = state.pool.proposals[-defence.num_blended if is_chance else -1 :]
    first, *others = (unwarped(each) for each in last if is_behind(each, state.warp))
    for number, other in enumerate(others, 2):
        first = join(first, other, 1 / number)
    if state.was_hard or context.dim <= rounds.tiled_dim:
        return first
    wider = inflate(state.mixture, 1 + defence.widening / np.sqrt(context.dim))
    return join(first, wider, defence.widened_share)
