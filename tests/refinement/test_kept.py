import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from klover import Target
from klover.mixtures.algebra import mixture_of
from klover.mixtures.components import Family
from klover.refinement.kept import Kept, from_kept
from klover.refinement.rounds import take_round
from klover.refinement.state import Context
from klover.targets.evaluator import Evaluator
from klover.warps.linear import Linear
from klover.warps.warp import Warp
from klover.warps.warped import behind, unwarped

DIM = 2
LINEAR = Warp((Linear.of(np.array([1.0, -2.0]), np.array([[2.0, 0.0], [1.0, 0.5]])),))
OLD = mixture_of(Family("student"), np.zeros((1, DIM)), 1.2 * np.eye(DIM)[None], 200.0, np.ones(1))


def make_context(centre=0.0):
    target = Target(lambda x: -0.5 * jnp.sum((x - centre) ** 2), np.zeros(DIM))
    return Context(np.random.default_rng(0), Evaluator(target), 8, goal=400)


def test_the_first_round_is_the_draws_of_the_old_proposal():
    context = make_context()
    state = from_kept(context, Kept(OLD, True))
    assert state.pool.proposals == (state.pool.fresh.proposals[0],)
    assert context.evaluator.num_evaluations == state.pool.sizes[0]
    np.testing.assert_allclose(state.pool.log_q[0], OLD.log_prob(state.pool.x))
    after = take_round(context, state)
    assert after.pool.sizes == state.pool.sizes
    assert after.history[0].num_draws == state.pool.sizes[0]
    assert take_round(context, after).pool.sizes[0] == state.pool.sizes[0]
    assert abs(after.history[0].log_evidence - np.log(2 * np.pi)) < 4 * after.history[0].log_evidence_se


def test_a_warp_is_kept():
    context = make_context()
    # What is standard Normal to the user, behind the warp.
    there = LINEAR.to_base(np.concatenate([np.zeros((1, DIM)), np.eye(DIM)]))[0]
    root = (there[1:] - there[0]).T
    mixture = mixture_of(Family("student"), there[:1], (root @ root.T)[None], 200.0, np.ones(1))
    state = from_kept(context, Kept(behind(mixture, LINEAR), True))
    assert state.warp is not None
    np.testing.assert_allclose(state.mixture.components.location, unwarped(behind(mixture, LINEAR)).components.location)
    assert state.pool.ess > 0.9 * state.pool.sizes[0]


@pytest.mark.parametrize("centre", [6.0, 60.0])
def test_where_hardly_any_draw_is_effective_a_search_begins(centre):
    state = from_kept(make_context(centre), Kept(dataclasses.replace(OLD), True))
    assert state.pool.sizes == ()
    top = state.mixture.components.location
    assert np.min(np.linalg.norm(top - centre, axis=1)) < 0.1
