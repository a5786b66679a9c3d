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
