"""Escalation against targets with known constants."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from klover import Target, refine
from klover.fitting.sample import equal
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.refinement import escalation
from klover.refinement.escalation import carry, compile_ahead, escalate, mean_field
from klover.targets.evaluator import BudgetExhausted, Evaluator
from klover.tuning import Answer, Islands, Tuning
from klover.verdict.status import Status

ISLANDS = Islands()


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
    assert abs(float(draws.log_evidence)) < 5 * float(draws.log_evidence_se) + draws.spread**2
    # The second half of the sweeps is kept.
    assert draws.num_draws == ISLANDS.num_sweeps // 2 * ISLANDS.num_islands * ISLANDS.island_size
    pooled = equal(draws.x, draws.log_p)
    error = np.pi / np.sqrt(6) / np.sqrt(float(draws.ess))
    np.testing.assert_allclose(pooled.weight @ draws.x, -np.euler_gamma, atol=5 * error)
    np.testing.assert_allclose(draws.x.var(), np.pi**2 / 6, rtol=0.1)
    np.testing.assert_allclose(draws.log_p, evaluator.values(draws.x), rtol=1e-10)
    assert float(draws.pareto_k) == 1.5


def test_the_better_beginning_is_taken(getkey):
    evaluator, told = Evaluator(log_gamma(5)), []
    far = Mixture.of(Family("normal", "diagonal").components(jnp.full((1, 5), 20.0), jnp.full((1, 5), 1e-4)))
    escalate(getkey(), evaluator, far, np.asarray(1.0), told.append)
    # From a good beginning in five dimensions a step or two are enough.
    assert len(told) <= ISLANDS.num_sweeps + 1


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
    # The islands' log evidences have a standard deviation of 1.2 or so: limits well beyond that make one verdict sure.
    fit = refine(
        getkey(), log_gamma(200), tuning=Tuning(islands=Islands(largest_spread=5.0), answer=Answer(largest_drift=9.0))
    )
    assert fit.kind == "particles"
    assert fit.verdict.status is Status.PARTICLES
    assert fit.verdict.trusted
    assert fit.pareto_k > 0.7
    # The mean of the islands' evidences is unbiased; its logarithm is lower by half of its variance.
    assert abs(fit.log_evidence) < 5 * fit.log_evidence_se + fit.draws.spread**2
    table = fit.summary()
    assert "particles" in str(table)
    assert np.isnan(table.columns["pareto_k"]).all()
    score = (table.columns["mean"] + np.euler_gamma) / table.columns["mcse"]
    # Errors come from four islands: Student-t with three degrees of freedom.
    assert np.median(np.abs(score)) == pytest.approx(0.765, abs=0.25)


def test_particles_whose_islands_disagree_are_refused(getkey):
    tuning = Tuning(islands=Islands(island_size=8, num_sweeps=2, largest_spread=0.01))
    fit = refine(getkey(), log_gamma(200), tuning=tuning)
    assert fit.kind == "particles"
    assert fit.verdict.status is Status.UNCONVERGED_PARTICLES
    assert not fit.verdict.trusted


def test_a_budget_ends_the_escalation_and_importance_draws_remain():
    fit = refine(jax.random.key(0), log_gamma(200), budget=30_000)
    assert fit.kind == "importance"
    assert not fit.verdict.trusted


@pytest.mark.parametrize("islands", [Islands(2, 16, num_sweeps=3), Islands(3, 8, num_sweeps=6, trajectory=2.0)])
def test_the_islands_are_those_of_the_tuning(getkey, islands):
    evaluator = Evaluator(log_gamma(3))
    mixture = Mixture.of(Family("normal", "diagonal").components(jnp.zeros((1, 3)), jnp.ones((1, 3))))
    draws = escalate(getkey(), evaluator, mixture, np.asarray(1.0), lambda beta: None, islands)
    kept = islands.num_sweeps - islands.num_sweeps // 2
    assert draws.num_islands == islands.num_islands
    assert draws.num_draws == kept * islands.num_islands * islands.island_size
    np.testing.assert_allclose(draws.log_p, evaluator.values(draws.x), rtol=1e-10)


def test_no_trajectory_is_longer_than_the_tuning_says(getkey):
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], log_gamma(3))
    begins = mean_field(getkey()[None], batch)
    for most in (12, 50):
        islands, charged = Islands(2, 16, trajectory=1e6, most_leapfrogs=most, num_sweeps=2), []
        carry(getkey()[None], batch, begins, charged.append, lambda beta: None, islands)
        # The first charge is for the draws themselves; a move costs one more than its steps.
        np.testing.assert_array_equal(charged[0], [32])
        assert {int(num[0]) for num in charged[1:]} == {32 * (most + 1)}


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
