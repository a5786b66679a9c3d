"""Escalation against targets with known constants."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from klover import Target, refine
from klover.fitting.sample import equal
from klover.importance.islands import ParticleDraws
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.refinement import escalation
from klover.refinement.escalation import carry, compile_ahead, escalate, mean_field
from klover.targets.evaluator import BudgetExhausted, Evaluator
from klover.tuning import Answer, Islands, Missed, Moves, Search, Tuning
from klover.verdict.case import Case
from klover.verdict.checks import missed_by_particles, unconverged
from klover.verdict.status import Status

ISLANDS = Islands()
NUM_ISLANDS = ISLANDS.num_islands * len(ISLANDS.inflations)


def log_gamma(dim):
    """Independent logarithms of exponential numbers: evidence 1, means -γ, variances π²/6."""
    return Target(lambda x: jnp.sum(x - jnp.exp(x)), np.zeros(dim))


def begin(key, target):
    """Fit a mean-field Gaussian to one target."""
    return jax.tree.map(lambda leaf: leaf[0], mean_field(key[None], jax.tree.map(lambda leaf: leaf[None], target)))


def test_mean_field_recovers_an_independent_gaussian(getkey):
    location, scale = np.array([1.0, -2.0, 0.5]), np.array([0.3, 1.0, 2.0])
    target = Target(lambda x: -0.5 * jnp.sum(((x - location) / scale) ** 2), np.zeros(3))
    mixture = begin(getkey(), target)
    np.testing.assert_allclose((mixture.components.location[0] - location) / scale, 0.0, atol=0.05)
    np.testing.assert_allclose(mixture.components.spread.scale[0], scale, rtol=0.05)


def test_particles_know_the_evidence_and_the_moments(getkey):
    dim, told = 30, []
    evaluator = Evaluator(log_gamma(dim))
    draws = escalate(getkey(), evaluator, begin(getkey(), evaluator.target), np.asarray(1.5), told.append)
    assert told[-1] == 1.0
    assert np.all(np.diff(np.ravel(told)) >= 0)
    assert abs(float(draws.log_evidence)) < 5 * float(draws.log_evidence_se)
    # The second half of the sweeps is kept.
    assert draws.num_draws == ISLANDS.num_sweeps // 2 * NUM_ISLANDS * ISLANDS.island_size
    pooled = equal(draws.x, draws.log_p)
    error = np.pi / np.sqrt(6) / np.sqrt(float(draws.ess))
    np.testing.assert_allclose(pooled.weight @ draws.x, -np.euler_gamma, atol=5 * error)
    np.testing.assert_allclose(draws.x.var(), np.pi**2 / 6, rtol=0.1)
    np.testing.assert_allclose(draws.log_p, evaluator.values(draws.x), rtol=1e-10)
    assert float(draws.pareto_k) == 1.5


def test_the_better_beginning_is_taken(getkey):
    evaluator, told = Evaluator(log_gamma(3)), []
    far = Mixture.of(Family("normal", "diagonal").components(jnp.full((1, 3), 20.0), jnp.full((1, 3), 1e-4)))
    escalate(getkey(), evaluator, far, np.asarray(1.0), told.append)
    # From a good beginning, and from one twice as wide, in three dimensions a few steps are enough.
    assert len(told) <= ISLANDS.num_sweeps + 12


def test_a_batch_that_was_compiled_ahead_is_carried_as_each_of_its_targets_alone(getkey, caplog):
    target = log_gamma(3)
    keys = jax.random.split(getkey(), 2)
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), target)
    compile_ahead(keys, batch)
    with jax.log_compiles():
        together, _ = carry(keys, batch, mean_field(keys, batch), lambda num: None, lambda beta: None)
    compiled = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Compiling")]
    assert not any(name in message for message in compiled for name in ("mean_field", "release", "advance"))
    for which in range(2):
        one = keys[which : which + 1]
        single = jax.tree.map(lambda leaf: leaf[:1], batch)
        alone, _ = carry(one, single, mean_field(one, single), lambda num: None, lambda beta: None)
        np.testing.assert_allclose(together.log_evidence[which], alone.log_evidence[0], rtol=1e-6)


def test_refine_escalates_where_weights_cannot_work(getkey):
    # The islands' log evidences have a standard deviation of 0.6 or so: limits well beyond that make one verdict sure.
    islands = Islands(largest_spread=5.0, least_agreement=1e-5)
    # What the weights miss is not the question here: a small search is enough.
    missed, answer = Missed(num_starts=16, thorough=1), Answer(largest_drift=9.0)
    # Behind a bent warp weights would do.
    tuning = Tuning(islands=islands, answer=answer, missed=missed, search=Search(warped_dim=128))
    fit = refine(getkey(), log_gamma(140), tuning=tuning)
    assert fit.kind == "particles"
    assert fit.verdict.status is Status.PARTICLES
    assert fit.verdict.trusted
    assert fit.pareto_k > 0.7
    assert abs(fit.log_evidence) < 5 * fit.log_evidence_se
    table = fit.summary()
    assert "particles" in str(table)
    assert np.isnan(table.columns["pareto_k"]).all()
    score = (table.columns["mean"] + np.euler_gamma) / table.columns["mcse"]
    # Student-t with 15 degrees of freedom, scaled to unit variance; 140 scores tell the median within 0.06.
    assert np.median(np.abs(score)) == pytest.approx(stats.t(15).ppf(0.75) / np.sqrt(15 / 13), abs=0.2)


@pytest.mark.slow
def test_particles_whose_islands_disagree_are_refused(getkey):
    tuning = Tuning(islands=Islands(island_size=8, num_sweeps=2, largest_spread=0.01))
    fit = refine(getkey(), log_gamma(200), tuning=tuning)
    assert fit.kind == "particles"
    assert fit.verdict.status is Status.UNCONVERGED_PARTICLES
    assert not fit.verdict.trusted


def funnel(dim):
    """One width, N(0, 1.5²) on the log scale, and coordinates of that width; particles reach neither neck nor mouth."""

    def log_density(x):
        return -0.5 * (x[0] / 1.5) ** 2 - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]) - 0.5 * (dim - 1) * x[0]

    return Target(log_density, np.zeros(dim))


def two_modes(dim, distance=20.0):
    """Two unit Gaussians of equal weight; which is found depends on where one begins."""
    return Target(lambda x: -0.5 * jnp.sum(x**2) + jnp.logaddexp(0.0, distance * (x[0] - distance / 2)), np.zeros(dim))


def case_of(key, target):
    """Carry particles to a target, and return what a verdict needs."""
    evaluator, mixture = Evaluator(target), begin(key, target)
    draws = escalate(key, evaluator, mixture, np.asarray(1.0), lambda beta: None)
    on_host = jax.tree.map(lambda leaf: np.asarray(leaf, float), mixture)
    return Case(draws, on_host, on_host, evaluator, np.random.default_rng(0))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_a_funnel_is_refused_since_particles_remember_their_start(seed):
    case = case_of(jax.random.key(seed), funnel(100))
    assert isinstance(case.draws, ParticleDraws)
    # The islands agree on evidences that are far too small: only the start tells.
    assert case.draws.agreement < ISLANDS.least_agreement
    assert unconverged(case) is not None


def test_particles_that_are_all_on_one_of_two_far_modes_are_refused(getkey):
    case = case_of(getkey(), two_modes(40))
    assert isinstance(case.draws, ParticleDraws)
    assert np.abs(case.draws.x[:, 0]).max() < 10
    # They settle, and agree on half of the evidence; a search finds the rest, as it begins elsewhere too.
    assert unconverged(case) is None
    doubt = missed_by_particles(case)
    assert doubt is not None
    assert doubt.status is Status.PARTICLES_MISS_MODE


def test_the_acceptance_of_the_moves_is_that_of_the_tuning(getkey):
    batch, steps = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], log_gamma(30)), []
    key, few, quiet = getkey()[None], Islands(2, 16, num_sweeps=8), (lambda num: None, lambda beta: None)
    for acceptance in (0.4, 0.9):
        _, sweeps = carry(key, batch, mean_field(key, batch), *quiet, few, Moves(acceptance=acceptance))
        steps.append(float(sweeps[-1].step.min()))
    assert steps[0] > 1.3 * steps[1]


def test_a_budget_ends_the_escalation_and_importance_draws_remain():
    fit = refine(jax.random.key(0), log_gamma(200), budget=30_000)
    assert fit.kind == "importance"
    assert not fit.verdict.trusted


@pytest.mark.parametrize("islands", [Islands(2, 16, num_sweeps=3), Islands(3, 8, (1.0,), num_sweeps=6, trajectory=2.0)])
def test_the_islands_are_those_of_the_tuning(getkey, islands):
    evaluator = Evaluator(log_gamma(3))
    mixture = Mixture.of(Family("normal", "diagonal").components(jnp.zeros((1, 3)), jnp.ones((1, 3))))
    draws = escalate(getkey(), evaluator, mixture, np.asarray(1.0), lambda beta: None, islands)
    kept = islands.num_sweeps - islands.num_sweeps // 2
    assert draws.num_islands == islands.num_islands * len(islands.inflations)
    assert draws.num_draws == kept * draws.num_islands * islands.island_size
    np.testing.assert_allclose(draws.log_p, evaluator.values(draws.x), rtol=1e-10)


def test_no_trajectory_is_longer_than_the_tuning_says(getkey):
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], log_gamma(3))
    begins = mean_field(getkey()[None], batch)
    for most in (12, 50):
        islands = Islands(2, 16, (1.0, 2.0), trajectory=4e6, most_leapfrogs=most, num_sweeps=2)
        charged = []
        carry(getkey()[None], batch, begins, charged.append, lambda beta: None, islands)
        # The first charge is for the draws themselves; a move costs one more than its steps, and one start may rest.
        np.testing.assert_array_equal(charged[0], [64])
        assert {int(num[0]) for num in charged[1:]} <= {64 * (most + 1), 32 * (most + 1) + 32}
        assert int(charged[-1][0]) == 64 * (most + 1)


def test_a_budget_is_asked_before_every_move(getkey):
    evaluator = Evaluator(log_gamma(3), 60_000)
    mixture = Mixture.of(Family("normal", "diagonal").components(jnp.zeros((1, 3)), jnp.ones((1, 3))))
    with pytest.raises(BudgetExhausted):
        escalate(getkey(), evaluator, mixture, np.asarray(1.0), lambda beta: None)
    assert evaluator.num_evaluations <= 60_000


def test_an_island_without_a_particle_in_the_support_is_the_end(getkey):
    target = Target(lambda x: jnp.where(x[0] > 8.0, -0.5 * x @ x, -jnp.inf), np.full(2, 9.0))
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], target)
    begins = jax.tree.map(
        lambda leaf: leaf[None], Mixture.of(Family("normal").components(jnp.zeros((1, 2)), jnp.ones((1, 2))))
    )
    with pytest.raises(escalation.Stranded, match="no particle in the support"):
        carry(getkey()[None], batch, begins, lambda num: None, lambda beta: None)


def test_a_journey_without_end_is_given_up(getkey, monkeypatch):
    monkeypatch.setattr(escalation, "MOST_TURNS", 2)
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], log_gamma(3))
    with pytest.raises(escalation.Stranded, match="not reached in 2 turns"):
        carry(getkey()[None], batch, mean_field(getkey()[None], batch), lambda num: None, lambda beta: None)
