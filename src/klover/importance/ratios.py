r"""Importance ratios: weights, the evidence, effective draws, divergences.

With draws :math:`\theta_s\sim q` and :math:`r_s=\hat p(\theta_s)/q(\theta_s)`, self-normalised weights
:math:`w_s=r_s/\sum_t r_t` (Eq. 9, ``eq:fkl_snis``) estimate expectations under p, and :math:`\frac1S\sum_s r_s`
estimates the evidence Z. Everything stays in log space; a draw outside the support has log-ratio -inf and weight zero.
"""

import math

import numpy as np

from klover.base.arrays import bisect, compiled, logsumexp, namespace
from klover.base.shapes import AnyArray, Float, PerDraw, Scalar

LogRatio = PerDraw

MeanAndError = tuple[Float[AnyArray, "..."], Float[AnyArray, "..."]]

NUM_HALVINGS = 30


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
    :math:`\hat Z=\bar r`. By the delta method the error is :math:`\mathrm{sd}(r-\bar rc)/(\hat Z\sqrt S)`.
    """
    xp = namespace(log_ratio)
    num_draws = log_ratio.shape[0]
    weight = xp.exp(normalise(log_ratio))
    rest = num_draws * weight - control
    mean = 1 - xp.mean(xp.asarray(control))
    variance = xp.sum((rest - mean) ** 2) / (num_draws * (num_draws - 1))
    error = xp.where(xp.any(weight > 0), xp.sqrt(variance) / mean, xp.inf)
    return logsumexp(log_ratio) - math.log(num_draws) + xp.log(mean), error


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
    inside = xp.isfinite(log_ratio)
    wanted = xp.minimum(fewest, 0.5 * xp.sum(inside))

    def power(beta):
        # 0 · (-inf) is not a number: a draw outside the support stays outside.
        return xp.where(inside, beta * xp.where(inside, log_ratio, 0.0), -xp.inf)

    zero = xp.zeros((), log_ratio.dtype)
    low = bisect(lambda beta: effective_sample_size(power(beta)) >= wanted, zero, zero + 1.0, NUM_HALVINGS)
    return normalise(power(xp.where(effective_sample_size(log_ratio) >= wanted, 1.0, low)))


def clip(log_ratio: LogRatio, quantile: float) -> LogRatio:
    """Cut the ratios at one of their own quantiles (for example 0.99)."""
    if not 0 < quantile <= 1:
        raise ValueError(f"quantile must lie in (0, 1], got {quantile!r}. 0.99 clips the largest 1 %.")
    xp = namespace(log_ratio)
    rank = max(math.ceil(quantile * log_ratio.shape[0]) - 1, 0)
    return xp.minimum(log_ratio, xp.sort(log_ratio)[rank])


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
