import jax
import numpy as np
import pytest
from scipy import stats

from coordinates import (
    assert_is_change,
    draw_banana,
    draw_funnel,
    draw_hierarchy,
    draw_product,
    equal_weights,
)
from klover.warps.triangular import Triangular
from klover.warps.warp import KINDS, Warp, fit_warp

NUM = 8000
ROTATION = np.linalg.qr(np.random.default_rng(3).normal(size=(4, 4)))[0]
CASES = {
    "funnel": ("led", lambda num, seed: draw_funnel(num, 5, seed), 1),
    "banana": ("led", draw_banana, 1),
    "product": ("correlated", lambda num, seed: draw_product(num, 4, seed), 0),
    "rotated": ("independent", lambda num, seed: draw_product(num, 4, seed) @ ROTATION.T, 0),
}


def fitted(kind, x):
    return fit_warp(kind, x, equal_weights(len(x)))


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_a_change_of_coordinates(kind):
    x = draw_funnel(2000, 4)
    assert_is_change(fitted(kind, x), x[:20])


@pytest.mark.parametrize("kind", KINDS)
def test_the_way_back_is_exact_far_away(kind):
    warp = fitted(kind, draw_funnel(2000, 4))
    z = 12 * np.random.default_rng(0).normal(size=(200, 4))
    x, log_det = warp.from_base(z)
    again, other = warp.to_base(x)
    np.testing.assert_allclose(again, z, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(other, -log_det, rtol=1e-6, atol=1e-6)


def test_no_layer_changes_nothing():
    x = np.random.default_rng(0).normal(size=(5, 3))
    for moved, log_det in (Warp(()).to_base(x), Warp(()).from_base(x)):
        np.testing.assert_array_equal(moved, x)
        np.testing.assert_array_equal(log_det, np.zeros(5))


def test_layers_follow_each_other():
    x = draw_funnel(2000, 4)
    warp = fitted("led", x)
    moved, total = x, 0.0
    for layer in warp.layers:
        moved, log_det = layer.to_base(moved)
        total = total + log_det
    np.testing.assert_allclose(warp.to_base(x)[0], moved, rtol=1e-12)
    np.testing.assert_allclose(warp.to_base(x)[1], total, rtol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_fresh_draws_become_nearly_normal(name):
    kind, draw, num_leads = CASES[name]
    warp = fitted(kind, draw(NUM, 0))
    assert warp.num_leads == num_leads
    assert isinstance(warp.layers[0], Triangular) == (kind == "led")
    z = warp.to_base(draw(NUM, 1))[0]
    # Five standard errors of fresh draws and of those that were fitted to.
    np.testing.assert_allclose(z.mean(0), 0.0, atol=5 * np.sqrt(2 / NUM))
    np.testing.assert_allclose(np.cov(z.T), np.eye(z.shape[1]), atol=5 * np.sqrt(2 * 2 / NUM))
    # Of what knots and splines cannot follow, excess kurtosis of a third and skewness of a fifth are left.
    assert np.abs(stats.kurtosis(z)).max() < 0.35
    assert np.abs(stats.skew(z)).max() < 0.2


def test_a_centred_hierarchy_becomes_nearly_normal():
    # Draws of one posterior: the data come first from the seed, so that half of the draws are fresh ones.
    x = draw_hierarchy(2 * NUM, 8)
    z = fitted("led", x[:NUM]).to_base(x[NUM:])[0]
    np.testing.assert_allclose(np.cov(z.T), np.eye(10), atol=5 * np.sqrt(2 * 2 / NUM))
    assert np.abs(stats.kurtosis(z)).max() < 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_wherever_the_draws_lie_they_look_the_same_behind_it(kind):
    x = draw_funnel(2000, 4)
    scale = np.array([2.0, 0.1, 30.0, 1.0])
    z, log_det = fitted(kind, x).to_base(x)
    other, other_det = fitted(kind, x * scale + 50.0).to_base(x * scale + 50.0)
    if kind != "independent":  # ICA begins from another rotation, and so has another order
        np.testing.assert_allclose(other, z, atol=1e-3)
        np.testing.assert_allclose(other_det, log_det - np.log(scale).sum(), atol=1e-3)
    else:
        np.testing.assert_allclose((other**2).sum(1).mean(), (z**2).sum(1).mean(), rtol=0.05)


def test_nothing_leads_a_gaussian():
    x = np.random.default_rng(0).normal(size=(2000, 4))
    assert fitted("led", x) is None
    assert fitted("correlated", x).num_leads == 0


def test_it_is_a_tree_of_arrays():
    warp = fitted("led", draw_funnel(500, 3))
    leaves, structure = jax.tree.flatten(warp)
    assert all(isinstance(leaf, np.ndarray | np.generic) for leaf in leaves)
    again = jax.tree.unflatten(structure, leaves)
    x = draw_funnel(10, 3, seed=1)
    np.testing.assert_array_equal(again.to_base(x)[0], warp.to_base(x)[0])
    # As an argument of a compiled function, too.
    z, _ = jax.jit(lambda warp, x: warp.to_base(x))(warp, x)
    np.testing.assert_allclose(z, warp.to_base(x)[0], rtol=1e-9, atol=1e-9)
