"""The last search, on targets whose modes and masses are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.targets.evaluator import Evaluator
from klover.tuning import Search, Tuning
from klover.verdict.judge import judge
from klover.verdict.missed import find_tops, first_with_mass, place_in_words
from klover.verdict.status import Status

DIM = 3
LOG_2PI = float(np.log(2 * np.pi))
TUNING = Tuning()


def log_normal(x, location, scale, log_mass):
    return log_mass - 0.5 * jnp.sum(((x - location) / scale) ** 2) - DIM * (jnp.log(scale) + 0.5 * LOG_2PI)


def target_of(*modes):
    """Return a sum of round Gaussians: centre in all coordinates, scale, mass."""

    def log_density(x):
        return jax.nn.logsumexp(jnp.stack([log_normal(x, c, s, jnp.log(m)) for c, s, m in modes]))

    return klover.Target(log_density, np.zeros(DIM), box=(np.full(DIM, -20.0), np.full(DIM, 20.0)))


def test_a_missed_mode_is_found_behind_a_higher_spike(make_case):
    target = target_of((0.0, 1.0, 0.7), (12.0, 1.0, 0.3), (-12.0, 1e-3, 1e-6))
    verdict = judge(make_case(target, scale=1.0, tail="student"))
    assert verdict.status is Status.UNCOVERED_MODE
    assert "= 12" in verdict.reason


def test_a_spike_alone_is_no_mode(make_case):
    target = target_of((0.0, 1.0, 1.0), (-12.0, 1e-3, 1e-6))
    assert judge(make_case(target, scale=1.0, tail="student")).trusted


@pytest.mark.parametrize("name", ["student", "normal-diagonal", "normal-low-rank"])
def test_climbs_end_on_all_tops_in_the_coordinates_of_the_target(name):
    target = target_of((0.0, 1.0, 0.7), (12.0, 1.0, 0.3))
    family = klover.Family.parse(name)
    mixture = klover.Mixture.of(family.components(np.full((2, DIM), 0.5), np.full((2, DIM), 4.0)))
    evaluator = Evaluator(target)
    tops, values = find_tops(np.random.default_rng(0), evaluator, mixture, mixture, TUNING)
    num = 2 * TUNING.search.num_starts
    assert (tops.shape, values.shape) == ((num, DIM), (num,))
    np.testing.assert_allclose(values, evaluator.values(tops), rtol=1e-9)
    near = np.abs(tops - np.array([0.0, 12.0])[:, None, None]).max(-1) < 1e-2
    assert np.all(near.any(0))
    assert np.all(near.any(1))


def test_climbs_outside_of_the_support_end_nowhere():
    target = klover.Target(lambda x: jnp.where(x[0] > 0, -0.5 * jnp.sum(x**2), jnp.nan), jnp.ones(2))
    mixture = klover.Mixture.of(klover.Family("normal").components(np.zeros((1, 2)), np.ones((1, 2))))
    tops, values = find_tops(np.random.default_rng(0), Evaluator(target), mixture, mixture, TUNING)
    inside = tops[:, 0] > 0
    assert 0 < inside.sum() < len(tops)
    assert np.all(np.isfinite(values[inside]))
    np.testing.assert_array_equal(values[~inside], -np.inf)


def test_as_many_climbs_begin_near_and_far_as_the_tuning_says():
    target = target_of((0.0, 1.0, 1.0))
    mixture = klover.Mixture.of(klover.Family("normal").components(np.zeros((1, DIM)), np.ones((1, DIM))))
    for num in (1, 5):
        tuning = Tuning(search=Search(num_starts=num))
        assert len(find_tops(np.random.default_rng(0), Evaluator(target), mixture, mixture, tuning)[0]) == 2 * num


MODES = ((0.0, 1.0, 0.6), (12.0, 1.0, 0.3), (-12.0, 1.0, 0.1))


def named(order, is_suspect, tuning=TUNING, modes=MODES):
    """Name the first of three tops with mass, in an order and with suspects."""
    target = target_of(*modes)
    evaluator = Evaluator(target)
    x = np.repeat(np.array([centre for centre, _, _ in modes])[:, None], DIM, axis=1)
    mixture = klover.Mixture.of(klover.Family("normal").components(np.zeros((1, DIM)), np.ones((1, DIM))))
    tops = x, evaluator.values(x)
    return first_with_mass(evaluator, mixture, tops, np.asarray(order), np.asarray(is_suspect), 0.0, tuning)


def test_the_first_suspect_by_order_is_named():
    assert named([3.0, 1.0, 2.0], [False, True, True]) == "at x[0] = -12, x[1] = -12, x[2] = -12"
    assert named([3.0, 2.0, 1.0], [False, True, True]) == "at x[0] = 12, x[1] = 12, x[2] = 12"
    assert named([3.0, 2.0, 1.0], [False, False, True]) == "at x[0] = -12, x[1] = -12, x[2] = -12"
    assert named([3.0, 2.0, 1.0], [False, False, False]) is None


@pytest.mark.parametrize(("smallest", "expected"), [(0.05, "12"), (0.2, "12"), (0.5, None)])
def test_a_mode_is_named_if_its_mass_by_laplace_is_enough(smallest, expected):
    tuning = Tuning(answer=klover.tuning.Answer(smallest_mode=smallest))
    found = named([3.0, 2.0, 1.0], [False, True, True], tuning)
    assert (found is None) if expected is None else found.startswith(f"at x[0] = {expected},")


def test_a_top_that_many_climbs_have_found_is_measured_once():
    target = target_of((0.0, 1.0, 1.0), (-12.0, 1e-3, 1e-6))
    evaluator = Evaluator(target)
    mixture = klover.Mixture.of(klover.Family("normal").components(np.zeros((1, DIM)), np.ones((1, DIM))))
    x = np.full((20, DIM), -12.0)
    tops = x, evaluator.values(x)
    before = evaluator.num_evaluations
    order, suspects = np.zeros(20), np.full(20, True)
    assert first_with_mass(evaluator, mixture, tops, order, suspects, 0.0, TUNING) is None
    # Central differences of the gradient, at most twice.
    assert evaluator.num_evaluations - before <= 2 * 2 * DIM


def test_a_place_is_named_by_its_first_coordinates():
    position = {"mean": jnp.zeros(2), "spread": 0.0}
    target = klover.Target(
        lambda at: -(at["spread"] ** 2), position, constrain=lambda at: at | {"spread": jnp.exp(at["spread"])}
    )
    assert place_in_words(target, np.array([1.0, -2.5, 0.0])) == "at mean[0] = 1, mean[1] = -2.5, spread = 1"
    standard_normal = klover.Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(6))
    many = place_in_words(standard_normal, np.arange(6.0))
    assert many == "at x[0] = 0, x[1] = 1, x[2] = 2, x[3] = 3, ..."
