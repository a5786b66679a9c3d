r"""Escalation: where importance sampling cannot work, particles carry an approximation to the target.

In hundreds of dimensions the weights of any fitted mixture rest on a handful of draws. Sequential Monte Carlo along
:math:`p^\beta q^{1-\beta}` needs no such luck: every step changes the density so little that half of the particles stay
effective, and Hamiltonian moves bring them to it. It begins from the better (by the evidence lower bound) of the fitted
mixture and a mean-field Gaussian, and runs on independent islands (:mod:`klover.islands`), which share the temperatures
and the metric alone.

Few particles on long trajectories do better than many on short ones. On the paper's neural network (Boston, split 1,
d = 753) with about 1.2 to 1.8 million gradients, two seeds each, the test log-likelihood was -2.30 with 512 particles
and 20 leapfrog steps, -2.28 with 256 and 50, -2.27 with 128 and 100, -2.25 with 128 and 250; NUTS has -2.24.

The particles stand for p only as far as the moves mix. So the result says how far the islands' evidences lie apart, and
whether the particles still climbed in the last sweeps at p itself.
"""

from collections.abc import Callable

import numpy as np

from klover import particles as journeys
from klover.arrays import logsumexp
from klover.beginning import mixture_of
from klover.growth import equal, fit
from klover.islands import ParticleDraws
from klover.mixture import Mixture
from klover.particles import Bridge, Particles, place, stride, systematic
from klover.state import Context, State
from klover.typing import AnyArray, Float

NUM_ISLANDS = 4
ISLAND_SIZE = 32
TRAJECTORY = 8.0
FEWEST_LEAPFROGS, MOST_LEAPFROGS = 10, 250
NUM_SWEEPS = 24
KEPT_SWEEPS = 12
NUM_STEPS = 1500
BATCH = 32
LEARNING_RATE = 0.02
FIRST_SCALE = 0.1
MOMENTS = (0.9, 0.99)
NORMAL_DF = 200.0


def mean_field(context: Context) -> Mixture:
    r"""Fit one Gaussian with a diagonal covariance by the reverse KL: Adam on location and log scale.

    The gradient comes from :math:`\theta=\mu+s\epsilon` (Kingma & Welling 2014); steps shrink to zero along a cosine.
    """
    generator, dim = context.generator, context.dim
    start = np.asarray(context.evaluator.target.start, float)
    now = np.stack([start + FIRST_SCALE * generator.standard_normal(dim), np.full(dim, np.log(FIRST_SCALE))])
    first, second = np.zeros_like(now), np.zeros_like(now)
    for step in range(1, NUM_STEPS + 1):
        scale = np.exp(now[1])
        noise = generator.standard_normal((BATCH, dim))
        _, slope = context.evaluator.values_and_gradients(now[0] + scale * noise)
        gradient = np.stack([slope.mean(0), (slope * noise).mean(0) * scale + 1.0])
        first = MOMENTS[0] * first + (1 - MOMENTS[0]) * gradient
        second = MOMENTS[1] * second + (1 - MOMENTS[1]) * gradient**2
        unbiased = first / (1 - MOMENTS[0] ** step), second / (1 - MOMENTS[1] ** step)
        rate = LEARNING_RATE * 0.5 * (1 + np.cos(np.pi * step / NUM_STEPS))
        now = now + rate * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)
    return mixture_of(context.family, now[:1], np.exp(2 * now[1:]), np.array([NORMAL_DF]), np.ones(1))


def _lower_bound(context: Context, mixture: Mixture) -> float:
    """Estimate the evidence lower bound E_q[log p - log q]; draws outside the support make it -inf."""
    x = mixture.draw(context.generator, ISLAND_SIZE)
    return float(np.mean(context.evaluator.values(x) - mixture.log_prob(x)))


def _temper(
    context: Context, begin: Mixture, particles: Particles, tell: Callable[[float], None]
) -> tuple[Particles, Mixture, np.ndarray]:
    """Carry all islands to the target; return particles, the last kernel, and each island's log evidence."""
    kernel, beta, log_evidence = begin, 0.0, np.zeros(NUM_ISLANDS)
    while beta < 1:
        log_ratio = np.where(np.isfinite(particles.log_p), particles.log_p - begin.log_prob(particles.x), -np.inf)
        islands = log_ratio.reshape(NUM_ISLANDS, ISLAND_SIZE)
        part = min(stride((1 - beta) * island) for island in islands)
        following = 1.0 if part == 1 else beta + part * (1 - beta)
        change = (following - beta) * islands
        log_evidence += logsumexp(change, axis=1) - np.log(ISLAND_SIZE)
        weights = np.exp(change - change.max(1, keepdims=True))
        chosen = [
            ISLAND_SIZE * which + systematic(context.generator, weight, ISLAND_SIZE)
            for which, weight in enumerate(weights)
        ]
        beta = following
        particles = _sweep(context, kernel, particles.take(np.concatenate(chosen)), Bridge(beta, begin))
        kernel = fit(kernel, equal(particles.x, particles.log_p), num_steps=1)
        tell(beta)
    return particles, kernel, log_evidence


def _sweep(context: Context, kernel: Mixture, particles: Particles, bridge: Bridge) -> Particles:
    """Move each particle once, along a trajectory of the same length in the kernel's metric whatever the step."""
    num_leapfrogs = int(np.clip(TRAJECTORY / particles.step, FEWEST_LEAPFROGS, MOST_LEAPFROGS))
    return journeys.move(
        context.generator, context.evaluator, kernel, particles, bridge, 1, num_leapfrogs, are_some_small=False
    )


def escalate(
    context: Context, state: State, pareto_k: Float[AnyArray, ""], tell: Callable[[float], None]
) -> ParticleDraws:
    """Carry particles from the best beginning to the target, and keep the last sweeps there.

    Parameters
    ----------
    context, state
        Of the refinement whose importance draws were refused.
    pareto_k
        Tail index of those draws.
    tell
        Called with every temperature.
    """
    evaluator, num = context.evaluator, NUM_ISLANDS * ISLAND_SIZE
    num_nan, num_infinite = evaluator.num_nan, evaluator.num_infinite
    begin = max(state.mixture, mean_field(context), key=lambda mixture: _lower_bound(context, mixture))
    particles = place(evaluator, begin.draw(context.generator, num))
    particles, kernel, log_evidence = _temper(context, begin, particles, tell)
    sweeps = []
    for _ in range(NUM_SWEEPS):
        particles = _sweep(context, kernel, particles, Bridge())
        sweeps.append(particles)
    before, after = sweeps[0].log_p, sweeps[-1].log_p
    drift = abs(after.mean() - before.mean()) / np.sqrt((after.var() + before.var()) / num)
    kept = sweeps[-KEPT_SWEEPS:]
    # Ordered by island, so that the scatter of islands can be read off.
    x = np.stack([sweep.x.reshape(NUM_ISLANDS, ISLAND_SIZE, -1) for sweep in kept], 1).reshape(-1, context.dim)
    log_p = np.stack([sweep.log_p.reshape(NUM_ISLANDS, ISLAND_SIZE) for sweep in kept], 1).ravel()
    return ParticleDraws(
        x,
        log_p,
        log_p - (logsumexp(log_evidence) - np.log(NUM_ISLANDS)),
        np.full(len(log_p), -np.log(len(log_p))),
        pareto_k,
        np.asarray(evaluator.num_nan - num_nan),
        np.asarray(evaluator.num_infinite - num_infinite),
        evaluator.target,
        log_evidence,
        np.asarray(drift),
    )
