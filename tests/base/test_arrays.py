import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

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
def test_inverse_triangular_undoes_the_factor(xp):
    generator = np.random.default_rng(0)
    factor = np.tril(generator.normal(size=(4, 5, 5))) + 3 * np.eye(5)
    inverse = arrays.inverse_triangular(xp.asarray(factor))
    np.testing.assert_allclose(inverse @ factor, np.broadcast_to(np.eye(5), factor.shape), atol=1e-12)


@BOTH
def test_inverse_triangular_with_rows_of_any_size(xp):
    generator = np.random.default_rng(1)
    lower = np.tril(generator.uniform(-0.5, 0.5, size=(5, 5)), -1) + np.eye(5)
    size = np.array([1e8, 1e-8, 1.0, 1e-12, 1e12])
    inverse = arrays.inverse_triangular(xp.asarray(size[:, None] * lower))
    np.testing.assert_allclose(inverse * size, np.linalg.inv(lower), atol=1e-13)


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


def test_the_inverse_of_triangular_matrices_is_that_of_numpy():
    factor = np.tril(np.random.default_rng(0).normal(size=(3, 5, 5))) + 3 * np.eye(5)
    np.testing.assert_allclose(arrays.inverse_triangular(jnp.asarray(factor)), np.linalg.inv(factor), rtol=1e-10)


def test_the_derivative_of_the_inverse_is_that_of_the_solver():
    factor = jnp.asarray(np.tril(np.random.default_rng(0).normal(size=(4, 4))) + 3 * np.eye(4))
    ours = jax.grad(lambda value: jnp.sum(arrays.inverse_triangular(jnp.tril(value)) ** 3))(factor)
    theirs = jax.grad(lambda value: jnp.sum(jnp.linalg.inv(jnp.tril(value)) ** 3))(factor)
    np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-12)


def test_no_batch_of_systems_waits_for_the_pool_that_it_runs_in():
    def both(matrix, right):
        return arrays.inverse_triangular(matrix), arrays.solve_positive(matrix @ jnp.swapaxes(matrix, 1, 2), right)

    program = jax.jit(both).lower(jnp.zeros((3, 4, 4)), jnp.zeros((3, 4, 1))).compile()
    assert "trsm" not in program.as_text()


def test_positive_systems_are_solved_as_by_numpy():
    matrix = np.random.default_rng(0).normal(size=(3, 4, 4))
    matrix = matrix @ matrix.swapaxes(1, 2) + np.eye(4)
    right = np.ones((3, 4, 2))
    found = arrays.solve_positive(jnp.asarray(matrix), jnp.asarray(right))
    np.testing.assert_allclose(found, arrays.solve_positive(matrix, right), rtol=1e-10)


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


def test_distances_in_single_precision_do_not_suffer_from_far_components():
    location = np.array([[0.0, 0.0], [1e5, -1e5]], "float32")
    x = location[1] + np.array([[0.5, 1.0]], "float32")
    inverse = np.broadcast_to(np.eye(2, dtype="float32"), (2, 2, 2))
    squares = arrays.whitened_squares(*map(jnp.asarray, (x, location, inverse)))
    np.testing.assert_allclose(squares[1], 1.25, rtol=1e-6)


def test_distances_of_many_points_are_those_of_few(monkeypatch, getkey):
    x, location = jax.random.normal(getkey(), (23, 3)), jax.random.normal(getkey(), (2, 3))
    inverse = jnp.tril(jax.random.normal(getkey(), (2, 3, 3)))

    def squares(x):
        return arrays.whitened_squares(x, location, inverse)

    at_once, slopes = squares(x), jax.grad(lambda x: jnp.sum(squares(x) ** 2))(x)
    monkeypatch.setattr(arrays, "MOST_WHITENED", 5 * location.size)
    np.testing.assert_allclose(squares(x), at_once, rtol=1e-12)
    np.testing.assert_allclose(jax.grad(lambda x: jnp.sum(squares(x) ** 2))(x), slopes, rtol=1e-12)
