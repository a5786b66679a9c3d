import math
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from helpers import gaussian, gaussian_mixture, linear_regression, student
from klover.targets import target as target_module
from klover.targets.positions import flat_box
from klover.targets.target import BLOCK, Target, evaluate


class Position(NamedTuple):
    location: jax.Array
    log_scale: jax.Array


def standard_normal(position):
    return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(position))


def test_flat_points_stand_for_positions():
    def logdensity(position):
        return jnp.sum(position["weight"] * jnp.arange(6).reshape(2, 3)) + 100 * position["bias"]

    target = Target(logdensity, {"weight": np.zeros((2, 3)), "bias": 1})
    assert target.dim == 7
    assert target.names == ("bias", *(f"weight[{i},{j}]" for i in range(2) for j in range(3)))
    np.testing.assert_array_equal(target.start, [1.0] + [0.0] * 6)
    x = np.arange(7.0)
    position = target.position(x)
    assert position["bias"] == 0.0
    np.testing.assert_array_equal(position["weight"], np.arange(1.0, 7.0).reshape(2, 3))
    assert target.log_prob(x) == np.sum(np.arange(1.0, 7.0) * np.arange(6))
    points = np.stack([x, x + 1, np.zeros(7)])
    np.testing.assert_allclose(target.log_prob(points), [target.log_prob(point) for point in points])
    np.testing.assert_array_equal(target.flat_position(points), points)


@pytest.mark.parametrize(
    ("example", "names"),
    [
        (0.0, ("x",)),
        (np.zeros(2), ("x[0]", "x[1]")),
        ([1.0, np.zeros(1)], ("0", "1[0]")),
        (Position(jnp.zeros(2), jnp.zeros(())), ("location[0]", "location[1]", "log_scale")),
        ({"a": {"b": 0.0}, "c": (1, 2)}, ("a.b", "c.0", "c.1")),
    ],
)
def test_names_are_the_paths_of_the_example(example, names):
    target = Target(standard_normal, example)
    assert target.names == names
    assert jax.tree.structure(target.position(target.start)) == jax.tree.structure(example)
    assert target.log_prob(target.start + 1.0) == standard_normal(jax.tree.map(lambda leaf: leaf + 1.0, example))


def test_constrained_positions_have_their_own_names():
    def constrain(position):
        scale = jnp.exp(position.log_scale)
        return {"scale": scale, "interval": jnp.stack([position.location[0] - scale, position.location[0] + scale])}

    example = Position(jnp.zeros(1), jnp.zeros(()))
    target = Target(standard_normal, example, constrain=constrain)
    assert target.dim == 2
    assert target.names == ("interval[0]", "interval[1]", "scale")
    x = np.array([[1.0, np.log(3.0)], [0.0, 0.0]])
    np.testing.assert_allclose(target.flat_position(x), [[-2.0, 4.0, 3.0], [-1.0, 1.0, 1.0]], rtol=1e-12)
    assert set(target.position(x[0])) == {"interval", "scale"}
    named = Target(standard_normal, example, constrain=constrain, names=["low", "high", "scale"])
    assert named.names == ("low", "high", "scale")
    with pytest.raises(ValueError, match="names must hold 3 names, one for each number read, got 2"):
        Target(standard_normal, example, constrain=constrain, names=["low", "high"])


def test_unravel_is_the_position_before_it_is_constrained():
    example = {"scale": 0.0, "weight": np.zeros((2, 2))}
    target = Target(standard_normal, example, constrain=lambda at: at | {"scale": jnp.exp(at["scale"])})
    x = np.arange(1.0, 6.0)
    position = target.unravel(x)
    assert jax.tree.structure(position) == jax.tree.structure(example)
    assert position["scale"] == 1.0
    np.testing.assert_array_equal(position["weight"], np.arange(2.0, 6.0).reshape(2, 2))
    np.testing.assert_allclose(target.position(x)["scale"], np.e, rtol=1e-12)


def compiled_programs(function):
    """Count what is compiled while a function runs."""
    count = 0

    def listen(event, _, **__):
        nonlocal count
        count += event == "/jax/core/compile/backend_compile_duration"

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        function()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return count


