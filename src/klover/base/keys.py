r"""Random keys for draws that few look at: the compiler is done with them in a third of the time that JAX's own take.

Word number i that a key :math:`(a,b)` makes for a purpose c is :math:`h(h(i\oplus a)+b+c)`, where h mixes 32 bits so
that each depends on all others (Mueller's hash, with the constants of Wellons's ``lowbias32``). That is random enough
for places to start a search from; for an answer that somebody reads, use JAX's keys.
"""

import math
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl

from klover.base.shapes import AnyArray, RandomKey

FOR_BITS, FOR_KEYS, FOR_FOLD = 0x00000000, 0x9E3779B9, 0x3C6EF372
"""What words are for: no stream of bits may be a stream of keys."""

Words: TypeAlias = jax.Array


def quick(key: RandomKey) -> RandomKey:
    """Return a key of this kind in place of one of JAX; equal keys give equal ones."""
    data = np.asarray(jax.random.key_data(key)).ravel()[-2:]
    return jax.random.wrap_key_data(jnp.asarray(data), impl=_KIND)


def _mixed(word: Words) -> Words:
    word = (word ^ (word >> 16)) * np.uint32(0x7FEB352D)
    word = (word ^ (word >> 15)) * np.uint32(0x846CA68B)
    return word ^ (word >> 16)


def _words(key: AnyArray, shape: tuple[int, ...], purpose: int) -> Words:
    number = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    return _mixed(_mixed(number ^ key[0]) + key[1] + np.uint32(purpose))


def _bits(key: AnyArray, width: int, shape: tuple[int, ...]) -> Words:
    if width == 64:
        high, low = _words(key, (2, *shape), FOR_BITS).astype(jnp.uint64)
        return (high << 32) | low
    return _words(key, shape, FOR_BITS).astype(f"uint{width}")


_KIND = define_prng_impl(
    key_shape=(2,),
    seed=lambda seed: jnp.stack([jnp.uint32(0), jnp.asarray(seed).astype(jnp.uint32)]),
    split=lambda key, shape: _words(key, (*shape, 2), FOR_KEYS),
    random_bits=_bits,
    fold_in=lambda key, number: _words(key ^ _mixed(jnp.asarray(number).astype(jnp.uint32)), (2,), FOR_FOLD),
    name="klover_quick",
    tag="kq",
)
