import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from klover.base.keys import quick


def test_equal_keys_make_equal_draws_and_others_do_not():
    first, again, other = (jax.random.normal(quick(jax.random.key(seed)), (5,)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.isclose(first, other).any()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_every_bit_is_one_half_of_the_time_and_independent_of_the_next_draw(dtype):
    num = 20_000
    words = np.asarray(jax.random.bits(quick(jax.random.key(3)), (num,), dtype))
    size = words.dtype.itemsize
    bits = np.unpackbits(words.view(np.uint8).reshape(num, size), axis=1).astype(float)
    error = 0.5 / num**0.5
    assert np.abs(bits.mean(0) - 0.5).max() < 5 * error
    agree = np.mean(bits[1:, :, None] == bits[:-1, None, :], axis=0)
    assert np.abs(agree - 0.5).max() < 5.5 * error


def test_draws_of_split_and_folded_keys_are_normal_and_independent():
    key, num = quick(jax.random.key(0)), 4000
    split = jax.vmap(lambda key: jax.random.normal(key, (3,)))(jax.random.split(key, num))
    nested = jax.vmap(lambda key: jax.random.normal(jax.random.split(key)[1], (3,)))(jax.random.split(key, num))
    folded = jax.vmap(lambda number: jax.random.normal(jax.random.fold_in(key, number), (3,)))(jnp.arange(num))
    own = jax.random.normal(key, (num, 3))
    draws = np.concatenate([split, nested, folded, own], axis=1)
    error = num**-0.5
    assert np.abs(draws.mean(0)).max() < 4.5 * error
    assert np.abs((draws**2).mean(0) - 1).max() < 4.5 * 2**0.5 * error
    correlation = np.corrcoef(draws.T)
    assert max(abs(correlation[pair]) for pair in itertools.combinations(range(12), 2)) < 4.5 * error
    # Neighbours in a sequence of keys, too.
    assert np.abs((draws[1:] * draws[:-1]).mean(0)).max() < 4.5 * error
