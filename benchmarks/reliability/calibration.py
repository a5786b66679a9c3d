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
    """Return the p-value of a χ² test, and whether (as a share of the band's width) the distribution function leaves
    its band: above 1 it does.
    """
    counts = np.histogram(ranks, bins=np.linspace(0, NUM_RANKED + 1, NUM_BINS + 1))[0]
    lower, upper = band(len(ranks))
    cumulative = np.cumsum(np.bincount(ranks, minlength=NUM_RANKED + 1))[:-1]
    middle = len(ranks) * np.arange(1, NUM_RANKED + 1) / (NUM_RANKED + 1)
    reach = np.where(cumulative > middle, upper - middle, middle - lower)
    return float(stats.chisquare(counts).pvalue), float(np.max(np.abs(cumulative - middle) / np.maximum(reach, 0.5)))


@functools.lru_cache
def band(num: int) -> tuple[np.ndarray, np.ndarray]:
    """Return simultaneous limits of the number of ranks up to each value but the last, for ``num`` uniform ranks."""
    share = np.arange(1, NUM_RANKED + 1) / (NUM_RANKED + 1)
    draws = np.random.default_rng(0).multinomial(num, np.full(NUM_RANKED + 1, 1 / (NUM_RANKED + 1)), NUM_SIMULATIONS)
    counts = np.cumsum(draws, axis=1)[:, :-1]
    below, above = stats.binom.cdf(counts, num, share), stats.binom.sf(counts - 1, num, share)
    smallest = 2 * np.minimum(below, above).min(1)
    level = np.quantile(smallest, 1 - LEVEL)
    return stats.binom.ppf(level / 2, num, share), stats.binom.isf(level / 2, num, share)


def rank_text(lines: Lines) -> str:
    """Say how uniform the ranks are, kind by kind and family by family."""
    lines = [line for line in lines if line.get("ranks")]
    if not lines:
        return ""
    rows = [f"ranks of {len(lines)} fits, one a fit and kind (χ² of {NUM_BINS} bins; band of 95 %: above 1 is outside)"]
    for kind in KINDS:
        ranks = ranks_of(lines, kind)
        p_value, reach = uniformity(ranks)
        rows.append(f"  {kind:<15} {len(ranks):5d} ranks, χ² p = {p_value:.3f}, band {reach:.2f}")
    rows.append("  by family, parameter and log joint density (band; a family in ten may be outside by chance):")
    for family in sorted({line["family"] for line in lines}):
        own = [line for line in lines if line["family"] == family]
        reaches = [uniformity(ranks_of(own, kind))[1] for kind in ("parameter", "log_joint")]
        rows.append(f"    {family:<24} {len(own):5d} fits, {reaches[0]:.2f}, {reaches[1]:.2f}")
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
