import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import correlated_covariance, gaussian_mixture
from klover import Target
from klover.search.modes import (
    ENDLESS_BATCHES,
    MOST_LARGE_MODES,
    RISING_TOPS,
    Modes,
    climb_target,
    end_in_neck,
    find_modes,
    resolution_of,
    settle,
)
from klover.search.region import Region
from klover.targets.evaluator import Evaluator
from klover.tuning import Search

SEARCH = Search()
MEANS = np.array([[-20.0, 0.0, 3.0], [5.0, 5.0, -9.0], [0.0, -18.0, 0.0], [14.0, 13.0, 8.0], [-3.0, 16.0, -17.0]])
WEIGHTS = np.array([0.5, 0.2, 0.1, 0.15, 0.05])
GRID = 10.0 * np.array(list(itertools.product([-1.0, 0.0, 1.0], repeat=3)))[: SEARCH.num_starts + 4]


@dataclasses.dataclass(frozen=True)
class Visits(Region):
    """A region whose starts visit places in turn, and that knows all starts that it gave; modes may be wide."""

    places: np.ndarray = dataclasses.field(kw_only=True)
    scale: float = 1.0
    given_out: list = dataclasses.field(default_factory=list)

    def draw_starts(self, generator, num):
        for number in range(len(self.given_out), len(self.given_out) + num):
            place = np.asarray(self.places)[number % len(self.places)]
            self.given_out.append(place + self.scale * generator.normal(size=len(place)))
        return np.array(self.given_out[-num:])

    def ceiling(self, top):
        return np.full(len(top), 1e4)


def search(target, places, scale=1.0, tuning=SEARCH):
    """Search from starts around places; return the modes and all starts."""
    region = Visits(target, tuning, places=places, scale=scale)
    modes = find_modes(np.random.default_rng(0), Evaluator(target), region, tuning)
    return modes, region.given_out


@pytest.mark.parametrize("num", [1, 5])
def test_all_modes_of_a_mixture_are_found(num):
    scale = 0.7
    known = gaussian_mixture(MEANS[:num], WEIGHTS[:num] / WEIGHTS[:num].sum(), scale)
    modes, given_out = search(known.target, MEANS[:num], 2.0)
    order = np.argsort(-WEIGHTS[:num])
    # Far from each other the modes of the mixture are those of its parts, the highest first.
    np.testing.assert_allclose(modes.x, MEANS[:num][order], atol=1e-3)
    np.testing.assert_allclose(modes.log_p, known.target.log_prob(modes.x), rtol=1e-12)
    np.testing.assert_allclose(modes.covariance, np.tile(scale**2 * np.eye(3), (num, 1, 1)), atol=1e-6)
    share = np.bincount(np.arange(len(given_out)) % num, minlength=num)
    np.testing.assert_array_equal(modes.count, share[order])


def test_search_goes_on_while_starts_find_what_no_other_found():
    known = gaussian_mixture(GRID, np.full(len(GRID), 1 / len(GRID)), 0.5)
    modes, given_out = search(known.target, GRID, 0.3)
    # Sixteen different tops in the first sixteen starts: nearly all is unseen. It ends with sixteen starts for each.
    assert len(given_out) == SEARCH.num_starts * len(GRID)
    assert len(modes.x) == len(GRID)
    assert modes.count.sum() == len(given_out)
    assert modes.count.min() == SEARCH.num_starts


def test_search_of_one_mode_ends_after_one_batch():
    known = gaussian_mixture(MEANS[:1], [1.0], 0.7)
    modes, given_out = search(known.target, MEANS[:1])
    assert modes.count == [SEARCH.num_starts]
    assert len(given_out) == SEARCH.num_starts


def test_search_ends_at_the_largest_number_of_modes():
    grid = 10.0 * np.array(list(itertools.product(range(6), repeat=3)), float)
    known = gaussian_mixture(grid, np.full(216, 1 / 216), 0.5)
    visited = grid[np.random.default_rng(0).integers(len(grid), size=2000)]
    modes, given_out = search(known.target, visited, 0.1)
    assert len(modes.x) == SEARCH.most_modes
    assert SEARCH.most_modes < len(given_out) < 2 * SEARCH.most_modes


