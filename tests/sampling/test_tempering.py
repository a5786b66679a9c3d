import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import correlated_covariance, gaussian
from klover import Target
from klover.fitting import growth
from klover.fitting.sample import equal
from klover.importance.ratios import effective_sample_size
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.sampling import tempering
from klover.sampling.hamiltonian import Particles, place
from klover.sampling.tempering import carry, excursion, next_temperature
from klover.targets.evaluator import Evaluator
from klover.tuning import Moves

WITH_AND_WITHOUT = pytest.mark.parametrize("has_gradient", [True, False], ids=["gradient", "walk"])
MOVES = Moves()
DIM = 2


def make_mixture(weights=(0.5, 0.2, 0.3), seed: int = 0) -> Mixture:
    matrix = np.stack([correlated_covariance(DIM, seed + slot) for slot in range(len(weights))])
    location = 2 * np.random.default_rng(seed).normal(size=(len(weights), DIM))
    return Mixture(Family("student", df=10.0).components(location, matrix), np.log(np.asarray(weights)))


def evaluator_of(target: Target, has_gradient: bool = True) -> Evaluator:
    evaluator = Evaluator(target)
    evaluator.has_gradient = has_gradient
    return evaluator


def stay(kernel: Mixture, now: Particles) -> Mixture:
    return kernel


def follow(kernel: Mixture, now: Particles) -> Mixture:
    return growth.fit(kernel, equal(now.x, now.log_p), growth.Rules(8), num_steps=3)


def wide_start(location: float = 3.0, scale: float = 10.0) -> Mixture:
    return Mixture.of(Family("student").components(np.full((1, DIM), location), np.full((1, DIM), scale**2)))


@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(0.1, 1e3), beta=st.floats(0.0, 0.99))
def test_temperatures_rise_and_end_at_one(seed, scale, beta):
    log_ratio = scale * np.random.default_rng(seed).normal(size=100)
    following = next_temperature(beta, log_ratio, 0.5)
    assert beta < following <= 1
    change = (following - beta) * log_ratio
    assert effective_sample_size(change) >= 50 - 1e-6
    # The largest such step: where it is not the last, a longer one would leave too few.
    assert following == 1 or effective_sample_size(1.001 * change) < 50


def test_temperatures_of_numpy_and_jax_agree_under_jit():
    log_ratio = 30 * np.random.default_rng(0).normal(size=(4, 64))
    log_ratio[:, :5] = -np.inf
    for beta in (0.0, 0.3, 1.0):
        expected = next_temperature(beta, np.where(np.isfinite(log_ratio), log_ratio, -1e30), 0.5)
        found = jax.jit(next_temperature, static_argnums=2)(
            beta, jnp.where(log_ratio > -jnp.inf, log_ratio, -1e30), 0.5
        )
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert next_temperature(1.0, log_ratio[0, 5:], 0.5) == 1.0


def test_a_constant_in_the_ratios_leaves_the_temperatures_alone():
    log_ratio = 5 * np.random.default_rng(0).normal(size=100)
    plain, moved = (next_temperature(0.1, log_ratio + shift, 0.5) for shift in (0.0, 1e4))
    np.testing.assert_allclose(moved, plain, rtol=1e-9)


NUM_SEEDS = 6


@functools.cache
def carried(has_gradient: bool) -> tuple[np.ndarray, np.ndarray]:
    known, wide = gaussian(DIM), wide_start()
    evidence, x = [], []
    for seed in range(NUM_SEEDS):
        generator, evaluator = np.random.default_rng(seed), evaluator_of(known.target, has_gradient)
        draws = wide.draw(generator, 1024)
        now, log_evidence = carry(generator, evaluator, wide, draws, evaluator.values(draws), 512, follow, MOVES)
        evidence.append(log_evidence - known.log_evidence)
        x.append(now.x)
    return np.array(evidence), np.array(x)


@WITH_AND_WITHOUT
def test_carried_particles_give_the_evidence(has_gradient):
    error, _ = carried(has_gradient)
    assert np.all(np.abs(error) < 5 * error.std(ddof=1))
    assert error.std(ddof=1) < 0.2
    # The evidence itself, not its logarithm, is estimated without bias.
    ratio = np.exp(error)
    assert abs(ratio.mean() - 1) < 5 * ratio.std(ddof=1) / np.sqrt(NUM_SEEDS)


@WITH_AND_WITHOUT
def test_carried_particles_have_the_moments_of_the_target(has_gradient):
    known, (_, x) = gaussian(DIM), carried(has_gradient)
    assert x.shape == (NUM_SEEDS, 512, DIM)
    delta = x - known.mean
    for values, expected in (
        (delta.mean(1), 0.0),
        (np.einsum("sni,snj->sij", delta, delta) / 512, known.covariance),
    ):
        error = values.std(0, ddof=1) / np.sqrt(NUM_SEEDS)
        assert np.all(np.abs(values.mean(0) - expected) < 5 * error)


def test_carrying_from_the_target_itself_takes_one_step():
    known, generator = gaussian(DIM), np.random.default_rng(0)
    exact = Mixture.of(Family("normal").components(known.mean[None], known.covariance[None]))
    evaluator, draws = evaluator_of(known.target), exact.draw(generator, 100)
    log_p = np.asarray(known.target.log_prob(draws))
    now, log_evidence = carry(generator, evaluator, exact, draws, log_p, 50, stay, MOVES)
    assert log_evidence == pytest.approx(known.log_evidence, abs=1e-9)
    assert len(now.x) == 50
    assert evaluator.num_evaluations == 50 * (1 + MOVES.num_moves * MOVES.num_leapfrogs)


