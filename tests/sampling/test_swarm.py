"""Sequential Monte Carlo in compiled steps, against Gaussians whose constants are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from klover import Family, Mixture, Target
from klover.sampling.swarm import advance, release


def gaussian(dim, scale=1.0):
    return Target(lambda x: -0.5 * jnp.sum((x / scale) ** 2), np.zeros(dim))


def start(dim, scale, covariance="diagonal"):
    shape = (1, dim) if covariance == "diagonal" else (1, dim, dim)
    spread = jnp.full(shape, scale**2) if covariance == "diagonal" else scale**2 * jnp.eye(dim)[None]
    return Mixture.of(Family("normal", covariance).components(jnp.zeros((1, dim)), spread))


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_the_evidence_of_a_gaussian_is_found(getkey, covariance):
    dim, begin = 4, start(4, 3.0, covariance)
    target = gaussian(dim)
    swarm = release(getkey(), target, begin, 4, 64)
    step = jax.jit(advance)
    while swarm.beta < 1:
        swarm = step(getkey(), target, begin, swarm, jnp.asarray(10))
    truth = 0.5 * dim * np.log(2 * np.pi)
    error = np.std(swarm.log_evidence) / np.sqrt(4) + 0.02
    assert abs(jax.nn.logsumexp(swarm.log_evidence) - np.log(4) - truth) < 5 * error
    # 256 particles, nearly independent: the error of a variance is a tenth.
    np.testing.assert_allclose(swarm.x.reshape(-1, dim).var(0), 1.0, atol=0.5)
    np.testing.assert_allclose(swarm.log_p, target.log_prob(swarm.x.reshape(-1, dim)).reshape(4, 64), rtol=1e-10)


def test_a_stride_leaves_half_of_the_particles_effective():
    change = jnp.asarray(np.random.default_rng(0).normal(size=(3, 200)) * 10)
    part = tempering._stride(change)
    share = tempering._effective_share(part * change)
    assert share.min() == pytest.approx(tempering.EFFECTIVE_SHARE, abs=1e-3)
    assert tempering._stride(0.01 * change) == 1.0


def test_points_outside_the_support_are_left_at_once(getkey):
    target = Target(lambda x: jnp.where(jnp.all(x > 0), -0.5 * jnp.sum(x**2), jnp.nan), np.ones(2))
    begin = start(2, 1.0)
    swarm = release(getkey(), target, begin, 2, 64)
    swarm = advance(getkey(), target, begin, swarm, jnp.asarray(5))
    assert jnp.all(swarm.x > 0)
    assert jnp.all(jnp.isfinite(swarm.log_p))
    assert swarm.num_nan > 0
