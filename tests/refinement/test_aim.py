import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import klover
from klover import Target
from klover.mixtures.algebra import mixture_of
from klover.mixtures.components import Family
from klover.refinement.aim import aim, check_integrand
from klover.refinement.pool import Pool
from klover.refinement.state import Context, State
from klover.targets.evaluator import Evaluator
from klover.tuning import Rounds, Tuning

DIM = 2
LIMIT = 3.0


def rare(x):
    return jnp.where(x[0] > LIMIT, 1.0, 0.0)


def standard_normal(**more):
    return Target(lambda x: -0.5 * jnp.sum(x**2) - jnp.log(2 * jnp.pi), jnp.zeros(DIM), **more)


def make_mixture(scale=1.1):
    return mixture_of(Family(), np.zeros((1, DIM)), scale**2 * np.eye(DIM)[None], 8.0, np.ones(1))


def prepared(target=None, tuning=None, budget=None) -> tuple[Context, State, klover.Mixture]:
    """Return what a refinement knows in the end: a proposal, and a pool of draws of it."""
    target = target or standard_normal()
    context = Context(np.random.default_rng(0), Evaluator(target, budget), 8, tuning=tuning or Tuning())
    mixture = make_mixture()
    x = mixture.draw(context.generator, 4000)
    pool = Pool.empty(DIM).add(mixture, x, context.evaluator.values(x))
    return context, State(mixture, mixture, pool), mixture


def test_half_of_the_proposal_is_what_it_was():
    context, state, proposal = prepared()
    aimed = aim(context, state, proposal, rare)
    num = len(proposal.log_weights)
    np.testing.assert_allclose(aimed.weights[:num], 0.5 * proposal.weights)
    np.testing.assert_array_equal(aimed.components.location[:num], proposal.components.location)
    # So no weight can grow by more than a factor of two, whatever the integrand.
    x = 5 * np.random.default_rng(1).normal(size=(1000, DIM))
    assert np.all(aimed.log_prob(x) >= proposal.log_prob(x) + np.log(0.5) - 1e-12)


def test_the_other_half_is_drawn_where_the_integrand_varies():
    context, state, proposal = prepared()
    aimed = aim(context, state, proposal, rare)
    x = aimed.draw(np.random.default_rng(1), 20_000)
    # |f - I| p has half of its mass beyond the limit, so that a quarter of all draws goes there.
    assert np.mean(x[:, 0] > LIMIT) == pytest.approx(0.25, abs=0.08)
    truth = stats.norm.sf(LIMIT)
    ratio = np.exp(np.asarray(context.evaluator.values(x)) - aimed.log_prob(x)) * (x[:, 0] > LIMIT)
    error = ratio.std() / np.sqrt(len(x))
    assert abs(ratio.mean() - truth) < 5 * error
    plain = proposal.draw(np.random.default_rng(1), 20_000)
    before = np.exp(np.asarray(context.evaluator.values(plain)) - proposal.log_prob(plain)) * (plain[:, 0] > LIMIT)
    assert error < 0.3 * before.std() / np.sqrt(len(plain))


def test_both_rounds_cost_as_many_draws_as_a_fit_takes():
    context, state, proposal = prepared(tuning=Tuning(rounds=Rounds(fitted_draws=256)))
    before = context.evaluator.num_evaluations
    aimed = aim(context, state, proposal, rare)
    assert context.evaluator.num_evaluations - before == 2 * 256
    assert aimed.weights[: len(proposal.weights)].sum() == pytest.approx(0.5)


def test_an_integrand_that_does_not_vary_leaves_the_proposal_as_it_is():
    context, state, proposal = prepared()
    assert aim(context, state, proposal, lambda x: jnp.asarray(0.0)) is proposal


def test_an_integrand_of_several_numbers_is_refused():
    with pytest.raises(ValueError, match=r"integrand must return one number, got an array of shape \(2,\)"):
        check_integrand(standard_normal(), lambda x: x)
    check_integrand(standard_normal(), rare)


def test_an_integrand_is_checked_on_constrained_positions_and_without_an_evaluation():
    target = standard_normal(constrain=lambda x: {"first": jnp.exp(x[0]), "second": x[1]})
    check_integrand(target, lambda position: position["first"])
    with pytest.raises(TypeError, match=r"integrand must be a function that JAX can trace.*KeyError.*'third'"):
        check_integrand(target, lambda position: position["third"])


def test_an_integrand_sees_constrained_positions():
    target = standard_normal(constrain=lambda x: {"first": jnp.exp(x[0]), "second": x[1]})
    context, state, proposal = prepared(target)
    seen = []

    def integrand(position):
        seen.append(set(position))
        return jnp.where(position["first"] > np.exp(LIMIT), 1.0, 0.0)

    aimed = aim(context, state, proposal, integrand)
    assert {"first", "second"} in seen
    x = aimed.draw(np.random.default_rng(1), 5000)
    assert np.mean(x[:, 0] > LIMIT) > 0.1


def test_a_budget_ends_the_rounds_and_what_was_fitted_is_kept():
    context, state, proposal = prepared(budget=4100)
    aimed = aim(context, state, proposal, rare)
    assert aimed is not proposal
    assert context.evaluator.num_evaluations == 4000


def test_the_state_is_left_alone():
    context, state, proposal = prepared()
    before = dataclasses.replace(state)
    aim(context, state, proposal, rare)
    assert all(getattr(state, f.name) is getattr(before, f.name) for f in dataclasses.fields(state))
