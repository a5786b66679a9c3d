r"""Particles that look for what the proposal misses.

Weights say nothing about a region that was never visited: k̂ and ESS are then perfect. Particles that stand for p stay
distributed as p when a kernel moves them; if they leave for where the proposal is all but absent, it has missed
something. Every hard round moves draws of the pool, sends particles on two journeys (an excursion to
:math:`p^\beta` and a return from an inflated mixture), and fits a *frontier* to particles of :math:`p^{1+1/d}` and
:math:`p^{1-2/d}`, which lie deeper in necks, and further out on ridges, than p itself.
"""

import dataclasses

import numpy as np

from klover.base.arrays import even_comb
from klover.fitting.growth import fit, grow
from klover.fitting.sample import equal
from klover.mixtures.algebra import inflate, join
from klover.mixtures.mixture import Mixture
from klover.refinement.chains import run_chains
from klover.refinement.pool import Pool
from klover.refinement.stages import Look
from klover.refinement.state import Context, State
from klover.sampling.hamiltonian import Bridge, Particles, move, place
from klover.sampling.tempering import Refit, carry, excursion
from klover.warps.warped import unwarped

FOLLOWING_STEPS = 3
"""Steps of EM by which a kernel follows moving particles."""
KEPT_COLD, KEPT_HOT = 1 / 2, 7 / 8
"""Shares of the frontier's particles that go on from where they were: hot ones crawl, and must not begin anew."""

LOOK_SHARE, FEWEST_PROBES = 1 / 8, 16
"""Of all evaluations so far, for a last look where they are expensive; fewer particles would see nothing."""

Seen = tuple[State, Particles | None, float]
"""The state, particles to fit to, and the standard errors by which particles found new mass."""


def look_around(context: Context, state: State, look: Look) -> Seen:
    """Move particles as the decision says."""
    tuning = context.tuning.exploration
    if look is Look.CHAIN:
        return run_chains(context, state), None, np.inf
    if look is Look.DESCEND:
        particles, mixture = descend(context, state.pool)
        return dataclasses.replace(state, mixture=mixture), particles, np.inf
    if look is Look.EXPLORE:
        particles, drift = probe(context, state, tuning.num_particles)
        return explore(context, state, particles), particles, drift
    if look is Look.LONG_LAST:
        particles, drift = probe(context, state, tuning.num_particles)
        return find_frontier(context, state, particles), None, drift
    if look is Look.LAST:
        num_probes = _num_probes(context)
        if num_probes < FEWEST_PROBES:
            return state, None, 0.0
        _, drift = probe(context, state, num_probes)
        if drift > context.tuning.answer.largest_drift:
            # Few particles raise a false alarm on one easy target in a hundred, and exploring costs fifty such looks.
            _, drift = probe(context, state, tuning.num_particles)
        return state, None, drift
    return state, None, 0.0


