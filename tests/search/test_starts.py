"""Rungs of starts: how far they go, and from where."""

import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.mixtures.algebra import mixture_of
from klover.search.region import Region
from klover.search.starts import APART, INFLATIONS, OVERALL, RADII, draw_rungs

MEAN = np.array([5.0, -3.0])


def rungs(name="student", box=None, num=4000, prior=np.zeros((0, 2))):  # noqa: B008
    target = klover.Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2), box=box)
    components = klover.Family.parse(name).components(MEAN[None], np.array([[4.0, 0.25]]))
    return draw_rungs(np.random.default_rng(0), Region(target), klover.Mixture.of(components), prior, num)


@pytest.mark.parametrize("name", ["student", "normal-diagonal", "normal-low-rank"])
def test_the_first_rungs_are_normals_around_the_components(name):
    starts = rungs(name)
    assert starts.shape == (len(INFLATIONS) + len(OVERALL) + 4, 4000, 2)
    for factor, rung in zip(INFLATIONS, starts, strict=False):
        np.testing.assert_allclose(rung.mean(0), MEAN, atol=5 * factor * 2 / np.sqrt(4000))
        np.testing.assert_allclose(rung.std(0), factor * np.array([2.0, 0.5]), rtol=0.06)


def test_further_rungs_have_the_covariance_of_the_mixture():
    for factor, rung in zip(OVERALL, rungs()[len(INFLATIONS) :], strict=False):
        np.testing.assert_allclose(rung.mean(0), MEAN, atol=0.15)
        np.testing.assert_allclose(rung.std(0), factor * np.array([2.0, 0.5]), rtol=0.06)


@pytest.mark.parametrize("name", ["normal", "normal-diagonal"])
def test_one_rung_is_as_wide_as_components_lie_apart_in_every_direction(name):
    apart, shape = np.array([[-8.0, 0.0], [8.0, 0.0]]), np.array([4.0, 0.25])
    shapes = np.tile(shape if "diagonal" in name else np.diag(shape), (2, *[1] * (1 + ("diagonal" not in name))))
    mixture = mixture_of(klover.Family.parse(name), apart, shapes, np.inf, np.ones(2))
    region = Region(klover.Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2)))
    rung = draw_rungs(np.random.default_rng(0), region, mixture, np.zeros((0, 2)), 4000)[len(INFLATIONS) + len(OVERALL)]
    square = 8.0**2 / 4.0 / 2  # of the distance from the centre, for each of two dimensions
    np.testing.assert_allclose(rung.std(0), np.sqrt(APART * square * shape), rtol=0.05)
    alone = rungs(name)[len(INFLATIONS) + len(OVERALL)]
    np.testing.assert_allclose(alone.std(0), [2.0, 0.5], rtol=0.05)


def test_the_last_rungs_lie_around_the_example():
    around, region, radial = rungs()[-3:]
    np.testing.assert_allclose(around.mean(0), 0.0, atol=0.15)
    assert np.abs(region.mean(0)).max() < 0.3
    radius = np.linalg.norm(radial, axis=1)
    assert RADII[0] <= radius.min()
    assert radius.max() <= RADII[1]
    np.testing.assert_allclose(np.median(radius), 10.0, rtol=0.1)


def test_a_box_is_covered():
    region = rungs(box=(np.array([-7.0, 2.0]), np.array([-5.0, 40.0])))[-2]
    assert np.all((region >= [-7.0, 2.0]) & (region <= [-5.0, 40.0]))
    np.testing.assert_allclose(region.mean(0), [-6.0, 21.0], atol=1.0)


def test_draws_of_a_prior_are_a_rung_of_their_own():
    prior = np.array([[100.0, 1.0], [200.0, 2.0]])
    starts = rungs(prior=prior)
    assert len(starts) == len(rungs()) + 1
    assert {tuple(point) for point in starts[-1]} == {tuple(point) for point in prior}
