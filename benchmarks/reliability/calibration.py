r"""Are stated uncertainties true? Ranks of drawn parameters, coverage of intervals, z-scores of answers.

Each fit gives one rank a kind of quantity, so that ranks of different fits are independent and the laws below hold. The
band of the empirical distribution function is simultaneous (Säilynoja, Bürkner & Vehtari 2022): with pointwise
binomial limits at a level that is so small that 95 % of uniform samples stay inside at all points.
"""

import functools
import hashlib
from collections.abc import Sequence

import numpy as np
from scipy import stats

from benchmarks.reliability import statistics
from benchmarks.reliability.statistics import NUM_RANKED

KINDS = ("parameter", "prediction", "log_likelihood", "log_joint")
"""A parameter chosen by chance, a quantity computed from the parameters, and two that depend on the data."""
NUM_BINS, NUM_SIMULATIONS, LEVEL = 20, 1000, 0.95
LEVELS = (0.5, 0.9)
SHARES = np.arange(1, NUM_RANKED + 1) / (NUM_RANKED + 1)
"""Of uniform ranks up to each value but the last."""

Lines = Sequence[dict]


def of_kind(values: dict, kind: str, name: str):
    """Return a line's rank or pit of a kind; which parameter stands for all of them, the case's name decides."""
    if kind != "parameter":
        return values.get(kind)
    parameters = sorted(set(values) - set(KINDS))
    chosen = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % max(len(parameters), 1)
    return values[parameters[chosen]] if parameters else None


def ranks_of(lines: Lines, kind: str) -> np.ndarray:
    """Collect one rank a fit."""
    ranks = [of_kind(line["ranks"], kind, line["id"]) for line in lines if line.get("ranks")]
    return np.array([rank for rank in ranks if rank is not None], int)


def uniformity(ranks: np.ndarray) -> tuple[float, float]:
    """Return the p-values of a χ² test, and of how far the distribution function goes from the uniform one."""
    counts = np.histogram(ranks, bins=np.linspace(0, NUM_RANKED + 1, NUM_BINS + 1))[0]
    found = _smallest(np.cumsum(np.bincount(ranks, minlength=NUM_RANKED + 1))[:-1], len(ranks))
    is_farther = _simulated(len(ranks)) <= found * (1 + 1e-9)
    return float(stats.chisquare(counts).pvalue), float((1 + is_farther.sum()) / (1 + NUM_SIMULATIONS))


@functools.lru_cache
def band(num: int) -> tuple[np.ndarray, np.ndarray]:
    """Return simultaneous limits of the number of ranks up to each value but the last, for ``num`` uniform ranks."""
    level = np.quantile(_simulated(num), 1 - LEVEL)
    return stats.binom.ppf(level / 2, num, SHARES), stats.binom.isf(level / 2, num, SHARES)


@functools.lru_cache
def _simulated(num: int) -> np.ndarray:
    """Return the smallest pointwise p-values of many samples of uniform ranks."""
    draws = np.random.default_rng(0).multinomial(num, np.full(NUM_RANKED + 1, 1 / (NUM_RANKED + 1)), NUM_SIMULATIONS)
    return _smallest(np.cumsum(draws, axis=1)[:, :-1], num)


def _smallest(cumulative: np.ndarray, num: int) -> np.ndarray:
    """Return the smallest of the two-sided binomial p-values of counts (..., value) of ranks up to each value."""
    below, above = stats.binom.cdf(cumulative, num, SHARES), stats.binom.sf(cumulative - 1, num, SHARES)
    return 2 * np.minimum(below, above).min(-1)


def rank_text(lines: Lines) -> str:
    """Say how uniform the ranks are, kind by kind and family by family."""
    lines = [line for line in lines if line.get("ranks")]
    if not lines:
        return ""
    rows = [f"ranks of {len(lines)} fits, one a fit and kind: p-values of χ² ({NUM_BINS} bins) and of the ECDF"]
    for kind in KINDS:
        ranks = ranks_of(lines, kind)
        by_bins, by_function = uniformity(ranks)
        rows.append(f"  {kind:<15} {len(ranks):5d} ranks, χ² p = {by_bins:.3f}, ECDF p = {by_function:.3f}")
    rows.append("  by family, ECDF p of a parameter and of the log joint density:")
    for family in sorted({line["family"] for line in lines}):
        own = [line for line in lines if line["family"] == family]
        by_function = [uniformity(ranks_of(own, kind))[1] for kind in ("parameter", "log_joint")]
        rows.append(f"    {family:<24} {len(own):5d} fits, {by_function[0]:.3f}, {by_function[1]:.3f}")
    return "\n".join([*rows, *coverage(lines)])


def coverage(lines: Lines) -> list[str]:
    """Say how often central intervals hold the drawn parameter."""
    rows = []
    for kind in ("parameter", "prediction"):
        values = [of_kind(line["pits"], kind, line["id"]) for line in lines if line.get("pits")]
        pits = np.array([value for value in values if value is not None])
        for level in LEVELS:
            inside = int(np.sum(np.abs(pits - 0.5) <= level / 2))
            rows.append(f"  {level:.0%} intervals of a {kind} hold it in {statistics.share(inside, len(pits))}")
    return rows
