"""Particles of islands: the evidence, its error and the error of means come from the scatter of the islands."""

import numpy as np
import pytest

from helpers import judged
from klover import Family, Mixture, Target
from klover.importance.islands import ParticleDraws
from klover.verdict.status import Status

DIM, SIZE = 3, 500
NORMAL = Mixture.of(Family("normal").components(np.zeros((1, DIM)), np.ones((1, DIM))))


def particles(log_evidence, x=None, drift=0.0):
    num = len(log_evidence)
    x = np.random.default_rng(0).normal(size=(num * SIZE, DIM)) if x is None else x
    log_p = -0.5 * (x**2).sum(1)
    uniform = np.full(len(x), -np.log(len(x)))
    none = np.asarray(0)
    target = Target(lambda x: -0.5 * (x @ x), np.zeros(DIM))
    return ParticleDraws(
        x,
        log_p,
        log_p,
        uniform,
        np.asarray(2.0),
        none,
        none,
        target,
        np.asarray(log_evidence, float),
        np.asarray(drift),
    )


def test_evidence_is_the_mean_over_islands_and_its_error_their_scatter():
    z = np.array([1.0, 1.2, 0.7, 1.3])
    draws = particles(np.log(z) - 1000)
    np.testing.assert_allclose(draws.log_evidence, np.log(z.mean()) - 1000, rtol=1e-12)
    np.testing.assert_allclose(draws.log_evidence_se, z.std(ddof=1) / np.sqrt(4) / z.mean(), rtol=1e-6)
    np.testing.assert_allclose(draws.spread, np.log(z).std(ddof=1), rtol=1e-9)
    assert (draws.kind, draws.num_islands) == ("particles", 4)


def test_error_of_a_mean_is_the_scatter_of_the_islands():
    x = np.repeat(np.array([0.0, 2.0, 4.0]), SIZE)[:, None] * np.ones(DIM)
    mean, error = particles([0.0, 0.0, 0.0], x).mean_and_error(x)
    np.testing.assert_allclose(mean, 2.0)
    np.testing.assert_allclose(error, 2.0 / np.sqrt(3))
    value, se = particles([0.0, 0.0, 0.0], x).expectation(lambda position: position[0] ** 2)
    np.testing.assert_allclose(value, (0 + 4 + 16) / 3)
    np.testing.assert_allclose(se, np.std([0, 4, 16], ddof=1) / np.sqrt(3))


def test_effective_draws_of_independent_particles_and_of_islands_that_disagree():
    num = 8
    # 1/ess is the mean over coordinates of a chi-square with 7 degrees of freedom over 7, divided by the draws.
    assert 0.3 * num * SIZE < float(particles(np.zeros(num)).ess) <= num * SIZE
    apart = np.random.default_rng(0).normal(size=(num * SIZE, DIM)) + 5 * np.repeat(np.arange(num), SIZE)[:, None]
    assert float(particles(np.zeros(num), apart).ess) < num


@pytest.mark.parametrize(
    ("log_evidence", "drift", "status"),
    [
        ([0.0, 0.3, -0.3, 0.1], 1.0, Status.PARTICLES),
        ([0.0, 8.0, -3.0, 0.1], 1.0, Status.UNCONVERGED_PARTICLES),
        ([0.0, 0.3, -0.3, 0.1], 9.0, Status.UNCONVERGED_PARTICLES),
    ],
)
def test_verdict_follows_the_islands_and_the_drift(log_evidence, drift, status):
    verdict = judged(particles(log_evidence, drift=drift), NORMAL)
    assert verdict.status is status
    assert verdict.trusted == (status is Status.PARTICLES)
    assert "importance sampling cannot work here (k̂ = 2.00)" in verdict.reason


def test_few_effective_particles_are_not_trusted():
    apart = np.random.default_rng(0).normal(size=(4 * SIZE, DIM)) + 5 * np.repeat(np.arange(4), SIZE)[:, None]
    assert judged(particles(np.zeros(4), apart), NORMAL).status is Status.UNCONVERGED_PARTICLES
