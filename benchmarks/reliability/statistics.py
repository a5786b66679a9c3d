"""Exact bounds of shares, and laws that calibrated numbers obey."""

import numpy as np
from scipy import stats

NUM_RANKED = 99
"""Posterior draws that a drawn parameter is ranked among: ranks are 0 to 99."""


def clopper_pearson(count: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Return exact bounds of a share, from ``count`` of ``total``."""
    if total == 0:
        return 0.0, 1.0
    rest = (1 - level) / 2
    lower = stats.beta.ppf(rest, count, total - count + 1) if count > 0 else 0.0
    upper = stats.beta.ppf(1 - rest, count + 1, total - count) if count < total else 1.0
    return float(lower), float(upper)


def share(count: int, total: int) -> str:
    """Write a count with its share and the exact bounds of 95 %."""
    if total == 0:
        return "0 of 0"
    lower, upper = clopper_pearson(count, total)
    return f"{count} of {total} ({count / total:.2%}; {lower:.2%} to {upper:.2%})"


def scores(values: list[float]) -> str:
    """Say how z-scores are spread: standard deviation, and shares beyond 2 and 3 (4.6 % and 0.27 % by the law)."""
    z = np.asarray(values, float)
    if len(z) == 0:
        return "none"
    beyond = [np.mean(np.abs(z) > limit) for limit in (2, 3)]
    robust = stats.iqr(z) / (2 * stats.norm.ppf(0.75))
    return f"{len(z)}: sd {z.std():.2f} (by quartiles {robust:.2f}), beyond 2 {beyond[0]:.1%}, beyond 3 {beyond[1]:.2%}"


def spread(values: list[float]) -> str:
    """Give the standard deviation of z-scores and the share beyond 3, with its exact bounds."""
    if not values:
        return "none"
    return f"sd {np.std(values):.2f}, beyond 3 {share(int(np.sum(np.abs(values) > 3)), len(values))}"
