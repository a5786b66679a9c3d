r"""Where a bounded parameter can no longer be told from its bound.

A parameter between bounds is :math:`x=a+(b-a)/(1+e^{-u})`, above a bound :math:`x=a+e^u`, below one
:math:`x=b-e^u`, with an unconstrained u. Near a bound of 0 numbers are dense, elsewhere they are not: 1 - x has no
digits left beyond u = 36 in double precision, and 16 in single. There the log density is that of the last number before
the bound, whatever it should be. If it is finite at the bound, the error is as small as the distance; if it grows
without end (a Beta with a parameter near 0), a part of the posterior is missing.
"""

from typing import Any

import numpy as np

from klover.base.shapes import AnyArray, Float

Corners = tuple[Float[np.ndarray, " dim"], Float[np.ndarray, " dim"]]


def reach(lower: Float[AnyArray, " dim"], upper: Float[AnyArray, " dim"], dtype: Any) -> Corners:
    """Return the unconstrained values at and beyond which a parameter is at a bound, but for its last digit.

    Parameters
    ----------
    lower, upper
        The bounds, infinite where there is none.
    dtype
        Of the numbers that the log density is computed with.

    Returns
    -------
    The ends to the left and to the right, infinite where there is no bound.
    """
    lower, upper = np.asarray(lower, float), np.asarray(upper, float)
    has_lower, has_upper = np.isfinite(lower), np.isfinite(upper)
    has_both = has_lower & has_upper
    log_width = np.log(np.where(has_both, upper - lower, 1.0))
    above, below = _log_gap(lower, dtype), _log_gap(upper, dtype)
    left = np.where(has_both, above - log_width, np.where(has_lower, above, np.where(has_upper, below, -np.inf)))
    return left, np.where(has_both, log_width - below, np.inf)


def _log_gap(bound: Float[np.ndarray, " dim"], dtype: Any) -> Float[np.ndarray, " dim"]:
    """Return the log of the distance between a bound and its neighbours; XLA flushes smaller ones than tiny to zero."""
    spacing = np.spacing(np.where(np.isfinite(bound), np.abs(bound), 0.0).astype(dtype))
    return np.log(np.maximum(spacing, np.finfo(dtype).tiny).astype(float))
