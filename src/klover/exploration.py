r"""Particles that look for what the proposal misses.

Weights say nothing about a region that was never visited: k̂ and ESS are then perfect. Particles that stand for p stay
distributed as p when a kernel moves them; if they leave for where the proposal is all but absent, it has missed
something. Every hard round moves draws of the pool, sends particles on a journey (in turn an excursion to
:math:`p^\beta` and a return from an inflated mixture), and fits a *frontier* to particles of :math:`p^{1+1/d}` and
:math:`p^{1-2/d}`, which lie deeper in necks, and further out on ridges, than p itself.
"""

import dataclasses

import numpy as np

from klover import particles as journeys
from klover.growth import equal, fit, grow, join
from klover.mixture import Mixture
from klover.particles import Bridge, Particles, place, systematic
from klover.pool import Pool
from klover.state import Context, State

NUM_PARTICLES = 1024
NUM_PROBES = 256
NUM_MOVES = 8
ARCHIVE = 4
INFLATIONS = (12.0, 4.0)
INFLATED_DF = 5.0
BROAD_SHARE = 0.1
EXCURSION_BETA = 0.2
FRONTIER_BETA = 0.4
SMALLEST_MASS = 0.01


def inflate(mixture: Mixture, factor: float, df: float) -> Mixture:
    """Return wider copies of all components, with tails at least as heavy as asked."""
    components = mixture.components
    wide = dataclasses.replace(components, spread=components.spread.inflated(factor), df=np.minimum(components.df, df))
    return Mixture(wide, mixture.log_weights)


def uncovered_mass(proposal: Mixture, particles: Particles, pool: Pool) -> tuple[float, float]:
    r"""Posterior mass that particles find where the proposal is all but absent, and its standard error.

    With :math:`r=p/(Zq)` the mass of p that q does not cover is :math:`\mathrm E_p[(1-1/r)_+]`, the total variation
    distance. The pool gives one estimate of it, which cannot know what it never visited; particles give another. The
    difference is what the particles have discovered.
    """
    sample, centre = pool.sample(), pool.log_evidence

    def excess(x, log_p):
        return np.maximum(-np.expm1(-np.clip(log_p - proposal.log_prob(x) - centre, -1, 50)), 0.0)

    known, found = excess(sample.x, sample.log_p), excess(particles.x, particles.log_p)
    mean = sample.weight @ known
    variance = found.var() / len(found) + (sample.weight**2) @ (known - mean) ** 2
    return float(found.mean() - mean), float(np.sqrt(variance))


def probe(context: Context, state: State, proposal: Mixture, num: int) -> tuple[Particles, float]:
    """Move draws of the pool on the target; return them and the standard errors by which they found new mass."""
    sample = state.pool.sample()
    begun = place(context.evaluator, sample.x[systematic(context.generator, sample.weight, num)])
    moved = journeys.move(context.generator, context.evaluator, state.mixture, begun, num_moves=NUM_MOVES)
    mass, error = uncovered_mass(proposal, moved, state.pool)
    return moved, mass / error if mass > SMALLEST_MASS else 0.0


def descend(context: Context, pool: Pool) -> tuple[Particles, Mixture]:
    """Carry the first draws, of which next to none are effective, to the target, and fit a mixture to them."""
    proposal, num = pool.proposals[0], pool.sizes[0]

    def refit(kernel, now):
        return grow(context.generator, kernel, equal(now.x, now.log_p), context.max_components, 1)

    particles, _ = journeys.carry(
        context.generator, context.evaluator, proposal, pool.x[:num], pool.log_p[:num], NUM_PARTICLES, refit
    )
    return particles, refit(proposal, particles)


def explore(context: Context, state: State, moved: Particles) -> None:
    """Send particles on a journey, keep them in the archive, and find the frontier."""
    generator, evaluator, turn = context.generator, context.evaluator, len(state.history)
    if turn % 2 == 1:
        hottest = max(1 - 4 / context.dim, EXCURSION_BETA)
        explored = journeys.excursion(generator, evaluator, state.mixture, moved, hottest, _follow)
    else:
        factor = INFLATIONS[turn // 2 % len(INFLATIONS)]
        wide = join(inflate(state.mixture, factor, INFLATED_DF), state.broad, BROAD_SHARE)
        x = wide.draw(generator, 2 * NUM_PARTICLES)
        log_p = evaluator.values(x)
        explored = moved
        # In a narrow support no draw of an inflated mixture may lie inside; then there is nothing to carry.
        if np.isfinite(log_p).any():
            explored, _ = journeys.carry(generator, evaluator, wide, x, log_p, NUM_PARTICLES, _follow)
        state.discovered, _ = uncovered_mass(state.pool.proposals[-1], explored, state.pool)
    state.archive = (*state.archive, explored)[-ARCHIVE:]
    find_frontier(context, state, moved)


def find_frontier(context: Context, state: State, moved: Particles) -> None:
    """Fit mixtures to particles that are somewhat colder and somewhat hotter than the target."""
    halves = []
    for which, beta in enumerate((1 + 1 / context.dim, max(1 - 2 / context.dim, FRONTIER_BETA))):
        begun = moved.take(np.arange(which, len(moved.x), 2))
        if state.frontier_particles:
            begun = state.frontier_particles[which].where(np.arange(len(begun.x)) % 2 == 0, begun)
        halves.append(
            journeys.move(context.generator, context.evaluator, state.mixture, begun, Bridge(beta), NUM_MOVES)
        )
    state.frontier_particles = tuple(halves)
    cold, hot = (_follow(state.mixture, half) for half in halves)
    state.frontier = join(cold, hot, 0.5)


def _follow(kernel: Mixture, particles: Particles) -> Mixture:
    """Let a mixture follow moving particles by a few EM steps."""
    return fit(kernel, equal(particles.x, particles.log_p), num_steps=3)
