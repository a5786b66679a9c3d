r"""Draws of equal weight out of weighted ones.

The schemes with replacement are unbiased: draw :math:`s` is taken :math:`N w_s` times on average, and the variance
about that number is what they differ in (Douc, Cappé & Moulines 2005). Each takes a source of chance (a key, or a NumPy
generator) and unnormalised log weights. With a key it runs under ``jax.jit`` and ``jax.vmap`` with a static
``num_draws``. Draws of weight zero (-inf) are never taken.
"""

from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from klover.base.arrays import comb, namespace, randomness
from klover.base.checks import check_choice, check_count
from klover.base.shapes import AnyArray, Float, Int, KeyLike, PerDraw, RandomKey
from klover.importance.ratios import LogRatio, normalise

Source: TypeAlias = RandomKey | np.random.Generator
Taken: TypeAlias = Int[AnyArray, " taken"]


def _weight(source: Source, log_weight: LogRatio) -> LogRatio:
    """Return normalised weights, as arrays of the library that the source of chance belongs to."""
    xp = np if isinstance(source, np.random.Generator) else jnp
    return xp.exp(normalise(xp.asarray(log_weight)))


def _uniform(source: Source, shape: tuple[int, ...], like: LogRatio) -> Float[AnyArray, "..."]:
    if isinstance(source, np.random.Generator):
        return source.random(shape, like.dtype)
    return jax.random.uniform(source, shape, like.dtype)


def _one_in_each_stratum(source: Source, log_weight: LogRatio, num_draws: int, shape: tuple[int, ...]) -> Taken:
    weight = _weight(source, log_weight)
    offset = _uniform(source, shape, weight)
    return comb(weight, (namespace(weight).arange(num_draws).astype(weight.dtype) + offset) / num_draws)


def systematic(source: Source, log_weight: LogRatio, num_draws: int) -> Taken:
    r"""Resample on an evenly spaced comb with one random offset (Carpenter, Clifford & Fearnhead 1999).

    .. math:: i_n = \min\{ s : w_1 + \dots + w_s > (n + u) / N \}, \qquad u \sim U(0, 1), \quad n = 0, \dots, N - 1.

    Draw :math:`s` is taken :math:`\lfloor N w_s \rfloor` or :math:`\lceil N w_s \rceil` times; indices ascend.
    """
    return _one_in_each_stratum(source, log_weight, num_draws, ())


def stratified(source: Source, log_weight: LogRatio, num_draws: int) -> Taken:
    r"""Resample with one uniform number in each of :math:`N` equal strata (Kitagawa 1996).

    As :func:`systematic` with an offset :math:`u_n` for each :math:`n`: the draws are independent, and draw :math:`s`
    is taken fewer than two times more or less often than :math:`N w_s`; indices ascend.
    """
    return _one_in_each_stratum(source, log_weight, num_draws, (num_draws,))


def residual(source: Source, log_weight: LogRatio, num_draws: int) -> Taken:
    r"""Take the whole part of the expected counts, and the remainder at random (Liu & Chen 1998).

    Draw :math:`s` is taken :math:`\lfloor N w_s \rfloor` times; the :math:`N - \sum_s \lfloor N w_s \rfloor` left over
    are independent draws with probabilities proportional to :math:`N w_s - \lfloor N w_s \rfloor`.
    """
    expected = num_draws * _weight(source, log_weight)
    xp = namespace(expected)
    copies = xp.floor(expected).astype(int)
    place = xp.arange(num_draws)
    repeated = xp.searchsorted(xp.cumsum(copies), place, side="right")
    at_random = comb(expected - xp.floor(expected), _uniform(source, (num_draws,), expected))
    return xp.where(place < xp.sum(copies), repeated, at_random)


def without_replacement(source: Source, log_weight: LogRatio, num_draws: int) -> Taken:
    r"""Take distinct draws, each in proportion to its weight among those not yet taken (Gumbel top-:math:`k`).

    The :math:`N` largest of :math:`\log w_s + G_s`, with independent standard Gumbel :math:`G_s`, have the law of
    sequential sampling without replacement, in that order (Yellott 1977; Kool, van Hoof & Welling 2019). The average
    over them is no unbiased estimate: heavy draws can come up once only. If fewer draws have a positive weight than
    are asked for, draws of weight zero fill the end; :func:`resample` refuses that.
    """
    if isinstance(source, np.random.Generator):
        noise = source.gumbel(size=log_weight.shape)
    else:
        # The cheaper mode repeats values among many draws of float32, and ties would go to the earlier draw.
        noise = jax.random.gumbel(source, log_weight.shape, log_weight.dtype, mode="high")
    return namespace(noise).argsort(-(log_weight + noise))[:num_draws]


METHODS = {
    "systematic": systematic,
    "stratified": stratified,
    "residual": residual,
    "without-replacement": without_replacement,
}


def _check_weights(log_weight: AnyArray, num_draws: int, method: str) -> None:
    """Refuse weights that cannot be resampled, as far as their values are known."""
    if log_weight.ndim != 1 or log_weight.shape[0] == 0:
        remedy = "Flatten the draws, or use jax.vmap for batches."
        raise ValueError(f"log_weight must be a vector of at least one, got shape {log_weight.shape}. {remedy}")
    num_usable = log_weight.shape[0]
    if not isinstance(log_weight, Tracer):
        values = np.asarray(log_weight)
        num_bad = int(np.sum(np.isnan(values) | (values == np.inf)))
        if num_bad > 0:
            remedy = "Look for draws at which the log density is NaN, and give them -inf if they are to be left out."
            raise ValueError(f"log_weight must be finite or -inf, but {num_bad} entries are NaN or +inf. {remedy}")
        num_usable = int(np.sum(values > -np.inf))
    if num_usable == 0:
        raise ValueError("log_weight must have a positive weight, but all are -inf. Draw from a wider proposal.")
    if method == "without-replacement" and num_draws > num_usable:
        remedy = "Ask for fewer, draw more from the proposal, or resample with replacement (method='systematic')."
        raise ValueError(
            f"num_draws must be at most the {num_usable} draws of positive weight when resampling without replacement, "
            f"got {num_draws}. {remedy}"
        )


def resample(key: KeyLike, log_weight: PerDraw, num_draws: int, method: str = "systematic") -> Taken:
    """Choose draws of equal weight out of weighted ones, by one of :data:`METHODS`; return which, in random order.

    The key seeds a NumPy generator where the log weights, which need not be normalised, are NumPy's.
    """
    source = randomness(key, log_weight)
    check_count("num_draws", num_draws, 1)
    check_choice("method", method, METHODS)
    _check_weights(log_weight, num_draws, method)
    if isinstance(source, np.random.Generator):
        return source.permutation(METHODS[method](source, log_weight, num_draws))
    key_choice, key_order = jax.random.split(source)
    return jax.random.permutation(key_order, METHODS[method](key_choice, log_weight, num_draws))


def merge_copies(
    x: Float[np.ndarray, "draw dim"], log_weight: Float[np.ndarray, " draw"]
) -> tuple[Int[np.ndarray, " distinct"], Float[np.ndarray, " distinct"]]:
    """Return which draws of positive weight are distinct, each with the log weight of all of its copies."""
    inside = np.flatnonzero(log_weight > -np.inf)
    _, first, copy = np.unique(x[inside], axis=0, return_index=True, return_inverse=True)
    together = np.full(len(first), -np.inf)
    np.logaddexp.at(together, copy.ravel(), log_weight[inside])
    return inside[first], together
