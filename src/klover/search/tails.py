r"""Whether the target falls off far out: probes along every axis.

A density is proper only if it can be integrated along (almost) every line. At distance r the mass on a logarithmic
scale, :math:`r\,p(c+r\,e_i)`, must fall; where it does not over the last decades, and p is not negligible there, the
posterior has no end in that coordinate: a flat prior on the logarithm of a scale, a group without data.
"""

import numpy as np

from klover.base.shapes import Float
from klover.targets.evaluator import Evaluator

RADII = 10.0 ** np.arange(5, 10, 2)
"""Standard deviations from the centre."""
FLATTEST = -0.01
"""Slope of log(r p) against log r that still is a fall: a density like 1 / (r log² r) falls more steeply."""
NEGLIGIBLE = 40.0
"""Nats below the centre at which r p does not matter."""


def endless_coordinate(
    evaluator: Evaluator, centre: Float[np.ndarray, " dim"], scale: Float[np.ndarray, " dim"]
) -> int | None:
    """Return a coordinate along which the target does not fall off, if there is one."""
    dim = len(centre)
    steps = np.concatenate([np.diag(scale), -np.diag(scale)])
    with evaluator.probing():
        top, *far = evaluator.values(np.concatenate([centre[None], centre + RADII[-1] * steps]))
        far = np.array(far) + np.log(RADII[-1])
        # Nearly every target is negligible at the last radius: the others are looked at where it is not.
        ends = np.flatnonzero(np.isfinite(far) & (far > top - NEGLIGIBLE))
        if len(ends) == 0:
            return None
        near = evaluator.values((centre + RADII[:-1, None, None] * steps[ends]).reshape(-1, dim))
    log_mass = np.concatenate([near.reshape(len(RADII) - 1, len(ends)) + np.log(RADII[:-1, None]), far[None, ends]])
    with np.errstate(invalid="ignore"):
        is_flat = np.all(np.diff(log_mass, axis=0) >= FLATTEST * np.diff(np.log(RADII))[:, None], axis=0)
    found = ends[np.isfinite(log_mass).all(0) & is_flat]
    return int(found[0] % dim) if len(found) else None
