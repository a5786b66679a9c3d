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
from klover.fitting.scores import match
from klover.mixtures.algebra import mixture_of
from klover.mixtures.mixture import Mixture
from klover.refinement.profile import draw_along
from klover.refinement.state import Context, Stage, State
from klover.sampling.hamiltonian import Particles, move, place
from klover.search.climb import climb

STEEP = 0.5
"""Nats for each dimension: a start is climbed from as long as steps gain more, which is as far as the bulk."""
MOST_CLIMBED = 30
ALONG_SHARE = 0.5
"""Of what is fitted to beside the pool that are draws along the lead."""
SMALLEST_SCALE = 1e-6
"""Of the starts, beside that of their coordinate's largest."""
RENEWED = 4
"""Moves of the first window after which the chains renew their metric."""
FAR_BELOW = 4.0
"""Standard deviations of log p from the upper quartile of the chains, below which one begins anew in that window."""


def run_chains(context: Context, state: State) -> State:
    """Move the chains for a window; return the state with their ends, and what the second half of it has seen.

    Windows before are forgotten: chains were not at home there yet, and scores make the last one enough.
    """
    num_leapfrogs, num_moves = context.tuning.moves.num_leapfrogs, context.tuning.exploration.chain_moves
    if state.chains is None:
        x, kernel = begin(context, state), None
    else:
        x, kernel = state.chains if state.warp is None else state.warp.to_base(state.chains)[0], state.mixture
    kept = _window(context, kernel, x, num_moves, num_leapfrogs)
    # A chain that was stuck, in a neck or far outside, goes on from where another is.
    ends = np.resize(kept[-1].x, x.shape)
    ends = ends if state.warp is None else state.warp.from_base(ends)[0]
    points, log_p = (np.concatenate([getattr(one, name) for one in kept]) for name in ("x", "log_p"))
    seen = equal(points, log_p).from_base(state.warp)
    return dataclasses.replace(state, chains=ends, seen=seen, num_windows=state.num_windows + 1)


def follow_lead(context: Context, state: State) -> State:
    """Once, where chains were needed and a warp has a lead: draw along it, into the neck that chains do not enter."""
    lead = None if state.warp is None else state.warp.lead
    if state.seen is None or lead is None or state.is_followed or state.stage is Stage.CHAIN:
        return state
    along = draw_along(context.generator, context.evaluator, state.seen, lead)
    seen = state.seen if along is None else state.seen.join(along, ALONG_SHARE)
    return dataclasses.replace(state, seen=seen, is_followed=True)


def _window(
    context: Context, kernel: Mixture | None, x: Float[np.ndarray, "chain dim"], num_moves: int, num_leapfrogs: int
) -> list[Particles]:
    """Return the chains that have moved, after each move of the second half; without a kernel, they make their own."""
    particles, kept = place(context.evaluator, x), []
    # The better half of what has passed has to tell a whole matrix.
    every = max(RENEWED, 2 * context.tuning.whitening.pairs_per_dim * context.dim // len(x) + 1)
    is_learning, passed = kernel is None, [particles]
    for turn in range(num_moves):
        if kernel is None or (is_learning and turn % every == 0):
            kernel, passed = _metric(context, passed), []
            near = _near(particles)
            particles = near.take(np.resize(np.arange(len(near.x)), len(x)))
        particles = move(
            context.generator, context.evaluator, kernel, particles, context.tuning.moves, None, 1, num_leapfrogs
        )
        passed.append(particles)
        if turn >= num_moves // 2:
            kept.append(particles)
    has_moved = np.any(kept[0].x != kept[-1].x, axis=1)
    kept = [particles.take(has_moved) for particles in kept] if has_moved.any() else kept
    return [_near(particles) for particles in kept] if is_learning else kept


def _near(particles: Particles) -> Particles:
    """Return the chains that are not far below the others: of a Gaussian, log p has a variance of d/2.

    A plateau, as where a hierarchy's scale is next to nothing, would hold chains for long.
    """
    level = np.quantile(particles.log_p, 0.75) - FAR_BELOW * np.sqrt(particles.x.shape[1] / 2)
    return particles.take(particles.log_p >= level)


def begin(context: Context, state: State) -> Float[np.ndarray, "chain dim"]:
    """Return starts: from the region, climbed to the bulk; half from the pool where there were rounds before.

    Without rounds, the search has met a neck, and the first draws know nothing.
    """
    num, evaluator = context.tuning.exploration.num_probes, context.evaluator
    num_known = num // 2 if state.history else 0
    starts = context.region.draw_starts(context.generator, num - num_known)
    x, log_p = climb(evaluator.values_and_gradients, starts, MOST_CLIMBED, STEEP * context.dim)
    x = np.asarray(x)[np.isfinite(log_p)]
    if state.history or len(x) == 0:
        sample = state.pool.sample(float(num))
        known = np.asarray(sample.x)[even_comb(context.generator, sample.weight, num - len(x))]
        x = np.concatenate([x, known])
    return np.resize(x, (num, context.dim))


def _metric(context: Context, passed: list[Particles]) -> Mixture:
    """Return a component with the covariance that scores ask for, at the better half of where the chains have been.

    It does not matter that they are not at home there yet; those far outside are. One step of all chains tells scales
    alone.
    """
    x, score, log_p = (np.concatenate([getattr(one, name) for one in passed]) for name in ("x", "gradient", "log_p"))
    best = log_p >= np.median(log_p)
    x, score = x[best], score[best]
    if len(x) > context.tuning.whitening.pairs_per_dim * context.dim:
        location, covariance = match(x, score)
    else:
        location, spread = np.median(x, 0), np.maximum(x.std(0), SMALLEST_SCALE * (1 + np.abs(x).max(0)))
        covariance = np.diag(spread / np.maximum(score.std(0), SMALLEST_SCALE / spread))
    return mixture_of(context.family, location[None], covariance[None], 10.0, np.ones(1))
