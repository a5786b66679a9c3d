import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klover.importance import resampling

WITH_REPLACEMENT = ["systematic", "stratified", "residual"]
WEIGHT = np.array([0.05, 0.3, 0.0, 0.002, 0.4, 0.148, 0.1, 0.0])
with np.errstate(divide="ignore"):
    LOG_WEIGHT = np.log(WEIGHT) - 700.0  # unnormalised, and underflowing unless shifted


def counts(index, num_weights: int) -> np.ndarray:
    return np.bincount(np.asarray(index), minlength=num_weights)


NUM_REPEATS = {"host": 2000, "compiled": 20_000}


def many(where: str, take) -> np.ndarray:
    """Resample many times: by one generator on the host, or by as many keys in one program."""
    if where == "host":
        generator = np.random.default_rng(0)
        return np.stack([take(generator) for _ in range(NUM_REPEATS[where])])
    return np.asarray(jax.jit(jax.vmap(take))(jax.random.split(jax.random.key(0), NUM_REPEATS[where])))


BOTH = pytest.mark.parametrize("where", NUM_REPEATS)


@BOTH
@pytest.mark.parametrize("method", WITH_REPLACEMENT)
@pytest.mark.parametrize("num_draws", [1, 7, 50])
def test_counts_are_unbiased(where, method, num_draws):
    index = many(where, lambda source: resampling.METHODS[method](source, LOG_WEIGHT, num_draws))
    num_repeats = len(index)
    count = np.stack([counts(row, len(WEIGHT)) for row in index])
    error = np.std(count, axis=0) / np.sqrt(num_repeats)
    # A count that never varies is either exact or so rare that its error is below one event in all repeats.
    assert np.all(np.abs(count.mean(axis=0) - num_draws * WEIGHT) <= 4.5 * error + 1 / num_repeats)
    assert np.all(count[:, WEIGHT == 0] == 0)


@given(
    weight=st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e3)), min_size=12, max_size=12).filter(any),
    seed=st.integers(0, 2**31 - 1),
)
def test_counts_are_near_their_expectation(weight, seed):
    num_draws = 40
    with np.errstate(divide="ignore"):
        log_weight = np.log(weight)
    expected = num_draws * np.array(weight) / np.sum(weight)
    slack = 1e-9  # an expectation within rounding of a whole number may count as either neighbour
    key = jax.random.key(seed)
    count = {
        name: counts(resampling.resample(key, log_weight, num_draws, name), len(weight)) for name in WITH_REPLACEMENT
    }
    assert all(value.sum() == num_draws for value in count.values())
    assert np.all(count["systematic"] >= np.floor(expected - slack))
    assert np.all(count["systematic"] <= np.ceil(expected + slack))
    assert np.all(np.abs(count["stratified"] - expected) < 2 + slack)
    assert np.all(count["residual"] >= np.floor(expected - slack))
    assert all(np.all(value[expected == 0] == 0) for value in count.values())


@pytest.mark.parametrize("method", WITH_REPLACEMENT)
def test_equal_weights_keep_every_draw(getkey, method):
    index = resampling.resample(getkey(), np.zeros(64), 64, method)
    np.testing.assert_array_equal(np.sort(index), np.arange(64))


@pytest.mark.parametrize("method", WITH_REPLACEMENT)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
def test_many_draws_never_take_one_of_weight_zero(getkey, method, dtype, xp):
    place = np.arange(100_001)
    log_weight = xp.asarray(np.where(place % 3 == 1, np.where(place == 1, 5.0, 0.0), -np.inf).astype(dtype))
    index = np.asarray(resampling.resample(getkey(), log_weight, 200_000, method))
    assert index.min() >= 0
    assert index.max() < log_weight.shape[0]
    assert np.all(index % 3 == 1)


def test_offset_that_rounds_to_the_end_takes_the_last_weight(getkey):
    keys = jax.random.split(getkey(), 2000)
    offset = jax.vmap(lambda key: jax.random.uniform(key, (), jnp.float32))(keys)
    num_draws, log_weight = 200_000, jnp.array([0.0, 0.0, -jnp.inf], jnp.float32)
    assert jnp.float32(num_draws - 1) + offset.max() == num_draws
    assert resampling.systematic(keys[jnp.argmax(offset)], log_weight, num_draws).max() == 1


