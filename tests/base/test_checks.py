import jax
import jax.numpy as jnp
import numpy as np
import pytest

from klover.base import checks


def test_key_is_accepted_inside_a_program():
    jax.jit(jax.vmap(lambda key: jax.random.uniform(checks.as_key(key))))(jax.random.split(jax.random.key(0), 3))


@pytest.mark.parametrize("seed", [0, 7, np.int64(7), 2**31 - 1, 2**31, 2**40 + 3, -5])
def test_a_whole_number_is_the_seed_of_a_key(seed):
    assert checks.as_key(seed) == jax.random.key(int(seed))


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (0.5, TypeError, r"key must be a whole number or a typed JAX key, got a float.*jax\.random\.key\(0\)"),
        (True, TypeError, "got a bool"),
        (None, TypeError, "NoneType"),
        (np.zeros(2, np.uint32), TypeError, "wrap_key_data"),
        (jnp.zeros(2, jnp.uint32), TypeError, "wrap_key_data"),
        (jax.random.split(jax.random.key(0), 3), ValueError, r"shape \(3,\).*vmap over keys"),
    ],
)
def test_key_that_is_refused(key, error, message):
    with pytest.raises(error, match=message):
        checks.as_key(key)


@pytest.mark.parametrize(
    ("value", "expected"), [(3, 3), (np.int64(5), 5), (np.array(4), 4), (jnp.asarray(2), 2), (1, 1)]
)
def test_count(value, expected):
    count = checks.check_count("num", value, 1)
    assert count == expected
    assert type(count) is int


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (0, ValueError, "num must be a whole number of at least 1, got 0. Take more."),
        (-3, ValueError, "at least 1, got -3"),
        (True, ValueError, "got True"),
        (2.0, TypeError, "num must be a whole number, got 2.0. Take more."),
        ("2", TypeError, "got '2'"),
        (None, TypeError, "got None"),
        (np.ones(2, int), TypeError, "whole number"),
    ],
)
def test_count_that_is_refused(value, error, message):
    with pytest.raises(error, match=message):
        checks.check_count("num", value, 1, "Take more.")


@pytest.mark.parametrize("value", [1, 0.5, np.float32(2.0), np.int64(3), 1e-300])
def test_positive(value):
    checks.check_positive("scale", value)


@pytest.mark.parametrize("value", [0, -1.0, np.inf, -np.inf, np.nan, "1", None, 1j, np.ones(2)])
def test_positive_that_is_refused(value):
    with pytest.raises(ValueError, match=r"^scale must be one finite number above 0, got .*\. Widen it\.$"):
        checks.check_positive("scale", value, "Widen it.")


def test_choice():
    checks.check_choice("colour", "red", {"red": 1, "blue": 2})
    for value in ("green", 3, None, ["red"]):
        with pytest.raises(ValueError, match=r"colour must be one of 'red', 'blue', got .*"):
            checks.check_choice("colour", value, ("red", "blue"))


@pytest.mark.parametrize("shape", [(3,), (5, 3), (0, 3)])
def test_points(shape):
    checks.check_points("x", np.zeros(shape), 3)
    checks.check_points("x", jnp.zeros(shape), 3)


@pytest.mark.parametrize("shape", [(), (2,), (3, 2), (1, 5, 3), (3, 0)])
def test_points_that_are_refused(shape):
    with pytest.raises(ValueError, match=r"x must be a point of shape \(3,\).*\(num_draws, 3\), got shape \(.*\)"):
        checks.check_points("x", np.zeros(shape), 3)


@pytest.mark.parametrize(
    "tree",
    [1, 0.5, {"a": np.ones(2), "b": (1, [2.0])}, jnp.ones((2, 2), jnp.bfloat16), (np.empty(0), 1.0), np.arange(3)],
)
def test_finite(tree):
    checks.check_finite("example", tree, "")


@pytest.mark.parametrize(
    ("tree", "error", "message"),
    [
        ({}, ValueError, "holds no numbers"),
        (None, ValueError, "holds no numbers"),
        ({"a": np.empty((0, 3))}, ValueError, "holds no numbers"),
        ({"a": 1.0, "b": np.array([1.0, np.nan])}, ValueError, "NaN or infinite"),
        ([-np.inf], ValueError, "NaN or infinite"),
        (jnp.full(2, jnp.inf, jnp.float32), ValueError, "NaN or infinite"),
        ("words", TypeError, "must hold .*numbers, got an array of <U5"),
        (np.array([True]), TypeError, "must hold .*numbers, got an array of bool"),
        (object(), TypeError, "must hold .*numbers, got an array of object"),
        (1j, TypeError, "must hold .*numbers, got an array of complex128"),
    ],
)
def test_finite_that_is_refused(tree, error, message):
    with pytest.raises(error, match=f"^example .*{message}.* Try another\\.$"):
        checks.check_finite("example", tree, "Try another.")
