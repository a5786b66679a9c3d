import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from helpers import correlated_covariance, gaussian
from klover import Target
from klover.mixtures.components import COVARIANCES, TAILS, Family
from klover.mixtures.mixture import Mixture
from klover.mixtures.scale import Diagonal
from klover.sampling import hamiltonian
from klover.sampling.hamiltonian import (
    STEP_RANGE,
    Bridge,
    Metric,
    Particles,
    accept,
    adapt,
    log_prob_and_gradient,
    move,
    place,
    trajectory,
)
from klover.targets.evaluator import Evaluator
from klover.tuning import Moves

NAMES = [f"{tail}-{covariance}" for tail in TAILS for covariance in COVARIANCES]
EACH_FAMILY = pytest.mark.parametrize("name", NAMES)
WITH_AND_WITHOUT = pytest.mark.parametrize("has_gradient", [True, False], ids=["gradient", "walk"])
BOTH = pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])
MOVES = Moves()
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


def at(evaluator: Evaluator, bridge: Bridge):
    """Return what a trajectory asks for at points: log density and gradient of the bridge, and the particles."""

    def evaluate(points):
        placed = place(evaluator, points)
        return *bridge(placed), placed

    return evaluate


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
    for bridge in (Bridge(), Bridge(1.0, make_mixture())):
        value, gradient = bridge(placed)
        np.testing.assert_array_equal(value, placed.log_p)
        np.testing.assert_array_equal(gradient, placed.gradient)


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

    def path(found, momentum):
        return trajectory(at(evaluator, bridge), found[2].x, momentum, found, spread, size, MOVES.num_leapfrogs)

    x, final, found = path((*bridge(begun), begun), momentum)
    log_density, slope, there = found
    np.testing.assert_array_equal(there.x, x)
    np.testing.assert_allclose(log_density, bridge(there)[0], rtol=1e-12)
    np.testing.assert_allclose(slope, bridge(there)[1], rtol=1e-12)
    assert np.median(np.linalg.norm(there.x - begun.x, axis=1)) > 0.1
    back, reversed_momentum, _ = path(found, -final)
    np.testing.assert_allclose(back, begun.x, atol=1e-10)
    np.testing.assert_allclose(reversed_momentum, -momentum, atol=1e-10)


def test_every_trajectory_begins_with_the_slope_at_its_start(monkeypatch):
    known, generator, bridge = gaussian(DIM), np.random.default_rng(7), Bridge(0.6, make_mixture(seed=5))
    evaluator, starts = evaluator_of(known.target), []

    def watched(evaluate, x, momentum, found, *rest):
        log_density, slope, start = found
        np.testing.assert_array_equal(start.x, x)
        np.testing.assert_allclose(log_density, bridge(start)[0], rtol=1e-12)
        np.testing.assert_allclose(slope, bridge(start)[1], rtol=1e-12)
        starts.append(x)
        return trajectory(evaluate, x, momentum, found, *rest)

    monkeypatch.setattr(hamiltonian, "trajectory", watched)
    begun = place(evaluator, generator.multivariate_normal(known.mean, known.covariance, 50))
    begun = Particles(begun.x, begun.log_p, begun.gradient, 2.0)
    move(generator, evaluator, make_mixture(seed=3), begun, MOVES, bridge, 6)
    stayed = np.mean([np.all(one == other, axis=1) for one, other in zip(starts[:-1], starts[1:], strict=True)])
    assert 0.1 < stayed < 0.9


def test_energy_is_kept_to_second_order_in_the_step():
    known, generator = gaussian(DIM), np.random.default_rng(0)
    evaluator, kernel = evaluator_of(known.target), make_mixture("normal-full")
    begun, momentum = place(evaluator, generator.standard_normal((20, DIM))), generator.standard_normal((20, DIM))
    spread = kernel.components.spread.gather(generator.integers(0, 3, 20))

    def drift(size):
        found = (begun.log_p, begun.gradient, begun)
        evaluate, steps = at(evaluator, Bridge()), np.full((20, 1), size)
        _, final, (log_density, _, _) = trajectory(evaluate, begun.x, momentum, found, spread, steps, 5)
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
    moved = move(generator, evaluator, kernel, begun, MOVES, num_moves=12)
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
    moved = move(generator, evaluator, make_mixture("normal-full", weights, 3.0, seed=7), begun, MOVES, num_moves=12)
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
    moved = move(generator, evaluator, make_mixture(seed=3), begun, MOVES, Bridge(beta, q), 12)
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
        now = move(generator, evaluator, kernel, before, MOVES, num_moves=2)
    whitened = np.linalg.solve(root, (now.x - known.mean).T)
    assert_uniform(stats.norm.cdf(whitened))
    assert_uniform(stats.chi2(DIM).cdf((whitened**2).sum(0)))


@WITH_AND_WITHOUT
def test_moves_do_not_leave_the_support(has_gradient):
    target = Target(lambda x: jnp.where(jnp.all(x > 0), -jnp.sum(x), -jnp.inf), jnp.ones(DIM))
    generator, evaluator = np.random.default_rng(3), evaluator_of(target, has_gradient)
    begun = place(evaluator, generator.exponential(size=(NUM, DIM)))
    moved = move(generator, evaluator, make_mixture("normal-full"), begun, MOVES, num_moves=12)
    assert_uniform(stats.expon.cdf(moved.x).T)


