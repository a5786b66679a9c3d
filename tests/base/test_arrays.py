import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from helpers import compilations
from klover import Family, Mixture, Target
from klover.base import arrays

BOTH = pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((np.ones(2),), np),
        ((np.float64(1.0), 2.0), np),
        ((), np),
        ((jnp.ones(2),), jnp),
        ((np.ones(2), 1.0, jnp.ones(())), jnp),
    ],
)
def test_namespace(arguments, expected):
    assert arrays.namespace(*arguments) is expected


def test_namespace_of_tracers():
    seen = []
    jax.jit(lambda x: seen.append(arrays.namespace(x)) or x)(np.ones(2))
    assert seen == [jnp]


@given(
    hnp.arrays(float, (4, 5), elements=st.one_of(st.floats(-1e4, 1e4), st.just(-np.inf), st.integers(-2, 2).map(float)))
)
def test_logsumexp_agrees_with_scipy(x):
    for axis in (0, 1, -1):
        # scipy subtracts -inf from -inf on the way to its answer.
        with np.errstate(all="ignore"):
            expected = scipy.special.logsumexp(x, axis=axis)
        np.testing.assert_allclose(arrays.logsumexp(x, axis), expected, rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(arrays.logsumexp(jnp.asarray(x), axis), expected, rtol=1e-13, atol=1e-13)


@BOTH
def test_logsumexp_shows_what_is_no_number(xp):
    assert arrays.logsumexp(xp.asarray([0.0, np.inf])) == np.inf
    assert np.isnan(arrays.logsumexp(xp.asarray([0.0, np.nan])))


@pytest.mark.parametrize("x", [[1.0, -2.0, 0.5], [-1e4, -np.inf, -1e4 + 1], [-np.inf] * 3, [5.0, -np.inf, -np.inf]])
def test_logsumexp_gradient_is_softmax(x):
    x = np.asarray(x)
    gradient = jax.grad(arrays.logsumexp)(jnp.asarray(x))
    expected = scipy.special.softmax(x) if np.isfinite(x).any() else np.zeros(3)
    np.testing.assert_allclose(gradient, expected, atol=1e-12)


def test_no_gradient_flows_through_a_constant():
    value, gradient = jax.value_and_grad(lambda x: x * arrays.constant(x))(jnp.asarray(3.0))
    assert (value, gradient) == (9.0, 3.0)
    x = np.ones(2)
    assert arrays.constant(x) is x


@BOTH
@pytest.mark.parametrize("name", ["gammaln", "digamma"])
def test_special_functions_agree_with_scipy(xp, name):
    x = np.geomspace(1e-3, 1e5, 50)
    result = getattr(arrays, name)(xp.asarray(x))
    assert arrays.namespace(result) is xp
    np.testing.assert_allclose(result, getattr(scipy.special, name)(x), rtol=1e-11, atol=1e-12)


@BOTH
@pytest.mark.parametrize("num_steps", [0, 1, 7])
def test_iterate_applies_the_step_so_many_times(xp, num_steps):
    carry = {"value": xp.asarray(1.0), "count": xp.asarray([0, 10])}
    result = arrays.iterate(lambda c: {"value": 2 * c["value"], "count": c["count"] + 1}, carry, num_steps)
    assert result["value"] == 2.0**num_steps
    np.testing.assert_array_equal(result["count"], [num_steps, 10 + num_steps])
    assert arrays.namespace(result["value"]) is xp


@BOTH
@pytest.mark.parametrize("limit", [0, 3, 100])
@pytest.mark.parametrize("last", [2.0, 10.0, 1e9])
def test_iterate_ends_when_it_is_finished_or_out_of_steps(xp, limit, last):
    result = arrays.iterate(lambda x: 2 * x, xp.asarray(1.0), limit, lambda x: x >= last)
    assert float(result) == 2.0 ** min(limit, int(np.ceil(np.log2(last))))
    assert arrays.namespace(result) is xp


@BOTH
def test_what_is_finished_takes_no_step(xp):
    assert float(arrays.iterate(lambda x: 2 * x, xp.asarray(1.0), 5, lambda x: x >= 1)) == 1.0


@BOTH
def test_iterate_may_have_a_traced_number_of_steps(xp):
    assert arrays.iterate(lambda x: x + 1, xp.asarray(0), xp.asarray(4)) == 4
    assert jax.jit(lambda num: arrays.iterate(lambda x: x + 1, jnp.asarray(0), num))(4) == 4


def test_iterate_under_vmap_ends_each_entry_on_its_own():
    result = jax.vmap(lambda x: arrays.iterate(lambda y: 2 * y, x, 50, lambda y: y >= 8))(jnp.asarray([1.0, 3.0, 0.5]))
    np.testing.assert_array_equal(result, [8.0, 12.0, 8.0])


@BOTH
@given(
    weights=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8).filter(lambda weights: sum(weights) > 0.1),
    levels=st.lists(st.floats(0.0, 1.0), max_size=20),
)
def test_a_comb_takes_the_draw_whose_stretch_holds_the_level(xp, weights, levels):
    weights = np.array(weights)
    taken = np.asarray(arrays.comb(xp.asarray(weights), xp.asarray(np.array(levels, float))))
    assert taken.shape == (len(levels),)
    assert np.all(weights[taken] > 0)
    ends = np.cumsum(weights) / weights.sum()
    assert np.all(ends[taken] >= np.array(levels) - 1e-12)
    assert np.all(ends[taken] - weights[taken] / weights.sum() <= np.array(levels) + 1e-12)