NUMBERS = (1, 3, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5)


def test_positions_of_many_points_where_nothing_is_constrained_compile_nothing():
    target = Target(standard_normal, {"scale": 0.0, "weight": np.zeros((2, 2))})
    x = np.random.default_rng(0).normal(size=(7, 5))
    for draws in (x, jnp.asarray(x)):
        assert compiled_programs(lambda: (target.positions(draws), target.flat_position(draws))) == 0  # noqa: B023
        found = target.positions(draws)
        assert isinstance(found["weight"], np.ndarray)
        np.testing.assert_array_equal(found["scale"], x[:, 0])
        np.testing.assert_array_equal(found["weight"], x[:, 1:].reshape(7, 2, 2))
    assert compiled_programs(lambda: target.unravel(x)) == 0
    np.testing.assert_array_equal(target.unravel(x)["weight"], found["weight"])


def test_one_program_constrains_any_number_of_points():
    def make(shift):
        constrain = lambda at: {"scale": jnp.exp(at["scale"]) + shift, "total": jnp.sum(at["weight"])}  # noqa: E731
        return Target(standard_normal, {"scale": 0.0, "weight": np.zeros((2, 2))}, constrain=constrain)

    data = np.random.default_rng(0).normal(size=(2, 3))
    x = np.random.default_rng(1).normal(size=(max(NUMBERS), 5))

    def check(shift):
        target = make(shift)
        for num in NUMBERS:
            found = target.positions(x[:num])
            assert isinstance(found["scale"], np.ndarray)
            np.testing.assert_allclose(found["scale"], np.exp(x[:num, :1]) + shift, rtol=1e-14, atol=1e-14)
            np.testing.assert_allclose(found["total"], x[:num, 1:].sum(1), rtol=1e-10, atol=1e-14)
            flat = np.column_stack([found["scale"], found["total"]])
            np.testing.assert_array_equal(target.flat_position(x[:num]), flat)

    assert compiled_programs(lambda: check(data[0])) == 1
    assert compiled_programs(lambda: check(data[1])) == 0  # other data of the same shape


def test_positions_are_traced_inside_a_program():
    target = Target(standard_normal, np.zeros(2), constrain=jnp.exp)
    x = np.random.default_rng(0).normal(size=(4, 3, 2))
    for method in (target.positions, target.flat_position):
        np.testing.assert_allclose(jax.jit(jax.vmap(method))(x), np.exp(x), rtol=1e-14)


def test_blocks_of_positions_shrink_with_what_they_hold(monkeypatch):
    monkeypatch.setattr(target_module, "LARGEST_INTERMEDIATE", 500)
    target = Target(standard_normal, np.zeros(2), constrain=lambda x: x[0] * jnp.ones(100))
    x = np.random.default_rng(0).normal(size=(13, 2))
    np.testing.assert_array_equal(target.positions(x), np.repeat(x[:, :1], 100, axis=1))


def test_coordinates_have_names_of_their_own_beside_those_that_are_read():
    example = {"log_scale": 0.0, "weight": np.zeros(2)}
    target = Target(standard_normal, example, constrain=lambda at: {"scale": jnp.exp(at["log_scale"])})
    assert target.names == ("scale",)
    assert [target.coordinate_name(index) for index in range(3)] == ["log_scale", "weight[0]", "weight[1]"]


BOX_EXAMPLE = {"bias": 1, "weight": np.zeros(2)}


@pytest.mark.parametrize(
    ("box", "lower", "upper"),
    [
        ((-3, 4.5), [-3.0] * 3, [4.5] * 3),
        ((np.float64(-3), 4), [-3.0] * 3, [4.0] * 3),
        (({"bias": 0, "weight": np.array([-1.0, -2.0])}, 5.0), [0.0, -1.0, -2.0], [5.0] * 3),
        (
            ({"bias": 0.0, "weight": jnp.zeros(2)}, {"weight": np.array([2, 3]), "bias": 1}),
            [0.0] * 3,
            [1.0, 2.0, 3.0],
        ),
    ],
    ids=["numbers", "numpy number", "mixed", "pytrees"],
)
def test_box_is_flat_in_the_order_of_the_names(box, lower, upper):
    target = Target(standard_normal, BOX_EXAMPLE, box=box)
    np.testing.assert_array_equal(target.box, [lower, upper])
    assert {corner.dtype for corner in target.box} == {target.start.dtype}


