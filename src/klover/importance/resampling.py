r"""Draws of equal weight out of weighted ones.

The schemes with replacement are unbiased: draw :math:`s` is taken :math:`N w_s` times on average, and the variance
about that number is what they differ in (Douc, Cappé & Moulines 2005). Each takes unnormalised log weights, and runs
under ``jax.jit`` and ``jax.vmap`` with a static ``num_draws``. Draws of weight zero (-inf) are never taken.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from klover.base.arrays import comb
from klover.base.checks import as_key, check_choice, check_count
from klover.base.shapes import AnyArray, Float, Int, Key

__all__ = ["merge_copies", "resample", "residual", "stratified", "systematic", "without_replacement"]


def systematic(
    key: Key[jax.Array, ""], log_weight: Float[AnyArray, " draw"], num_draws: int
) -> Int[jax.Array, " taken"]:
    r"""Resample on an evenly spaced comb with one random offset (Carpenter, Clifford & Fearnhead 1999).

    .. math:: i_n = \min\{ s : w_1 + \dots + w_s > (n + u) / N \}, \qquad u \sim U(0, 1), \quad n = 0, \dots, N - 1.

    Draw :math:`s` is taken :math:`\lfloor N w_s \rfloor` or :math:`\lceil N w_s \rceil` times; indices ascend.
    """
    weight = jax.nn.softmax(jnp.asarray(log_weight))
    offset = jax.random.uniform(key, (), weight.dtype)
    return comb(weight, (jnp.arange(num_draws) + offset) / num_draws)


def stratified(
    key: Key[jax.Array, ""], log_weight: Float[AnyArray, " draw"], num_draws: int
) -> Int[jax.Array, " taken"]:
    r"""Resample with one uniform number in each of :math:`N` equal strata (Kitagawa 1996).

    As :func:`systematic` with an offset :math:`u_n` for each :math:`n`: the draws are independent, and draw :math:`s`
    is taken fewer than two times more or less often than :math:`N w_s`; indices ascend.
    """
    weight = jax.nn.softmax(jnp.asarray(log_weight))
    offset = jax.random.uniform(key, (num_draws,), weight.dtype)
    return comb(weight, (jnp.arange(num_draws) + offset) / num_draws)


def residual(key: Key[jax.Array, ""], log_weight: Float[AnyArray, " draw"], num_draws: int) -> Int[jax.Array, " taken"]:
    r"""Take the whole part of the expected counts, and the remainder at random (Liu & Chen 1998).

    Draw :math:`s` is taken :math:`\lfloor N w_s \rfloor` times; the :math:`N - \sum_s \lfloor N w_s \rfloor` left over
    are independent draws with probabilities proportional to :math:`N w_s - \lfloor N w_s \rfloor`.
    """
    expected = num_draws * jax.nn.softmax(jnp.asarray(log_weight))
    copies = jnp.floor(expected).astype(int)
    place = jnp.arange(num_draws)
    repeated = jnp.searchsorted(jnp.cumsum(copies), place, side="right")
    at_random = comb(expected - copies, jax.random.uniform(key, (num_draws,), expected.dtype))
    return jnp.where(place < jnp.sum(copies), repeated, at_random)


def without_replacement(
    key: Key[jax.Array, ""], log_weight: Float[AnyArray, " draw"], num_draws: int
) -> Int[jax.Array, " taken"]:
    r"""Take distinct draws, each in proportion to its weight among those not yet taken (Gumbel top-:math:`k`).

    The :math:`N` largest of :math:`\log w_s + G_s`, with independent standard Gumbel :math:`G_s`, have the law of
    sequential sampling without replacement, in that order (Yellott 1977; Kool, van Hoof & Welling 2019). The average
    over them is no unbiased estimate: heavy draws can come up once only. If fewer draws have a positive weight than
    are asked for, draws of weight zero fill the end; :func:`resample` refuses that.
    """
    log_weight = jnp.asarray(log_weight)
    # The cheaper mode repeats values among many draws of float32, and ties would go to the earlier draw.
    noise = jax.random.gumbel(key, log_weight.shape, log_weight.dtype, mode="high")
    return jax.lax.top_k(log_weight + noise, num_draws)[1]


METHODS = {
    "systematic": systematic,
    "stratified": stratified,
    "residual": residual,
    "without-replacement": without_replacement,
}


def _check_weights(log_weight: jax.Array, num_draws: int, method: str) -> None:
    """Refuse weights that cannot be resampled, as far as their values are known."""
    if log_weight.ndim != 1 or log_weight.shape[0] == 0:
        remedy = "Flatten the draws, or use jax.vmap for batches."
        raise ValueError(f"log_weight must be a vector of at least one, got shape {log_weight.shape}. {remedy}")
    num_usable = log_weight.shape[0]
    if not isinstance(log_weight, Tracer):
        num_bad = int(jnp.sum(jnp.isnan(log_weight) | (log_weight == jnp.inf)))
        if num_bad > 0:
            remedy = "Look for draws at which the log density is NaN, and give them -inf if they are to be left out."
            raise ValueError(f"log_weight must be finite or -inf, but {num_bad} entries are NaN or +inf. {remedy}")
        num_usable = int(jnp.sum(log_weight > -jnp.inf))
    if num_usable == 0:
        raise ValueError("log_weight must have a positive weight, but all are -inf. Draw from a wider proposal.")
    if method == "without-replacement" and num_draws > num_usable:
        remedy = "Ask for fewer, draw more from the proposal, or resample with replacement (method='systematic')."
        raise ValueError(
            f"num_draws must be at most the {num_usable} draws of positive weight when resampling without replacement, "
            f"got {num_draws}. {remedy}"
        )


def resample(
    key: Key[jax.Array, ""], log_weight: Float[AnyArray, " draw"], num_draws: int, method: str = "systematic"
) -> Int[jax.Array, " taken"]:
    """Choose draws of equal weight out of weighted ones.

    Parameters
    ----------
    key
        A typed key.
    log_weight
        Log weights, not necessarily normalised; -inf for a weight of zero.
    num_draws
        How many to take.
    method
        ``"systematic"``, ``"stratified"``, ``"residual"`` (all with replacement), or ``"without-replacement"``.

    Returns
    -------
    index
        Which draws were taken.
    """
    key = as_key(key)
    check_count("num_draws", num_draws, 1)
    check_choice("method", method, METHODS)
    log_weight = jnp.asarray(log_weight)
    _check_weights(log_weight, num_draws, method)
    return METHODS[method](key, log_weight, num_draws)


def merge_copies(
    x: Float[np.ndarray, "draw dim"], log_weight: Float[np.ndarray, " draw"]
) -> tuple[Int[np.ndarray, " distinct"], Float[np.ndarray, " distinct"]]:
    """Return which draws of positive weight are distinct, each with the log weight of all of its copies."""
    inside = np.flatnonzero(log_weight > -np.inf)
    _, first, copy = np.unique(x[inside], axis=0, return_index=True, return_inverse=True)
    together = np.full(len(first), -np.inf)
    np.logaddexp.at(together, copy.ravel(), log_weight[inside])
    return inside[first], together
