import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from helpers import correlated_covariance, gaussian
from klover import Target
from klover.fitting import growth
from klover.fitting.sample import equal
from klover.importance.ratios import effective_sample_size
from klover.mixtures.components import COVARIANCES, TAILS, Family
from klover.mixtures.mixture import Mixture
from klover.sampling import hamiltonian, tempering
from klover.sampling.hamiltonian import TARGET, Bridge, Particles, log_prob_and_gradient, move, place, systematic
from klover.sampling.tempering import carry, excursion
from klover.targets.evaluator import Evaluator

NAMES = [f"{tail}-{covariance}" for tail in TAILS for covariance in COVARIANCES]
EACH_FAMILY = pytest.mark.parametrize("name", NAMES)
WITH_AND_WITHOUT = pytest.mark.parametrize("has_gradient", [True, False], ids=["gradient", "walk"])
DIM = 2
SIGNIFICANCE = 1e-6


def make_mixture(name: str = "student-full", weights=(0.5, 0.2, 0.3), spread: float = 2.0, seed: int = 0) -> Mixture:
    tail, covariance = name.split("-", 1)
    family = Family(tail, covariance, df=10.0 if tail == "student" else None, rank=1)
    matrix = np.stack([correlated_covariance(DIM, seed + slot) for slot in range(len(weights))])
    location = spread * np.random.default_rng(seed).normal(size=(len(weights), DIM))
    return Mixture(family.components(location, matrix), np.log(np.asarray(weights)))


def evaluator_of(target: Target, has_gradient: bool = True) -> Evaluator:
    evaluator = Evaluator(target)
    evaluator.has_gradient = has_gradient
    return evaluator


def stay(kernel: Mixture, now: Particles) -> Mixture:
    return kernel


def follow(kernel: Mixture, now: Particles) -> Mixture:
    return growth.fit(kernel, equal(now.x, now.log_p), num_steps=3)


def wide_start(location: float = 3.0, scale: float = 10.0) -> Mixture:
    return Mixture.of(Family("student").components(np.full((1, DIM), location), np.full((1, DIM), scale**2)))


@EACH_FAMILY
def test_gradient_of_a_mixture_is_that_of_jax(name):
    mixture, x = (
        make_mixture(name),
        np.random.default_rng(1).normal(size=(20, DIM)) * np.geomspace(0.1, 30, 20)[:, None],
    )
    log_q, gradient = log_prob_and_gradient(mixture, x)
    expected = jax.jit(jax.vmap(jax.grad(jax.tree.map(jnp.asarray, mixture).log_prob)))(jnp.asarray(x))
    np.testing.assert_allclose(log_q, mixture.log_prob(x), rtol=1e-12)
    np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-12)