def _num_probes(context: Context) -> int:
    """Return the particles of a last look; where evaluations are expensive, as an eighth of those so far pays for."""
    num, moves = context.tuning.exploration.num_probes, context.tuning.exploration.num_moves
    if context.goal is None:
        return num
    each = 1 + moves * (context.tuning.moves.num_leapfrogs if context.evaluator.has_gradient else 1)
    allowed = context.evaluator.num_allowed
    num = num if allowed is None else min(num, allowed // each)
    return min(num, int(LOOK_SHARE * context.evaluator.num_evaluations / each))


def uncovered_mass(particles: Particles, pool: Pool) -> tuple[float, float]:
    r"""Posterior mass that particles find where the last proposal is all but absent, and its standard error.

    With :math:`r=p/(Zq)` the mass of p that q does not cover is :math:`\mathrm E_p[(1-1/r)_+]`, the total variation
    distance. The pool gives one estimate of it, which cannot know what it never visited; particles give another. The
    difference is what the particles have discovered.
    """
    weight, centre = pool.weight(), pool.log_evidence

    def excess(log_p, log_q):
        return np.maximum(-np.expm1(-np.clip(log_p - log_q - centre, -1, 50)), 0.0)

    known = excess(pool.log_p, pool.log_q[-1])
    found = excess(particles.log_p, pool.proposals[-1].log_prob(particles.x))
    mean = weight @ known
    variance = found.var() / len(found) + (weight**2) @ (known - mean) ** 2
    return float(found.mean() - mean), float(np.sqrt(variance))


def probe(context: Context, state: State, num: int) -> tuple[Particles, float]:
    """Move draws of the pool on the target; return them and the standard errors by which they found new mass."""
    tuning, sample = context.tuning.exploration, state.pool.sample()
    begun = place(context.evaluator, np.asarray(sample.x)[even_comb(context.generator, sample.weight, num)])
    moved = _move(context, state.mixture, begun, None, tuning.num_moves)
    mass, error = uncovered_mass(moved, state.pool if state.was_hard else state.pool.fresh)
    return moved, mass / error if mass > tuning.discovery else 0.0


def descend(context: Context, pool: Pool) -> tuple[Particles, Mixture]:
    """Carry the first draws, of which next to none are effective, to the target, and fit a mixture to them."""
    # The first round that has met the support: where this is small, the first proposals are narrowed until they do.
    ends = np.cumsum(pool.sizes)
    which = int(np.searchsorted(ends, np.flatnonzero(np.isfinite(pool.log_p))[0], side="right"))
    rows = slice(ends[which] - pool.sizes[which], ends[which])
    proposal = unwarped(pool.proposals[which])

    def refit(kernel, now):
        return grow(context.generator, kernel, equal(now.x, now.log_p), context.rules, 1)

    particles, _ = carry(
        context.generator,
        context.evaluator,
        proposal,
        pool.x[rows],
        pool.log_p[rows],
        context.tuning.exploration.num_particles,
        refit,
        context.tuning.moves,
    )
    return particles, refit(proposal, particles)


def explore(context: Context, state: State, moved: Particles) -> State:
    """Send particles on two journeys, keep them in the archive, and find the frontier."""
    tuning = context.tuning.exploration
    following = follow(context)
    journey = context.generator, context.evaluator
    hottest = max(1 - 4 / context.dim, tuning.hottest)
    away = excursion(*journey, state.mixture, moved, hottest, following, context.tuning.moves)
    factor = tuning.inflations[len(state.history) % len(tuning.inflations)]
    wide = join(inflate(state.mixture, factor, context.tuning.start.wide_df), state.broad, context.tuning.defence.share)
    x = wide.draw(context.generator, 2 * tuning.num_particles)
    log_p = context.evaluator.values(x)
    explored = moved
    # In a narrow support no draw of an inflated mixture may lie inside; then there is nothing to carry.
    if np.isfinite(log_p).any():
        explored, _ = carry(*journey, wide, x, log_p, tuning.num_particles, following, context.tuning.moves)
    mass, _ = uncovered_mass(explored, state.pool)
    state = dataclasses.replace(
        state,
        discovered=(state.discovered[-1], mass),
        archive=(away, explored),
    )
    return find_frontier(context, state, moved)


def find_frontier(context: Context, state: State, moved: Particles) -> State:
    """Fit mixtures to particles that are somewhat colder and somewhat hotter than the target.

    The cold ones look into necks, where steps must be small, and half of them are replaced every time. The hot ones
    crawl along ridges: they are kept, and their trajectories are long, because a walk of short ones gets nowhere.
    """
    tuning, following, dim = context.tuning.exploration, follow(context), context.dim
    kernel = state.mixture if state.frontier is None else join(state.mixture, state.frontier, 0.5)
    cold, hot = moved.take(np.arange(0, len(moved.x), 2)), moved.take(np.arange(1, len(moved.x), 2))
    if state.frontier_particles:
        place_in_eight = np.arange(len(cold.x)) % 8 / 8
        cold = state.frontier_particles[0].where(place_in_eight < KEPT_COLD, cold)
        hot = state.frontier_particles[1].where(place_in_eight < KEPT_HOT, hot)
    cold = _move(context, kernel, cold, Bridge(1 + 1 / dim), tuning.num_moves)
    bridge = Bridge(max(1 - 2 / dim, tuning.hottest))
    for _ in range(tuning.crawls):
        hot = _move(context, kernel, hot, bridge, tuning.num_moves, tuning.crawl_leapfrogs)
        kernel = following(kernel, hot)
    frontier = join(following(state.mixture, cold), following(state.mixture, hot), 0.5)
    return dataclasses.replace(state, frontier_particles=(cold, hot), frontier=frontier)


def _move(context: Context, kernel: Mixture, particles: Particles, bridge: Bridge | None, *counts: int) -> Particles:
    return move(context.generator, context.evaluator, kernel, particles, context.tuning.moves, bridge, *counts)


def follow(context: Context) -> Refit:
    """Return a function that lets a mixture follow moving particles by a few EM steps."""

    def refit(kernel: Mixture, particles: Particles) -> Mixture:
        return fit(kernel, equal(particles.x, particles.log_p), context.rules, num_steps=FOLLOWING_STEPS)

    return refit
