r"""Whether the target falls off far out: probes along every axis.

A density is proper only if it can be integrated along (almost) every line. At distance r the mass on a logarithmic
scale, :math:`r\,p(c+r\,e_i)`, must fall; where it does not over the last decades, and p is not negligible there, the
posterior has no end in that coordinate: a flat prior on the logarithm of a scale, a group without data.
"""

import numpy as np

from klover.base.shapes import Float
from klover.targets.evaluator import Evaluator

RADII = 10.0 ** np.arange(3, 10, 2)
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
    points = centre + RADII[:, None, None] * steps
    with evaluator.probing():
        log_p = evaluator.values(np.concatenate([centre[None], points.reshape(-1, dim)]))
    log_mass = log_p[1:].reshape(len(RADII), 2 * dim) + np.log(RADII)[:, None]
    last = log_mass[-3:]
    with np.errstate(invalid="ignore"):
        is_flat = np.all(np.diff(last, axis=0) >= FLATTEST * np.diff(np.log(RADII[-3:]))[:, None], axis=0)
    found = np.flatnonzero(np.isfinite(last).all(0) & is_flat & (last[-1] > log_p[0] - NEGLIGIBLE))
    return int(found[0] % dim) if len(found) else None
