"""Chains supply draws of a target that no mixture has come near."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.reach import hierarchy as regression
from jax.scipy.stats import norm

from klover import Target, refine
from klover.base.linalg import moments
from klover.fitting.sample import equal
from klover.mixtures.algebra import mixture_of
from klover.refinement.chains import begin, follow_lead, run_chains
from klover.refinement.start import from_target
from klover.refinement.state import Context, RoundInfo, Stage
from klover.targets.evaluator import Evaluator
from klover.tuning import Exploration, Search, Tuning
from klover.warps.warp import fit_warp

NUM_GROUPS, SCALE = 12, 0.5
FEW = Tuning(exploration=Exploration(num_probes=32, chain_moves=16))


def hierarchy(x):
    """A centred hierarchy with one observation, of scale 0.5, in each group, and τ from a half-Cauchy; no top."""
    mu, log_tau, effect = x[0], x[1], x[2:]
    seen = jnp.linspace(-0.5, 0.5, NUM_GROUPS)
    prior = norm.logpdf(mu, 0.0, 5.0) + log_tau - jnp.logaddexp(0.0, 2 * log_tau) - NUM_GROUPS * log_tau
    return prior - 0.5 * jnp.sum(((effect - mu) * jnp.exp(-log_tau)) ** 2) + norm.logpdf(seen, effect, SCALE).sum()


def make_context(tuning=FEW):
    target = Target(hierarchy, jnp.zeros(2 + NUM_GROUPS))
    return Context(np.random.default_rng(0), Evaluator(target), 4, tuning=tuning)


def test_a_neck_is_left_to_chains():
    context = make_context()
    state = from_target(context)
    assert state.stage is Stage.CHAIN
    assert context.evaluator.num_evaluations < 10_000


def test_so_it_is_beyond_the_largest_dimension_of_whole_covariances():
    context = make_context(dataclasses.replace(FEW, search=Search(full_dim=4)))
    assert context.can_whiten
    state = from_target(context)
    assert state.stage is Stage.CHAIN
    assert state.warp is None
    assert context.evaluator.num_evaluations < 10_000
    narrow = make_context(dataclasses.replace(FEW, search=Search(full_dim=4, warped_dim=4)))
    assert from_target(narrow).stage is Stage.BEGIN


def test_chains_come_to_the_bulk():
    context = make_context()
    state = from_target(context)
    for window in range(1, 4):
        state = run_chains(context, state)
        assert state.num_windows == window
        location, covariance = moments(np.asarray(state.seen.x), np.asarray(state.seen.weight))
        mixture = mixture_of(context.family, location[None], covariance[None], 10.0, np.ones(1))
        state = dataclasses.replace(state, mixture=mixture)
    assert state.chains is not None
    assert state.seen is not None
    assert state.chains.shape == (32, 2 + NUM_GROUPS)
    # Each group has an observation of scale 0.5, between -0.5 and 0.5, and shrinks to the others.
    np.testing.assert_allclose(np.median(state.seen.x, 0)[2:], 0.0, atol=SCALE)
    np.testing.assert_allclose(state.seen.log_p, context.evaluator.values(np.asarray(state.seen.x)))


def test_chains_begin_in_the_region_and_where_draws_are():
    context = make_context()
    state = from_target(context)
    assert begin(context, state).shape == (32, 2 + NUM_GROUPS)
    x = np.full((100, 2 + NUM_GROUPS), 0.25)
    info = RoundInfo(0, 1, 100, 0.01, 1.0, 0.0, 1.0, 0.0, 100, 1.0)
    pool = state.pool.add(state.mixture, x, context.evaluator.values(x))
    starts = begin(context, dataclasses.replace(state, pool=pool, history=(info,)))
    assert starts.shape == (32, 2 + NUM_GROUPS)
    assert np.sum(np.all(starts == 0.25, axis=1)) == 16


def test_a_lead_is_followed_once():
    context, generator = make_context(), np.random.default_rng(1)
    log_tau, mu = generator.normal(0.3, 0.3, 2000), generator.normal(0.0, 0.3, 2000)
    effect = mu[:, None] + np.exp(log_tau)[:, None] * generator.normal(size=(2000, NUM_GROUPS))
    x = np.column_stack([mu, log_tau, effect])
    seen = equal(x, context.evaluator.values(x))
    warp = fit_warp("led", x, np.asarray(seen.weight))
    assert warp is not None
    assert warp.lead == 1
    state = from_target(context)
    assert follow_lead(context, state) is state
    assert follow_lead(context, dataclasses.replace(state, seen=seen)).seen is seen
    moving = dataclasses.replace(state, seen=seen, warp=warp, stage=Stage.CHAIN)
    assert follow_lead(context, moving) is moving
    followed = follow_lead(context, dataclasses.replace(moving, stage=Stage.POOL))
    assert followed.is_followed
    assert followed.seen is not None
    assert len(followed.seen) > len(seen)
    assert follow_lead(context, followed) is followed


@pytest.mark.slow
def test_a_centred_hierarchy_is_answered():
    fit = refine(0, Target(hierarchy, jnp.zeros(2 + NUM_GROUPS)))
    assert fit.verdict.trusted
    assert fit.num_evaluations < 300_000


@pytest.mark.slow
@pytest.mark.parametrize("is_centred", [True, False])
def test_a_hierarchy_beyond_the_largest_dimension_of_whole_covariances_is_answered(is_centred):
    problem = regression(150, is_centred, 3)
    fit = refine(0, problem.target)
    assert fit.verdict.trusted
    assert fit.draws.kind == "importance"
    assert problem.log_evidence is not None
    assert abs(fit.log_evidence - problem.log_evidence) < max(5 * fit.log_evidence_se, 0.05)
