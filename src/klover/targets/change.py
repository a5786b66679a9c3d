"""Whether a log density is the one that values were stored of, or another: other data, another model."""

from collections.abc import Callable

import numpy as np

from klover.base.shapes import Float

NUM_COMPARED = 16
TOLERANCE, SINGLE_ROUNDINGS = 1e-8, 16
"""Difference of log densities that two machines may have, relative to their size: in double precision, and in single
precision in units of its resolution, 1.2e-7."""


def find_change(
    log_density: Callable[[np.ndarray], np.ndarray],
    x: Float[np.ndarray, "draw dim"],
    log_p: Float[np.ndarray, " draw"],
) -> float:
    """Compare a log density with stored values, at draws from all over; return how far it is off, 0 within rounding.

    The log density may stop early, and return values of the first points alone.
    """
    inside = np.flatnonzero(np.isfinite(log_p))
    if not len(inside):
        return 0.0
    chosen = inside[np.linspace(0, len(inside) - 1, min(NUM_COMPARED, len(inside))).astype(int)]
    now = np.asarray(log_density(x[chosen]))
    before = log_p[chosen[: len(now)]]
    with np.errstate(over="ignore"):  # what single precision cannot hold was not made in it
        is_single = any(np.array_equal(values, np.float32(values)) for values in (now, before))
    tolerance = SINGLE_ROUNDINGS * float(np.finfo(np.float32).eps) if is_single else TOLERANCE
    difference = np.abs(now - before)
    is_same = np.all(difference <= tolerance * (1 + np.abs(before)))
    return 0.0 if is_same else float(difference.max())
