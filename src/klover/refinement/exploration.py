r"""Particles that look for what the proposal misses.

Weights say nothing about a region that was never visited: k̂ and ESS are then perfect. Particles that stand for p stay
distributed as p when a kernel moves them; if they leave for where the proposal is all but absent, it has missed
something. Every hard round moves draws of the pool, sends particles on two journeys (an excursion to
:math:`p^\beta` and a return from an inflated mixture), and fits a *frontier* to particles of :math:`p^{1+1/d}` and
:math:`p^{1-2/d}`, which lie deeper in necks, and further out on ridges, than p itself.
"""

import numpy as np

from klover.fitting.growth import fit, grow
from klover.fitting.sample import equal
from klover.mixtures.algebra import inflate, join
from klover.mixtures.mixture import Mixture
from klover.refinement.pool import Pool
from klover.refinement.state import Context, State
from klover.sampling import hamiltonian, tempering
from klover.sampling.hamiltonian import Bridge, Particles, place, systematic

NUM_PARTICLES = 1024
NUM_PROBES = 128
NUM_MOVES = 8
FRONTIER_MOVES = 8
NUM_CRAWLS = 3
CRAWL_LEAPFROGS = 40
ARCHIVE = 4
INFLATIONS = (12.0, 4.0)
INFLATED_DF = 5.0
BROAD_SHARE = 0.1
EXCURSION_BETA = 0.2
FRONTIER_BETA = 0.4
SMALLEST_MASS = 0.01


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
    sample = state.pool.sample()
    begun = place(context.evaluator, sample.x[systematic(context.generator, sample.weight, num)])
    moved = hamiltonian.move(context.generator, context.evaluator, state.mixture, begun, num_moves=NUM_MOVES)
    mass, error = uncovered_mass(moved, state.pool if state.was_hard else state.pool.fresh)
    return moved, mass / error if mass > SMALLEST_MASS else 0.0


def descend(context: Context, pool: Pool) -> tuple[Particles, Mixture]:
    """Carry the first draws, of which next to none are effective, to the target, and fit a mixture to them."""
    proposal, num = pool.proposals[0], pool.sizes[0]

    def refit(kernel, now):
        return grow(context.generator, kernel, equal(now.x, now.log_p), context.max_components, 1)

    particles, _ = tempering.carry(
        context.generator, context.evaluator, proposal, pool.x[:num], pool.log_p[:num], NUM_PARTICLES, refit
    )
    return particles, refit(proposal, particles)


def explore(context: Context, state: State, moved: Particles) -> None:
    """Send particles on two journeys, keep them in the archive, and find the frontier."""
    generator, evaluator = context.generator, context.evaluator
    hottest = max(1 - 4 / context.dim, EXCURSION_BETA)
    away = tempering.excursion(generator, evaluator, state.mixture, moved, hottest, _follow)
    factor = INFLATIONS[len(state.history) % len(INFLATIONS)]
    wide = join(inflate(state.mixture, factor, INFLATED_DF), state.broad, BROAD_SHARE)
    x = wide.draw(generator, 2 * NUM_PARTICLES)
    log_p = evaluator.values(x)
    explored = moved
    # In a narrow support no draw of an inflated mixture may lie inside; then there is nothing to carry.
    if np.isfinite(log_p).any():
        explored, _ = tempering.carry(generator, evaluator, wide, x, log_p, NUM_PARTICLES, _follow)
    mass, _ = uncovered_mass(explored, state.pool)
    state.discovered = (state.discovered[-1], mass)
    state.archive = (*state.archive, away, explored)[-ARCHIVE:]
    find_frontier(context, state, moved)


def find_frontier(context: Context, state: State, moved: Particles) -> None:
    """Fit mixtures to particles that are somewhat colder and somewhat hotter than the target.

    The cold ones look into necks, where steps must be small, and half of them are replaced every time. The hot ones
    crawl along ridges: they are kept, and their trajectories are long, because a walk of short ones gets nowhere.
    """
    kernel = state.mixture if state.frontier is None else join(state.mixture, state.frontier, 0.5)
    cold, hot = moved.take(np.arange(0, len(moved.x), 2)), moved.take(np.arange(1, len(moved.x), 2))
    if state.frontier_particles:
        row = np.arange(len(cold.x))
        cold = state.frontier_particles[0].where(row % 2 == 0, cold)
        hot = state.frontier_particles[1].where(row % 8 > 0, hot)
    generator, evaluator = context.generator, context.evaluator
    cold = hamiltonian.move(generator, evaluator, kernel, cold, Bridge(1 + 1 / context.dim), FRONTIER_MOVES)
    bridge = Bridge(max(1 - 2 / context.dim, FRONTIER_BETA))
    for _ in range(NUM_CRAWLS):
        hot = hamiltonian.move(generator, evaluator, kernel, hot, bridge, FRONTIER_MOVES, CRAWL_LEAPFROGS)
        kernel = _follow(kernel, hot)
    state.frontier_particles = (cold, hot)
    state.frontier = join(_follow(state.mixture, cold), _follow(state.mixture, hot), 0.5)


def _follow(kernel: Mixture, particles: Particles) -> Mixture:
    """Let a mixture follow moving particles by a few EM steps."""
    return fit(kernel, equal(particles.x, particles.log_p), num_steps=3)
