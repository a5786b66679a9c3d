"""Sequential Monte Carlo in compiled steps, against Gaussians whose constants are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from klover import Family, Mixture, Target
from klover.sampling.hamiltonian import Metric
from klover.sampling.swarm import _metric, advance, release

NUMBERS = 0.5, 0.7
"""Share of particles that stay effective, and acceptance."""


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
    step = jax.jit(advance, static_argnums=(5, 6))
    while swarm.beta < 1:
        swarm = step(getkey(), target, begin, swarm, jnp.asarray(10), *NUMBERS)
    truth = 0.5 * dim * np.log(2 * np.pi)
    error = np.std(swarm.log_evidence) / np.sqrt(4) + 0.02
    assert abs(jax.nn.logsumexp(swarm.log_evidence) - np.log(4) - truth) < 5 * error
    # 256 particles, nearly independent: the error of a variance is a tenth.
    np.testing.assert_allclose(swarm.x.reshape(-1, dim).var(0), 1.0, atol=0.5)
    np.testing.assert_allclose(swarm.log_p, target.log_prob(swarm.x.reshape(-1, dim)).reshape(4, 64), rtol=1e-10)


def test_points_outside_the_support_are_left_at_once(getkey):
    target = Target(lambda x: jnp.where(jnp.all(x > 0), -0.5 * jnp.sum(x**2), jnp.nan), np.ones(2))
    begin = start(2, 1.0)
    swarm = release(getkey(), target, begin, 2, 64)
    swarm = advance(getkey(), target, begin, swarm, jnp.asarray(5), *NUMBERS)
    assert jnp.all(swarm.x > 0)
    assert jnp.all(jnp.isfinite(swarm.log_p))
    assert swarm.num_nan > 0


def test_released_particles_are_draws_of_the_approximation(getkey):
    target, begin = gaussian(3), start(3, 2.0)
    swarm = release(getkey(), target, begin, 4, 500)
    assert (swarm.x.shape, swarm.log_p.shape, swarm.log_evidence.shape) == ((4, 500, 3), (4, 500), (4,))
    x = swarm.x.reshape(-1, 3)
    np.testing.assert_allclose(swarm.log_p.ravel(), target.log_prob(x), rtol=1e-12)
    np.testing.assert_allclose(swarm.log_q.ravel(), begin.log_prob(x), rtol=1e-12)
    assert np.all(np.abs(x.mean(0)) < 5 * 2 / np.sqrt(2000))
    assert np.all(np.abs(x.var(0) - 4.0) < 5 * 4 * np.sqrt(2 / 2000))
    assert (swarm.beta, swarm.num_nan) == (0.0, 0)
    np.testing.assert_array_equal(swarm.log_evidence, 0.0)


def test_at_the_target_particles_are_only_moved(getkey):
    target, begin = gaussian(2), start(2, 1.0)
    # The approximation is the target, so that one step carries all particles there.
    first = advance(getkey(), target, begin, release(getkey(), target, begin, 2, 128), jnp.asarray(5), *NUMBERS)
    assert first.beta == 1.0
    np.testing.assert_allclose(first.log_evidence, np.log(2 * np.pi), rtol=1e-12)
    second = advance(getkey(), target, begin, first, jnp.asarray(5), *NUMBERS)
    np.testing.assert_array_equal(second.log_evidence, first.log_evidence)
    assert second.beta == 1.0
    assert np.mean(np.all(second.x == first.x, axis=-1)) < 0.5


def test_a_batch_of_targets_advances_as_each_of_them_alone(getkey):
    scales, begin = jnp.asarray([0.5, 2.0]), start(2, 3.0)
    targets = jax.vmap(lambda scale: Target(lambda x: -0.5 * jnp.sum((x / scale) ** 2), jnp.zeros(2)))(scales)
    key_release, key_advance = jax.random.split(getkey(), 2), jax.random.split(getkey(), 2)

    def go(key_release, key_advance, target):
        return advance(key_advance, target, begin, release(key_release, target, begin, 2, 32), jnp.asarray(4), *NUMBERS)

    together = jax.jit(jax.vmap(go))(key_release, key_advance, targets)
    for which in range(2):
        one = jax.tree.map(lambda leaf: leaf[which], targets)  # noqa: B023
        alone = go(key_release[which], key_advance[which], one)
        for leaf, other in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(leaf[which], other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_the_metric_gives_particles_of_other_islands_unit_scales(covariance):
    begin, num, size = start(3, 2.0, covariance), 4, 50
    x = jnp.asarray(np.random.default_rng(0).normal(size=(num, size, 3)) * np.array([1e-3, 1.0, 1e2]) + 5.0)
    metric = _metric(begin, x)
    assert isinstance(metric, Metric)
    units = [jnp.tile(unit, (num * size, 1)) for unit in jnp.eye(3)]
    roots = np.stack([metric.times(unit) for unit in units], axis=2)
    np.testing.assert_allclose(np.stack([metric.times_transposed(unit) for unit in units], axis=1), roots, rtol=1e-12)
    for island in range(num):
        others = np.delete(np.asarray(x), island, axis=0).reshape(-1, 3)
        for root in roots[island * size : (island + 1) * size]:
            np.testing.assert_allclose(np.linalg.solve(root, others.T).std(1), 1.0, rtol=1e-9)


def test_a_metric_does_not_know_its_own_particles():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 20, 2)))
    before, after = (_metric(start(2, 1.0), each).scale[20:40] for each in (x, x.at[1].multiply(7.0)))
    np.testing.assert_allclose(before, after, rtol=1e-9)


def test_particles_that_rest_keep_their_places_and_their_step(getkey):
    target, begin = gaussian(2), start(2, 1.0)
    first = advance(getkey(), target, begin, release(getkey(), target, begin, 2, 16), jnp.asarray(5), *NUMBERS)
    rested = advance(getkey(), target, begin, first, jnp.asarray(0), *NUMBERS)
    np.testing.assert_array_equal(rested.x, first.x)
    assert rested.step == first.step
