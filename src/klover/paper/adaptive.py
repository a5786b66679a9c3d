r"""Adaptive importance sampling, the paper's "AIS": a population of Student-t components moved towards the target.

Round t draws from the mixture :math:`q_t`; every draw of every round so far is weighted by the deterministic mixture,

.. math:: r_s = \frac{\hat p(\theta_s)}{\frac1t\sum_{j\le t} q_j(\theta_s)},

as in adaptive multiple importance sampling (Cornuet et al. 2012). The next mixture follows by weighted moments of all
draws: the EM update of mixture population Monte Carlo (Cappé et al. 2008), whose components are Student-t with three
degrees of freedom. Where the target is narrow, nearly all weight falls on one draw of the first rounds, and one draw
has no covariance: adaptation (never the answer) uses :math:`r_s^\beta` with the largest :math:`\beta\le1` that leaves
enough effective draws, in the manner of Koblents & Míguez (2015), and each covariance is pulled a little to the last.
"""

import numpy as np

from klover.base.shapes import PerDraw, Point, Points
from klover.fitting import em
from klover.fitting.sample import Sample
from klover.importance.ratios import temper
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.refinement.pool import Pool
from klover.targets.evaluator import Evaluator

FAMILY = Family("student", "full", df=3.0)
DRAWS_PER_PARAMETER = 5
"""Effective draws that an update asks for, for each component and coordinate."""
NUM_STEPS = 3
LOG_NEGLIGIBLE = np.log(1e-10)


def begin(generator: np.random.Generator, centre: Point, scale: Point, num_components: int) -> Mixture:
    r"""Spread components over a reference Gaussian, each with its share :math:`1/K` of the volume."""
    dim = len(centre)
    location = centre + scale * generator.standard_normal((num_components, dim))
    variance = np.broadcast_to(scale**2 * num_components ** (-2 / dim), location.shape)
    return Mixture.of(FAMILY.components(location, variance))


def adaptive_importance(
    generator: np.random.Generator, evaluator: Evaluator, mixture: Mixture, num_rounds: int, num_draws: int
) -> tuple[Points, PerDraw]:
    """Return the draws of all rounds, beginning with a mixture, and their log-ratios to the deterministic mixture."""
    pool = Pool.empty(mixture.dim)
    for _ in range(num_rounds):
        if pool.proposals:
            mixture = update(mixture, pool.x, pool.log_ratio)
        x = mixture.draw(generator, num_draws)
        pool = pool.add(mixture, x, evaluator.values(x))
    return pool.x, pool.log_ratio


def update(mixture: Mixture, x: Points, log_ratio: PerDraw) -> Mixture:
    """Move the components by a few EM steps on tempered weights; the mixture stays where no draw has any weight."""
    if not np.isfinite(log_ratio).any():
        return mixture
    log_weight = temper(log_ratio, DRAWS_PER_PARAMETER * mixture.capacity * (mixture.dim + 1))
    seen = log_weight > LOG_NEGLIGIBLE + log_weight.max()
    sample = Sample(x[seen], np.exp(log_weight[seen]))
    strength = em.prior_strength(log_weight, mixture.dim)
    return em.fit(mixture, sample, NUM_STEPS, strength, is_df_fitted=FAMILY.is_df_fitted)