def test_draws_outside_the_support_are_left_behind():
    target = Target(lambda x: jnp.where(x[0] > 0, -0.5 * jnp.sum(x**2), -jnp.inf), jnp.ones(DIM))
    error = []
    for seed in range(NUM_SEEDS):
        generator, evaluator, wide = np.random.default_rng(seed), evaluator_of(target), wide_start(0.0, 4.0)
        draws = wide.draw(generator, 1024)
        now, log_evidence = carry(generator, evaluator, wide, draws, evaluator.values(draws), 512, stay, MOVES)
        error.append(log_evidence - np.log(np.pi))
        assert np.all(now.x[:, 0] > 0)
    error = np.array(error)
    assert np.all(np.abs(error) < 5 * error.std(ddof=1))
    assert error.std(ddof=1) < 0.2


@pytest.mark.parametrize(("hottest", "refit"), [(0.2, follow), (0.5, stay)], ids=["follow", "stay"])
def test_an_excursion_keeps_the_moments_of_a_gaussian(hottest, refit):
    known, num_seeds, num = gaussian(DIM), 6, 512
    kernel = Mixture.of(Family("student").components(known.mean[None], known.covariance[None]))
    values = []
    for seed in range(num_seeds):
        generator, evaluator = np.random.default_rng(seed), evaluator_of(known.target)
        begun = place(evaluator, generator.multivariate_normal(known.mean, known.covariance, num))
        ended = excursion(generator, evaluator, kernel, begun, hottest, refit, MOVES)
        delta = ended.x - known.mean
        values.append(np.concatenate([delta.mean(0), (delta.T @ delta / num - known.covariance).ravel()]))
        assert np.median(np.linalg.norm(ended.x - begun.x, axis=1)) > 0.5
    values = np.array(values)
    assert np.all(np.abs(values.mean(0)) < 5 * values.std(0, ddof=1) / np.sqrt(num_seeds))


def test_an_excursion_cools_by_the_right_weights(monkeypatch):
    # In place of moves: exact draws on the way up, and nothing on the way down.
    known, generator, betas = gaussian(DIM), np.random.default_rng(0), []
    evaluator = evaluator_of(known.target)

    def exact(generator, evaluator, kernel, now, tuning, bridge):
        betas.append(bridge.beta)
        if len(betas) > tempering.HEATING_STEPS:
            return now
        return place(evaluator, generator.multivariate_normal(known.mean, known.covariance / bridge.beta, len(now.x)))

    monkeypatch.setattr(tempering, "move", exact)
    begun = place(evaluator, np.repeat(known.mean[None], 20_000, axis=0))
    ended = excursion(generator, evaluator, make_mixture(), begun, 0.5, stay, MOVES)
    heating = betas[: tempering.HEATING_STEPS]
    np.testing.assert_allclose(heating, 0.5 ** (np.arange(1, 4) / 3))
    assert np.all(np.diff(betas[tempering.HEATING_STEPS :]) > 0)
    assert betas[-1] == 1
    delta = ended.x - known.mean
    products = delta[:, :, None] * delta[:, None, :]
    # With half the precision the ratio of densities leaves three quarters of the draws effective.
    for values, expected in ((delta, 0.0), (products, known.covariance)):
        assert np.all(np.abs(values.mean(0) - expected) < 5 * values.std(0) / np.sqrt(0.75 * len(delta)))


def test_journeys_follow_the_seed():
    known, wide = gaussian(DIM), wide_start()

    def journey(seed):
        generator, evaluator = np.random.default_rng(seed), evaluator_of(known.target)
        draws = wide.draw(generator, 100)
        return carry(generator, evaluator, wide, draws, evaluator.values(draws), 64, follow, MOVES)

    (first, one), (second, other), (third, _) = journey(0), journey(0), journey(1)
    np.testing.assert_array_equal(first.x, second.x)
    assert one == other
    assert np.any(first.x != third.x)


def test_carrying_nothing_is_refused():
    target = Target(lambda x: jnp.where(x[0] > 50, 0.0, -jnp.inf), jnp.full(DIM, 60.0))
    generator, evaluator, wide = np.random.default_rng(0), evaluator_of(target), wide_start(0.0, 1.0)
    draws = np.zeros((10, DIM))
    with pytest.raises(ValueError, match="nothing to carry"):
        carry(generator, evaluator, wide, draws, evaluator.values(draws), 64, stay, MOVES)


def test_a_larger_share_of_effective_particles_takes_more_temperatures():
    known, wide, betas = gaussian(DIM), wide_start(), {}
    for share in (0.3, 0.9):
        generator, evaluator, kernels = np.random.default_rng(0), evaluator_of(known.target), []
        draws = wide.draw(generator, 256)
        refit = functools.partial(lambda seen, kernel, now: seen.append(kernel) or kernel, kernels)
        carry(generator, evaluator, wide, draws, evaluator.values(draws), 64, refit, Moves(effective_share=share))
        betas[share] = len(kernels)
    assert betas[0.9] > betas[0.3]