@pytest.mark.parametrize(
    ("count", "expected"),
    [([1] * 64, True), ([1] * 63, False), ([1] * 52 + [12], True), ([1] * 51 + [13], False), ([4] * 16, False)],
)
def test_tops_without_end_are_those_that_one_start_each_has_found(count, expected):
    num = len(count)
    modes = Modes(np.zeros((num, 1)), np.zeros(num), np.ones((num, 1, 1)), np.array(count))
    assert modes.is_endless(SEARCH) is expected


def test_search_ends_at_the_largest_number_of_starts():
    # As many for each of the largest number of modes, whether there are so many or not.
    tuning = Search(most_modes=4, unseen_share=-1.0)
    known = gaussian_mixture(MEANS[:2], [0.5, 0.5], 0.7)
    modes, given_out = search(known.target, MEANS[:2], tuning=tuning)
    np.testing.assert_array_equal(modes.count, [2 * SEARCH.num_starts, 2 * SEARCH.num_starts])
    assert len(given_out) == 4 * SEARCH.num_starts


def test_starts_outside_the_support_are_not_counted():
    target = Target(lambda x: jnp.where(x[0] > 0, -0.5 * jnp.sum((x - 3.0) ** 2), -jnp.inf), jnp.ones(3))
    modes, _ = search(target, [[-5.0, 0.0, 0.0], [3.0, 3.0, 3.0]])
    np.testing.assert_array_equal(modes.count, [SEARCH.num_starts])
    np.testing.assert_allclose(modes.x, [[3.0] * 3], atol=1e-3)


def test_no_modes_where_no_start_lies_in_the_support():
    target = Target(lambda x: jnp.where(x[0] > 1e6, 0.0, -jnp.inf), jnp.ones(3))
    modes, _ = search(target, [[0.0, 0.0, 0.0]])
    assert (modes.x.shape, modes.log_p.shape, modes.covariance.shape, len(modes.count)) == ((0, 3), (0,), (0, 3, 3), 0)


@pytest.mark.parametrize("full_dim", [2, 3], ids=["many", "few"])
def test_many_dimensions_have_variances_and_few_modes(full_dim):
    known = gaussian_mixture(MEANS, WEIGHTS, 0.7)
    modes, given_out = search(known.target, MEANS, 0.3, Search(full_dim=full_dim))
    is_full = full_dim == 3
    assert len(modes.x) == (5 if is_full else MOST_LARGE_MODES)
    assert modes.covariance.shape[1:] == ((3, 3) if is_full else (3,))
    assert (len(given_out) == SEARCH.num_starts) is not is_full
    variances = np.diagonal(modes.covariance, axis1=1, axis2=2) if is_full else modes.covariance
    np.testing.assert_allclose(variances, 0.49, atol=1e-6)


def test_no_modes_have_the_shape_of_many():
    for is_full, shape in ((True, (0, 4, 4)), (False, (0, 4))):
        modes = Modes.none(4, is_full)
        assert (modes.x.shape, modes.log_p.shape, modes.covariance.shape, modes.count.shape) == (
            (0, 4),
            (0,),
            shape,
            (0,),
        )
        assert modes.is_settled(SEARCH)
        assert modes.index(np.zeros(4), 0.0) is None


