r"""Pareto-smoothed importance sampling.

The ratios :math:`r_s = p(x_s) / q(x_s)` of draws from :math:`q` have a tail which is, far enough out, a generalised
Pareto distribution (Pickands 1975). Vehtari, Simpson, Gelman, Yao & Gabry (2024, JMLR 25:72) fit that distribution to
the largest ratios, replace them by its quantiles, and read its shape :math:`\hat k` as a diagnostic: the ratios have
finite moments up to order :math:`1 / k`. All functions take :math:`\log r = \log p - \log q`.
"""

import math

import numpy as np

from klover.base.arrays import compiled, logsumexp, namespace
from klover.base.checks import check_count
from klover.base.shapes import AnyArray, Count, Float, PerDraw, Scalar

FEWEST_TAIL_VALUES = 5
MOST_DRAWS = 10**12
"""More than any array holds: of a stream only the largest ratios are kept."""


def tail_length(num_draws: int) -> int:
    r"""Count the ratios that make up the tail, :math:`\lceil \min(S / 5, 3 \sqrt{S}) \rceil`, exact in integers."""
    check_count("num_draws", num_draws, 1, "Draw from the proposal first.", MOST_DRAWS)
    return min(-(-num_draws // 5), math.isqrt(9 * num_draws - 1) + 1)


def reliable_k(num_draws: int) -> float:
    r"""Largest :math:`\hat k` to trust with this many draws, :math:`\min(1 - 1 / \log_{10} S, 0.7)`.

    Vehtari et al. (2024): a shape :math:`k` asks for :math:`10^{1 / (1 - k)}` draws, in practice too many above 0.7.
    """
    check_count("num_draws", num_draws, 2, "One draw says nothing about a tail: draw more.", MOST_DRAWS)
    return min(1 - 1 / math.log10(num_draws), 0.7)


@np.errstate(all="ignore")
def fit_generalised_pareto(exceedances: Float[AnyArray, " tail"], prior_weight: float = 10.0) -> tuple[Scalar, Scalar]:
    r"""Estimate the shape and scale of a generalised Pareto distribution (Zhang & Stephens 2009).

    With density :math:`\sigma^{-1} (1 + k y / \sigma)^{-1/k - 1}` and :math:`\theta = -k / \sigma`, the likelihood is
    maximal over :math:`k` at :math:`k(\theta) = n^{-1} \sum_i \log(1 - \theta y_i)`. The estimate of :math:`\theta` is
    its posterior mean over :math:`m = 30 + \lfloor \sqrt n \rfloor` quantiles of a prior that the data scale,

    .. math:: \hat\theta = \frac{\sum_j \theta_j e^{\ell(\theta_j)}}{\sum_j e^{\ell(\theta_j)}}, \quad
        \ell(\theta) = n \left( \log \frac{-\theta}{k(\theta)} - k(\theta) - 1 \right), \quad
        \theta_j = \frac{1}{y_{(n)}} + \frac{1 - \sqrt{m / (j - 1/2)}}{3 \, y_{(\lfloor n/4 + 1/2 \rfloor)}},

    then :math:`\hat\sigma = -k(\hat\theta) / \hat\theta` and :math:`\hat k = (n k(\hat\theta) + 0.5 a) / (n + a)`,
    where the weak prior :math:`k \approx 0.5` counts for :math:`a` observations (``prior_weight``). The excesses over
    the threshold are in ascending order; those that are not positive are left out. The tail is heavier the larger
    :math:`k`, and bounded where it is negative.
    """
    xp, limits = namespace(exceedances), np.finfo(exceedances.dtype)
    is_present = exceedances > 0
    num_present = xp.sum(is_present)
    largest = xp.where(num_present > 0, exceedances[-1], 1)
    # In double precision, where there is any, whatever the precision of the ratios.
    scaled = xp.where(is_present, exceedances / largest, 0).astype(float)
    num_above_quartile = num_present - xp.clip((num_present + 2) // 4, 1, num_present)
    quartile = scaled[exceedances.shape[0] - 1 - num_above_quartile]
    roots = np.arange(1, math.isqrt(exceedances.shape[0]) + 1)
    num_points = (30 + xp.sum(roots**2 <= num_present)).astype(float)
    point = xp.arange(1, 31 + len(roots)).astype(float)
    num = num_present.astype(float)
    # The floor keeps 1 / quartile finite where the tail spans the whole range of the floating-point numbers.
    prior_scale = 3 * xp.maximum(quartile, limits.tiny / limits.eps)
    theta = 1 + (1 - xp.sqrt(num_points / (point - 0.5))) / prior_scale

    def shape_and_scale(theta):
        theta = xp.where(theta == 0, limits.eps, theta)  # 0 / 0 where the distribution is exponential
        shape = xp.sum(xp.log1p(-theta[..., None] * scaled), axis=-1) / num
        return shape, -shape / theta

    shape, scale = shape_and_scale(theta)
    log_likelihood = xp.where(point <= num_points, -num * (xp.log(scale) + shape + 1), -xp.inf)
    shape, scale = shape_and_scale(xp.sum(theta * xp.exp(log_likelihood - logsumexp(log_likelihood))))
    k = (num * shape + 0.5 * prior_weight) / (num + prior_weight)
    return k.astype(exceedances.dtype), (scale * largest).astype(exceedances.dtype)


def _smooth_tail(ascending: PerDraw, num_draws: int, num_finite: Count) -> tuple[Float[AnyArray, " tail"], Scalar]:
    """Return the tail of the sorted log ratios after smoothing, and its shape; the largest ratios are enough."""
    xp, limits, num_known = namespace(ascending), np.finfo(ascending.dtype), ascending.shape[0]
    places_below_top = np.arange(tail_length(num_draws))[::-1]
    top = ascending[-1]
    # tail_length(num_finite) without rounding and with a static shape: draws of ratio zero do not lengthen the tail.
    is_tail = (5 * places_below_top < num_finite) & (places_below_top**2 < 9 * num_finite)
    num_tail = xp.sum(is_tail)
    tail = ascending[-len(places_below_top) :]
    cutoff = xp.exp(ascending[xp.maximum(num_known - 1 - num_tail, 0)] - top)
    excess = xp.exp(tail - top) - cutoff
    excess = xp.where(is_tail & (excess >= limits.tiny), excess, 0)  # XLA may flush what is smaller, NumPy does not
    k, sigma = fit_generalised_pareto(excess)
    log_survival = xp.log((places_below_top + 0.5).astype(k.dtype) / xp.sum(excess > 0).astype(k.dtype))
    shape = xp.where(xp.abs(k) < limits.eps, limits.eps, k)
    quantile = xp.expm1(-shape * log_survival) / shape
    smoothed = top + xp.minimum(xp.log(cutoff + sigma * quantile), 0)

    # Where a proposal is exact, the ratios differ by the rounding of log p and log q, which has no tail to speak of.
    runner_up = ascending[xp.maximum(num_known - 1 - xp.maximum(num_tail, FEWEST_TAIL_VALUES - 1), 0)]
    is_flat = (num_finite >= FEWEST_TAIL_VALUES) & (top - runner_up <= limits.eps**0.5)
    num_distinct = xp.sum(excess > xp.concatenate([xp.zeros_like(excess[:1]), excess[:-1]]))
    can_fit = (num_distinct >= FEWEST_TAIL_VALUES) & ~is_flat
    k = xp.where(can_fit, k, xp.where(is_flat, 0.0, xp.inf))
    return xp.where(can_fit & (excess > 0), smoothed, tail).astype(ascending.dtype), k.astype(ascending.dtype)


def _check_vector(log_ratio: AnyArray) -> None:
    if log_ratio.ndim != 1:
        raise ValueError(f"log_ratio must be a vector, got shape {log_ratio.shape}. Use jax.vmap for batches.")


@compiled
@np.errstate(all="ignore")
def pareto_k(log_ratio: PerDraw) -> Scalar:
    r"""Shape :math:`\hat k` of the tail of the importance ratios, as :func:`smooth` estimates it."""
    _check_vector(log_ratio)
    xp = namespace(log_ratio)
    return _smooth_tail(xp.sort(log_ratio), log_ratio.shape[0], xp.sum(log_ratio > -xp.inf))[1]


def num_needed(num_draws: int) -> int:
    """Count the largest ratios on which the shape of the tail of so many draws rests."""
    return min(max(tail_length(num_draws), FEWEST_TAIL_VALUES - 1) + 1, num_draws)


@np.errstate(all="ignore")
def pareto_k_of_largest(largest: PerDraw, num_draws: int, num_finite: int) -> Scalar:
    r"""Return what :func:`pareto_k` gives for ``num_draws`` ratios of which the :func:`num_needed` largest are known.

    ``num_finite`` of all are above -inf; those that are known come in any order, on the host.
    """
    _check_vector(largest)
    return _smooth_tail(np.sort(largest), num_draws, num_finite)[1]


@np.errstate(all="ignore")
def smooth(log_ratio: PerDraw) -> tuple[PerDraw, Scalar]:
    r"""Stabilise importance weights by smoothing their tail.

    With :math:`M` the :func:`tail_length` of the finite ratios, :math:`u` the largest ratio below the tail and
    :math:`(k, \sigma)` fitted to the :math:`M` excesses over :math:`u`, the tail becomes

    .. math:: \tilde r_{(S - M + j)} = \min\left(u + \frac{\sigma}{k} \left( \left(1 - \frac{j - 1/2}{M}\right)^{-k}
        - 1 \right), \; \max_s r_s \right), \qquad j = 1, \dots, M.

    Ratios are :math:`\log p - \log q` (in this sign), each up to a constant. A draw outside the support of p has
    -inf: its weight stays zero, and all else is as if it were absent. Return normalised log-weights, all -inf where
    every ratio is zero, and :math:`\hat k`, to be held against :func:`reliable_k`: 0 where the tail is constant to
    rounding, else +inf where it has fewer than five distinct values (nothing can be said); in both cases the weights
    are the raw ratios. A ratio of NaN or +inf leaves NaN among the weights, and :math:`\hat k` +inf.
    """
    _check_vector(log_ratio)
    xp = namespace(log_ratio)
    order = xp.argsort(log_ratio, stable=True)
    tail, k = _smooth_tail(log_ratio[order], log_ratio.shape[0], xp.sum(log_ratio > -xp.inf))
    smoothed = xp.concatenate([log_ratio[order[: -tail.shape[0]]], tail])[xp.argsort(order)]
    return xp.where(log_ratio == -xp.inf, -xp.inf, smoothed - logsumexp(smoothed)), k
