import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from helpers import correlated_covariance, gaussian_mixture
from klover import Target
from klover.search import curvature
from klover.search import modes as search_modes
from klover.search.climb import climb
from klover.search.curvature import covariance, local_covariance, log_determinant, precision
from klover.search.modes import MAX_MODES, NUM_STARTS, STARTS_PER_MODE, find_modes
from klover.targets.evaluator import Evaluator

SEEDS = st.integers(0, 2**32 - 1)
few_examples = settings(max_examples=20)


def quadratic(dim: int, condition: float, seed: int = 0):
    """Return a concave quadratic of height zero with its gradient, and its top."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    matrix, top = basis * np.geomspace(1.0, condition, dim) @ basis.T, rng.normal(size=dim)

    def function(x):
        slope = -(x - top) @ matrix
        return 0.5 * np.einsum("ij,ij->i", x - top, slope), slope

    return function, top


def rosenbrock(x):
    first, second = x[:, 0], x[:, 1]
    value = -((1 - first) ** 2) - 100 * (second - first**2) ** 2
    return value, np.stack([2 * (1 - first) + 400 * first * (second - first**2), -200 * (second - first**2)], axis=1)


@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("condition", [1.0, 1e3, 1e6])
@pytest.mark.parametrize("distance", [1e-3, 1.0, 1e3])
def test_climb_reaches_the_top_of_a_quadratic(dim, condition, distance):
    function, top = quadratic(dim, condition)
    starts = top + distance * np.random.default_rng(1).normal(size=(6, dim))
    x, value = climb(function, starts)
    # The height that is left is the squared distance in standard deviations, by half.
    assert np.all(value > -1e-3)
    np.testing.assert_allclose(value, function(x)[0], rtol=1e-12, atol=1e-12)


def test_climb_follows_a_curved_ridge():
    starts = np.array([[-1.2, 1.0], [0.0, 0.0], [2.0, 2.0], [-3.0, -4.0], [5.0, 5.0], [1.0, 1.0]])
    x, value = climb(rosenbrock, starts)
    np.testing.assert_allclose(x, 1.0, atol=1e-4)
    np.testing.assert_allclose(value, 0.0, atol=1e-8)


@given(seed=SEEDS)
@few_examples
def test_starts_do_not_disturb_each_other(seed):
    starts = np.random.default_rng(seed).normal(size=(5, 2)) * 3
    together = climb(rosenbrock, starts)
    alone = [climb(rosenbrock, starts[[which]]) for which in range(5)]
    # Steps are the same; only the last bits of sums may differ.
    np.testing.assert_allclose(together[0], np.concatenate([x for x, _ in alone]), atol=1e-6)
    np.testing.assert_allclose(together[1], np.concatenate([value for _, value in alone]), atol=1e-9)


@given(seed=SEEDS, num_steps=st.integers(0, 30))
@few_examples
def test_climb_never_goes_down(seed, num_steps):
    starts = np.random.default_rng(seed).normal(size=(4, 2)) * 10
    before, after = (climb(rosenbrock, starts, steps)[1] for steps in (num_steps, num_steps + 1))
    assert np.all(after >= before)
    assert np.all(before >= rosenbrock(starts)[0])


def half_plane(x):
    value, slope = quadratic(2, 100.0)[0](x)
    inside = x[:, 0] > 0
    return np.where(inside, value, -np.inf), np.where(inside[:, None], slope, 0.0)


def test_a_start_outside_the_support_stays():
    starts = np.array([[-3.0, 1.0], [2.0, 1.0], [-0.1, -5.0]])
    x, value = climb(half_plane, starts)
    np.testing.assert_array_equal(x[[0, 2]], starts[[0, 2]])
    np.testing.assert_array_equal(value[[0, 2]], -np.inf)
    assert value[1] > half_plane(starts)[0][1]


def test_climb_does_not_leave_the_support():
    # The top of the quadratic lies outside, so that the highest point is on the border.
    def function(x):
        inside = x[:, 0] > 0
        value = -0.5 * ((x - [-1.0, 2.0]) ** 2).sum(1)
        return np.where(inside, value, -np.inf), np.where(inside[:, None], [-1.0, 2.0] - x, 0.0)

    x, value = climb(function, np.array([[1.0, 1.0], [5.0, -3.0]]))
    assert np.all(x[:, 0] > 0)
    assert np.all(np.isfinite(value))


def test_climb_leaves_the_starts_alone():
    starts = np.ones((2, 2)) * 3
    climb(rosenbrock, starts)
    np.testing.assert_array_equal(starts, 3.0)


def quadratic_target(scale, mean, seed: int = 0):
    correlation = correlated_covariance(len(scale), seed) if len(scale) > 1 else np.ones((1, 1))
    matrix = np.linalg.inv(correlation) / np.outer(scale, scale)
    return Target(lambda x: -0.5 * (x - mean) @ matrix @ (x - mean), jnp.zeros(len(scale))), matrix


@pytest.mark.parametrize("scale", [[1e-6], [1e6], [1e-6, 1.0, 1e6], [1e6, 1e5, 1e-5, 1e-6, 1.0]])
@pytest.mark.parametrize("shift", [0.0, 1.0, 100.0])
def test_precision_of_a_quadratic_is_exact(scale, shift):
    scale = np.asarray(scale)
    mean = shift * np.linspace(-1.0, 2.0, len(scale))
    target, matrix = quadratic_target(scale, mean)
    hessian = precision(Evaluator(target), mean + scale)
    np.testing.assert_array_equal(hessian, hessian.T)
    # Points a thousandth of the scale apart are rounded to the last bit of the point itself.
    tolerance = 100 * np.finfo(float).eps * np.max(np.abs(mean + scale) / (1e-3 * scale))
    np.testing.assert_allclose((hessian - matrix) * np.outer(scale, scale), 0.0, atol=tolerance)


@given(seed=SEEDS)
@few_examples
def test_precision_is_the_negative_hessian_of_jax(seed):
    x = np.random.default_rng(seed).normal(size=3)
    expected = -HESSIAN(x)
    # Central differences with a step h are wrong by a sixth of h squared times the fourth derivatives.
    np.testing.assert_allclose(precision(SMOOTH, x), expected, atol=1e-5 * np.abs(expected).max())


def smooth(x):
    return (
        -jnp.sum(jnp.cosh(x[:2])) - jnp.exp(0.3 * x[0] * x[2]) - x[2] ** 4 / 4 - 0.2 * jnp.sin(x[1] * x[2]) - x[2] ** 2
    )


SMOOTH = Evaluator(Target(smooth, jnp.zeros(3)))
HESSIAN = jax.jit(jax.hessian(smooth))


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e3, 1e6])
def test_precision_of_heavy_tails_of_any_scale(scale):
    # Far out the curvature is another one, so that the first guess of the steps will not do.
    target = Target(lambda x: -3.0 * jnp.log1p(jnp.sum((x / scale) ** 2) / 5), jnp.zeros(2))
    hessian = precision(Evaluator(target), np.zeros(2)) * scale**2
    np.testing.assert_allclose(hessian, 1.2 * np.eye(2), rtol=1e-2, atol=1e-2)


@given(seed=SEEDS)
@few_examples
def test_covariance_is_the_inverse_below_the_ceiling(seed):
    rng = np.random.default_rng(seed)
    matrix = stats.wishart.rvs(8, np.eye(3), random_state=rng) / 8
    scale = np.array([1e-5, 1.0, 1e5])
    made = covariance(np.linalg.inv(matrix) / np.outer(scale, scale), 1e4 * scale**2)
    np.testing.assert_allclose(made / np.outer(scale, scale), matrix, rtol=1e-6, atol=1e-6)


@given(seed=SEEDS, is_definite=st.booleans())
@few_examples
def test_covariance_is_definite_and_never_wider_than_the_ceiling(seed, is_definite):
    rng = np.random.default_rng(seed)
    values = 10.0 ** rng.uniform(-6, 6, 4) * (1.0 if is_definite else rng.choice([-1.0, 1.0], 4))
    basis, ceiling = np.linalg.qr(rng.normal(size=(4, 4)))[0], 10.0 ** rng.uniform(-4, 4, 4)
    made = covariance(basis * values @ basis.T, ceiling)
    np.testing.assert_allclose(made, made.T, rtol=1e-12)
    # In units of the ceiling all eigenvalues lie between zero and one.
    relative = np.linalg.eigvalsh(made / np.sqrt(np.outer(ceiling, ceiling)))
    assert np.all((relative > 0) & (relative < 1 + 1e-9))


def test_covariance_of_axes_is_clipped_one_by_one():
    hessian, ceiling = np.diag([4.0, 1e-8, -0.25, 1e4]), np.array([9.0, 9.0, 9.0, 1e-6])
    np.testing.assert_allclose(covariance(hessian, ceiling), np.diag([0.25, 9.0, 4.0, 1e-6]), rtol=1e-10)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_covariance_of_a_saddle_has_eigenvalues_in_absolute_value(sign):
    # Turned by half a right angle both coordinates have the same curvature, so that their scales are equal.
    turn = np.array([[1.0, -1.0], [1.0, 1.0]]) / np.sqrt(2)
    hessian = turn @ np.diag([sign * 4.0, -sign * 0.5]) @ turn.T
    np.testing.assert_allclose(covariance(hessian, np.full(2, 1e3)), turn @ np.diag([0.25, 2.0]) @ turn.T, rtol=1e-9)


@pytest.mark.parametrize("ceiling", [100.0, 1e-3])
def test_a_flat_coordinate_is_as_wide_as_the_ceiling(ceiling):
    made = covariance(np.diag([0.0, 1e6]), np.full(2, ceiling))
    np.testing.assert_allclose(made, np.diag([ceiling, 1e-6]), rtol=1e-9)


@given(seed=SEEDS)
@few_examples
def test_covariance_of_a_saddle_keeps_the_volume(seed):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(3, 3))
    hessian = root * rng.choice([-1.0, 1.0], 3) @ root.T
    made = covariance(hessian, np.full(3, 1e8))
    assert np.linalg.slogdet(made)[1] == pytest.approx(-np.linalg.slogdet(hessian)[1], abs=1e-6)


def test_a_saddle_without_curvature_along_an_axis_keeps_the_volume():
    made = covariance(np.array([[0.0, 1.0], [1.0, 2.0]]), np.full(2, 1e3))
    assert np.linalg.det(made) == pytest.approx(1.0, rel=1e-6)


def test_local_covariance_is_that_of_the_curvature(monkeypatch):
    scale = np.array([1e-2, 1.0, 30.0])
    target, matrix = quadratic_target(scale, np.ones(3))
    evaluator, ceiling = Evaluator(target), np.full(3, 1e8)
    full = local_covariance(evaluator, np.ones(3), ceiling)
    np.testing.assert_allclose(full / np.outer(scale, scale), np.linalg.inv(matrix) / np.outer(scale, scale), rtol=1e-6)
    monkeypatch.setattr(curvature, "MOST_FULL_DIM", 2)
    variances = local_covariance(evaluator, np.ones(3), np.array([1e8, 0.01, 1e8]))
    expected = 1 / np.diagonal(matrix)
    np.testing.assert_allclose(variances, [expected[0], 0.01, expected[2]], rtol=1e-6)
    assert log_determinant(variances) == pytest.approx(np.log(variances).sum())
    assert log_determinant(full) == pytest.approx(-np.linalg.slogdet(matrix)[1], rel=1e-9)


CEILING = np.full(3, 1e4)
MEANS = np.array([[-20.0, 0.0, 3.0], [5.0, 5.0, -9.0], [0.0, -18.0, 0.0], [14.0, 13.0, 8.0], [-3.0, 16.0, -17.0]])
WEIGHTS = np.array([0.5, 0.2, 0.1, 0.15, 0.05])


def starts_near(means, seed: int = 0, scale: float = 1.0):
    """Return a source of starts that visits the means in turn, and the list of all starts that it gave."""
    rng, given_out = np.random.default_rng(seed), []
    turn = itertools.cycle(np.asarray(means))

    def draw_starts(num):
        given_out.extend(next(turn) + scale * rng.normal(size=3) for _ in range(num))
        return np.array(given_out[-num:])

    return draw_starts, given_out


@pytest.mark.parametrize("num", [1, 5])
def test_all_modes_of_a_mixture_are_found(num):
    scale = 0.7
    known = gaussian_mixture(MEANS[:num], WEIGHTS[:num] / WEIGHTS[:num].sum(), scale)
    draw_starts, given_out = starts_near(MEANS[:num], scale=2.0)
    modes = find_modes(Evaluator(known.target), draw_starts, CEILING)
    order = np.argsort(-WEIGHTS[:num])
    # Far from each other the modes of the mixture are those of its parts, the highest first.
    np.testing.assert_allclose(modes.x, MEANS[:num][order], atol=1e-3)
    np.testing.assert_allclose(modes.log_p, known.target.log_prob(modes.x), rtol=1e-12)
    np.testing.assert_allclose(modes.covariance, np.tile(scale**2 * np.eye(3), (num, 1, 1)), atol=1e-6)
    share = np.bincount(np.arange(len(given_out)) % num, minlength=num)
    np.testing.assert_array_equal(modes.count, share[order])


def test_search_goes_on_while_starts_find_what_no_other_found():
    grid = 10.0 * np.array(list(itertools.product([-1.0, 0.0, 1.0], repeat=3)))[: NUM_STARTS + 4]
    known = gaussian_mixture(grid, np.full(len(grid), 1 / len(grid)), 0.5)
    draw_starts, given_out = starts_near(grid, scale=0.3)
    modes = find_modes(Evaluator(known.target), draw_starts, CEILING)
    # Sixteen different tops in the first sixteen starts: nearly all is unseen. It ends with sixteen starts for each.
    assert len(given_out) == STARTS_PER_MODE * len(grid)
    assert len(modes.x) == len(grid)
    assert modes.count.sum() == len(given_out)
    assert modes.count.min() == STARTS_PER_MODE


def test_search_goes_on_while_one_start_in_ten_is_alone(monkeypatch):
    monkeypatch.setattr(search_modes, "STARTS_PER_MODE", 0)
    grid = 10.0 * np.array(list(itertools.product([-1.0, 0.0, 1.0], repeat=3)))[: NUM_STARTS + 4]
    known = gaussian_mixture(grid, np.full(len(grid), 1 / len(grid)), 0.5)
    draw_starts, given_out = starts_near(grid, scale=0.3)
    modes = find_modes(Evaluator(known.target), draw_starts, CEILING)
    assert len(given_out) == 3 * NUM_STARTS
    assert (len(modes.x), modes.count.min()) == (len(grid), 2)


def test_the_far_tails_of_a_student_t_are_crossed():
    # log p is convex there, so that no curvature tells how far to go.
    top = np.full(20, 40.0)
    target = Target(lambda x: -11 * jnp.log1p(jnp.sum((x - top) ** 2)), np.zeros(20))
    tops, _ = climb(Evaluator(target).values_and_gradients, np.random.default_rng(0).uniform(-50, 50, (8, 20)))
    np.testing.assert_allclose(tops, np.tile(top, (8, 1)), atol=1e-2)


def test_search_of_one_mode_ends_after_one_batch():
    known = gaussian_mixture(MEANS[:1], [1.0], 0.7)
    draw_starts, given_out = starts_near(MEANS[:1])
    assert find_modes(Evaluator(known.target), draw_starts, CEILING).count == [NUM_STARTS]
    assert len(given_out) == NUM_STARTS


def test_search_ends_at_the_largest_number_of_modes():
    grid = 10.0 * np.array(list(itertools.product(range(6), repeat=3)), float)
    known = gaussian_mixture(grid, np.full(216, 1 / 216), 0.5)
    draw_starts, given_out = starts_near(grid, scale=0.1)
    modes = find_modes(Evaluator(known.target), draw_starts, CEILING)
    assert (len(modes.x), len(given_out)) == (MAX_MODES, MAX_MODES)


def test_search_ends_at_the_largest_number_of_starts(monkeypatch):
    monkeypatch.setattr(search_modes, "MAX_STARTS", 2 * NUM_STARTS)
    monkeypatch.setattr(search_modes, "UNSEEN_SHARE", -1.0)
    known = gaussian_mixture(MEANS[:2], [0.5, 0.5], 0.7)
    draw_starts, given_out = starts_near(MEANS[:2])
    modes = find_modes(Evaluator(known.target), draw_starts, CEILING)
    np.testing.assert_array_equal(modes.count, [NUM_STARTS, NUM_STARTS])
    assert len(given_out) == 2 * NUM_STARTS


def test_starts_outside_the_support_are_not_counted():
    target = Target(lambda x: jnp.where(x[0] > 0, -0.5 * jnp.sum((x - 3.0) ** 2), -jnp.inf), jnp.ones(3))
    draw_starts, _ = starts_near([[-5.0, 0.0, 0.0], [3.0, 3.0, 3.0]])
    modes = find_modes(Evaluator(target), draw_starts, CEILING)
    np.testing.assert_array_equal(modes.count, [STARTS_PER_MODE])
    np.testing.assert_allclose(modes.x, [[3.0] * 3], atol=1e-3)


def test_no_modes_where_no_start_lies_in_the_support():
    target = Target(lambda x: jnp.where(x[0] > 1e6, 0.0, -jnp.inf), jnp.ones(3))
    modes = find_modes(Evaluator(target), starts_near([[0.0, 0.0, 0.0]])[0], CEILING)
    assert (modes.x.shape, modes.log_p.shape, modes.covariance.shape, len(modes.count)) == ((0, 3), (0,), (0, 3, 3), 0)
