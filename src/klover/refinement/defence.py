"""What draws come from: the mixture, defended by wider copies, so that it sees what lies around it."""

import numpy as np

from klover.fitting.splits import num_parameters
from klover.mixtures.algebra import defensive_inflation, inflate, join, stretch, widen
from klover.mixtures.mixture import Mixture
from klover.refinement.state import Context, State
from klover.tuning import Rounds
from klover.warps.warped import unwarped

FEWEST_COMPONENTS, MOST_COMPONENTS, MOST_TILES = 4, 32, 64


def most_components(dim: int, rounds: Rounds) -> int:
    """Return the number of components that the draws of a round can tell apart."""
    if dim <= rounds.tiled_dim:
        return MOST_TILES
    return int(np.clip(rounds.most_draws / num_parameters(dim), FEWEST_COMPONENTS, MOST_COMPONENTS))


def next_proposal(context: Context, state: State) -> Mixture:
    """Return what the next round draws from: the mixture, defended.

    The defence is inflated copies of the components, the box where the target has one, the frontier, and parts that a
    search has found: the draws of a round may be too few to keep a component on a thousandth of the mass.
    """
    if not state.history:
        return state.mixture
    defence = context.tuning.defence
    # In very many dimensions heavy tails are all that is drawn of, and meet nothing.
    df = float(context.dim) if context.can_whiten else defence.df
    copies = inflate(state.mixture, defensive_inflation(context.dim), df)
    if state.was_hard:
        copies = join(copies, stretch(state.mixture, defence.length, defence.df), 0.5)
    proposal = join(state.mixture, copies, defence.share)
    if state.warp is not None and state.warp.num_leads > 0:
        num_leads = state.warp.num_leads
        wide = widen(state.mixture, num_leads, defensive_inflation(num_leads), defence.df)
        proposal = join(proposal, wide, defence.share)
    if context.evaluator.target.box is not None:
        proposal = join(proposal, state.broad, defence.box_share)
    if state.found is not None:
        proposal = join(proposal, state.found, defence.box_share)
    return proposal if state.frontier is None else join(proposal, state.frontier, defence.frontier_share)


def final_proposal(context: Context, state: State) -> Mixture:
    """Return what the final draws come from.

    In few dimensions, and where the target was hard, a good mixture is used exactly as it was measured. Elsewhere a
    part of the draws comes from slightly wider copies: few components leave some skewness, and with it a tail of
    weights.
    """
    if not state.is_done:
        return next_proposal(context, state)
    defence, rounds = context.tuning.defence, context.tuning.rounds
    last = unwarped(state.pool.proposals[-1])
    if state.was_hard or context.dim <= rounds.tiled_dim:
        return last
    wider = inflate(state.mixture, 1 + defence.widening / np.sqrt(context.dim))
    return join(last, wider, defence.widened_share)