def test_box_is_a_hint_and_none_by_default():
    plain, hinted = (Target(standard_normal, jnp.zeros(2), box=box) for box in (None, (1.0, 2.0)))
    assert plain.box is None
    x = np.array([[5.0, -7.0], [1.5, 1.5]])
    np.testing.assert_array_equal(hinted.log_prob(x), plain.log_prob(x))
    np.testing.assert_array_equal(jax.jit(lambda target: target.box[1])(hinted), [2.0, 2.0])


@pytest.mark.parametrize(
    ("box", "message"),
    [
        ((np.zeros(2), 1.0), "box must hold corners of 3 numbers, like the example, got 2 and 3"),
        ((1.0, 1.0), "box must be finite, with lower below upper in every coordinate"),
        ((np.zeros(3), np.array([1.0, -1.0, 1.0])), "box must be finite, with lower below upper"),
        ((0.0, np.inf), "box must be finite"),
        ((np.nan, 1.0), "box must be finite"),
    ],
    ids=["size", "empty", "crossed", "infinite", "nan"],
)
def test_box_that_is_refused(box, message):
    with pytest.raises(ValueError, match=message):
        Target(standard_normal, BOX_EXAMPLE, box=box)


@pytest.mark.parametrize("box", [3.0, (0.0, 1.0, 2.0)], ids=["number", "three"])
def test_box_that_is_no_pair_is_refused(box):
    with pytest.raises(ValueError, match=r"box must be a pair \(lower, upper\), got .*"):
        flat_box.__wrapped__(box, BOX_EXAMPLE)


@pytest.mark.parametrize("num_data", [5, 500])
def test_largest_intermediate_grows_with_the_data(num_data):
    data = np.random.default_rng(0).normal(size=(num_data, 3))
    target = Target(lambda x: -jnp.sum((x - data) ** 2), jnp.zeros(3))
    assert target.largest_intermediate == 3 * num_data


def test_largest_intermediate_of_one_number_is_one():
    assert Target(lambda x: -(x**2), 0.0).largest_intermediate == 1


DATA = np.linspace(0.0, 1.0, 17)


def sum_of_squares(data):
    return lambda x: -jnp.sum((x[0] - data) ** 2)


@pytest.mark.parametrize(
    "logdensity",
    [
        sum_of_squares(DATA),
        sum_of_squares(jnp.asarray(DATA)),
        lambda x: jax.lax.fori_loop(0, 2, lambda _, total: total + 0.5 * sum_of_squares(jnp.asarray(DATA))(x), 0.0),
        jax.jit(sum_of_squares(jnp.asarray(DATA))),
    ],
    ids=["numpy", "jax", "loop", "compiled"],
)
def test_data_become_leaves(logdensity):
    target = Target(logdensity, jnp.zeros(1))
    assert any(leaf.shape == DATA.shape and np.allclose(leaf, DATA) for leaf in jax.tree.leaves(target))
    np.testing.assert_allclose(target.log_prob(np.array([0.3])), -np.sum((0.3 - DATA) ** 2), rtol=1e-12)


def test_new_data_need_no_new_program():
    num_traces = 0

    @jax.jit
    def log_prob(target, x):
        nonlocal num_traces
        num_traces += 1
        return target.log_prob(x)

    target, x = Target(sum_of_squares(DATA), jnp.zeros(1)), np.array([0.3])
    np.testing.assert_allclose(log_prob(target, x), -np.sum((0.3 - DATA) ** 2), rtol=1e-12)
    other = jax.tree.map(lambda leaf: leaf + 2.0, target)
    np.testing.assert_allclose(log_prob(other, x), -np.sum((0.3 - DATA - 2) ** 2), rtol=1e-12)
    assert num_traces == 1


