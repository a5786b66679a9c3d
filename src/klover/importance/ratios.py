r"""Importance ratios: weights, the evidence, effective draws, divergences.

With draws :math:`\theta_s\sim q` and :math:`r_s=\hat p(\theta_s)/q(\theta_s)`, self-normalised weights
:math:`w_s=r_s/\sum_t r_t` (Eq. 9, ``eq:fkl_snis``) estimate expectations under p, and :math:`\frac1S\sum_s r_s`
estimates the evidence Z. Everything stays in log space; a draw outside the support has log-ratio -inf and weight zero.
"""

import math

import numpy as np

from klover.base.arrays import compiled, iterate, logsumexp, namespace
from klover.base.shapes import AnyArray, Float, PerDraw, Scalar

LogRatio = PerDraw

MeanAndError = tuple[Float[AnyArray, "..."], Float[AnyArray, "..."]]

NUM_HALVINGS = 40
SMALLEST_LOG_PART = -40.0
DOUBTED = 1 / 20
"""Share that stays of the variance which a control variate explains: it knows nothing of ratios that no draw has shown.
Over 7,743 right answers of the reliability factory's release and validation cases errors of log Z were beyond three
stated ones in 0.58 % without it, and are in 0.37 %; the median of the stated errors grows by 4 %."""


def normalise(log_ratio: LogRatio) -> LogRatio:
    """Self-normalised log-weights; all -inf where every ratio is zero."""
    xp = namespace(log_ratio)
    total = logsumexp(log_ratio)
    return log_ratio - xp.where(xp.isfinite(total), total, 0.0)