@pytest.mark.parametrize("is_full", [True, False])
def test_a_top_belongs_to_the_mode_that_is_near_and_as_high(is_full):
    variance = np.array([4.0, 0.01])
    shape = np.diag(variance) if is_full else variance
    modes = Modes.none(2, is_full).add(np.zeros(2), -3.0, shape).add(np.array([10.0, 0.0]), -5.0, shape)
    np.testing.assert_array_equal(modes.count, [1, 1])
    # One standard deviation, and a fifth of its square more, in two dimensions.
    assert modes.index(np.array([2.1, 0.0]), -3.0) == 0
    assert modes.index(np.array([0.0, 0.1]), -3.6) == 0
    assert modes.index(np.array([2.3, 0.0]), -3.0) is None
    assert modes.index(np.array([0.0, 0.12]), -3.0) is None
    assert modes.index(np.zeros(2), -3.8) is None
    assert modes.index(np.array([9.0, 0.0]), -5.0) == 1
    np.testing.assert_array_equal(modes.found_again(1).found_again(1).count, [1, 3])
    np.testing.assert_array_equal(modes.count, [1, 1])


@given(counts=st.lists(st.integers(1, 40), min_size=1, max_size=6))
@settings(max_examples=50)
def test_a_search_is_settled_by_its_counts_alone(counts):
    num = len(counts)
    modes = Modes(np.zeros((num, 1)), np.zeros(num), np.ones((num, 1)), np.array(counts))
    alone = sum(count == 1 for count in counts)
    expected = alone <= SEARCH.unseen_share * sum(counts) and sum(counts) >= SEARCH.num_starts * num
    assert modes.is_settled(SEARCH) is expected
    assert modes.is_settled(Search(unseen_share=1.0, num_starts=0))


def test_a_search_ends_on_a_ridge_that_has_no_tops_to_find():
    # Level along a line: every start ends above itself.
    target = Target(lambda x: -0.5 * jnp.sum(x[1:] ** 2) / 1e-4 + 0.0 * x[0], jnp.zeros(3))
    places = np.stack([np.linspace(-1e6, 1e6, 4096), np.zeros(4096), np.zeros(4096)], axis=1)
    modes, given_out = search(target, places, 0.01, Search(most_modes=1000))
    assert modes.is_endless(SEARCH)
    assert not modes.is_settled(SEARCH)
    assert len(given_out) == ENDLESS_BATCHES * SEARCH.num_starts


def quadratic_target(scale, mean):
    matrix = np.linalg.inv(correlated_covariance(len(scale))) / np.outer(scale, scale)
    return Target(lambda x: -0.5 * (x - mean) @ matrix @ (x - mean), jnp.zeros(len(scale)))


@pytest.mark.parametrize("scale", [[1.0, 1.0, 1.0], [1e-4, 1.0, 1e4]])
def test_newton_steps_end_on_the_top_whatever_the_scales(scale):
    scale, mean = np.asarray(scale), np.array([1.0, -2.0, 3.0])
    evaluator = Evaluator(quadratic_target(scale, mean))
    begin = mean + scale * np.array([3.0, -1.0, 2.0])
    x, value, is_rising = settle(evaluator.values_and_gradients, begin, float(evaluator.values(begin[None])[0]))
    assert not is_rising
    # A step that promises less than a hundredth of a nat is not taken.
    assert -0.01 < value <= 1e-12
    assert value == pytest.approx(float(evaluator.values(x[None])[0]), abs=1e-12)


def test_newton_steps_never_go_down():
    target = Target(lambda x: -jnp.sum(jnp.cosh(x)) - 5 * (x[0] * x[1] - 1) ** 2, jnp.zeros(2))
    evaluator = Evaluator(target)
    for begin in np.random.default_rng(0).normal(size=(10, 2)) * 2:
        value = float(evaluator.values(begin[None])[0])
        x, settled, _ = settle(evaluator.values_and_gradients, begin, value)
        assert settled >= value
        assert settled == pytest.approx(float(evaluator.values(x[None])[0]), rel=1e-12)


def test_newton_steps_from_the_top_stay_and_cost_one_hessian():
    evaluator = Evaluator(quadratic_target(np.ones(3), np.zeros(3)))
    x, value, is_rising = settle(evaluator.values_and_gradients, np.zeros(3), 0.0)
    np.testing.assert_array_equal(x, 0.0)
    assert (value, is_rising) == (0.0, False)
    assert evaluator.num_evaluations <= 1 + 2 * 2 * 3


