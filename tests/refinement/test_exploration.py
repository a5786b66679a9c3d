"""What particles find beyond a mixture, and what they leave alone where there is nothing to find."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from helpers import gaussian
from klover import Family, Target
from klover.mixtures.algebra import mixture_of
from klover.mixtures.mixture import Mixture
from klover.refinement import exploration
from klover.refinement.exploration import descend, explore, find_frontier, look_around, probe, uncovered_mass
from klover.refinement.pool import Pool
from klover.refinement.stages import Look
from klover.refinement.state import Context, RoundInfo, Stage, State
from klover.sampling.hamiltonian import Particles, place
from klover.targets.evaluator import Evaluator
from klover.tuning import Exploration, Tuning

FEW = Tuning(exploration=Exploration(num_particles=128, num_probes=64, crawls=1, crawl_leapfrogs=5))


def discoveries(seed):
    """Mass that particles find beyond a Gaussian fitted to draws: by the draws of its own round, and by all draws."""
    generator, num, dim = np.random.default_rng(seed), 400, 6

    def log_target(x):
        return -0.5 * (x**2).sum(1)

    first = mixture_of(Family("normal"), np.zeros((1, dim)), np.eye(dim)[None], np.full(1, np.inf), np.ones(1))
    x = first.draw(generator, num)
    fitted = Mixture.of(Family("normal").components(x.mean(0)[None], np.cov(x.T)[None]))
    fresh = fitted.draw(generator, num)
    pool = Pool.empty(dim).add(first, x, log_target(x)).add(fitted, fresh, log_target(fresh))
    point = generator.normal(size=(num, dim))
    particles = Particles(point, log_target(point), -point)
    return uncovered_mass(particles, pool.fresh)[0], uncovered_mass(particles, pool)[0]


def test_draws_that_a_proposal_was_not_fitted_to_raise_no_false_alarm():
    found = np.array([discoveries(seed) for seed in range(60)])
    error = found.std(axis=0) / np.sqrt(len(found))
    assert abs(found[:, 0].mean()) < 4 * error[0]
    assert found[:, 1].mean() > 4 * error[1]


def one_component(dim=2, scale=1.0, location=0.0):
    return mixture_of(Family(), np.full((1, dim), location), scale**2 * np.eye(dim)[None], 5.0, np.ones(1))


def pair(share=0.3, distance=4.0):
    """Return two round Gaussians with a bridge between them that moves can cross."""

    def log_density(x):
        far = x - jnp.array([distance, 0.0])
        return jnp.logaddexp(jnp.log1p(-share) - 0.5 * x @ x, jnp.log(share) - 0.5 * far @ far) - jnp.log(2 * jnp.pi)

    return Target(log_density, jnp.zeros(2))


def prepared(target, mixture, num=2000, tuning=FEW, seed=0, **known) -> tuple[Context, State]:
    """Return a context, and a state whose pool holds draws of the mixture."""
    context = Context(np.random.default_rng(seed), Evaluator(target), 8, tuning=tuning)
    x = mixture.draw(context.generator, num)
    pool = Pool.empty(target.dim).add(mixture, x, context.evaluator.values(x))
    return context, State(mixture, one_component(target.dim, 10.0), pool, Stage.POOL, **known)


@pytest.mark.parametrize("log_constant", [0.0, -500.0, 3000.0])
def test_mass_that_particles_find_is_that_of_the_mode_without_draws(log_constant):
    # All draws lie on one of two modes, particles on both.
    share, rng = 0.3, np.random.default_rng(0)
    target = pair(share, 60.0)
    narrow = mixture_of(Family("normal"), np.zeros((1, 2)), np.eye(2)[None], np.inf, np.ones(1))
    x = narrow.draw(rng, 4000)
    log_p = np.asarray(target.log_prob(x)) + log_constant
    points = rng.normal(size=(4000, 2)) + np.where(rng.uniform(size=(4000, 1)) < share, [60.0, 0.0], 0.0)
    particles = Particles(points, np.asarray(target.log_prob(points)) + log_constant, points)
    mass, error = uncovered_mass(particles, Pool.empty(2).add(narrow, x, log_p))
    # Where the proposal is all but absent, all of the mass is found.
    assert abs(mass - share) < 5 * np.sqrt(share * (1 - share) / 4000)
    assert error == pytest.approx(np.sqrt(share * (1 - share) / 4000), rel=0.1)


def test_particles_of_a_covered_target_find_nothing():
    known = gaussian(2)
    mixture = mixture_of(Family("normal"), known.mean[None], 1.2 * known.covariance[None], np.inf, np.ones(1))
    drifts = []
    for seed in range(8):
        context, state = prepared(known.target, mixture, seed=seed)
        particles, drift = probe(context, state, 128)
        assert len(particles.x) == 128
        drifts.append(drift)
    # A find of less than two hundredths of the mass is none.
    assert max(drifts) < 3


def test_particles_walk_to_a_part_that_the_pool_has_not_seen():
    narrow = mixture_of(Family("normal"), np.zeros((1, 2)), 0.8 * np.eye(2)[None], np.inf, np.ones(1))
    context, state = prepared(pair(0.5, 3.5), narrow, tuning=dataclasses.replace(FEW, exploration=Exploration()))
    _, drift = probe(context, state, 1024)
    assert drift > 3


def test_a_hard_target_is_probed_against_all_draws():
    known = gaussian(2)
    mixture = mixture_of(Family("normal"), known.mean[None], known.covariance[None], np.inf, np.ones(1))
    context, state = prepared(known.target, mixture)
    x = mixture.draw(context.generator, 10)
    two_rounds = dataclasses.replace(state, pool=state.pool.add(mixture, x, context.evaluator.values(x)))
    seen = []

    def watch(particles, pool):
        seen.append(len(pool.x))
        return 0.0, 1.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exploration, "uncovered_mass", watch)
        probe(context, two_rounds, 16)
        probe(context, dataclasses.replace(two_rounds, was_hard=True), 16)
    assert seen == [10, 2010]


def test_particles_descend_to_a_target_that_no_draw_has_reached():
    target = Target(lambda x: -0.5 * jnp.sum(((x - 60.0) / 0.5) ** 2), jnp.zeros(2))
    context, state = prepared(target, one_component(scale=3.0), num=512)
    assert state.pool.ess < 2
    particles, mixture = descend(context, state.pool)
    assert len(particles.x) == FEW.exploration.num_particles
    # 128 particles: the error of a mean is a twelfth of a standard deviation.
    np.testing.assert_allclose(particles.x.mean(0), 60.0, atol=5 * 0.5 / np.sqrt(128))
    np.testing.assert_allclose(mixture.mean(), particles.x.mean(0), atol=0.1)


def test_a_descent_begins_with_the_first_draws():
    target = Target(lambda x: -0.5 * jnp.sum((x - 30.0) ** 2), jnp.zeros(2))
    context, state = prepared(target, one_component(scale=3.0), num=256)
    other = one_component(location=1e3)
    x = other.draw(context.generator, 64)
    pool = state.pool.add(other, x, context.evaluator.values(x))
    particles, _ = descend(context, pool)
    np.testing.assert_allclose(particles.x.mean(0), 30.0, atol=0.6)


def test_the_last_two_journeys_are_kept_in_the_archive():
    known = gaussian(2)
    mixture = mixture_of(Family(), known.mean[None], known.covariance[None], 8.0, np.ones(1))
    context, state = prepared(known.target, mixture)
    moved, _ = probe(context, state, 128)
    archives = []
    for _ in range(2):
        state = explore(context, state, moved)
        archives.append(state.archive)
        assert [len(group.x) for group in state.archive] == [128, 128]
    assert not any(np.array_equal(new.x, old.x) for new, old in zip(*archives, strict=True))
    # Particles of all journeys are particles of the target.
    for group in state.archive:
        np.testing.assert_allclose(group.log_p, known.target.log_prob(group.x), rtol=1e-12)
        error = np.sqrt(np.diagonal(known.covariance) / 128)
        assert np.all(np.abs(group.x.mean(0) - known.mean) < 6 * error)
    assert len(state.discovered) == 2
    assert max(np.abs(state.discovered)) < 0.2


def test_a_journey_from_outside_finds_a_mode_between_which_nothing_walks():
    narrow = mixture_of(Family(), np.zeros((1, 2)), np.eye(2)[None], 200.0, np.ones(1))
    tuning = dataclasses.replace(FEW, exploration=dataclasses.replace(FEW.exploration, num_particles=512))
    context, state = prepared(pair(0.5, 12.0), narrow, tuning=tuning)
    moved, _ = probe(context, state, 512)
    state = explore(context, state, moved)
    # Half of the mass is there.
    assert state.discovered[0] == 1.0
    assert 0.2 < state.discovered[1] < 0.8


def test_a_narrow_support_sends_nobody_on_a_journey():
    # No draw of a mixture that is twelve times as wide lies in the strip.
    target = Target(lambda x: jnp.where(jnp.abs(x[0]) < 1e-9, -0.5 * x[1] ** 2, -jnp.inf), jnp.zeros(2))
    shape = np.diag([1e-9, 1.0]) ** 2
    mixture = mixture_of(Family(), np.zeros((1, 2)), shape[None], 200.0, np.ones(1))
    tuning = Tuning(exploration=dataclasses.replace(FEW.exploration, inflations=(1e6,)))
    context, state = prepared(target, mixture, num=400, tuning=tuning)
    moved = place(context.evaluator, state.pool.sample().x[:128])
    after = explore(context, state, moved)
    np.testing.assert_array_equal(after.archive[-1].x, moved.x)


def test_the_frontier_is_colder_and_hotter_than_the_target():
    dim = 2
    context, state = prepared(
        Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(dim)),
        one_component(dim),
        tuning=Tuning(exploration=Exploration(num_particles=1024, crawls=2, crawl_leapfrogs=10)),
    )
    moved, _ = probe(context, state, 1024)
    state = find_frontier(context, state, moved)
    cold, hot = state.frontier_particles
    assert (len(cold.x), len(hot.x)) == (512, 512)
    # p to the power β has the variance 1/β; β is 1 + 1/d, and 0.2 rather than 1 - 2/d = 0.
    for particles, beta in ((cold, 1.5), (hot, 0.2)):
        variance = (particles.x**2).mean()
        assert abs(variance - 1 / beta) < 5 / beta * np.sqrt(2 / 1024)
    assert state.frontier is not None
    np.testing.assert_allclose(state.frontier.weights.sum(), 1.0)


def test_particles_of_the_frontier_go_on_from_where_they_were():
    known = gaussian(2)
    mixture = mixture_of(Family(), known.mean[None], known.covariance[None], 8.0, np.ones(1))
    still = dataclasses.replace(FEW.exploration, num_moves=0)
    context, state = prepared(known.target, mixture, tuning=Tuning(exploration=still))
    before, after = (place(context.evaluator, np.full((64, 2), value)) for value in (1.0, 2.0))
    state = dataclasses.replace(state, frontier_particles=(before.take(np.arange(32)), before.take(np.arange(32))))
    cold, hot = find_frontier(context, state, after).frontier_particles
    assert np.mean(cold.x[:, 0] == 1.0) == pytest.approx(1 / 2)
    assert np.mean(hot.x[:, 0] == 1.0) == pytest.approx(7 / 8)


@pytest.mark.parametrize("look", Look, ids=lambda look: look.name)
def test_each_look_moves_what_it_should(look):
    known = gaussian(2)
    mixture = mixture_of(Family("normal"), known.mean[None], 1.1 * known.covariance[None], np.inf, np.ones(1))
    mixture = mixture_of(Family(), mixture.components.location, mixture.covariance()[None], 50.0, np.ones(1))
    context, state = prepared(known.target, mixture)
    before = context.evaluator.num_evaluations
    after, particles, drift = look_around(context, state, look)
    spent = context.evaluator.num_evaluations - before
    assert (spent == 0) == (look is Look.NONE)
    assert (particles is not None) == (look in (Look.DESCEND, Look.EXPLORE))
    assert (after.frontier is not None) == (look in (Look.EXPLORE, Look.LONG_LAST))
    assert (len(after.archive) > 0) == (look is Look.EXPLORE)
    assert (after.mixture is not state.mixture) == (look is Look.DESCEND)
    assert (after.seen is not None) == (look is Look.CHAIN)
    assert (drift == np.inf) == (look in (Look.CHAIN, Look.DESCEND))
    if look is Look.LAST:
        per_particle = 1 + FEW.exploration.num_moves * FEW.moves.num_leapfrogs
        assert spent == FEW.exploration.num_probes * per_particle


def test_an_alarm_of_few_particles_is_checked_by_many(monkeypatch):
    asked = []

    def alarm(context, state, num):
        asked.append(num)
        return None, 9.0 if len(asked) == 1 else 0.5

    monkeypatch.setattr(exploration, "probe", alarm)
    context, state = prepared(gaussian(2).target, one_component())
    assert look_around(context, state, Look.LAST)[2] == 0.5
    assert asked == [FEW.exploration.num_probes, FEW.exploration.num_particles]


def test_distances_to_return_from_take_turns(monkeypatch):
    factors = []
    plain = exploration.inflate
    monkeypatch.setattr(
        exploration, "inflate", lambda mixture, factor, df: factors.append(factor) or plain(mixture, factor, df)
    )
    known = gaussian(2)
    mixture = mixture_of(Family(), known.mean[None], known.covariance[None], 8.0, np.ones(1))
    context, state = prepared(known.target, mixture)
    moved, _ = probe(context, state, 128)
    info = RoundInfo(0, 1, 100, 0.5, 0.1, 0.0, 0.1, 0.0, 100, 0.1)
    for number in range(3):
        explore(context, dataclasses.replace(state, history=(info,) * number), moved)
    assert factors == [12.0, 4.0, 12.0]
