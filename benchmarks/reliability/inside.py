r"""Whether a wrong answer breaks the promise: what it missed lies inside of the envelope that the fit stated.

A fit says which further mode its search would have found (:mod:`klover.search.envelope`): one that has, relative to a
known mode, a fifth of the mass or more, some share of the width or more, and lies 4 to 20 standard deviations away. The
parts of a case are known. With the Cholesky factor L of a known part's covariance, a missed part of covariance S at μ
has the relative

.. math:: \text{width}=\sqrt{\lambda_{\min}(L^{-1}SL^{-\top})},\qquad\text{distance}=\lVert L^{-1}(\mu-\mu_0)\rVert,

and is inside if it is so relative to *any* of the known parts. The envelope excuses a missed mode and nothing else: a
wrong answer is inside as well if the target is unimodal (a halo is), if no part was missed, or if no envelope was
stated.
"""

from typing import Any

import numpy as np

from benchmarks.reliability.densities import Parts
from klover.search.envelope import DISTANCES, MASS

SMALLEST_FOUND = 0.5
"""Share of a part's weight below which it counts as missed."""


def is_missed(weights: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """Say of which parts less than half was found."""
    return np.asarray(masses) < SMALLEST_FOUND * np.asarray(weights)


def judge(parts: Parts | None, is_unimodal: bool, masses: np.ndarray | None, smallest: float | None) -> dict[str, Any]:
    """Return the fields of a wrong answer's line: whether it is inside, and what it missed.

    Parameters
    ----------
    parts, is_unimodal
        Of the case; None where it has no parts.
    masses
        What the fit has found of each part.
    smallest
        The relative width that the fit states, None if it states none.
    """
    if parts is None or masses is None:
        return {"inside_envelope": True, "missed": []}
    lost = is_missed(parts.weights, masses)
    missed = [easiest(parts, part, np.flatnonzero(~lost), smallest) for part in np.flatnonzero(lost)]
    is_excused = missed and smallest is not None and not is_unimodal
    return {"inside_envelope": not is_excused or any(each["inside"] for each in missed), "missed": missed}


def easiest(parts: Parts, part: int, known: np.ndarray, smallest: float | None) -> dict[str, Any]:
    """Compare a missed part with each known one, and return the comparison by which it was the easiest to find."""
    pairs = [relative(parts, part, other) for other in known]
    for pair in pairs:
        is_near = DISTANCES[0] <= pair["distance"] <= DISTANCES[-1]
        pair["inside"] = smallest is None or bool(pair["width"] >= smallest and pair["mass"] >= MASS and is_near)
    return max(pairs, key=lambda pair: (pair["inside"], pair["width"]))


def relative(parts: Parts, part: int, known: int) -> dict[str, Any]:
    """Return the mass, the smallest width and the distance of a part in units of a known one."""
    factor = np.linalg.cholesky(parts.covariances[known])
    half = np.linalg.solve(factor, parts.covariances[part])
    widths = np.linalg.eigvalsh(np.linalg.solve(factor, half.T))
    return {
        "weight": float(parts.weights[part]),
        "mass": float(parts.weights[part] / parts.weights[known]),
        "width": float(np.sqrt(max(widths.min(), 0.0))),
        "distance": float(np.linalg.norm(np.linalg.solve(factor, parts.locations[part] - parts.locations[known]))),
    }