def neck(x):
    return -jnp.sum(((x[2:] - x[1]) * jnp.exp(-x[0])) ** 2) - 9 * x[0] - 0.5 * jnp.sum((x[2:] - 1.0) ** 2)


def test_a_neck_ends_a_search_early():
    evaluator = Evaluator(Target(neck, jnp.zeros(12)))
    modes = find_modes(np.random.default_rng(0), evaluator, Region(evaluator.target), SEARCH)
    assert modes.is_neck
    assert modes.num_rising == len(modes.count) == RISING_TOPS
    assert evaluator.num_evaluations < 10_000


@pytest.mark.parametrize(("log_density", "is_neck"), [(neck, True), (lambda x: -0.5 * jnp.sum(x**2), False)])
def test_a_few_climbs_tell_a_neck(log_density, is_neck):
    evaluator = Evaluator(Target(log_density, jnp.zeros(12)))
    tops, values = climb_target(evaluator, np.random.default_rng(0).normal(size=(RISING_TOPS, 12)))
    before = evaluator.num_evaluations
    assert end_in_neck(evaluator, tops, values) == is_neck
    # Two tops that rest are enough to know.
    assert is_neck or evaluator.num_evaluations - before <= 2 * (1 + 2 * 2 * 12)
    assert not end_in_neck(evaluator, tops[:2], values[:2])


def test_kinks_are_no_necks():
    evaluator = Evaluator(Target(lambda x: -jnp.sum(jnp.abs(x)), jnp.zeros(6)))
    assert not find_modes(np.random.default_rng(0), evaluator, Region(evaluator.target), SEARCH).is_neck


def test_climbs_of_a_target_leave_what_is_not_finite_below_everything():
    target = Target(lambda x: jnp.where(x[0] > 0, -0.5 * jnp.sum((x - 1) ** 2), jnp.nan), jnp.ones(2))
    tops, values = climb_target(Evaluator(target), np.array([[-1.0, 0.0], [3.0, 5.0]]))
    assert values[0] == -np.inf
    np.testing.assert_array_equal(tops[0], [-1.0, 0.0])
    np.testing.assert_allclose(tops[1], 1.0, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_resolution_is_that_of_the_target(dtype):
    with jax.enable_x64(dtype == "float64"):
        evaluator = Evaluator(Target(lambda x: -jnp.sum(x**2), np.zeros(2, dtype)))
    assert resolution_of(evaluator) == np.finfo(dtype).eps


def test_search_ends_at_the_largest_number_of_starts_where_most_lie_outside_the_support():
    target = Target(lambda x: jnp.where(x[0] > 0, -0.5 * jnp.sum((x - 3.0) ** 2), -jnp.inf), jnp.ones(3))
    tuning = Search(most_modes=4)

    @dataclasses.dataclass(frozen=True)
    class Lucky(Visits):
        """One start in the support, and then never again."""

        def draw_starts(self, generator, num):
            assert len(self.given_out) < tuning.num_starts * tuning.most_modes
            return super().draw_starts(generator, num)

    places = [[3.0] * 3] + [[-50.0] * 3] * 1000
    region = Lucky(target, tuning, places=places)
    modes = find_modes(np.random.default_rng(0), Evaluator(target), region, tuning)
    np.testing.assert_array_equal(modes.count, [1])


@pytest.mark.parametrize("shift", [1e3, -1e4])
def test_a_constant_does_not_choose_the_point_that_stands_for_a_mode(shift):
    def modes(constant):
        target = Target(lambda x: -0.5 * jnp.sum(x**2) - x[0] ** 4 + constant, jnp.ones(3))
        return search(target, np.zeros((1, 3)), 2.0)[0]

    plain, moved = modes(jnp.asarray(0.0)), modes(jnp.asarray(shift))
    np.testing.assert_array_equal(moved.x, plain.x)
    np.testing.assert_allclose(moved.log_p - shift, plain.log_p, atol=2 * np.spacing(abs(shift)))
    np.testing.assert_array_equal(moved.count, plain.count)