def test_diverging_trajectories_of_many_particles_are_rejected_in_silence():
    target = Target(lambda x: -jnp.sum(x**4), jnp.zeros(DIM))
    generator, evaluator = np.random.default_rng(4), evaluator_of(target)
    begun = place(evaluator, 3 + generator.standard_normal((600, DIM)))
    moved = move(generator, evaluator, make_mixture("normal-full"), begun, MOVES, num_moves=2)
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
    moved = move(generator, evaluator, kernel, begun, MOVES, num_moves=60)
    assert 0.3 < moved.step <= 2.0


@BOTH
@given(
    log_ratio=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=6), seed=st.integers(0, 99)
)
def test_metropolis_takes_what_the_ratio_allows_and_refuses_what_is_no_number(xp, log_ratio, seed):
    log_ratio, uniform = np.array(log_ratio), np.random.default_rng(seed).uniform(size=len(log_ratio))
    taken, rate = accept(xp.asarray(log_ratio), xp.asarray(uniform))
    usable = np.where(np.isnan(log_ratio) | (log_ratio == np.inf), -np.inf, log_ratio)
    np.testing.assert_array_equal(taken, uniform < np.exp(np.minimum(usable, 0.0)))
    np.testing.assert_allclose(rate, np.minimum(np.exp(np.minimum(usable, 0.0)), 1.0).mean(), rtol=1e-12)


def test_metropolis_takes_moves_at_the_rate_of_their_ratios():
    log_ratio, num = np.log([1e-300, 0.2, 0.9, 3.0]), 20_000
    taken = accept(np.tile(log_ratio, num), np.random.default_rng(0).uniform(size=4 * num))[0].reshape(num, 4).mean(0)
    expected = np.array([0.0, 0.2, 0.9, 1.0])
    assert np.all(np.abs(taken - expected) <= 5 * np.sqrt(expected * (1 - expected) / num))


@BOTH
def test_a_step_grows_and_shrinks_to_its_goal_and_within_its_range(xp):
    for rate, goal in ((0.9, 0.7), (0.7, 0.7), (0.1, 0.7)):
        assert float(adapt(0.5, xp.asarray(rate), goal)) == pytest.approx(0.5 * np.exp(rate - goal))
    lowest, highest = STEP_RANGE
    assert float(adapt(highest, xp.asarray(1.0), 0.3)) == highest
    assert float(adapt(lowest, xp.asarray(0.0), 0.7)) == lowest


@pytest.mark.parametrize("num_leapfrogs", [0, 1, 7])
def test_trajectories_of_numpy_and_jax_are_the_same(num_leapfrogs):
    generator = np.random.default_rng(0)
    x, momentum = generator.normal(size=(2, 20, DIM))
    size = generator.uniform(0.05, 0.3, (20, 1))
    matrix = np.linalg.inv(correlated_covariance(DIM))
    spread = make_mixture().components.spread.gather(generator.integers(0, 3, 20))

    def evaluate(points):
        return -0.5 * ((points @ matrix) * points).sum(1), -points @ matrix, points[:, 0]

    expected = trajectory(evaluate, x, momentum, evaluate(x), spread, size, num_leapfrogs)
    device = jax.tree.map(jnp.asarray, (x, momentum, evaluate(x), spread, size))
    found = jax.jit(lambda *given, num: trajectory(evaluate, *given, num), static_argnames="num")(
        *device, num=num_leapfrogs
    )
    traced = jax.jit(lambda num, *given: trajectory(evaluate, *given, num))(jnp.asarray(num_leapfrogs), *device)
    for ours in (found, traced):
        for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_spreads_are_metrics():
    for name in NAMES:
        assert isinstance(make_mixture(name).components.spread.gather(np.zeros(3, int)), Metric)
    assert isinstance(Diagonal(np.ones((3, DIM))), Metric)


@WITH_AND_WITHOUT
def test_moves_cost_what_the_tuning_says(has_gradient):
    known, generator = gaussian(DIM), np.random.default_rng(0)
    evaluator = evaluator_of(known.target, has_gradient)
    begun = place(evaluator, generator.standard_normal((30, DIM)))
    for tuning, asked, num_moves, num_leapfrogs in (
        (MOVES, {}, MOVES.num_moves, MOVES.num_leapfrogs),
        (Moves(num_moves=2, num_leapfrogs=3), {}, 2, 3),
        (MOVES, {"num_moves": 3, "num_leapfrogs": 7}, 3, 7),
        (MOVES, {"num_moves": 0}, 0, 0),
    ):
        before = evaluator.num_evaluations
        moved = move(generator, evaluator, make_mixture(), begun, tuning, **asked)
        expected = 30 * num_moves * (num_leapfrogs if has_gradient else 1)
        assert evaluator.num_evaluations - before == expected
        assert (num_moves == 0) == np.array_equal(moved.x, begun.x)


def test_every_move_adapts_the_step():
    known, steps = gaussian(DIM), []
    evaluator = evaluator_of(known.target)
    for num_moves in range(4):
        generator = np.random.default_rng(0)
        begun = place(evaluator, generator.multivariate_normal(known.mean, known.covariance, 100))
        steps.append(move(generator, evaluator, make_mixture(), begun, MOVES, num_moves=num_moves).step)
    assert steps[0] == Particles.step
    assert len(set(steps)) == 4


def test_a_goal_of_another_acceptance_gives_another_step():
    known = gaussian(DIM)
    evaluator, kernel = evaluator_of(known.target), make_mixture("normal-full", (1.0,))

    def step(acceptance):
        generator = np.random.default_rng(0)
        begun = place(evaluator, generator.multivariate_normal(known.mean, known.covariance, 200))
        return move(
            generator, evaluator, kernel, begun, dataclasses.replace(MOVES, acceptance=acceptance), None, 30
        ).step

    assert step(0.95) < step(0.7) < step(0.4)
