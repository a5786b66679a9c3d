import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinates import draw_funnel, equal_weights
from klover import Target
from klover.search.region import Region
from klover.tuning import Search
from klover.warps.warp import fit_warp

DIM = 3
EXAMPLE = np.array([1.0, -2.0, 30.0])
LOWER, UPPER = np.array([-5.0, 0.0, 100.0]), np.array([5.0, 0.1, 900.0])


def target(box=None):
    return Target(lambda x: -jnp.sum(x**2), jnp.asarray(EXAMPLE), box=box)


def test_a_region_with_a_box_is_the_box():
    region = Region(target((LOWER, UPPER)))
    np.testing.assert_array_equal(region.box, (LOWER, UPPER))
    np.testing.assert_array_equal(region.centre, [0.0, 0.05, 500.0])
    starts = region.draw_starts(np.random.default_rng(0), 4000)
    assert np.all((starts >= LOWER) & (starts <= UPPER))
    uniform = (starts - LOWER) / (UPPER - LOWER)
    # Mean and variance of uniform numbers, to five standard errors.
    assert np.all(np.abs(uniform.mean(0) - 0.5) < 5 * np.sqrt(1 / 12 / 4000))
    assert np.all(np.abs(uniform.var(0) - 1 / 12) < 5 * np.sqrt(1 / 180 / 4000))


def test_the_ceiling_of_a_box_is_one_and_a_fifth_of_its_deviations_whatever_the_top():
    region = Region(target((LOWER, UPPER)))
    expected = (1.2 * (UPPER - LOWER)) ** 2 / 12
    for top in (np.zeros(DIM), np.full(DIM, 1e6)):
        np.testing.assert_allclose(region.ceiling(top), expected, rtol=1e-12)


@pytest.mark.parametrize("start_scale", [3.0, 50.0])
def test_a_region_without_a_box_surrounds_the_example(start_scale):
    region = Region(target(), Search(start_scale=start_scale))
    assert region.box is None
    np.testing.assert_array_equal(region.centre, EXAMPLE)
    num = 4000
    starts = region.draw_starts(np.random.default_rng(0), num) - EXAMPLE
    np.testing.assert_array_equal(starts[0], 0.0)
    # Every second start is near, with unit scales; the others are further away.
    for rows, scale in ((starts[2::2], start_scale), (starts[1::2], 1.0)):
        error = scale / np.sqrt(rows.size)
        assert abs(rows.mean()) < 5 * error
        assert rows.std() == pytest.approx(scale, abs=5 * error / np.sqrt(2))


@given(far=st.floats(0, 1e8), widest=st.floats(1.0, 100.0))
def test_the_ceiling_grows_with_the_way_to_a_top(far, widest):
    tuning = Search(widest=widest)
    top = EXAMPLE + np.array([far, 0.0, -far])
    way = np.abs(top - EXAMPLE)
    expected = (widest * np.maximum(tuning.start_scale, way)) ** 2
    np.testing.assert_allclose(Region(target(), tuning).ceiling(top), expected, rtol=1e-12)


def test_starts_are_those_of_the_generator():
    for region in (Region(target()), Region(target((LOWER, UPPER)))):
        one, other, third = (region.draw_starts(np.random.default_rng(seed), 8) for seed in (0, 0, 1))
        np.testing.assert_array_equal(one, other)
        assert np.any(one != third)


def test_a_region_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Region(target()).tuning = Search()


@pytest.mark.parametrize("box", [None, (LOWER, UPPER)], ids=["example", "box"])
def test_in_other_coordinates_starts_are_the_same_points(box):
    warp = fit_warp("led", draw_funnel(1000, DIM), equal_weights(1000))
    plain, moved = Region(target(box)), Region(target(box), coordinates=warp)
    starts, there = (region.draw_starts(np.random.default_rng(0), 20) for region in (plain, moved))
    np.testing.assert_array_equal(there, warp.to_base(starts)[0])
    np.testing.assert_array_equal(moved.centre, warp.to_base(plain.centre[None])[0][0])
    # A box is none in other coordinates: the way to a top is the scale there.
    assert moved.box is None
    tuning = Search()
    far = moved.centre + np.array([1e3, 0.0, -1e3])
    expected = (tuning.widest * np.maximum(tuning.start_scale, np.array([1e3, 0.0, 1e3]))) ** 2
    np.testing.assert_allclose(moved.ceiling(far), expected, rtol=1e-9)
