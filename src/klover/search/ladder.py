r"""The radial test: how much mass there is around the known centres, on another scale.

A core or a halo shares its centre with a component that is known, so no climb finds it, and draws of that component
nearly never fall into it. The ladder is a mixture of copies of all components, :math:`4^{-3}` to :math:`4^5` times as
wide, with the tails of a Cauchy distribution: draws of it have radii on all of these scales. Weighted by p over the
ladder they say how much mass lies where the proposal is too low by a factor of ten.
"""

import numpy as np

from klover.base.arrays import logsumexp
from klover.base.shapes import Float
from klover.importance.ratios import effective_sample_size
from klover.mixtures.algebra import mixture_of
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.mixtures.scale import Diagonal
from klover.targets.evaluator import Evaluator

FACTORS = 4.0 ** np.arange(-3, 6)
TOO_LOW = 10.0
"""Ratio of the target to the proposal."""
FEWEST_EFFECTIVE = 4.0
"""Draws on which an alarm must rest."""


def ladder(mixture: Mixture) -> Mixture:
    """Return copies of all components on all scales."""
    components = mixture.components
    is_diagonal = isinstance(components.spread, Diagonal)
    shape = np.asarray(components.spread.variance() if is_diagonal else components.spread.covariance())
    return mixture_of(
        Family("student"),
        np.tile(components.location, (len(FACTORS), 1)),
        np.concatenate([factor**2 * shape for factor in FACTORS]),
        1.0,
        np.tile(mixture.weights, len(FACTORS)),
    )


def find_scale(
    generator: np.random.Generator,
    evaluator: Evaluator,
    proposal: Mixture,
    mixture: Mixture,
    log_evidence: float,
    num: int,
    smallest: float,
    most: int | None = None,
) -> tuple[Float[np.ndarray, " dim"], Float[np.ndarray, "dim *dim"], float] | None:
    """Return centre, covariance and log mass of what the proposal lacks on another scale; None if that is little.

    Parameters
    ----------
    proposal, mixture
        What draws come from, and the same without what was added in defence.
    log_evidence
        Of the draws of the proposal.
    num
        Draws of the ladder.
    smallest
        Mass, relative to the evidence, that is worth an alarm.
    most
        Draws in all where one of the first is in a place that the proposal lacks: few say that, not how much it is.
    """
    rungs = ladder(mixture)

    def lacks(x, log_p):
        return log_p - proposal.log_prob(x) > log_evidence + np.log(TOO_LOW)

    x = rungs.draw(generator, num)
    log_p = evaluator.values(x)
    if most is not None and most > num and lacks(x, log_p).any():
        more = rungs.draw(generator, most - num)
        x, log_p = np.concatenate([x, more]), np.concatenate([log_p, evaluator.values(more)])
    log_ratio = np.where(lacks(x, log_p), log_p - rungs.log_prob(x), -np.inf)
    log_mass = float(logsumexp(log_ratio)) - np.log(len(x))
    if log_mass < log_evidence + np.log(smallest) or effective_sample_size(log_ratio) < FEWEST_EFFECTIVE:
        return None
    # The component around which most of it lies gets a copy of the size at which it lies.
    weight = np.exp(log_ratio - log_ratio.max())
    distance = mixture.components.squared_distance(x)
    share = np.exp(mixture.components.log_radial(distance)) + np.finfo(float).tiny
    slot = int(np.argmax((share / share.sum(0)) @ weight))
    factor = (weight @ distance[slot]) / (weight.sum() * mixture.dim)
    spread = mixture.components.spread
    shape = spread.variance() if isinstance(spread, Diagonal) else spread.covariance()
    return np.asarray(mixture.components.location[slot]), np.asarray(factor * shape[slot]), log_mass
