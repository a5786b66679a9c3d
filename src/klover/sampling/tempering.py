"""Temperatures between a mixture and the target, and particles that go along them."""

from collections.abc import Callable

import numpy as np

from klover.base.arrays import logsumexp
from klover.base.shapes import Float
from klover.importance.ratios import effective_sample_size
from klover.mixtures.mixture import Mixture
from klover.sampling.hamiltonian import Bridge, Particles, move, place, systematic
from klover.targets.evaluator import Evaluator

EFFECTIVE_SHARE = 0.5


HEATING_STEPS = 3


Refit = Callable[[Mixture, Particles], Mixture]


def stride(change: Float[np.ndarray, " particle"]) -> float:
    """Largest part of a change of log weights that leaves half of the particles effective."""
    fewest = EFFECTIVE_SHARE * len(change)
    if effective_sample_size(change) >= fewest:
        return 1.0
    low, high = -40.0, 0.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if effective_sample_size(np.exp(middle) * change) >= fewest else (low, middle)
    return float(np.exp(low))


def carry(
    generator: np.random.Generator,
    evaluator: Evaluator,
    mixture: Mixture,
    x: Float[np.ndarray, "draw dim"],
    log_p: Float[np.ndarray, " draw"],
    num_particles: int,
    refit: Refit,
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
        part = stride((1 - beta) * log_ratio)
        following = 1.0 if part == 1 else beta + part * (1 - beta)
        change = (following - beta) * log_ratio
        log_evidence += float(logsumexp(change)) - np.log(len(change))
        index = systematic(generator, np.exp(change - change.max()), num_particles)
        particles = place(evaluator, x[index]) if particles is None else particles.take(index)
        beta = following
        particles = move(generator, evaluator, kernel, particles, Bridge(beta, mixture))
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
) -> Particles:
    r"""Heat particles to :math:`p^\beta` with the hottest β, moving them as they go, and cool them back to p."""
    for beta in np.geomspace(1.0, hottest, HEATING_STEPS + 1)[1:]:
        particles = move(generator, evaluator, kernel, particles, Bridge(float(beta)))
        kernel = refit(kernel, particles)
    beta = hottest
    while beta < 1:
        part = max(stride((1 - beta) * particles.log_p), 1e-3)
        following = 1.0 if part == 1 else beta + part * (1 - beta)
        change = (following - beta) * particles.log_p
        particles = particles.take(systematic(generator, np.exp(change - change.max()), len(particles.x)))
        beta = following
        particles = move(generator, evaluator, kernel, particles, Bridge(beta))
        kernel = refit(kernel, particles)
    return particles
