"""The search for missed parts, on targets whose modes and masses are known."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.mixtures.algebra import mixture_of
from klover.search.missed import (
    FEWEST_RADIAL,
    NUM_RUNGS,
    Effort,
    Searched,
    find_missed,
    find_tops,
    log_mass_of_tails,
    parts_with_mass,
)
from klover.targets.evaluator import Evaluator
from klover.tuning import Missed, Tuning

DIM = 3
TUNING = Tuning()
EFFORT = Effort.of(TUNING.missed)


def log_normal(x, location, scale, log_mass):
    return log_mass - 0.5 * jnp.sum(((x - location) / scale) ** 2) - DIM * (jnp.log(scale) + 0.5 * np.log(2 * np.pi))


def target_of(*modes, box=20.0):
    """Return a sum of round Gaussians: centre in all coordinates, scale, mass."""

    def log_density(x):
        return jax.nn.logsumexp(jnp.stack([log_normal(x, c, s, jnp.log(m)) for c, s, m in modes]))

    return klover.Target(log_density, np.zeros(DIM), box=box and (np.full(DIM, -box), np.full(DIM, box)))


def unit(name="student"):
    return klover.Mixture.of(klover.Family.parse(name).components(np.zeros((1, DIM)), np.ones((1, DIM))))


def search(target, name="student", tuning=TUNING, effort=EFFORT, evaluator=None):
    generator, mixture = np.random.default_rng(0), unit(name)
    evaluator = evaluator or Evaluator(target)
    x = mixture.draw(generator, 1000)
    log_ratio = evaluator.values(x) - mixture.log_prob(x)
    return find_missed(generator, evaluator, mixture, mixture, x, log_ratio, effort, tuning)


@pytest.mark.parametrize("name", ["student", "normal", "normal-diagonal", "normal-low-rank"])
def test_a_missed_mode_is_found_with_its_place_scale_and_mass(name):
    parts, _ = search(target_of((0.0, 1.0, 0.7), (9.0, 0.5, 0.3), box=None), name)
    assert len(parts) == 1
    np.testing.assert_allclose(parts[0].x, 9.0, atol=1e-2)
    np.testing.assert_allclose(parts[0].covariance, 0.25 * np.eye(DIM), atol=1e-3)
    np.testing.assert_allclose(np.exp(parts[0].log_mass), 0.3, rtol=1e-3)


def test_without_gradients_it_is_found_too():
    def log_density(x):
        return np.logaddexp(-0.5 * np.sum(x**2, axis=1), -0.5 * np.sum((x - 4.0) ** 2, axis=1))

    parts, searched = search(klover.from_callback(log_density, DIM, vectorized=True))
    np.testing.assert_allclose(parts[0].x, 4.0, atol=1e-2)
    assert searched.num_starts_a_rung == EFFORT.num_starts // (2 * DIM + 1)


@pytest.mark.parametrize(("num_before", "num_starts"), [(1500, 31), (4000, 83), (10**5, 160)])
def test_without_gradients_looks_cost_as_much_as_all_work_before(num_before, num_starts):
    evaluator = Evaluator(klover.from_callback(lambda x: -0.5 * np.sum(x**2, axis=1), DIM, vectorized=True))
    evaluator.values(np.zeros((num_before - 1000, DIM)))
    _, searched = search(evaluator.target, evaluator=evaluator)
    assert searched.num_starts_a_rung == num_starts
    assert searched.num_starts == NUM_RUNGS * num_starts


def test_of_several_missed_parts_the_largest_comes_first():
    parts, _ = search(target_of((0.0, 1.0, 0.5), (8.0, 1.0, 0.2), (-8.0, 1.0, 0.3)))
    np.testing.assert_allclose([part.x[0] for part in parts], [-8.0, 8.0], atol=1e-2)


def test_a_spike_is_no_part():
    assert search(target_of((0.0, 1.0, 1.0), (-12.0, 1e-3, 1e-6)))[0] == []


def test_a_core_around_a_known_centre_is_found():
    parts, _ = search(target_of((0.0, 1.0, 0.6), (0.0, 0.02, 0.4)))
    assert len(parts) >= 1
    np.testing.assert_allclose(np.sqrt(np.diagonal(parts[-1].covariance)), 0.02, rtol=0.5)


@pytest.mark.parametrize(("ratio", "num"), [(1.0, 1), (1e300, 0)])
def test_a_top_is_a_part_if_the_proposal_is_low_enough_there(ratio, num):
    tuning = Tuning(missed=Missed(least_ratio=ratio))
    assert len(search(target_of((0.0, 1.0, 0.7), (9.0, 1.0, 0.3)), tuning=tuning)[0]) == num


@pytest.mark.parametrize(("smallest", "num"), [(0.1, 1), (0.5, 0)])
def test_a_top_is_a_part_if_its_mass_by_laplace_is_enough(smallest, num):
    tuning = Tuning(missed=Missed(smallest_mode=smallest))
    assert len(search(target_of((0.0, 1.0, 0.7), (9.0, 1.0, 0.3)), "normal", tuning=tuning)[0]) == num


def test_what_was_searched_is_counted_and_said():
    evaluator = Evaluator(target_of((0.0, 1.0, 1.0)))
    parts, searched = search(None, evaluator=evaluator)
    assert parts == []
    assert searched.num_starts == 12 * EFFORT.num_starts
    assert searched.num_climbs <= 12 * EFFORT.num_climbs + EFFORT.num_heavy
    assert evaluator.num_evaluations < 1000 + 5000
    assert f"{searched.num_starts} starts" in str(searched)
    assert f"{searched.smallest_scale:.2f} of its width" in str(searched)
    more = dataclasses.replace(searched, num_starts_a_rung=8192)
    assert more.smallest_scale < searched.smallest_scale


def test_passes_for_each_of_several_modes_find_as_much_beside_each_as_one_beside_one():
    once = Searched(1920, 30, 160, (2.0, 12.0), 512, 8)
    shared = dataclasses.replace(once, num_modes=3)
    passes = Searched.together([shared] * 3)
    assert (passes.num_starts, passes.num_climbs, passes.num_starts_a_rung, passes.num_radial) == (5760, 90, 480, 1536)
    assert shared.smallest_scale > passes.smallest_scale == once.smallest_scale


def test_effort_grows_in_proportion_and_is_never_nothing():
    tuning = TUNING.missed
    assert Effort.of(tuning, 4.0) == Effort(
        4 * tuning.num_starts, 2 * tuning.num_climbs, tuning.num_heavy, 2 * tuning.num_radial
    )
    assert Effort.of(tuning, 0.0) == Effort(1, 1, tuning.num_heavy, 2)


def test_climbs_outside_of_the_support_end_nowhere():
    target = klover.Target(lambda x: jnp.where(x[0] > 0, -0.5 * jnp.sum(x**2), jnp.nan), jnp.ones(DIM))
    starts = np.array([[1.0, 1.0, 1.0], [-1.0, 1.0, 1.0]])
    tops, values, _ = find_tops(np.random.default_rng(0), Evaluator(target), unit(), starts, EFFORT, TUNING)
    np.testing.assert_array_equal(np.isfinite(values), tops[:, 0] > 0)
    assert not np.isfinite(values[-1])


def test_a_top_that_many_climbs_have_found_is_measured_once():
    evaluator = Evaluator(target_of((0.0, 1.0, 1.0), (-12.0, 1e-3, 1e-6)))
    tops = np.full((20, DIM), -12.0)
    values = evaluator.values(tops)
    before = evaluator.num_evaluations
    assert parts_with_mass(evaluator, unit(), tops, values, np.full(20, True), 0.0, TUNING) == []
    # Central differences of the gradient, at most twice.
    assert evaluator.num_evaluations - before <= 2 * 2 * DIM


def test_a_thrifty_effort_is_a_share_of_the_usual():
    tuning = Missed()
    least = Effort.thrifty(tuning, 0.0, 10)
    assert least == Effort(1, 1, 1, 11 * FEWEST_RADIAL, is_thrifty=True)
    assert Effort.thrifty(tuning, 1.0, 10) == dataclasses.replace(Effort.of(tuning), is_thrifty=True)


@pytest.mark.parametrize(("df", "dim"), [(2.0, 19), (5.0, 6), (np.inf, 12)])
def test_a_part_with_the_tails_of_the_known_one_is_no_trifle(df, dim):
    # By the curvature at its top alone, a part of e^-1 with two degrees of freedom is one of e^-10.
    family = klover.Family("normal") if np.isinf(df) else klover.Family("student")
    known = mixture_of(family, np.zeros((1, dim)), np.eye(dim)[None], df, np.ones(1))
    far = mixture_of(family, np.full((1, dim), 20.0), 4 * np.eye(dim)[None], df, np.ones(1))
    density = jax.tree.map(jnp.asarray, far)
    target = klover.Target(lambda x: density.log_prob(x) - 1.0, jnp.zeros(dim))
    top, value = np.full((1, dim), 20.0), np.asarray(far.log_prob(np.full((1, dim), 20.0))) - 1.0
    given = Evaluator(target), known, top, value, np.array([True]), 0.0, Tuning()
    (part,) = parts_with_mass(*given, log_mass_of_tails(known))
    assert part.log_mass + log_mass_of_tails(known) == pytest.approx(-1.0, abs=0.02)
    if df == 2.0:
        assert not parts_with_mass(*given)
