"""How far two weightings of the same draws lie apart, quantity by quantity."""

import numpy as np

from klover.base.shapes import Float

NUM_EQUAL = 4000
"""Draws that people usually have: what ArviZ gives for so many of them is the measure."""

PerBin = Float[np.ndarray, " bin"]


def cumulative_distance(
    values: Float[np.ndarray, " draw"], weight: Float[np.ndarray, " draw"], other: Float[np.ndarray, " draw"]
) -> float:
    r"""Cumulative Jensen-Shannon distance of two weightings, between 0 and 1 (Nguyen and Vreeken 2015).

    With the distribution functions P and Q on the line, and their mean M, its square is
    :math:`\int P\log_2\frac PM+Q\log_2\frac QM\,dx\big/\int P+Q\,dx`. As Kallioinen, Paananen, Bürkner and Vehtari
    (2023) have it, the larger one of the values and of their negatives is taken. The denominator depends on where the
    line ends: where :data:`NUM_EQUAL` equally weighted draws of the first weighting would. Weights are normalised here.
    """
    order = np.argsort(values, kind="stable")
    first, second = (each[order] / each.sum() for each in (weight, other))
    below = np.cumsum(first)[:-1], np.cumsum(second)[:-1]
    above = np.cumsum(first[::-1])[:-1][::-1], np.cumsum(second[::-1])[:-1][::-1]
    inside = np.minimum(below[0], above[0]) >= 1 / NUM_EQUAL
    width = np.where(inside, np.diff(values[order]), 0.0)
    return max(_distance(*below, width), _distance(*above, width))


def _distance(first: PerBin, second: PerBin, width: PerBin) -> float:
    """Distance of two step functions, by their heights between the draws; the linear terms of both halves cancel."""
    bound = width @ (first + second)
    if not bound > 0:
        return 0.0
    middle = 0.5 * (first + second)
    halves = [
        max(width @ _entropy(each, middle) + width @ (middle - each) / np.log(2), 0.0) for each in (first, second)
    ]
    return float(np.sqrt(sum(halves) / bound))


def _entropy(height: PerBin, middle: PerBin) -> PerBin:
    ratio = np.divide(height, middle, out=np.ones_like(height), where=height > 0)
    return height * np.log2(ratio)
