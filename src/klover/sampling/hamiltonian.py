r"""Particles: points that a Markov kernel carries from a mixture to the target, and a little beyond it.

The kernel is Hamiltonian Monte Carlo with a *component-local* metric. With the mixture :math:`q=\sum_k\lambda_kf_k` a
number k is drawn with probability :math:`s_k(\theta)\propto(\lambda_kf_k(\theta))^{0.1}`, the trajectory uses the
covariance of component k, and the move is accepted with probability

.. math:: \min\Big(1,\frac{\pi(\theta')\,s_k(\theta')}{\pi(\theta)\,s_k(\theta)}e^{-\Delta K}\Big).

The number k is an auxiliary variable that is held during the move, so the kernel is exact. The power 0.1 matters: with
the plain responsibilities (power 1) a move that leaves its component is rejected, and particles never travel along a
curved ridge. Half of the moves have steps shrunk at random, down to 1/30, which enter narrow necks. Without gradients
the trajectory is one random-walk step.

Three journeys use it. :func:`carry` is adaptive sequential Monte Carlo along :math:`p^\beta q^{1-\beta}` (Del Moral,
Doucet & Jasra 2006): begun from an *inflated* mixture it closes in on a ridge from outside, where a walk along the
ridge takes far too long. :func:`excursion` heats particles to :math:`p^\beta` and cools them again; it overshoots into
necks (hierarchical models, funnels), which is what is wanted there. :func:`move` at :math:`p^{1+1/d}` looks into necks
too.
"""

import dataclasses

import numpy as np

from klover.base.arrays import logsumexp
from klover.base.shapes import AnyArray, Float
from klover.mixtures.mixture import Mixture
from klover.targets.evaluator import Evaluator

ACCEPTANCE = 0.7
NUM_LEAPFROGS = 5
NUM_MOVES = 4
SELECTION_POWER = 0.1
STEP_JITTER = 0.5
LARGEST_SHRINKAGE = 1.5
STEP_RANGE = (1e-4, 2.0)


@dataclasses.dataclass(frozen=True)
class Particles:
    """Equally weighted points with the log density of the target and its gradient there."""

    x: Float[np.ndarray, "particle dim"]
    log_p: Float[np.ndarray, " particle"]
    gradient: Float[np.ndarray, "particle dim"]
    step: float = 0.5

    def take(self, index: np.ndarray) -> "Particles":
        """Return some particles, or copies."""
        return Particles(self.x[index], self.log_p[index], self.gradient[index], self.step)

    def where(self, condition: np.ndarray, other: "Particles") -> "Particles":
        """Return these particles where the condition holds, and the others elsewhere."""
        column = condition[:, None]
        return Particles(
            np.where(column, self.x, other.x),
            np.where(condition, self.log_p, other.log_p),
            np.where(column, self.gradient, other.gradient),
            self.step,
        )


def place(evaluator: Evaluator, x: Float[np.ndarray, "particle dim"]) -> Particles:
    """Evaluate the target at points."""
    if evaluator.has_gradient:
        return Particles(x, *evaluator.values_and_gradients(x))
    return Particles(x, evaluator.values(x), np.zeros_like(x))


def systematic(generator: np.random.Generator, weight: Float[np.ndarray, " draw"], num: int) -> np.ndarray:
    """Resample by a comb with one random offset."""
    ends = np.cumsum(weight)
    return np.searchsorted(ends, (np.arange(num) + generator.uniform()) / num * ends[-1]).clip(0, len(weight) - 1)


def log_prob_and_gradient(
    mixture: Mixture, x: Float[np.ndarray, "particle dim"]
) -> tuple[Float[AnyArray, " particle"], Float[AnyArray, "particle dim"]]:
    r"""Log density of a mixture and its gradient :math:`-\sum_kr_ku_k\Sigma_k^{-1}(\theta-\mu_k)`."""
    components = mixture.components
    distance = components.squared_distance(x)
    log_joint = mixture.log_weights[:, None] + components.log_radial(distance) - components.spread.log_scale()[:, None]
    log_q = logsumexp(log_joint, axis=0)
    share = np.exp(log_joint - np.where(np.isfinite(log_q), log_q, 0.0))
    if components.tail == "student":
        share = share * (components.df[:, None] + mixture.dim) / (components.df[:, None] + distance)
    gradient = np.zeros_like(x)
    for slot in range(len(share)):
        gradient -= share[slot][:, None] * components.spread.solve(slot, x - components.location[slot])
    return log_q, gradient