@pytest.mark.parametrize("size", [3, 1000, 100_000])
def test_combs_of_numpy_and_jax_agree(size):
    generator = np.random.default_rng(size)
    weight = generator.exponential(size=size) * (generator.uniform(size=size) < 0.5) + (np.arange(size) == 1)
    level = (np.arange(200) + 0.37) / 200
    expected = arrays.comb(weight, level)
    found = np.asarray(jax.jit(arrays.comb)(jnp.asarray(weight), jnp.asarray(level)))
    # A parallel sum is rounded otherwise, so that a level on the very border may fall to the next draw.
    assert np.mean(found != expected) < 0.02
    assert np.all(weight[found] > 0)


@BOTH
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_level_of_one_is_the_last_draw_that_has_weight(xp, dtype):
    weight = np.array([0.0, 0.5, 0.5, 0.0], dtype)
    np.testing.assert_array_equal(
        arrays.comb(xp.asarray(weight), xp.asarray([0.0, 0.999, 1.0], dtype=dtype)), [1, 2, 2]
    )


@given(
    weights=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8).filter(lambda weights: sum(weights) > 0.1),
    num=st.integers(1, 200),
    seed=st.integers(0, 2**32 - 1),
)
def test_counts_of_a_comb_differ_from_expectation_by_less_than_one(weights, num, seed):
    weights = np.array(weights)
    index = arrays.even_comb(np.random.default_rng(seed), weights, num)
    counts = np.bincount(index, minlength=len(weights))
    assert (len(index), len(counts)) == (num, len(weights))
    assert np.all(np.abs(counts - num * weights / weights.sum()) < 1 + 1e-9)
    np.testing.assert_array_equal(counts[weights == 0], 0)


def test_a_comb_is_right_on_average():
    weights, num_seeds = np.array([0.1, 2.3, 0.0, 0.6]), 500
    counts = np.stack(
        [
            np.bincount(arrays.even_comb(np.random.default_rng(seed), weights, 5), minlength=4)
            for seed in range(num_seeds)
        ]
    )
    assert np.all(np.abs(counts.mean(0) - 5 * weights / weights.sum()) <= 5 * counts.std(0) / np.sqrt(num_seeds))


