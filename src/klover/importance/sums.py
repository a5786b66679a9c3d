r"""Sums over weighted draws from which every answer follows, and which can be added up: draws need not be kept.

With ratios :math:`r_s=e^{l_s}`, taken relative to the largest so that nothing overflows, values :math:`v_s` at the
draws and responsibilities :math:`e_s` of the proposal's components (:mod:`klover.importance.control_variates`), the
evidence needs :math:`\sum r,\sum r^2,\sum e,\sum re,\sum ee^\top`, and self-normalised means with their errors need
:math:`\sum r(v-m)^2,\sum r^2(v-m)` and :math:`\sum r^2(v-m)^2` about the mean m. Two sets of sums become one by taking
both about their common mean (Chan, Golub & LeVeque 1983): no digits are lost, however far m is from zero.
"""

import jax
import numpy as np

from klover.base.arrays import namespace
from klover.base.linalg import solve_positive
from klover.base.shapes import AnyArray, Count, Float, Int, PerComponent, PerDraw, Weights, record
from klover.importance.control_variates import FEWEST_DRAWS, LARGEST_MEAN
from klover.importance.ratios import MeanAndError, doubted

Values = Float[AnyArray, "draw value"]


@record
class Sums:
    r"""Sums over draws, or (with a leading axis on every field) over many sets of them.

    Ratios are relative to ``exp(log_scale)``. ``weight`` and ``square`` are :math:`\sum r` and :math:`\sum r^2`,
    ``mean`` is m, ``scatter``, ``slant`` and ``spread`` are the three sums about it; ``explaining``, ``product`` and
    ``cross`` are :math:`\sum e`, :math:`\sum ee^\top` and :math:`\sum re`.
    """

    num_draws: Int[AnyArray, "*part"]
    num_finite: Int[AnyArray, "*part"]
    num_nan: Int[AnyArray, "*part"]
    num_infinite: Int[AnyArray, "*part"]
    log_scale: Float[AnyArray, "*part"]
    weight: Float[AnyArray, "*part"]
    square: Float[AnyArray, "*part"]
    mean: Float[AnyArray, "*part value"]
    scatter: Float[AnyArray, "*part value"]
    slant: Float[AnyArray, "*part value"]
    spread: Float[AnyArray, "*part value"]
    explaining: Float[AnyArray, "*part component"]
    product: Float[AnyArray, "*part component component"]
    cross: Float[AnyArray, "*part component"]


def sums_of(
    log_ratio: PerDraw, explaining: PerComponent, values: Values, num_draws: Count, num_nan: Count, num_infinite: Count
) -> Sums:
    """Add up draws, as JAX or NumPy arrays; invalid ones, and what fills a block, have log-ratio -inf."""
    xp = namespace(log_ratio)
    highest = xp.max(log_ratio)
    weight = xp.exp(log_ratio - xp.where(highest > -xp.inf, highest, 0.0))
    # A draw outside the support may have no value there; its weight of zero must silence it.
    inside = xp.where((weight > 0)[:, None], values, 0.0)
    total = xp.sum(weight)
    mean = weight @ inside / xp.where(total > 0, total, 1.0)
    moment = weight[:, None] * (inside - mean)
    return Sums(
        xp.asarray(num_draws),
        xp.sum(log_ratio > -xp.inf),
        xp.asarray(num_nan),
        xp.asarray(num_infinite),
        highest,
        total,
        xp.sum(weight**2),
        mean,
        xp.sum(moment * (inside - mean), axis=0),
        weight @ moment,
        xp.sum(moment**2, axis=0),
        xp.sum(explaining, axis=1),
        explaining @ explaining.T,
        explaining @ weight,
    )