@dataclasses.dataclass(frozen=True)
class Bridge:
    r"""The tempered target :math:`p^\beta q^{1-\beta}`; without a mixture :math:`p^\beta`."""

    beta: float = 1.0
    mixture: Mixture | None = None

    def __call__(self, particles: Particles) -> tuple[np.ndarray, np.ndarray]:
        """Log density and gradient at particles."""
        log_density, gradient = self.beta * particles.log_p, self.beta * particles.gradient
        if self.mixture is None or self.beta == 1:
            return log_density, gradient
        log_q, slope = log_prob_and_gradient(self.mixture, particles.x)
        return log_density + (1 - self.beta) * log_q, gradient + (1 - self.beta) * slope


TARGET = Bridge()


def _trajectory(
    evaluator: Evaluator,
    bridge: Bridge,
    start: Particles,
    slope: np.ndarray,
    momentum: np.ndarray,
    spread,
    size: np.ndarray,
    num_leapfrogs: int = NUM_LEAPFROGS,
) -> tuple[Particles, np.ndarray, np.ndarray, np.ndarray]:
    """Follow Hamilton's equations in the metric of each particle's own component."""
    now, log_density = start, np.zeros(len(slope))
    for _ in range(num_leapfrogs):
        momentum = momentum + 0.5 * size * spread.times_transposed(slope)
        now = dataclasses.replace(place(evaluator, now.x + size * spread.times(momentum)), step=start.step)
        log_density, slope = bridge(now)
        momentum = momentum + 0.5 * size * spread.times_transposed(slope)
    return now, log_density, slope, momentum


def _selection(kernel: Mixture, x: np.ndarray) -> AnyArray:
    log_joint = SELECTION_POWER * (kernel.log_weights[:, None] + kernel.component_log_prob(x))
    return log_joint - logsumexp(log_joint, axis=0)


@np.errstate(invalid="ignore", over="ignore")
def move(
    generator: np.random.Generator,
    evaluator: Evaluator,
    kernel: Mixture,
    particles: Particles,
    bridge: Bridge = TARGET,
    num_moves: int = NUM_MOVES,
    num_leapfrogs: int = NUM_LEAPFROGS,
    are_some_small: bool = True,
) -> Particles:
    """Move every particle; the kernel leaves the bridge's density as it is.

    ``are_some_small`` shrinks the steps of every second move at random, to enter narrow necks.
    """
    num = len(particles.x)
    rows = np.arange(num)
    log_density, slope = bridge(particles)
    for turn in range(num_moves):
        log_selection = _selection(kernel, particles.x)
        slot = np.argmax(log_selection + generator.gumbel(size=log_selection.shape), axis=0)
        spread = kernel.components.spread.gather(slot)
        noise = generator.standard_normal(particles.x.shape)
        size = particles.step * np.exp(STEP_JITTER * generator.standard_normal((num, 1)))
        is_small = are_some_small and turn % 2 == 1
        if is_small:
            size = size * 10 ** -generator.uniform(0, LARGEST_SHRINKAGE, (num, 1))
        if evaluator.has_gradient:
            moved, log_moved, slope_moved, momentum = _trajectory(
                evaluator, bridge, particles, slope, noise, spread, size, num_leapfrogs
            )
            log_accept = 0.5 * (noise**2).sum(1) - 0.5 * (momentum**2).sum(1)
        else:
            moved = dataclasses.replace(place(evaluator, particles.x + size * spread.times(noise)), step=particles.step)
            log_moved, slope_moved = bridge(moved)
            log_accept = np.zeros(num)
        log_accept += log_moved - log_density + _selection(kernel, moved.x)[slot, rows] - log_selection[slot, rows]
        log_accept = np.where(np.isfinite(log_accept) & np.isfinite(moved.x).all(1), log_accept, -np.inf)
        taken = np.log(generator.uniform(size=num)) < log_accept
        log_density = np.where(taken, log_moved, log_density)
        slope = np.where(taken[:, None], slope_moved, slope)
        rate = float(np.exp(np.minimum(log_accept, 0.0)).mean())
        goal = ACCEPTANCE if evaluator.has_gradient else 0.3
        step = particles.step if is_small else float(np.clip(particles.step * np.exp(rate - goal), *STEP_RANGE))
        particles = dataclasses.replace(moved.where(taken, particles), step=step)
    return particles