@pytest.mark.parametrize("method", WITH_REPLACEMENT)
@pytest.mark.parametrize("place", [0, 4, 9])
def test_one_draw_carries_all_the_weight(getkey, method, place):
    log_weight = np.where(np.arange(10) == place, 3.0, -np.inf)
    np.testing.assert_array_equal(resampling.resample(getkey(), log_weight, 25, method), np.full(25, place))


def test_without_replacement_is_distinct(getkey):
    index = resampling.resample(getkey(), LOG_WEIGHT, 6, "without-replacement")
    np.testing.assert_array_equal(np.sort(index), np.flatnonzero(WEIGHT))


@BOTH
def test_without_replacement_takes_in_proportion_to_what_is_left(where):
    weight = np.array([0.5, 0.3, 0.2])
    index = many(where, lambda source: resampling.without_replacement(source, np.log(weight), 2))
    num_repeats = len(index)
    for first in range(3):
        for second in set(range(3)) - {first}:
            expected = weight[first] * weight[second] / (1 - weight[first])
            share = np.mean((index[:, 0] == first) & (index[:, 1] == second))
            assert abs(share - expected) < 4.5 * np.sqrt(expected * (1 - expected) / num_repeats)


@pytest.mark.parametrize("method", resampling.METHODS)
@pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
def test_the_key_decides(getkey, method, xp):
    key, log_weight = getkey(), xp.linspace(0, 1, 50)
    index = resampling.resample(key, log_weight, 20, method)
    assert index.shape == (20,)
    assert isinstance(index, np.ndarray if xp is np else jax.Array)
    assert jnp.issubdtype(index.dtype, jnp.integer)
    seeded = (resampling.resample(seed, log_weight, 20, method) for seed in (5, jax.random.key(5)))
    np.testing.assert_array_equal(*seeded)
    np.testing.assert_array_equal(index, resampling.resample(key, log_weight, 20, method))
    assert np.any(np.asarray(index) != resampling.resample(getkey(), log_weight, 20, method))


@pytest.mark.parametrize("method", resampling.METHODS)
@pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
def test_draws_come_in_random_order(method, xp):
    # Of a permutation of 0, ..., 199 half of the neighbours ascend, with a variance of 201 / 12.
    index = np.asarray(resampling.resample(0, xp.zeros(200), 200, method))
    np.testing.assert_array_equal(np.sort(index), np.arange(200))
    assert abs(np.sum(np.diff(index) > 0) - 199 / 2) < 5 * np.sqrt(201 / 12)


@pytest.mark.parametrize("method", resampling.METHODS)
def test_vmap_is_a_loop(getkey, method):
    keys, log_weight = jax.random.split(getkey(), 5), jax.random.normal(getkey(), (5, 30))
    batched = jax.jit(jax.vmap(lambda key, row: resampling.resample(key, row, 12, method)))(keys, log_weight)
    for row in range(5):
        np.testing.assert_array_equal(batched[row], resampling.resample(keys[row], log_weight[row], 12, method))


def test_bad_arguments(getkey):
    key = getkey()
    with pytest.raises(ValueError, match="method.*'systematic', 'stratified', 'residual', 'without-replacement'"):
        resampling.resample(key, LOG_WEIGHT, 3, "multinomial")
    with pytest.raises(ValueError, match="num_draws"):
        resampling.resample(key, LOG_WEIGHT, 0)
    with pytest.raises(ValueError, match="at most the 6 draws of positive weight.*with replacement"):
        resampling.resample(key, LOG_WEIGHT, 7, "without-replacement")
    with pytest.raises(ValueError, match="at most the 8 draws"):
        jax.jit(lambda x: resampling.resample(key, x, 9, "without-replacement"))(LOG_WEIGHT)
    with pytest.raises(ValueError, match="all are -inf"):
        resampling.resample(key, np.full(3, -np.inf), 2)
    with pytest.raises(ValueError, match="1 entries are NaN"):
        resampling.resample(key, np.array([0.0, np.nan]), 2)
    with pytest.raises(ValueError, match="log_weight"):
        resampling.resample(key, np.empty(0), 2)