def test_vmap_over_data_sets():
    data = jnp.asarray(np.random.default_rng(0).normal(size=(4, 6)))
    x = np.array([[0.3], [-1.0]])
    expected = [sum_of_squares(row)(point) for row in data for point in x]
    make = lambda row: Target(sum_of_squares(row), jnp.zeros(1))  # noqa: E731
    inside = jax.jit(jax.vmap(lambda row: make(row).log_prob(x)))(data)
    np.testing.assert_allclose(inside.ravel(), expected, rtol=1e-12)
    targets = jax.vmap(make)(data)
    np.testing.assert_allclose(jax.vmap(Target.log_prob, (0, None))(targets, x).ravel(), expected, rtol=1e-12)


@pytest.mark.parametrize("make", [gaussian, linear_regression])
def test_normal_targets_of_the_helpers(make):
    known = make()
    x = np.random.default_rng(0).normal(size=(3, known.target.dim))
    expected = scipy.stats.multivariate_normal(known.mean, known.covariance).logpdf(x) + known.log_evidence
    np.testing.assert_allclose(known.target.log_prob(x), expected, rtol=1e-9)


@pytest.mark.parametrize("make", [gaussian_mixture, student])
def test_other_targets_of_the_helpers(make):
    known = make()
    # The midpoint rule on a wide fine grid is as good as exact for smooth densities.
    line = np.linspace(-40, 40, 801)
    grid = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    density = np.exp(jax.jit(known.target.log_prob)(grid)) * (line[1] - line[0]) ** 2
    mean = density @ grid / density.sum()
    covariance = (density[:, None] * (grid - mean)).T @ (grid - mean) / density.sum()
    np.testing.assert_allclose(np.log(density.sum()), known.log_evidence, rtol=1e-4)
    np.testing.assert_allclose(mean, known.mean, atol=1e-4)
    np.testing.assert_allclose(covariance, known.covariance, rtol=1e-3, atol=1e-3)


def test_log_prob_keeps_what_the_function_returns():
    target = Target(
        lambda x: jnp.where(x[0] > 0, jnp.log(x[0]), jnp.where(x[0] < -1, jnp.nan, jnp.inf)), 1.0 * DATA[:1]
    )
    np.testing.assert_array_equal(target.log_prob(np.array([[1.0], [-2.0], [-0.5]])), [0.0, np.nan, np.inf])


def test_evaluate_silences_and_counts_what_is_invalid():
    values = jnp.array([0.0, -jnp.inf, jnp.nan, jnp.inf, -3.0, jnp.nan])
    target = Target(lambda x: values[x[0].astype(int)], jnp.zeros(1))
    log_p, num_nan, num_positive_infinite = evaluate(target, np.arange(6.0)[:, None])
    np.testing.assert_array_equal(log_p, [0.0, -np.inf, -np.inf, -np.inf, -3.0, -np.inf])
    assert (int(num_nan), int(num_positive_infinite)) == (2, 1)


def branch(x):
    return x[0] if x[0] > 0 else -x[0]