@pytest.mark.parametrize("num", [1, arrays.BLOCK, arrays.BLOCK + 1, 3 * arrays.BLOCK, 3 * arrays.BLOCK + 7])
def test_blocks_hold_every_row_once_and_in_order(num):
    first, second = np.arange(2.0 * num).reshape(num, 2), np.arange(num)
    blocks = arrays.over_blocks(lambda one, other: (one, other), first, second)
    assert all(len(one) == len(other) <= arrays.BLOCK for one, other in blocks)
    np.testing.assert_array_equal(np.concatenate([one for one, _ in blocks]), first)
    np.testing.assert_array_equal(np.concatenate([other for _, other in blocks]), second)


def test_arrays_of_jax_go_in_one_block():
    rows = jnp.arange(3 * arrays.BLOCK)
    assert [len(block) for block in arrays.over_blocks(lambda block: block, rows)] == [len(rows)]
    # Any array of JAX decides for all.
    assert len(arrays.over_blocks(lambda one, other: one, np.asarray(rows), rows)) == 1


def test_error_in_a_block_comes_through():
    def refuse_zero(block):
        if block.min() == 0:
            raise KeyError("zero")

    with pytest.raises(KeyError, match="zero"):
        arrays.over_blocks(refuse_zero, np.arange(2 * arrays.BLOCK))


@pytest.mark.parametrize("num", [2, arrays.BLOCK + 1])
def test_overflow_in_a_block_is_infinite_without_a_warning(num):
    assert np.isinf(np.concatenate(arrays.over_blocks(np.square, np.full(num, 1e200)))).all()


def _has_exact_products(function, argument):
    """Whether a function has products of matrices, and all of them in full precision."""
    text = str(jax.make_jaxpr(lambda x: function(x))(argument))
    return text.count("dot_general[") == text.count("precision=(Precision.HIGHEST, Precision.HIGHEST)") > 0


def test_products_are_exact_unless_the_user_says_otherwise():
    def product(x):
        with arrays.exact_products():
            return x @ x

    assert _has_exact_products(product, jnp.eye(2))
    with jax.default_matmul_precision("tensorfloat32"):
        assert not _has_exact_products(product, jnp.eye(2))


MIXTURE = Mixture.of(Family.parse("student").components(jnp.zeros((2, 3)), jnp.ones((2, 3))))


@pytest.mark.parametrize(
    ("function", "argument"),
    [
        (Target(lambda x: -0.5 * x @ (jnp.eye(3) @ x), jnp.zeros(3)).log_prob, jnp.ones(3)),
        (MIXTURE.log_prob, jnp.ones((5, 3))),
        (lambda key: MIXTURE.sample(key, 5), jax.random.key(0)),
    ],
    ids=["target", "density", "draws"],
)
def test_what_answers_rest_on_has_exact_products(function, argument):
    assert _has_exact_products(function, argument)


def test_chance_comes_from_a_generator_for_numpy_and_from_the_key_for_jax():
    key = jax.random.key(3)
    generators = [arrays.randomness(source, np.ones(2)) for source in (3, key)]
    assert all(isinstance(generator, np.random.Generator) for generator in generators)
    assert generators[0].random() == generators[1].random() != arrays.randomness(4, np.ones(2)).random()
    assert arrays.randomness(generators[0], jnp.ones(2)) is generators[0]
    assert arrays.randomness(key, np.ones(2), jnp.ones(2)) is key
    # A key that is traced has no data to seed a generator with.
    jax.jit(lambda key: jax.random.uniform(arrays.randomness(key, np.ones(2))))(key)


def test_a_formula_is_one_program_on_jax_arrays_and_none_on_numpy_ones():
    formula = arrays.compiled(lambda x, y: arrays.namespace(x).sqrt(x**2 + 3.0 * y))
    x = np.arange(4.0)
    with compilations() as programs:
        on_host = formula(x, 2.0)
    assert programs == []
    assert isinstance(on_host, np.ndarray)
    points = jnp.asarray(x)
    with compilations() as programs:
        np.testing.assert_allclose(formula(points, 2.0), on_host)
    assert len(programs) == 1
    np.testing.assert_allclose(jax.vmap(lambda point: formula(point, 2.0))(points), on_host)
