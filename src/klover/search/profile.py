r"""Draws along a coordinate, by Laplace's approximation over all others: into a neck, further than chains go.

At c, a scale parameter of a hierarchy, the others are about :math:`\mathrm N(\theta^*(c),H(c)^{-1})`, and c itself has
the density :math:`m(c)` of :mod:`klover.search.necks` (Tierney & Kadane 1986). Newton's method follows the tops from
one c to the next, as far as there is mass. Draws of c, with the others' tops and roots between two of them, are weighed
by the target: where the approximation is bad few are effective, and none are returned.
"""

import numpy as np

from klover.fitting.sample import Sample
from klover.importance.ratios import effective_sample_size, truncate
from klover.search.necks import laplace, restricted
from klover.targets.evaluator import Evaluator

STEP = 0.4
"""Standard deviations of the coordinate between two tops."""
MOST_STEPS = 40
"""To either side."""
NEGLIGIBLE = 8.0
"""Nats below the highest log m at which the way ends."""
LEAST_SHARE = 0.05
"""Of draws that must be effective."""


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def draw_along(generator: np.random.Generator, evaluator: Evaluator, seen: Sample, lead: int) -> Sample | None:
    """Return weighted draws, as many as there are seen ones; None where Laplace's approximation does not help."""
    x, dim = np.asarray(seen.x), seen.x.shape[1]
    centre = seen.weight @ x
    scale = np.sqrt(seen.weight @ (x - centre) ** 2)
    others = np.delete(np.arange(dim), lead)
    nodes = _follow(evaluator, centre, scale, lead, others)
    if len(nodes) < 2:
        return None
    place, tops, log_mass, roots = (np.array(each) for each in zip(*nodes, strict=True))
    # Between two nodes log m is a line, and a draw of it is by inversion on a fine comb.
    fine = np.linspace(place[0], place[-1], 64 * len(place))
    log_density = np.interp(fine, place, log_mass)
    share = np.exp(log_density - log_density.max())
    width = fine[1] - fine[0]
    share /= share.sum()
    c = fine[generator.choice(len(fine), len(x), p=share)] + width * generator.uniform(-0.5, 0.5, len(x))
    c = np.clip(c, place[0], place[-1])
    left = np.clip(np.searchsorted(place, c) - 1, 0, len(place) - 2)
    part = ((c - place[left]) / (place[left + 1] - place[left]))[:, None]
    # The inverse of a root is what noise is multiplied by.
    inverses = np.linalg.inv(roots).transpose(0, 2, 1)
    noise = generator.standard_normal((len(x), len(others)))
    z = np.empty_like(noise)
    log_q = np.interp(c, fine, np.log(np.maximum(share, 1e-300))) - np.log(width)
    log_q -= 0.5 * (noise**2).sum(1) + np.log(np.diagonal(inverses, axis1=1, axis2=2)).sum(1)[left] * (1 - part[:, 0])
    log_q -= np.log(np.diagonal(inverses, axis1=1, axis2=2)).sum(1)[left + 1] * part[:, 0]
    for node in np.unique(left):
        rows = left == node
        upper = part[rows]
        z[rows] = (1 - upper) * (tops[node] + noise[rows] @ inverses[node].T)
        z[rows] += upper * (tops[node + 1] + noise[rows] @ inverses[node + 1].T)
    points = np.empty((len(x), dim))
    points[:, lead] = centre[lead] + c * scale[lead]
    points[:, others] = centre[others] + z * scale[others]
    log_p = evaluator.values(points)
    log_ratio = np.where(np.isfinite(log_p), log_p - log_q, -np.inf)
    if not effective_sample_size(log_ratio) > LEAST_SHARE * len(x):
        return None
    inside = np.isfinite(log_p)
    weight = np.exp(truncate(log_ratio))
    return Sample(points, weight / weight.sum(), log_p=log_p).where(inside)


def _follow(evaluator, centre, scale, lead, others) -> list[tuple[float, np.ndarray, float, np.ndarray]]:
    """Return places, tops, log masses and roots of the precision, in standard deviations from the centre."""
    found = []
    for side in (-1.0, 1.0):
        z = np.zeros(len(others))
        for number in range(side > 0, MOST_STEPS):
            origin = centre.copy()
            origin[lead] += side * number * STEP * scale[lead]
            z, log_mass, root = laplace(restricted(evaluator, origin, scale, others), z)
            if log_mass is None or (found and log_mass < max(node[2] for node in found) - NEGLIGIBLE):
                break
            found.append((side * number * STEP, z, log_mass, root))
    return sorted(found, key=lambda node: node[0])