@np.errstate(over="ignore", invalid="ignore")  # values may be infinite, and so are their means
def combine(parts: Sums) -> Sums:
    """Add up sums that are stacked on a leading axis, on the host; their order settles the last digits."""
    highest = np.max(parts.log_scale)
    factor = np.exp(parts.log_scale - (highest if highest > -np.inf else 0.0))
    weight, square = factor * parts.weight, factor**2 * parts.square
    total = np.sum(weight)
    mean = weight @ parts.mean / (total if total > 0 else 1.0)
    shift = parts.mean - mean
    factor, weight, square_column = factor[:, None], weight[:, None], square[:, None]
    slant = factor**2 * parts.slant
    spread = factor**2 * parts.spread + 2 * shift * slant + square_column * shift**2
    return Sums(
        np.sum(parts.num_draws),
        np.sum(parts.num_finite),
        np.sum(parts.num_nan),
        np.sum(parts.num_infinite),
        highest,
        total,
        np.sum(square),
        mean,
        np.sum(factor * parts.scatter + weight * shift**2, axis=0),
        np.sum(slant + square_column * shift, axis=0),
        np.sum(spread, axis=0),
        np.sum(parts.explaining, axis=0),
        np.sum(parts.product, axis=0),
        np.sum(factor * parts.cross, axis=0),
    )


def stack(parts: list[Sums]) -> Sums:
    """Put sums on a leading axis, in double precision."""

    def join(*leaves):
        stacked = np.stack([np.asarray(leaf) for leaf in leaves])
        return stacked.astype(float if stacked.dtype.kind == "f" else np.int64)

    return jax.tree.map(join, *parts)


def log_evidence(sums: Sums, weights: Weights) -> tuple[float, float]:
    r"""Log evidence and its standard error, as :func:`klover.importance.ratios.log_evidence` with a control variate.

    The variate is that of :func:`klover.importance.control_variates.control`: the same normal equations, of the sums.
    """
    num = float(sums.num_draws)
    if sums.weight == 0:
        return -np.inf, np.inf
    root = np.where(num * weights >= FEWEST_DRAWS, np.sqrt(weights), 0.0)
    is_used = root > 0
    mean = np.where(is_used, sums.explaining, 0.0) / num
    product = np.where(is_used[:, None] & is_used, sums.product, 0.0) / num
    # Of ratios whose mean is one.
    cross = np.where(is_used, sums.cross, 0.0) / sums.weight
    ridge = np.sqrt(np.finfo(float).eps) * np.eye(len(root))
    coefficient = solve_positive(product + ridge, cross[:, None])[:, 0]
    shift = coefficient @ (mean - root)
    if abs(shift) >= LARGEST_MEAN:
        coefficient, shift = np.zeros_like(coefficient), 0.0
    variance_of_ratios = num * sums.square / sums.weight**2 - 1
    covariance = cross - mean
    explained = coefficient @ (product - np.outer(mean, mean)) @ coefficient
    left = max(variance_of_ratios - 2 * coefficient @ covariance + explained, 0.0)
    variance = doubted(left, variance_of_ratios) / (num - 1)
    level = sums.log_scale + np.log(sums.weight) - np.log(num)
    return float(level + np.log1p(-shift)), float(np.sqrt(variance) / (1 - shift))


def mean_and_error(sums: Sums) -> MeanAndError:
    r"""Self-normalised means of the values, and their errors :math:`\sqrt{\sum_sw_s^2(v_s-m)^2}`."""
    if sums.weight == 0:
        return np.full_like(sums.mean, np.nan), np.full_like(sums.mean, np.inf)
    return sums.mean, np.sqrt(sums.spread) / sums.weight


def standard_deviation(sums: Sums) -> Float[np.ndarray, " value"]:
    """Weighted standard deviations of the values."""
    return np.sqrt(sums.scatter / sums.weight) if sums.weight > 0 else np.full_like(sums.mean, np.nan)


def effective_sample_size(sums: Sums) -> float:
    """Kish's effective number of draws; 0 where no draw lies in the support."""
    return float(sums.weight**2 / sums.square) if sums.weight > 0 else 0.0