@pytest.mark.parametrize(
    "logdensity",
    [
        lambda x: np.sum(np.exp(x)),
        lambda x: scipy.stats.norm.logpdf(x).sum(),
        lambda x: math.exp(x[0]),
        lambda x: float(x[0]),
        branch,
        lambda x: jnp.sum(x[x > 0]),
    ],
    ids=["numpy", "scipy", "math", "float", "branch", "mask"],
)
def test_density_that_cannot_be_traced_gets_advice(logdensity):
    with pytest.raises((TypeError, IndexError)) as caught:
        Target(logdensity, jnp.zeros(2))
    assert any("jax.numpy" in note and "pure_callback" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(
    "logdensity",
    [
        lambda x: -(x**2),
        lambda x: jnp.sum(x**2)[None],
        lambda x: (jnp.sum(x), jnp.sum(x)),
        lambda x: None,
        lambda x: 1,
        lambda x: jnp.sum(x) + 1j,
        lambda x: jnp.all(x > 0),
    ],
    ids=["vector", "one in a vector", "tuple", "nothing", "integer", "complex", "truth"],
)
def test_density_must_be_one_real_number(logdensity):
    with pytest.raises(ValueError, match=r"logdensity must return one real number \(shape \(\)\), but it returned"):
        Target(logdensity, jnp.zeros(2))


def test_errors_of_the_density_itself_come_through():
    with pytest.raises(KeyError, match="slope"):
        Target(lambda position: position["slope"], {"intercept": 0.0})


@pytest.mark.parametrize(
    ("example", "error", "message"),
    [
        ({}, ValueError, "example holds no numbers"),
        (np.zeros(0), ValueError, "example holds no numbers"),
        ({"a": np.array([0.0, np.nan])}, ValueError, "example must be finite"),
        (-np.inf, ValueError, "example must be finite"),
        ("theta", TypeError, "example must hold .*numbers"),
    ],
)
def test_example_that_is_refused(example, error, message):
    with pytest.raises(error, match=f"{message}.*finite numbers shaped like one position"):
        Target(standard_normal, example)


def test_points_of_another_shape():
    target = Target(standard_normal, jnp.zeros(3))
    for shape in ((4,), (5, 2), (2, 5, 3)):
        with pytest.raises(ValueError, match=r"x must be a point of shape \(3,\)"):
            target.log_prob(np.zeros(shape))


def test_check_has_nothing_to_say_about_a_sound_target(getkey):
    check = gaussian().target.check(getkey())
    assert check.ok
    assert check.problems == ()
    assert str(check) == "no problem found"


@pytest.mark.parametrize(
    ("logdensity", "expected"),
    [
        (lambda x: jnp.where(x[0] < -1, jnp.nan, -(x[1] ** 2)), ["NaN at"]),
        (lambda x: jnp.where(x[0] < -1, jnp.inf, -(x[1] ** 2)), [r"\+inf at"]),
        (lambda x: jnp.log(x[0]), ["-inf at the example; choose", "NaN at"]),
        (lambda x: jnp.where(x[0] > 1, 0.0, -jnp.inf), ["-inf at the example; choose"]),
        (lambda x: jnp.where(x[0] > 1e3, 0.0, -jnp.inf), ["-inf at the example", "finite nowhere near the example"]),
        (lambda x: jnp.nan * x[0], ["nan at the example", "NaN at 41 of 41", "finite nowhere"]),
        (lambda x: -jnp.sqrt(jnp.sum(x**2)), ["gradient is not finite at 1 of 41"]),
        (lambda x: -jnp.where(x[0] < 0, 0.0, jnp.sqrt(x[0])), ["gradient is not finite at"]),
        (lambda x: (1e5 - x[0] ** 2).astype(jnp.float32), [r"reaches 1e\+05 in float32.*0\.008 apart.*enable_x64"]),
    ],
    ids=["nan", "infinite", "logarithm", "example outside", "nowhere", "all nan", "norm", "where", "float32"],
)
def test_check_reports(getkey, logdensity, expected):
    check = Target(logdensity, jnp.zeros(2)).check(getkey(), num_points=40)
    assert not check.ok
    assert len(check.problems) == len(expected)
    lines = str(check).split("\n")
    for line, problem, pattern in zip(lines, check.problems, expected, strict=True):
        assert line == f"- {problem}"
        assert re.search(pattern, problem)


@pytest.mark.parametrize(("limit", "words"), [(10.0, "no problem found"), (1.0, "NaN at .* of 41 points")])
def test_check_works_without_a_gradient(limit, words):
    def on_host(x):
        return np.where(np.abs(x).max(-1) > limit, np.nan, -0.5 * np.sum(x**2, -1))

    def logdensity(x):
        return jax.pure_callback(on_host, jax.ShapeDtypeStruct((), x.dtype), x, vmap_method="broadcast_all")

    assert re.search(words, str(Target(logdensity, jnp.zeros(2)).check(0, num_points=40)))


def test_large_values_are_no_problem_in_float64(getkey):
    assert Target(lambda x: 1e5 - x[0] ** 2, jnp.zeros(2)).check(getkey(), num_points=40).ok


def test_check_needs_points(getkey):
    with pytest.raises(ValueError, match="num_points must be a whole number of at least 1"):
        gaussian().target.check(getkey(), num_points=0)
