r"""Temperatures between a mixture and the target, and particles that go along them.

Two journeys use :func:`klover.sampling.hamiltonian.move`. :func:`carry` is adaptive sequential Monte Carlo along
:math:`p^\beta q^{1-\beta}` (Del Moral, Doucet & Jasra 2006): begun from an *inflated* mixture it closes in on a ridge
from outside, where a walk along the ridge takes far too long. :func:`excursion` heats particles to :math:`p^\beta` and
cools them again; it overshoots into necks (hierarchical models, funnels), which is what is wanted there.
"""

from collections.abc import Callable

import numpy as np

from klover.base.arrays import even_comb, logsumexp, namespace
from klover.base.shapes import AnyArray, Float
from klover.importance.ratios import stride
from klover.mixtures.mixture import Mixture
from klover.sampling.hamiltonian import Bridge, Particles, move, place
from klover.targets.evaluator import Evaluator
from klover.tuning import Moves

HEATING_STEPS = 3
SMALLEST_STRIDE = 1e-3
"""Of an excursion's way back: particles of a hot target without a mixture may have no common support."""

Refit = Callable[[Mixture, Particles], Mixture]


def next_temperature(
    beta: Float[AnyArray, ""] | float, log_ratio: Float[AnyArray, "... particle"], effective_share: float
) -> Float[AnyArray, ""]:
    r"""Return the largest β up to 1 at which weights :math:`r^{\beta-\beta_{old}}` leave enough particles effective.

    Enough is a share of every island's particles.
    """
    part = stride((1 - beta) * log_ratio, effective_share * log_ratio.shape[-1])
    return namespace(log_ratio).where(part == 1, 1.0, beta + part * (1 - beta))


def carry(
    generator: np.random.Generator,
    evaluator: Evaluator,
    mixture: Mixture,
    x: Float[np.ndarray, "draw dim"],
    log_p: Float[np.ndarray, " draw"],
    num_particles: int,
    refit: Refit,
    tuning: Moves,
) -> tuple[Particles, float]:
    """Carry draws of a mixture to the target; return particles and the log evidence.

    ``refit(kernel, particles)`` gives the kernel's mixture for the next temperature.
    """
    kernel, beta, log_evidence = mixture, 0.0, 0.0
    log_q = mixture.log_prob(x)
    particles = None
    while beta < 1:
        log_ratio = np.where(np.isfinite(log_p), log_p - log_q, -np.inf)
        if not np.isfinite(log_ratio).any():
            raise ValueError("no draw lies in the support of the target, so there is nothing to carry.")
        following = float(next_temperature(beta, log_ratio, tuning.effective_share))
        change = (following - beta) * log_ratio
        log_evidence += float(logsumexp(change)) - np.log(len(change))
        index = even_comb(generator, np.exp(change - change.max()), num_particles)
        particles = place(evaluator, x[index]) if particles is None else particles.take(index)
        beta = following
        particles = move(generator, evaluator, kernel, particles, tuning, Bridge(beta, mixture))
        kernel = refit(kernel, particles)
        log_p, log_q = particles.log_p, mixture.log_prob(particles.x)
    assert particles is not None
    return particles, log_evidence


def excursion(
    generator: np.random.Generator,
    evaluator: Evaluator,
    kernel: Mixture,
    particles: Particles,
    hottest: float,
    refit: Refit,
    tuning: Moves,
) -> Particles:
    r"""Heat particles to :math:`p^\beta` with the hottest β, moving them as they go, and cool them back to p."""
    for beta in np.geomspace(1.0, hottest, HEATING_STEPS + 1)[1:]:
        particles = move(generator, evaluator, kernel, particles, tuning, Bridge(float(beta)))
        kernel = refit(kernel, particles)
    beta = hottest
    while beta < 1:
        following = float(next_temperature(beta, particles.log_p, tuning.effective_share))
        following = max(following, beta + SMALLEST_STRIDE * (1 - beta))
        change = (following - beta) * particles.log_p
        particles = particles.take(even_comb(generator, np.exp(change - change.max()), len(particles.x)))
        beta = following
        particles = move(generator, evaluator, kernel, particles, tuning, Bridge(beta))
        kernel = refit(kernel, particles)
    return particles
