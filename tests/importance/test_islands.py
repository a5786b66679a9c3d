"""Particles of islands: the evidence, its error and the error of means come from the scatter of the islands."""

import numpy as np
import pytest
from scipy import stats

from helpers import judged
from klover import Family, Mixture, Target
from klover.importance.islands import ParticleDraws, agreement
from klover.verdict.status import Status

DIM, SIZE = 3, 500
NORMAL = Mixture.of(Family("normal").components(np.zeros((1, DIM)), np.ones((1, DIM))))
TARGET = Target(lambda x: -0.5 * (x @ x), np.zeros(DIM))


def particles(log_evidence, x=None, drift=0.0):
    num = len(log_evidence)
    x = np.random.default_rng(0).normal(size=(num * SIZE, DIM)) if x is None else x
    log_p = -0.5 * (x**2).sum(1)
    uniform = np.full(len(x), -np.log(len(x)))
    none = np.asarray(0)
    return ParticleDraws(
        x,
        log_p,
        log_p,
        uniform,
        np.asarray(2.0),
        none,
        none,
        TARGET,
        np.asarray(log_evidence, float),
        np.asarray(drift),
    )


def test_evidence_is_the_mean_over_islands_and_its_error_their_scatter():
    z = np.array([1.0, 1.2, 0.7, 1.3])
    draws = particles(np.log(z) - 1000)
    np.testing.assert_allclose(draws.log_evidence, np.log(z.mean()) - 1000, rtol=1e-12)
    spread = np.log(z).std(ddof=1)
    # Of four islands, so wider by the standard deviation of a Student-t variable with three degrees of freedom.
    scatter = np.sqrt(3) * z.std(ddof=1) / np.sqrt(4) / z.mean()
    np.testing.assert_allclose(draws.log_evidence_se, np.hypot(scatter, spread**2 / 2), rtol=1e-6)
    np.testing.assert_allclose(draws.spread, spread, rtol=1e-9)
    assert (draws.kind, draws.num_islands) == ("particles", 4)


def test_error_of_a_mean_is_the_scatter_of_the_islands():
    x = np.repeat(np.array([0.0, 2.0, 4.0]), SIZE)[:, None] * np.ones(DIM)
    mean, error = particles([0.0, 0.0, 0.0], x).mean_and_error(x)
    np.testing.assert_allclose(mean, 2.0)
    np.testing.assert_allclose(error, np.sqrt(3) * 2.0 / np.sqrt(3))
    value, se = particles([0.0, 0.0, 0.0], x).expectation(lambda position: position[0] ** 2)
    np.testing.assert_allclose(value, (0 + 4 + 16) / 3)
    np.testing.assert_allclose(se, np.sqrt(3) * np.std([0, 4, 16], ddof=1) / np.sqrt(3))


def test_errors_of_few_islands_are_stated_so_that_scores_have_unit_variance():
    num, num_means = 16, 40_000
    x = np.random.default_rng(1).normal(size=(num, num_means))
    mean, error = particles(np.zeros(num), x).mean_and_error(x)
    # The kurtosis of a Student-t variable with 15 degrees of freedom is 3 + 6 / 11.
    assert np.mean((mean / error) ** 2) == pytest.approx(1.0, abs=5 * np.sqrt((2 + 6 / 11) / num_means))


@pytest.mark.parametrize("spread", [0.1, 0.3, 0.8])
def test_errors_of_log_normal_evidences_are_no_smaller_than_the_distance_to_the_truth(spread):
    num, num_runs, generator = 16, 2000, np.random.default_rng(2)
    x = generator.normal(size=(num, DIM))
    runs = [particles(each, x) for each in spread * generator.normal(size=(num_runs, num)) - spread**2 / 2]
    score = np.array([float(run.log_evidence) / float(run.log_evidence_se) for run in runs])
    assert np.mean(score**2) < 1 + 5 * np.sqrt((2 + 6 / 11) / num_runs)


def test_agreement_is_the_chance_of_a_t_test_times_the_number_of_tests():
    values = np.random.default_rng(3).normal(size=(2, 8, 3))
    values[1, :, 2] += 3.0
    chance = 3 * stats.ttest_ind(values[0, :, 2], values[1, :, 2]).pvalue
    np.testing.assert_allclose(agreement(values), chance, rtol=1e-6)
    assert agreement(values[:1]) == 1.0
    assert agreement(np.zeros((2, 8, 3))) == 1.0


def test_starts_that_end_alike_seldom_disagree():
    generator = np.random.default_rng(4)
    chances = np.array([agreement(generator.normal(size=(2, 8, 50))) for _ in range(1000)])
    assert np.mean(chances < 0.05) == pytest.approx(0.05, abs=5 * np.sqrt(0.05 / 1000))


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
