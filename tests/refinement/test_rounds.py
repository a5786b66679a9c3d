"""One round: what is drawn, measured and fitted to; what follows from that is decided elsewhere."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from helpers import gaussian
from klover import Family, Target
from klover.importance import psis
from klover.importance.ratios import effective_sample_size, log_evidence
from klover.mixtures.algebra import mixture_of
from klover.refinement import learning, rounds
from klover.refinement.defence import next_proposal
from klover.refinement.pool import Pool
from klover.refinement.rounds import MOST_SHRINKAGES, SHRINKAGE, take_round
from klover.refinement.start import from_target
from klover.refinement.state import Context, Stage, State
from klover.sampling.hamiltonian import Particles
from klover.targets.evaluator import Evaluator
from klover.tuning import Answer, Exploration, Rounds, Search, Tuning

SMALL = Rounds(first_draws=256, most_draws=512)


def make_context(target: Target, tuning=None, seed=0, family="student") -> Context:
    tuning = tuning or Tuning(rounds=SMALL)
    return Context(np.random.default_rng(seed), Evaluator(target), 16, Family.parse(family), tuning)


def skewed(dim=2):
    """Return a target that one component does not cover: logarithms of exponential numbers, of evidence one."""
    return Target(lambda x: jnp.sum(x - jnp.exp(x)), jnp.zeros(dim))


def at(mixture, stage=Stage.BEGIN, **known) -> State:
    return State(mixture, mixture, Pool.empty(mixture.dim), stage, **known)


def one_component(dim=2, location=0.0, scale=1.0):
    return mixture_of(Family(), np.full((1, dim), location), scale**2 * np.eye(dim)[None], 5.0, np.ones(1))


def test_a_round_leaves_the_state_before_it_alone():
    context = make_context(skewed())
    before = from_target(context)
    copies = {field.name: getattr(before, field.name) for field in dataclasses.fields(before)}
    after = take_round(context, before)
    assert after is not before
    assert all(getattr(before, name) is value for name, value in copies.items())
    assert (len(before.history), len(after.history)) == (0, 1)


def test_what_was_measured_is_that_of_the_fresh_draws():
    context = make_context(skewed())
    state = from_target(context)
    for number in range(3):
        proposal = next_proposal(context, state)
        state = take_round(context, state)
        info, size = state.history[-1], state.pool.sizes[-1]
        x, log_p = state.pool.x[-size:], state.pool.log_p[-size:]
        np.testing.assert_allclose(log_p, context.evaluator.target.log_prob(x), rtol=1e-12)
        log_ratio = log_p - proposal.log_prob(x)
        value, error = log_evidence(log_ratio)
        assert (info.round, info.num_draws) == (number, size)
        assert info.ess_share == pytest.approx(float(effective_sample_size(log_ratio)) / size)
        assert info.log_evidence == pytest.approx(float(value))
        assert info.log_evidence_se == pytest.approx(float(error))
        assert info.pareto_k == pytest.approx(float(psis.pareto_k(log_ratio)))
        # The evidence is one.
        assert abs(info.log_evidence) < 5 * info.log_evidence_se
        if state.is_done:
            break
    assert state.history[-1].num_evaluations == context.evaluator.num_evaluations


@pytest.mark.parametrize(
    ("tuning", "expected"),
    [
        (SMALL, [256, 384, 512, 512]),
        (Rounds(first_draws=100, draws_growth=2.0, most_draws=300), [100, 200, 300, 300]),
        (Rounds(first_draws=300, draws_growth=1.0), [300, 300, 300, 300]),
    ],
)
def test_rounds_grow_up_to_a_limit(tuning, expected):
    tuning = dataclasses.replace(tuning, good_ess=2.0, fair_ess=2.0, good_explored_ess=2.0, least_ess=2.0)
    context = make_context(gaussian(2).target, Tuning(rounds=tuning))
    state = from_target(context)
    for _ in expected:
        state = dataclasses.replace(take_round(context, state), stage=Stage.POOL)
    assert list(state.pool.sizes) == expected


def test_draws_of_a_round_fit_into_memory(monkeypatch):
    monkeypatch.setattr(rounds, "MOST_NUMBERS", 2 * 300)
    context = make_context(skewed())
    state = dataclasses.replace(at(one_component()), history=take_round(context, at(one_component())).history * 3)
    assert take_round(context, state).pool.sizes == (300,)
    # The first round is as large as it is.
    assert take_round(context, at(one_component())).pool.sizes == (256,)


def test_a_good_mixture_is_not_fitted_again():
    context = make_context(gaussian(2).target)
    known = gaussian(2)
    mixture = mixture_of(Family("normal"), known.mean[None], known.covariance[None], np.inf, np.ones(1))
    after = take_round(context, at(mixture))
    assert after.is_done
    assert after.mixture is mixture
    assert (after.stage, after.was_hard) == (Stage.POOL, False)


def test_a_mixture_that_is_not_good_is_fitted_to_the_pool():
    context = make_context(skewed())
    state = take_round(context, at(one_component()))
    assert not state.is_done
    truth = np.log(np.random.default_rng(1).exponential(size=(5000, 2)))
    assert state.mixture.log_prob(truth).mean() > one_component().log_prob(truth).mean() + 0.1


def seen_by_growth(monkeypatch):
    """Watch what mixtures are fitted to."""
    samples = []
    monkeypatch.setattr(
        learning, "grow", lambda generator, mixture, sample, rules: samples.append((sample, rules)) or mixture
    )
    return samples


def test_a_comb_leaves_out_draws_that_hardly_count(monkeypatch):
    samples = seen_by_growth(monkeypatch)
    tuning = Tuning(rounds=dataclasses.replace(SMALL, fitted_draws=64, fitted_per_parameter=1))
    context = make_context(skewed(), tuning)
    state = take_round(context, at(one_component(), Stage.POOL))
    ((sample, rules),) = samples
    assert len(sample) <= 64
    assert sample.weight.sum() == pytest.approx(1.0)
    # Each is as often among 64 as its weight says.
    assert np.all(np.isclose(sample.weight * 64, np.round(sample.weight * 64)))
    full = state.pool.sample()
    counts = {tuple(x): weight for x, weight in zip(full.x, full.weight, strict=True)}
    expected = np.array([counts[tuple(x)] for x in sample.x])
    assert np.all(np.abs(sample.weight - expected) < 1 / 64 + 1e-12)
    np.testing.assert_allclose(sample.log_p, context.evaluator.target.log_prob(sample.x), rtol=1e-12)
    assert rules.max_components == 16


def test_as_many_draws_are_fitted_to_as_parameters_ask_for(monkeypatch):
    samples = seen_by_growth(monkeypatch)
    for per_parameter, most in ((16, 64), (40, 200)):
        tuning = Tuning(rounds=dataclasses.replace(SMALL, fitted_draws=64, fitted_per_parameter=per_parameter))
        take_round(make_context(skewed(), tuning), at(one_component(), Stage.POOL))
        assert len(samples[-1][0]) <= max(most, 16 * 5)
    assert len(samples[1][0]) > len(samples[0][0])


def test_tempered_weights_are_fitted_to_while_few_draws_are_effective(monkeypatch):
    samples = seen_by_growth(monkeypatch)
    # Far from the target one draw has all of the weight.
    target = Target(lambda x: -0.5 * jnp.sum((x - 60.0) ** 2), jnp.zeros(2))
    context = make_context(target)
    state = take_round(context, at(one_component(scale=3.0)))
    assert state.stage is Stage.TEMPER
    assert state.pool.ess < 3
    sample, _ = samples[0]
    assert sample.ess == pytest.approx(10 * 3, rel=0.2)
    assert state.pool.sample().ess < 3


def test_particles_are_fitted_to_beside_the_pool(monkeypatch):
    samples = seen_by_growth(monkeypatch)
    num = 50
    context = make_context(skewed(), Tuning(rounds=SMALL, exploration=Exploration(particle_share=0.6)))
    archived = Particles(np.full((num, 2), 7.0), np.zeros(num), np.zeros((num, 2)))
    moved = Particles(np.full((num, 2), 8.0), np.zeros(num), np.zeros((num, 2)))
    state = at(one_component(), Stage.EXPLORE, was_hard=True, archive=(archived,))
    monkeypatch.setattr(rounds, "look_around", lambda context, state, look: (state, moved, 0.0))
    take_round(context, state)
    sample, _ = samples[0]
    for place in (7.0, 8.0):
        assert sample.weight[sample.x[:, 0] == place].sum() == pytest.approx(0.3)
    # With more particles than effective draws they have the share of their number.
    context = make_context(skewed(), Tuning(rounds=SMALL, exploration=Exploration(particle_share=0.0)))
    after = take_round(context, state)
    sample, _ = samples[1]
    share = 2 * num / (2 * num + after.pool.sample().ess)
    assert sample.weight[sample.x[:, 0] > 6.5].sum() == pytest.approx(share)


def test_the_drift_of_a_look_is_written_down(monkeypatch):
    context = make_context(gaussian(2).target)
    monkeypatch.setattr(rounds, "look_around", lambda context, state, look: (state, None, 4.5))
    state = take_round(context, from_target(context))
    assert state.history[-1].drift == 4.5
    # What was found keeps the work from ending, and particles go out next.
    assert not state.is_done
    assert state.stage is Stage.EXPLORE


def cut(limit, value=jnp.nan):
    return Target(lambda x: jnp.where(x[0] > limit, value, -0.5 * jnp.sum(x**2)), jnp.zeros(2))


def test_values_that_are_no_numbers_are_counted_after_the_first_round():
    context = make_context(cut(0.5), Tuning(rounds=dataclasses.replace(SMALL, good_ess=2.0, fair_ess=2.0)))
    state = take_round(context, at(one_component()))
    assert context.evaluator.num_nan > 0
    assert state.most_invalid == (0, 0, 1)
    before = context.evaluator.num_nan
    state = dataclasses.replace(state, stage=Stage.POOL)
    state = take_round(context, state)
    assert state.most_invalid == (context.evaluator.num_nan - before, 0, state.pool.sizes[-1])
    # The round that had most of them is kept.
    kept = dataclasses.replace(state, most_invalid=(0, 300, 384), stage=Stage.POOL)
    assert take_round(context, kept).most_invalid == (0, 300, 384)


def test_a_target_without_support_is_hopeless():
    context = make_context(Target(lambda x: jnp.where(x[0] > 1e6, 0.0, -jnp.inf), jnp.zeros(2)))
    state = at(one_component())
    for _ in range(MOST_SHRINKAGES - 1):
        narrower = take_round(context, state)
        assert not narrower.is_done
        width, before = (np.sqrt(each.mixture.components.spread.variance()) for each in (narrower, state))
        np.testing.assert_allclose(width, SHRINKAGE * before)
        state = narrower
    state = take_round(context, state)
    assert state.is_done
    assert state.history[-1].ess_share == 0


def test_a_support_that_is_smaller_than_the_first_draws_is_found():
    context = make_context(Target(lambda x: jnp.where(jnp.all(jnp.abs(x) < 1e-3), 0.0, -jnp.inf), jnp.zeros(2)))
    state = at(one_component())
    for _ in range(6):
        state = take_round(context, state)
    assert state.history[-1].ess_share > 0


def test_a_mixture_without_end_is_hopeless():
    context = make_context(skewed(), Tuning(rounds=SMALL, answer=Answer(largest_width=5.0)))
    assert take_round(context, at(one_component(scale=4.0, location=2.0))).is_done
    assert not take_round(make_context(skewed()), at(one_component(scale=4.0, location=2.0))).is_done


@pytest.mark.parametrize(("full_dim", "is_done"), [(1, True), (2, False)])
def test_a_target_that_would_have_to_descend_in_many_dimensions_is_left_to_others(full_dim, is_done):
    target = Target(lambda x: -0.5 * jnp.sum((x - 60.0) ** 2), jnp.zeros(2))
    tuning = Tuning(rounds=SMALL, search=Search(full_dim=full_dim), exploration=Exploration(num_particles=64))
    context = make_context(target, tuning)
    state = at(one_component(), Stage.TEMPER, best_ess=0.5, num_stale=5)
    after = take_round(context, state)
    assert (after.stage, after.was_hard, after.is_done) == (Stage.DESCEND, True, is_done)
    assert (after.history[-1].drift == np.inf) is not is_done


def test_rounds_follow_the_generator():
    def after(seed):
        context = make_context(skewed(), seed=seed)
        state = from_target(context)
        for _ in range(2):
            state = take_round(context, state)
        return state

    one, other, third = after(0), after(0), after(1)
    np.testing.assert_array_equal(one.pool.x, other.pool.x)
    np.testing.assert_array_equal(one.mixture.log_weights, other.mixture.log_weights)
    assert np.any(one.pool.x[:100] != third.pool.x[:100])
