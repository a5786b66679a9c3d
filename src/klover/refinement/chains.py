r"""Short chains: a few thousand rough draws of a target that no mixture has come near, for a warp to be fitted to.

In tens of dimensions weights alone find no way to a hierarchy: of draws from ellipses not one is effective, and tops
without end lead into its neck. Hamiltonian chains that begin all over the region come to its bulk in some dozens of
moves, and they need not be right: a warp and a mixture are fitted to what they have seen, fresh draws of these are
weighed as ever, and the next window of the chains moves behind the warp, where the target is nearly a Normal and a
trajectory goes all the way across. What is left of the chains' errors is in the weights.
"""

import dataclasses

import numpy as np

from klover.base.arrays import even_comb
from klover.base.shapes import Float
from klover.fitting.sample import equal
from klover.mixtures.algebra import mixture_of
from klover.mixtures.mixture import Mixture
from klover.refinement.state import Context, State
from klover.sampling.hamiltonian import Particles, move, place
from klover.search.climb import climb
from klover.search.profile import draw_along

STEEP = 0.5
"""Nats for each dimension: a start is climbed from as long as steps gain more, which is as far as the bulk."""
MOST_CLIMBED = 30
ALONG_SHARE = 0.5
"""Of what is fitted to beside the pool that are draws along the lead."""
LONGER = 2
"""Times the usual leapfrogs, of half as many moves, in the first window, whose metric is a guess."""
SMALLEST_SCALE = 1e-6
"""Of the starts, beside that of their coordinate's largest."""


def run_chains(context: Context, state: State) -> State:
    """Move the chains for a window; return the state with their ends, and what the second half of it has seen.

    The first window, which comes from far away, is forgotten after the second.
    """
    num_leapfrogs, num_moves = context.tuning.moves.num_leapfrogs, context.tuning.exploration.chain_moves
    if state.chains is None:
        x = begin(context, state)
        kernel, num_leapfrogs, num_moves = _around(context, x), LONGER * num_leapfrogs, num_moves // LONGER
    else:
        x, kernel = state.chains if state.warp is None else state.warp.to_base(state.chains)[0], state.mixture
    kept = _window(context, kernel, x, num_moves, num_leapfrogs)
    # A chain that was stuck, in a neck or far outside, goes on from where another is.
    ends = np.resize(kept[-1].x, x.shape)
    ends = ends if state.warp is None else state.warp.from_base(ends)[0]
    points, log_p = (np.concatenate([getattr(one, name) for one in kept]) for name in ("x", "log_p"))
    seen = equal(points, log_p).from_base(state.warp)
    if state.seen is not None and state.num_windows > 1:
        seen = state.seen.join(seen, len(seen) / (len(seen) + len(state.seen)))
    return dataclasses.replace(state, chains=ends, seen=seen, num_windows=state.num_windows + 1)


def follow_lead(context: Context, state: State) -> State:
    """Once, where chains were needed and a warp has a lead: draw along it, into the neck that chains do not enter."""
    lead = None if state.warp is None else state.warp.lead
    if state.seen is None or lead is None or state.is_followed:
        return state
    along = draw_along(context.generator, context.evaluator, state.seen, lead)
    seen = state.seen if along is None else state.seen.join(along, ALONG_SHARE)
    return dataclasses.replace(state, seen=seen, is_followed=True)


def _window(
    context: Context, kernel: Mixture, x: Float[np.ndarray, "chain dim"], num_moves: int, num_leapfrogs: int
) -> list[Particles]:
    """Return the chains that have moved, after each move of the second half."""
    particles, kept = place(context.evaluator, x), []
    for turn in range(num_moves):
        # One at a time: the shrunk steps of every second move enter necks, which a warp does better.
        particles = move(
            context.generator, context.evaluator, kernel, particles, context.tuning.moves, None, 1, num_leapfrogs
        )
        if turn >= num_moves // 2:
            kept.append(particles)
    has_moved = np.any(kept[0].x != kept[-1].x, axis=1)
    return [particles.take(has_moved) for particles in kept] if has_moved.any() else kept


def begin(context: Context, state: State) -> Float[np.ndarray, "chain dim"]:
    """Return starts: from the region, climbed to the bulk; half from the pool where there were rounds before.

    Without rounds, the search has met a neck, and the first draws know nothing.
    """
    num, evaluator = context.tuning.exploration.num_chains, context.evaluator
    num_known = num // 2 if state.history else 0
    starts = context.region.draw_starts(context.generator, num - num_known)
    x, log_p = climb(evaluator.values_and_gradients, starts, MOST_CLIMBED, STEEP * context.dim)
    x = np.asarray(x)[np.isfinite(log_p)]
    if state.history or len(x) == 0:
        sample = state.pool.sample(float(num))
        known = np.asarray(sample.x)[even_comb(context.generator, sample.weight, num - len(x))]
        x = np.concatenate([x, known])
    return np.resize(x, (num, context.dim))


def _around(context: Context, x: Float[np.ndarray, "chain dim"]) -> Mixture:
    """Return a component with the scales of the starts: a metric to begin with."""
    low, high = np.percentile(x, (20, 80), axis=0)
    scale = np.maximum(high - low, SMALLEST_SCALE * (1 + np.abs(x).max(0)))
    return mixture_of(context.family, np.median(x, 0)[None], np.diag(scale**2)[None], 10.0, np.ones(1))
