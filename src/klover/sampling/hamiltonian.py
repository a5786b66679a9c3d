r"""Hamiltonian Monte Carlo: one trajectory and one acceptance for NumPy and JAX, and particles on the host.

On the host the metric is *component-local*. With the mixture :math:`q=\sum_k\lambda_kf_k` a number k is drawn with
probability :math:`s_k(\theta)\propto(\lambda_kf_k(\theta))^{0.1}`, the trajectory uses the covariance of component k,
and the move is accepted with probability

.. math:: \min\Big(1,\frac{\pi(\theta')\,s_k(\theta')}{\pi(\theta)\,s_k(\theta)}e^{-\Delta K}\Big).

The number k is an auxiliary variable that is held during the move, so the kernel is exact. The power 0.1 matters: with
the plain responsibilities (power 1) a move that leaves its component is rejected, and particles never travel along a
curved ridge. Without gradients the trajectory is one random-walk step.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from klover.base.arrays import iterate, logsumexp, namespace
from klover.base.shapes import AnyArray, Bool, Count, Float, Scalar
from klover.mixtures.mixture import Mixture
from klover.targets.evaluator import Evaluator
from klover.tuning import Moves

STEP_RANGE = (1e-4, 2.0)
"""Of step sizes, in units of the metric: the longest that can be stable, and one that goes nowhere."""
RANDOM_WALK_ACCEPTANCE = 0.3

Points = Float[AnyArray, "particle dim"]
PerParticle = Float[AnyArray, " particle"]
Found = tuple[PerParticle, Points, Any]
"""The log density at points, its gradient, and whatever else is to be kept of them."""
Evaluate = Callable[[Points], Found]


@runtime_checkable
class Metric(Protocol):
    """A square root of the inverse mass matrix of every particle."""

    def times(self, noise: Points) -> Points:
        """Multiply by the square root."""
        ...

    def times_transposed(self, slope: Points) -> Points:
        """Multiply by the transposed square root."""
        ...


def trajectory(
    evaluate: Evaluate,
    x: Points,
    momentum: Points,
    found: Found,
    metric: Metric,
    size: Float[AnyArray, "particle 1"],
    num_leapfrogs: Count,
) -> tuple[Points, Points, Found]:
    """Follow Hamilton's equations by leapfrog steps; ``found`` is what :class:`Evaluate` gives at the beginning."""

    def leapfrog(carry):
        x, momentum, (_, slope, _) = carry
        momentum = momentum + 0.5 * size * metric.times_transposed(slope)
        x = x + size * metric.times(momentum)
        found = evaluate(x)
        return x, momentum + 0.5 * size * metric.times_transposed(found[1]), found

    return iterate(leapfrog, (x, momentum, found), num_leapfrogs)


def accept(log_ratio: PerParticle, uniform: PerParticle) -> tuple[Bool[AnyArray, " particle"], Scalar]:
    """Metropolis' rule: which moves are taken, and the mean probability; a ratio that is no number is refused."""
    xp = namespace(log_ratio)
    log_ratio = xp.where(xp.isnan(log_ratio) | (log_ratio == xp.inf), -xp.inf, log_ratio)
    return xp.log(uniform) < log_ratio, xp.mean(xp.exp(xp.minimum(log_ratio, 0.0)))


def adapt(step: Scalar | float, rate: Scalar, goal: float) -> Scalar:
    """Lengthen the step where more moves are taken than the goal asks for, and shorten it where fewer are."""
    xp = namespace(rate)
    return xp.clip(step * xp.exp(rate - goal), *STEP_RANGE)


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


def place(evaluator: Evaluator, x: Float[np.ndarray, "particle dim"], step: float = 0.5) -> Particles:
    """Evaluate the target at points."""
    if evaluator.has_gradient:
        return Particles(x, *evaluator.values_and_gradients(x), step)
    return Particles(x, evaluator.values(x), np.zeros_like(x), step)


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


@np.errstate(invalid="ignore", over="ignore")
def move(
    generator: np.random.Generator,
    evaluator: Evaluator,
    kernel: Mixture,
    particles: Particles,
    tuning: Moves,
    bridge: Bridge | None = None,
    num_moves: int | None = None,
    num_leapfrogs: int | None = None,
) -> Particles:
    """Move every particle; the kernel leaves the bridge's density (the target's, without one) as it is."""
    bridge = bridge or Bridge()
    goal = tuning.acceptance if evaluator.has_gradient else RANDOM_WALK_ACCEPTANCE
    found = (*bridge(particles), particles)
    for _ in range(tuning.num_moves if num_moves is None else num_moves):
        step, num = found[2].step, num_leapfrogs or tuning.num_leapfrogs
        found, rate = _move_once(generator, evaluator, kernel, found, tuning, bridge, num)
        found = (*found[:2], dataclasses.replace(found[2], step=float(adapt(step, rate, goal))))
    return found[2]


def _move_once(
    generator: np.random.Generator,
    evaluator: Evaluator,
    kernel: Mixture,
    found: Found,
    tuning: Moves,
    bridge: Bridge,
    num_leapfrogs: int,
) -> tuple[Found, Scalar]:
    """Move every particle along one trajectory; return where they are, and the rate of acceptance."""
    log_density, slope, particles = found
    num, x = len(particles.x), particles.x
    log_selection = _log_selection(kernel, x, tuning.selection_power)
    slot = np.argmax(log_selection + generator.gumbel(size=log_selection.shape), axis=0)
    metric = kernel.components.spread.gather(slot)
    noise = generator.standard_normal(x.shape)
    size = particles.step * np.exp(tuning.step_jitter * generator.standard_normal((num, 1)))

    def evaluate(points):
        placed = place(evaluator, points, particles.step)
        return *bridge(placed), placed

    if evaluator.has_gradient:
        end, momentum, moved = trajectory(evaluate, x, noise, found, metric, size, num_leapfrogs)
        log_ratio = 0.5 * (noise**2).sum(1) - 0.5 * (momentum**2).sum(1)
    else:
        end = x + size * metric.times(noise)
        moved, log_ratio = evaluate(end), np.zeros(num)
    chosen = slot, np.arange(num)
    log_ratio += moved[0] - log_density
    log_ratio += _log_selection(kernel, end, tuning.selection_power)[chosen] - log_selection[chosen]
    taken, rate = accept(np.where(np.isfinite(end).all(1), log_ratio, -np.inf), generator.uniform(size=num))
    density, gradient = np.where(taken, moved[0], log_density), np.where(taken[:, None], moved[1], slope)
    return (density, gradient, moved[2].where(np.asarray(taken), particles)), rate


def _log_selection(kernel: Mixture, x: AnyArray, power: float) -> AnyArray:
    log_joint = power * (kernel.log_weights[:, None] + kernel.component_log_prob(x))
    return log_joint - logsumexp(log_joint, axis=0)