@EACH_FAMILY
def test_free_slots_have_no_part_in_the_gradient(name):
    mixture, x = make_mixture(name), np.random.default_rng(1).normal(size=(5, DIM))
    roomy = jax.tree.map(np.asarray, mixture.with_capacity(5))
    for one, other in zip(log_prob_and_gradient(roomy, x), log_prob_and_gradient(mixture, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_gradient_is_zero_where_the_density_is():
    x = np.array([[1e200, 0.0], [0.0, 0.0]])
    with np.errstate(over="ignore"):
        log_q, gradient = log_prob_and_gradient(make_mixture("normal-diagonal"), x)
    assert log_q[0] == -np.inf
    np.testing.assert_array_equal(gradient[0], 0.0)
    assert np.all(np.isfinite(gradient))


def test_particles_are_placed_taken_and_chosen():
    known, x = gaussian(DIM), np.random.default_rng(0).normal(size=(6, DIM))
    placed = place(evaluator_of(known.target), x)
    np.testing.assert_allclose(placed.log_p, known.target.log_prob(x), rtol=1e-12)
    np.testing.assert_allclose(placed.gradient, (known.mean - x) @ np.linalg.inv(known.covariance), rtol=1e-9)
    walking = place(evaluator_of(known.target, False), x)
    np.testing.assert_allclose(walking.log_p, placed.log_p, rtol=1e-12)
    np.testing.assert_array_equal(walking.gradient, 0.0)
    some = placed.take(np.array([4, 4, 0]))
    for field in ("x", "log_p", "gradient"):
        np.testing.assert_array_equal(getattr(some, field), getattr(placed, field)[[4, 4, 0]])
    condition = np.arange(6) < 2
    mixed = placed.where(condition, placed.take(np.full(6, 5)))
    np.testing.assert_array_equal(mixed.x, placed.x[[0, 1, 5, 5, 5, 5]])
    np.testing.assert_array_equal(mixed.log_p, placed.log_p[[0, 1, 5, 5, 5, 5]])


@pytest.mark.parametrize("beta", [0.3, 1.5])
def test_bridge_is_the_geometric_mean(beta):
    known, mixture, x = gaussian(DIM), make_mixture(), np.random.default_rng(0).normal(size=(6, DIM))
    placed, device = place(evaluator_of(known.target), x), jax.tree.map(jnp.asarray, mixture)
    for q, power in ((None, 0.0), (mixture, 1 - beta)):

        def log_density(point, power=power):
            return beta * known.target.log_prob(point) + power * device.log_prob(point)

        value, gradient = Bridge(beta, q)(placed)
        expected = jax.jit(jax.vmap(jax.value_and_grad(log_density)))(x)
        np.testing.assert_allclose(value, expected[0], rtol=1e-10)
        np.testing.assert_allclose(gradient, expected[1], rtol=1e-9, atol=1e-12)


def test_target_is_the_bridge_at_its_end():
    placed = place(evaluator_of(gaussian(DIM).target), np.ones((3, DIM)))
    for bridge in (TARGET, Bridge(1.0, make_mixture())):
        value, gradient = bridge(placed)
        np.testing.assert_array_equal(value, placed.log_p)
        np.testing.assert_array_equal(gradient, placed.gradient)


@given(
    weights=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8).filter(lambda weights: sum(weights) > 0.1),
    num=st.integers(1, 200),
    seed=st.integers(0, 2**32 - 1),
)
def test_systematic_resampling_counts_differ_from_expectation_by_less_than_one(weights, num, seed):
    weights = np.array(weights)
    index = systematic(np.random.default_rng(seed), weights, num)
    counts = np.bincount(index, minlength=len(weights))
    assert (len(index), len(counts)) == (num, len(weights))
    assert np.all(np.abs(counts - num * weights / weights.sum()) < 1 + 1e-9)
    np.testing.assert_array_equal(counts[weights == 0], 0)


def test_systematic_resampling_is_right_on_average():
    weights, num_seeds = np.array([0.1, 2.3, 0.0, 0.6]), 500
    counts = np.stack(
        [np.bincount(systematic(np.random.default_rng(seed), weights, 5), minlength=4) for seed in range(num_seeds)]
    )
    assert np.all(np.abs(counts.mean(0) - 5 * weights / weights.sum()) <= 5 * counts.std(0) / np.sqrt(num_seeds))


NUM = 4000


def assert_uniform(levels: np.ndarray) -> None:
    for level in np.atleast_2d(levels):
        assert stats.kstest(level, "uniform").pvalue > SIGNIFICANCE


@EACH_FAMILY
@pytest.mark.parametrize("beta", [0.4, 1.0])
def test_trajectories_can_be_run_backwards(name, beta):
    target = Target(lambda x: -jnp.sum(jnp.cosh(x)) - x[0] * x[1], jnp.zeros(DIM))
    generator, evaluator, kernel = np.random.default_rng(0), evaluator_of(target), make_mixture(name)
    bridge = Bridge(beta, make_mixture(seed=5))
    begun, momentum = place(evaluator, generator.standard_normal((20, DIM))), generator.standard_normal((20, DIM))
    spread = kernel.components.spread.gather(generator.integers(0, 3, 20))
    size = generator.uniform(0.05, 0.3, (20, 1))
    path = functools.partial(hamiltonian._trajectory, evaluator, bridge, spread=spread, size=size)
    there, log_density, slope, final = path(begun, bridge(begun)[1], momentum)
    np.testing.assert_allclose(log_density, bridge(there)[0], rtol=1e-12)
    np.testing.assert_allclose(slope, bridge(there)[1], rtol=1e-12)
    assert np.median(np.linalg.norm(there.x - begun.x, axis=1)) > 0.1
    back, _, _, reversed_momentum = path(there, slope, -final)
    np.testing.assert_allclose(back.x, begun.x, atol=1e-10)
    np.testing.assert_allclose(reversed_momentum, -momentum, atol=1e-10)


def test_every_trajectory_begins_with_the_slope_at_its_start(monkeypatch):
    known, generator, bridge = gaussian(DIM), np.random.default_rng(7), Bridge(0.6, make_mixture(seed=5))
    evaluator, starts = evaluator_of(known.target), []
    follow_path = hamiltonian._trajectory

    def watched(evaluator, bridge, start, slope, *rest):
        np.testing.assert_allclose(slope, bridge(start)[1], rtol=1e-12)
        starts.append(start.x)
        return follow_path(evaluator, bridge, start, slope, *rest)

    monkeypatch.setattr(hamiltonian, "_trajectory", watched)
    begun = place(evaluator, generator.multivariate_normal(known.mean, known.covariance, 50))
    move(generator, evaluator, make_mixture(seed=3), Particles(begun.x, begun.log_p, begun.gradient, 2.0), bridge, 6)
    stayed = np.mean([np.all(one == other, axis=1) for one, other in zip(starts[:-1], starts[1:], strict=True)])
    assert 0.1 < stayed < 0.9


def test_energy_is_kept_to_second_order_in_the_step():
    known, generator = gaussian(DIM), np.random.default_rng(0)
    evaluator, kernel = evaluator_of(known.target), make_mixture("normal-full")
    begun, momentum = place(evaluator, generator.standard_normal((20, DIM))), generator.standard_normal((20, DIM))
    spread = kernel.components.spread.gather(generator.integers(0, 3, 20))

    def drift(size):
        steps = np.full((20, 1), size)
        _, log_density, _, final = hamiltonian._trajectory(
            evaluator, TARGET, begun, begun.gradient, momentum, spread, steps
        )
        return np.abs(log_density - begun.log_p + 0.5 * ((momentum**2).sum(1) - (final**2).sum(1))).max()

    # The error of the energy goes with the square of the step, times the time that has passed.
    assert drift(1e-3) < 1e-4
    assert drift(1e-3) < 0.2 * drift(1e-2)


@EACH_FAMILY
@WITH_AND_WITHOUT
def test_moves_leave_a_gaussian_as_it_is(name, has_gradient):
    known, generator = gaussian(DIM), np.random.default_rng(0)
    root = np.linalg.cholesky(known.covariance)
    evaluator = evaluator_of(known.target, has_gradient)
    begun = place(evaluator, known.mean + generator.standard_normal((NUM, DIM)) @ root.T)
    kernel = make_mixture(name, seed=3)
    moved = move(generator, evaluator, kernel, begun, num_moves=12)
    # Each particle is a chain of its own, so that in the end there are as many independent draws as in the beginning.
    whitened = np.linalg.solve(root, (moved.x - known.mean).T)
    assert_uniform(stats.norm.cdf(whitened))
    assert_uniform(stats.norm.cdf((whitened[0] + whitened[1]) / np.sqrt(2)))
    assert_uniform(stats.chi2(DIM).cdf((whitened**2).sum(0)))
    np.testing.assert_allclose(moved.log_p, evaluator.values(moved.x), rtol=1e-12)
    # Where the particles are has next to nothing to do with where they were.
    before = np.linalg.solve(root, (begun.x - known.mean).T)
    assert np.all(np.einsum("dn,dn->d", before, whitened) / NUM < (0.5 if has_gradient else 0.95))


def marginal_cdf(mixture: Mixture, x: np.ndarray) -> np.ndarray:
    """Return the distribution functions of the coordinates of a mixture of Student-t components, at points."""
    scale = np.sqrt(np.diagonal(mixture.components.spread.covariance(), axis1=1, axis2=2))
    parts = [
        weight * stats.t.cdf(x, df, location, width)
        for weight, df, location, width in zip(
            mixture.weights, mixture.components.df, mixture.components.location, scale, strict=True
        )
    ]
    return sum(parts).T


@WITH_AND_WITHOUT
@pytest.mark.parametrize("weights", [(1.0,), (0.1, 0.6, 0.05, 0.25)], ids=["one", "four"])
def test_moves_leave_a_student_mixture_as_it_is(has_gradient, weights):
    truth, generator = make_mixture(), np.random.default_rng(1)
    device = jax.tree.map(jnp.asarray, truth)
    evaluator = evaluator_of(Target(lambda x: device.log_prob(x) - 4.0, jnp.zeros(DIM)), has_gradient)
    slot = generator.choice(3, NUM, p=truth.weights)
    begun = place(
        evaluator, np.concatenate([truth.components.draw(generator, k, int((slot == k).sum())) for k in range(3)])
    )
    moved = move(generator, evaluator, make_mixture("normal-full", weights, 3.0, seed=7), begun, num_moves=12)
    assert_uniform(marginal_cdf(truth, moved.x))
    delta = moved.x - truth.mean()
    products = delta[:, :, None] * delta[:, None, :]
    for values, expected in ((delta, 0.0), (products, truth.covariance())):
        assert np.all(np.abs(values.mean(0) - expected) < 5 * values.std(0) / np.sqrt(NUM))
    assert np.mean(np.all(moved.x == begun.x, axis=1)) < 0.05


@WITH_AND_WITHOUT
@pytest.mark.parametrize("beta", [0.3, 1.5])
def test_moves_leave_the_bridge_as_it_is(has_gradient, beta):
    known, generator = gaussian(DIM), np.random.default_rng(2)
    other = make_mixture("normal-full", (1.0,), seed=4)
    evaluator = evaluator_of(known.target, has_gradient)
    q = other if beta < 1 else None
    precision = beta * np.linalg.inv(known.covariance)
    shift = precision @ known.mean
    if q is not None:
        own = np.linalg.inv(other.components.spread.covariance()[0])
        precision, shift = precision + (1 - beta) * own, shift + (1 - beta) * own @ other.components.location[0]
    mean, root = np.linalg.solve(precision, shift), np.linalg.cholesky(np.linalg.inv(precision))
    begun = place(evaluator, mean + generator.standard_normal((NUM, DIM)) @ root.T)
    moved = move(generator, evaluator, make_mixture(seed=3), begun, Bridge(beta, q), 12)
    whitened = np.linalg.solve(root, (moved.x - mean).T)
    assert_uniform(stats.norm.cdf(whitened))
    assert_uniform(stats.chi2(DIM).cdf((whitened**2).sum(0)))


@WITH_AND_WITHOUT
def test_moves_that_are_mostly_rejected_leave_a_gaussian_as_it_is(has_gradient):
    known, generator = gaussian(DIM), np.random.default_rng(6)
    root = np.linalg.cholesky(known.covariance)
    evaluator = evaluator_of(known.target, has_gradient)
    now = place(evaluator, known.mean + generator.standard_normal((NUM, DIM)) @ root.T)
    kernel = make_mixture("student-full", seed=3)
    for _ in range(4):
        # The step would adapt.
        before = Particles(now.x, now.log_p, now.gradient, 1.5)
        now = move(generator, evaluator, kernel, before, num_moves=2)
    whitened = np.linalg.solve(root, (now.x - known.mean).T)
    assert_uniform(stats.norm.cdf(whitened))
    assert_uniform(stats.chi2(DIM).cdf((whitened**2).sum(0)))


@WITH_AND_WITHOUT
def test_moves_do_not_leave_the_support(has_gradient):
    target = Target(lambda x: jnp.where(jnp.all(x > 0), -jnp.sum(x), -jnp.inf), jnp.ones(DIM))
    generator, evaluator = np.random.default_rng(3), evaluator_of(target, has_gradient)
    begun = place(evaluator, generator.exponential(size=(NUM, DIM)))
    moved = move(generator, evaluator, make_mixture("normal-full"), begun, num_moves=12)
    assert_uniform(stats.expon.cdf(moved.x).T)


def test_diverging_trajectories_of_many_particles_are_rejected_in_silence():
    target = Target(lambda x: -jnp.sum(x**4), jnp.zeros(DIM))
    generator, evaluator = np.random.default_rng(4), evaluator_of(target)
    begun = place(evaluator, 3 + generator.standard_normal((600, DIM)))
    moved = move(generator, evaluator, make_mixture("normal-full"), begun, num_moves=2)
    assert np.all(np.isfinite(moved.x))
    assert np.all(np.isfinite(moved.log_p))


@pytest.mark.parametrize("step", [1e-3, 2.0])
@WITH_AND_WITHOUT
def test_the_step_adapts_to_a_fair_rate_of_acceptance(step, has_gradient):
    known, generator = gaussian(DIM), np.random.default_rng(5)
    evaluator = evaluator_of(known.target, has_gradient)
    kernel = Mixture.of(Family("normal").components(known.mean[None], known.covariance[None]))
    begun = place(evaluator, generator.multivariate_normal(known.mean, known.covariance, 200))
    begun = Particles(begun.x, begun.log_p, begun.gradient, step)
    moved = move(generator, evaluator, kernel, begun, num_moves=60)
    assert 0.3 < moved.step <= 2.0


@given(scale=st.floats(0.01, 1e4), seed=st.integers(0, 2**32 - 1))
def test_a_stride_leaves_half_of_the_particles_effective(scale, seed):
    change = scale * np.random.default_rng(seed).normal(size=100)
    stride = tempering.stride(change)
    assert 0 < stride <= 1
    effective = effective_sample_size(stride * change)
    assert effective >= 50 - 1e-6
    assert stride == 1 or effective == pytest.approx(50, abs=1e-3)


NUM_SEEDS = 6


@functools.cache
def carried(has_gradient: bool) -> tuple[np.ndarray, np.ndarray]:
    known, wide = gaussian(DIM), wide_start()
    evidence, x = [], []
    for seed in range(NUM_SEEDS):
        generator, evaluator = np.random.default_rng(seed), evaluator_of(known.target, has_gradient)
        draws = wide.draw(generator, 1024)
        now, log_evidence = carry(generator, evaluator, wide, draws, evaluator.values(draws), 512, follow)
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
    now, log_evidence = carry(generator, evaluator, exact, draws, log_p, 50, stay)
    assert log_evidence == pytest.approx(known.log_evidence, abs=1e-9)
    assert len(now.x) == 50
    assert evaluator.num_evaluations == 50 * (1 + hamiltonian.NUM_MOVES * hamiltonian.NUM_LEAPFROGS)


def test_draws_outside_the_support_are_left_behind():
    target = Target(lambda x: jnp.where(x[0] > 0, -0.5 * jnp.sum(x**2), -jnp.inf), jnp.ones(DIM))
    error = []
    for seed in range(NUM_SEEDS):
        generator, evaluator, wide = np.random.default_rng(seed), evaluator_of(target), wide_start(0.0, 4.0)
        draws = wide.draw(generator, 1024)
        now, log_evidence = carry(generator, evaluator, wide, draws, evaluator.values(draws), 512, stay)
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
        ended = excursion(generator, evaluator, kernel, begun, hottest, refit)
        delta = ended.x - known.mean
        values.append(np.concatenate([delta.mean(0), (delta.T @ delta / num - known.covariance).ravel()]))
        assert np.median(np.linalg.norm(ended.x - begun.x, axis=1)) > 0.5
    values = np.array(values)
    assert np.all(np.abs(values.mean(0)) < 5 * values.std(0, ddof=1) / np.sqrt(num_seeds))


def test_an_excursion_cools_by_the_right_weights(monkeypatch):
    # In place of moves: exact draws on the way up, and nothing on the way down.
    known, generator, betas = gaussian(DIM), np.random.default_rng(0), []
    evaluator = evaluator_of(known.target)

    def exact(generator, evaluator, kernel, now, bridge):
        betas.append(bridge.beta)
        if len(betas) > tempering.HEATING_STEPS:
            return now
        return place(evaluator, generator.multivariate_normal(known.mean, known.covariance / bridge.beta, len(now.x)))

    monkeypatch.setattr(tempering, "move", exact)
    begun = place(evaluator, np.repeat(known.mean[None], 20_000, axis=0))
    ended = excursion(generator, evaluator, make_mixture(), begun, 0.5, stay)
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
        return carry(generator, evaluator, wide, draws, evaluator.values(draws), 64, follow)

    (first, one), (second, other), (third, _) = journey(0), journey(0), journey(1)
    np.testing.assert_array_equal(first.x, second.x)
    assert one == other
    assert np.any(first.x != third.x)
