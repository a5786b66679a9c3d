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


def test_seeds_have_an_end():
    with pytest.raises(ValueError, match="key must be a seed of at most 64 bits, got 1000000000000000000000"):
        checks.as_key(10**21)


def test_counts_have_an_end():
    with pytest.raises(ValueError, match="num must be a whole number of at most 1000000000, got 10000000000"):
        checks.check_count("num", 10**10, 1)
    with pytest.raises(ValueError, match="num must be a whole number of at most 2, got 3"):
        checks.check_count("num", 3, 0, maximum=2)


def test_flag():
    checks.check_flag("is_fast", True)
    checks.check_flag("is_fast", np.bool_(False))
    for value in ("yes", 1, None, np.ones(2, bool)):
        with pytest.raises(TypeError, match="is_fast must be True or False, got "):
            checks.check_flag("is_fast", value)


def test_numbers():
    for value in (0, -2.5, np.float32(1.0), 2**60):
        checks.check_number("slope", value)
    for value in (np.nan, np.inf, True, "1", None, 10**400, 10**30, 1j, np.ones(1)):
        with pytest.raises(ValueError, match="slope must be one finite number, got "):
            checks.check_number("slope", value)
    checks.check_not_negative("weight", 0)
    with pytest.raises(ValueError, match=r"weight must be one finite number, 0 or more, got -1\. Take 0\."):
        checks.check_not_negative("weight", -1, "Take 0.")


def test_instance():
    assert checks.check_instance("name", "a", str) == "a"
    with pytest.raises(TypeError, match=r"name must be a str, got 3\. Write it out\."):
        checks.check_instance("name", 3, str, "Write it out.")


def two(first, second=None, *, third):
    return first


@pytest.mark.parametrize("function", [lambda x: x, lambda *x: x, np.sum, jnp.sum, len, jax.jit(lambda x: x), dict])
def test_function_of_one_argument(function):
    checks.check_function("rule", function, "a number")


@pytest.mark.parametrize("function", [lambda: 0, lambda a, b: 0, two])
def test_function_of_other_arguments_is_refused(function):
    with pytest.raises(TypeError, match=r"rule must be a function of a number, got one with the arguments \("):
        checks.check_function("rule", function, "a number")
    checks.check_function("rule", two, "all", (1,), {"third": 2})
    with pytest.raises(TypeError, match="rule must be a function of a number, got a int"):
        checks.check_function("rule", 3, "a number")


def test_path(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    assert checks.check_path("path", tmp_path / "new") == str(tmp_path / "new")
    assert checks.check_path("path", str(tmp_path / "file"), is_read=True) == str(tmp_path / "file")
    monkeypatch.chdir(tmp_path)
    assert checks.check_path("path", "new") == "new"


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (True, TypeError, r"path must be a path \(a str or a pathlib.Path\), got True"),
        (1, TypeError, "got 1"),
        (b"file", TypeError, "got b'file'"),
        (None, TypeError, "got None"),
        (open, TypeError, "got <built-in function open>"),
        ("", ValueError, "path must be the path of a file, got ''"),
        ("a\0b", ValueError, "path must be the path of a file"),
        (".", IsADirectoryError, "got the folder '.'. Add a name to it"),
        ("absent/file", FileNotFoundError, "in a folder that exists, got 'absent/file'"),
        ("file/file", FileNotFoundError, "in a folder that exists, got 'file/file'"),
    ],
)
def test_path_that_is_refused(tmp_path, monkeypatch, value, error, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(error, match=message):
        checks.check_path("path", value)


def test_a_file_to_be_read_has_to_be_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="path must be the path of a file that exists, got "):
        checks.check_path("path", tmp_path / "absent", is_read=True)


def test_a_folder_has_to_let_files_in(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(PermissionError, match="path must be the path of a file that may be written, got "):
        checks.check_path("path", tmp_path / "new")


def test_numbers_in_arrays():
    assert checks.as_numbers("x", [1, 2]).dtype == int
    assert checks.as_floats("x", [True, False]).dtype == float
    assert checks.as_floats("x", jnp.arange(2)).dtype == float
    single = np.zeros(2, np.float32)
    assert checks.as_floats("x", single) is single
    for value in ("text", [1, [2]], None, 1j, [None], np.array(["a"])):
        with pytest.raises(TypeError, match="x must hold real numbers, got "):
            checks.as_numbers("x", value)


def test_names():
    for value in (["a", "b"], ("a", "b"), np.array(["a", "b"])):
        checks.check_names("names", value, 2)
    for value in ("ab", None, ["a", 1], {"a", "b"}):
        with pytest.raises(TypeError, match="names must be a list of 2 words, got "):
            checks.check_names("names", value, 2)
    with pytest.raises(ValueError, match="names must hold 2 names, one for each number read, got 1"):
        checks.check_names("names", ["a"], 2)
    with pytest.raises(ValueError, match="names must hold 2 different names"):
        checks.check_names("names", ["a", "a"], 2)


def test_results_of_functions():
    result = {"a": 1, "b": [np.zeros(2), jnp.ones(1), 2.5, True]}
    assert checks.check_result("rule", result) is result
    with pytest.raises(TypeError, match="rule must return numbers or arrays of them, got 'text'"):
        checks.check_result("rule", (1.0, "text"))


def test_notes():
    with pytest.raises(KeyError) as caught, checks.note("rule failed."):
        {}["a"]
    assert caught.value.__notes__ == ["rule failed."]


class Broken:
    def __repr__(self):
        raise RuntimeError


def test_anything_can_be_put_in_words():
    assert checks.in_words(np.zeros((2, 3))) == "an array of float64 of shape (2, 3)"
    assert checks.in_words(Broken()).startswith("<Broken instance")
    assert len(checks.in_words("long" * 1000)) < 50
