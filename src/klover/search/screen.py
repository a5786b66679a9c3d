r"""Which starts are worth a climb.

A climb takes ten to thirty gradients, a look takes one. In the basin of a component with location :math:`\mu_k` and
covariance :math:`\Sigma_k=L_kL_k^\top` the target climbs to :math:`\mu_k`: whitened by that component, the gradient g
of log p has the direction of the component's own. So the score

.. math:: \max_k\cos\big(L_k^\top g,\,L_k^{-1}(\mu_k-\theta)\big)
          =\max_k\frac{g^\top(\mu_k-\theta)}{\sqrt{g^\top\Sigma_kg}\,\lVert L_k^{-1}(\theta-\mu_k)\rVert}

is near one there, and the lowest scores are climbed from. In few dimensions some component lies in nearly every
direction: with dozens of them in the plane a start in an unknown basin would have a score near one, too. So only the
nearest components are asked, as many as a slope of random direction would hardly ever point to: a cosine above c has a
probability below :math:`(1-c^2)^{(d-1)/2}/2`. Where one mode had been fitted and another missed, the lowest
16 of 2048 starts held nearly all that would have found it; by the ratio p/q they were hundreds down.
"""

import numpy as np

from klover.base.shapes import AnyArray, Float
from klover.mixtures.mixture import Mixture
from klover.mixtures.scale import Diagonal

KNOWN = 0.97
"""A score above which a start lies in a basin that is known, and is not climbed from."""
CHANCE = 0.5
"""Probability with which that may happen to a slope of random direction."""


@np.errstate(invalid="ignore", divide="ignore", over="ignore")
def score(
    mixture: Mixture, x: Float[AnyArray, "start dim"], gradient: Float[AnyArray, "start dim"]
) -> Float[AnyArray, " start"]:
    """Return the largest cosine over the nearest components; 1 where there is no slope to go by."""
    components = mixture.components
    distance = np.sqrt(components.squared_distance(x))
    log_asked = np.log(2 * CHANCE) + 0.5 * (1 - mixture.dim) * np.log1p(-(KNOWN**2))
    num_asked = int(np.clip(np.exp(min(log_asked, 100.0)), 1, len(distance)))
    farthest = np.partition(distance, num_asked - 1, axis=0)[num_asked - 1]
    best = np.full(len(x), -1.0)
    for slot, location in enumerate(components.location):
        along = np.sum(gradient * (location - x), axis=1)
        if isinstance(components.spread, Diagonal):
            square = gradient**2 @ components.spread.scale[slot] ** 2
        else:
            square = np.sum(gradient * (gradient @ components.spread.covariance()[slot]), axis=1)
        cosine = along / (np.sqrt(square) * distance[slot])
        cosine = np.where(np.isfinite(cosine), cosine, 1.0)
        best = np.where(distance[slot] <= farthest, np.fmax(best, cosine), best)
    return best


def lowest(
    score: Float[AnyArray, "rung start"], value: Float[AnyArray, "rung start"], num: int
) -> list[tuple[int, int]]:
    """Return the rung and the number of the starts with the lowest scores, some of each rung, in the support."""
    order = np.argsort(np.where(np.isfinite(value), score, np.inf), axis=1)[:, :num]
    return [
        (rung, start)
        for rung, starts in enumerate(order.tolist())
        for start in starts
        if np.isfinite(value[rung, start]) and score[rung, start] < KNOWN
    ]