def kish(weight: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
    r"""Kish's effective number of draws, :math:`(\sum_sw_s)^2/\sum_sw_s^2`; 0 where all weights are zero."""
    xp = namespace(weight)
    total, square = xp.sum(weight, axis=-1), xp.sum(weight**2, axis=-1)
    return xp.where(square > 0, total**2 / xp.where(square > 0, square, 1.0), 0.0)


@compiled
def effective_sample_size(log_ratio: Float[AnyArray, "... draw"]) -> Float[AnyArray, "..."]:
    """Kish's effective number of draws, from log-ratios; 0 where no draw lies in the support."""
    xp = namespace(log_ratio)
    highest = xp.max(log_ratio, axis=-1, keepdims=True)
    return kish(xp.exp(log_ratio - xp.where(highest > -xp.inf, highest, 0.0)))


@compiled
def log_evidence(log_ratio: LogRatio, control: LogRatio | float = 0.0) -> tuple[Scalar, Scalar]:
    r"""Logarithm of the evidence estimate :math:`\hat Z=\frac1S\sum_s(r_s-\bar rc_s)`, and its standard error.

    c is a control variate (:mod:`klover.importance.control_variates`), whose mean under q is zero; without one
    :math:`\hat Z=\bar r`. By the delta method the error is :math:`\mathrm{sd}(r-\bar rc)/(\hat Z\sqrt S)`; a twentieth
    of the variance that c explains is added (:func:`doubted`).
    """
    xp = namespace(log_ratio)
    num_draws = log_ratio.shape[0]
    weight = xp.exp(normalise(log_ratio))
    ratio, mean = num_draws * weight, 1 - xp.mean(xp.asarray(control))
    variance = doubted(xp.sum((ratio - control - mean) ** 2), xp.sum((ratio - 1) ** 2)) / (num_draws * (num_draws - 1))
    error = xp.where(xp.any(weight > 0), xp.sqrt(variance) / mean, xp.inf)
    return logsumexp(log_ratio) - math.log(num_draws) + xp.log(mean), error


def doubted(left: Scalar | float, plain: Scalar | float) -> Scalar:
    """Return the variance to state where a control variate leaves so much of the plain one."""
    return left + DOUBTED * namespace(left).maximum(plain - left, 0.0)


@compiled
@np.errstate(over="ignore", invalid="ignore")  # values may be infinite, and so are their means
def self_normalised(log_weight: LogRatio, values: Float[AnyArray, "draw ..."]) -> MeanAndError:
    r"""Weighted mean :math:`\hat\mu=\sum_s w_sf_s` and its error :math:`\sqrt{\sum_s w_s^2(f_s-\hat\mu)^2}` (Eq. 2)."""
    xp = namespace(log_weight, values)
    weight = xp.exp(normalise(log_weight)).reshape((-1,) + (1,) * (values.ndim - 1))
    # A draw outside the support may have no value there; its weight of zero must silence it.
    inside = xp.where(weight > 0, values, 0.0)
    mean = xp.sum(weight * inside, axis=0)
    return mean, xp.sqrt(xp.sum(xp.where(weight > 0, weight * (inside - mean), 0.0) ** 2, axis=0))


def truncate(log_ratio: LogRatio) -> LogRatio:
    r"""Cut the ratios at :math:`\sqrt S` times their mean (Ionides 2008): finite variance, a bias that vanishes."""
    xp = namespace(log_ratio)
    limit = logsumexp(log_ratio) - 0.5 * math.log(log_ratio.shape[0])
    return xp.minimum(log_ratio, limit)


def temper(log_ratio: LogRatio, fewest: float | int) -> LogRatio:
    r"""Return normalised :math:`\beta\log r` with the largest β ≤ 1 that leaves ``fewest`` effective draws, or half."""
    xp = namespace(log_ratio)
    wanted = xp.minimum(fewest, 0.5 * xp.sum(log_ratio > -xp.inf))
    return normalise(stride(log_ratio, wanted) * log_ratio)


def stride(change: Float[AnyArray, "... draw"], fewest: Scalar | float | int) -> Scalar:
    """Largest part, up to all, of a change of log weights that leaves so many draws effective, in every row of them."""
    xp = namespace(change)

    def is_small(log_part):
        return xp.all(effective_sample_size(xp.exp(log_part) * change) >= fewest)

    def halve(ends):
        low, high = ends
        middle = 0.5 * (low + high)
        is_enough = is_small(middle)
        return xp.where(is_enough, middle, low), xp.where(is_enough, high, middle)

    zero = xp.zeros((), change.dtype)
    ends = xp.where(is_small(zero), 0.0, SMALLEST_LOG_PART).astype(change.dtype), zero
    return xp.exp(iterate(halve, ends, NUM_HALVINGS, lambda ends: ends[0] == ends[1])[0])


@compiled
def forward_kl(log_ratio: LogRatio) -> Scalar:
    r"""Estimate :math:`\mathrm{KL}(p\|q)=\sum_s w_s\log r_s-\log\hat Z` (Eq. 9 less the unknown constant)."""
    xp = namespace(log_ratio)
    log_weight = normalise(log_ratio)
    weight = xp.exp(log_weight)
    relative = xp.where(weight > 0, log_weight + math.log(log_ratio.shape[0]), 0.0)
    return xp.where(xp.any(weight > 0), xp.sum(weight * relative), xp.inf)


def renyi_divergence(log_ratio: LogRatio) -> Scalar:
    r"""Estimate the Rényi divergence :math:`D_2(p\|q)=\log\mathrm E_q[(p/q)^2]`; :math:`\chi^2=e^{D_2}-1`."""
    xp = namespace(log_ratio)
    log_total = logsumexp(2 * normalise(log_ratio))
    return xp.where(log_total > -xp.inf, log_total + math.log(log_ratio.shape[0]), xp.inf)


def required_draws(log_ratio: LogRatio) -> Scalar:
    r"""Draws needed for accurate means, of the order :math:`e^{\mathrm{KL}(p\|q)}` (Chatterjee & Diaconis 2018)."""
    return namespace(log_ratio).exp(forward_kl(log_ratio))
