r"""Adaptive importance sampling, the paper's "AIS": a population of Student-t components moved towards the target.

Round t draws from the mixture :math:`q_t`; every draw of every round so far is weighted by the deterministic mixture,

.. math:: r_s = \frac{\hat p(\theta_s)}{\frac1t\sum_{j\le t} q_j(\theta_s)},

as in adaptive multiple importance sampling (Cornuet et al. 2012). The next mixture follows by weighted moments of all
draws: the EM update of mixture population Monte Carlo (Cappé et al. 2008), whose components are Student-t with three
degrees of freedom. Where the target is narrow, nearly all weight falls on one draw of the first rounds, and moments of
one draw are no population: adaptation (never the answer) uses :math:`r_s^\beta` with the largest :math:`\beta\le1` that
leaves enough effective draws, in the manner of Koblents & Míguez (2015).
"""

import numpy as np

from klover.base.arrays import logsumexp
from klover.base.shapes import Float
from klover.importance.ratios import effective_sample_size, normalise
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.targets.evaluator import Evaluator

FAMILY = Family("student", "full", df=3.0)
DRAWS_PER_PARAMETER = 5
"""Effective draws that an update asks for, for each component and coordinate."""
NUM_STEPS = 3
NUM_BISECTIONS = 30
NEGLIGIBLE = 1e-10


def begin(
    generator: np.random.Generator,
    centre: Float[np.ndarray, " dim"],
    scale: Float[np.ndarray, " dim"],
    num_components: int,
) -> Mixture:
    r"""Spread components over a reference Gaussian, each with its share :math:`1/K` of the volume."""
    dim = len(centre)
    location = centre + scale * generator.standard_normal((num_components, dim))
    variance = np.broadcast_to(scale**2 * num_components ** (-2 / dim), location.shape)
    return Mixture.of(FAMILY.components(location, variance))


def adaptive_importance(
    generator: np.random.Generator, evaluator: Evaluator, mixture: Mixture, num_rounds: int, num_draws: int
) -> tuple[Float[np.ndarray, "draw dim"], Float[np.ndarray, " draw"]]:
    """Return the draws of all rounds and their log-ratios to the deterministic mixture.

    Parameters
    ----------
    generator
        Random numbers.
    evaluator
        The target.
    mixture
        The first proposal, from :func:`begin`.
    num_rounds, num_draws
        Number of rounds, and of new draws (one evaluation each) in a round.
    """
    proposals = [mixture]
    x = mixture.draw(generator, num_draws)
    log_p, log_total = evaluator.values(x), mixture.log_prob(x)
    for _ in range(1, num_rounds):
        mixture = update(mixture, x, log_p - log_total)
        fresh = mixture.draw(generator, num_draws)
        log_fresh = logsumexp(np.stack([proposal.log_prob(fresh) for proposal in (*proposals, mixture)]), axis=0)
        log_total = np.concatenate([np.logaddexp(log_total, mixture.log_prob(x)), log_fresh])
        log_p = np.concatenate([log_p, evaluator.values(fresh)])
        x = np.concatenate([x, fresh])
        proposals.append(mixture)
    return x, log_p - (log_total - np.log(num_rounds))


def update(mixture: Mixture, x: Float[np.ndarray, "draw dim"], log_ratio: Float[np.ndarray, " draw"]) -> Mixture:
    """Move the components by a few EM steps on tempered weights; the mixture stays where no draw has any weight."""
    if not np.isfinite(log_ratio).any():
        return mixture
    weight = np.exp(temper(log_ratio, DRAWS_PER_PARAMETER * mixture.capacity * (mixture.dim + 1)))
    seen = weight > NEGLIGIBLE * weight.max()
    x, weight = x[seen], weight[seen]
    for _ in range(NUM_STEPS):
        mixture = _step(mixture, x, weight)
    return mixture


def temper(log_ratio: Float[np.ndarray, " draw"], num_effective: int) -> Float[np.ndarray, " draw"]:
    r"""Return normalised :math:`\beta\log r` with the largest β ≤ 1 that leaves ``num_effective`` draws, or half."""
    wanted = min(num_effective, 0.5 * np.isfinite(log_ratio).sum())
    if effective_sample_size(log_ratio) >= wanted:
        return np.asarray(normalise(log_ratio))
    lower, upper = 0.0, 1.0
    for _ in range(NUM_BISECTIONS):
        middle = 0.5 * (lower + upper)
        is_enough = effective_sample_size(_power(log_ratio, middle)) >= wanted
        lower, upper = (middle, upper) if is_enough else (lower, middle)
    return np.asarray(normalise(_power(log_ratio, lower)))


def _power(log_ratio: Float[np.ndarray, " draw"], beta: float) -> Float[np.ndarray, " draw"]:
    # 0 · (-inf) is not a number: a draw outside the support stays outside.
    return np.where(np.isfinite(log_ratio), beta * np.where(np.isfinite(log_ratio), log_ratio, 0.0), -np.inf)


def _step(mixture: Mixture, x: Float[np.ndarray, "draw dim"], weight: Float[np.ndarray, " draw"]) -> Mixture:
    r"""Take one EM step.

    With responsibilities :math:`\rho_{ks}`, squared distances :math:`m_{ks}` and :math:`u_{ks}=(\nu+d)/(\nu+m_{ks})`,

    .. math:: \lambda_k=\sum_sw_s\rho_{ks},\quad \mu_k\propto\sum_sw_s\rho_{ks}u_{ks}\theta_s,\quad
        \Sigma_k=\frac1{\lambda_k}\sum_sw_s\rho_{ks}u_{ks}(\theta_s-\mu_k)(\theta_s-\mu_k)^\top.

    A component that is left with too few effective draws for a covariance dies.
    """
    components = mixture.components
    distance = np.asarray(components.squared_distance(x))
    log_component = components.log_radial(distance) - components.spread.log_scale()[:, None]
    log_joint = mixture.log_weights[:, None] + log_component
    share = np.exp(log_joint - logsumexp(log_joint, axis=0)) * weight
    total = share.sum(1)
    num_effective = total**2 / np.maximum((share**2).sum(1), np.finfo(float).tiny)
    alive = num_effective > 2 * (mixture.dim + 1)
    if not alive.any():
        return mixture
    share, total = share[alive], total[alive]
    factor = share * (components.df[alive, None] + mixture.dim) / (components.df[alive, None] + distance[alive])
    location = factor @ x / factor.sum(1, keepdims=True)
    covariance = np.stack(
        [
            (x - centre).T @ (own[:, None] * (x - centre)) / amount
            for centre, own, amount in zip(location, factor, total, strict=True)
        ]
    )
    return Mixture(FAMILY.components(location, covariance), np.log(total / total.sum()))
