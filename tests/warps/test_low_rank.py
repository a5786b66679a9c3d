import jax
import jax.numpy as jnp
import numpy as np

from coordinates import assert_is_change
from klover.warps.low_rank import LowRankLinear
from klover.warps.warp import WHITENED, Warp

DIM, RANK = 7, 3


def make(seed: int = 0) -> LowRankLinear:
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.normal(size=(DIM, RANK)))[0]
    return LowRankLinear(rng.normal(size=DIM), np.exp(rng.normal(size=DIM)), directions, np.array([0.01, 3.0, 100.0]))


def covariance(layer: LowRankLinear) -> np.ndarray:
    """By its definition."""
    inner = np.eye(DIM) + layer.directions @ np.diag(layer.lengths**2 - 1) @ layer.directions.T
    return np.asarray(layer.scale[:, None] * inner * layer.scale)


def test_it_is_a_change_of_coordinates():
    assert_is_change(make(), np.random.default_rng(0).normal(size=(20, DIM)))


def test_a_standard_normal_gets_the_covariance():
    layer = make()
    root = (layer.from_base(np.eye(DIM))[0] - layer.centre).T
    np.testing.assert_allclose(root @ root.T, covariance(layer), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(layer.variance(), np.diagonal(covariance(layer)), rtol=1e-10)
    np.testing.assert_allclose(
        layer.to_base(layer.centre[None])[1], -0.5 * np.linalg.slogdet(covariance(layer))[1], rtol=1e-7
    )


def test_variances_behind_it():
    layer, variance = make(), np.random.default_rng(1).uniform(0.5, 2.0, DIM)
    matrix = layer.to_base(layer.centre + np.eye(DIM))[0].T
    np.testing.assert_allclose(
        layer.base_variance(variance), np.diagonal(matrix @ np.diag(variance) @ matrix.T), rtol=1e-9
    )


def test_without_directions_there_are_scales_alone():
    layer = LowRankLinear.diagonal(np.ones(2), np.array([4.0, 9.0]))
    np.testing.assert_allclose(layer.to_base(np.array([[3.0, 4.0]]))[0], [[1.0, 1.0]])
    np.testing.assert_allclose(layer.variance(), [4.0, 9.0])
    assert layer.rank == 0


def test_jax_and_numpy_agree():
    layer = make()
    z = np.random.default_rng(0).normal(size=(4, DIM))
    under_jax = jax.tree.map(jnp.asarray, layer)
    for name in ("to_base", "from_base"):
        for one, other in zip(getattr(layer, name)(z), getattr(under_jax, name)(jnp.asarray(z)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9)


def test_a_whitened_warp_is_not_bent():
    assert not Warp((make(),), WHITENED).is_bent
    assert Warp((make(),), "correlated").is_bent
