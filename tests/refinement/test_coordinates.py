import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from coordinates import draw_funnel, equal_weights
from klover import Target
from klover.mixtures.algebra import mixture_of
from klover.mixtures.components import Family
from klover.refinement.coordinates import adopt, in_base, in_user_coordinates, moved
from klover.refinement.pool import Pool
from klover.refinement.state import Context, Stage, State
from klover.targets.evaluator import Evaluator
from klover.warps.linear import Linear
from klover.warps.warp import Warp, fit_warp
from klover.warps.warped import behind

DIM = 3
CENTRE, MATRIX = np.array([1.0, -2.0, 0.5]), np.array([[2.0, 0.0, 0.0], [1.0, 0.5, 0.0], [0.0, -1.0, 3.0]])
LINEAR = Warp((Linear.of(CENTRE, MATRIX),))


def make_context():
    return Context(np.random.default_rng(0), Evaluator(Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(DIM))), 8)


def make_mixture(seed=0):
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(2, DIM, DIM)) * 0.3 + np.eye(DIM)
    covariance = factor @ np.swapaxes(factor, 1, 2)
    return mixture_of(Family("student"), rng.normal(size=(2, DIM)), covariance, 6.0, np.array([1.0, 2.0]))


def make_state(context, warp=None, **fields):
    proposal = behind(make_mixture(2), warp)
    x = proposal.draw(context.generator, 50)
    pool = Pool.empty(DIM).add(proposal, x, context.evaluator.values(x))
    state = State(make_mixture(), make_mixture(1), pool, warp=warp)
    return dataclasses.replace(state, best_ess=0.3, num_stale=2, was_hard=True, **fields)


def funnel_warp():
    return fit_warp("led", draw_funnel(2000, DIM), equal_weights(2000))


def test_a_linear_change_moves_components_exactly():
    mixture = make_mixture()
    there = moved(mixture, lambda x: LINEAR.to_base(x)[0])
    np.testing.assert_allclose(there.components.location, (mixture.components.location - CENTRE) @ MATRIX.T, rtol=1e-9)
    expected = MATRIX @ mixture.components.spread.covariance() @ MATRIX.T
    np.testing.assert_allclose(there.components.spread.covariance(), expected, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(there.weights, mixture.weights)
    np.testing.assert_array_equal(there.components.df, mixture.components.df)


def test_no_change_leaves_moments_as_they_are():
    mixture = make_mixture()
    same = moved(mixture, lambda x: x)
    np.testing.assert_allclose(same.components.location, mixture.components.location, atol=1e-12)
    np.testing.assert_allclose(same.components.spread.covariance(), mixture.components.spread.covariance(), atol=1e-8)


def test_adopting_a_warp_takes_along_what_is_known_of_the_target():
    state = make_state(make_context(), found=make_mixture(4))
    there = adopt(state, LINEAR)
    assert there.warp is LINEAR
    # A density of x, seen in z: a linear change is exact.
    x = make_mixture(5).draw(np.random.default_rng(1), 20)
    z, log_det = LINEAR.to_base(x)
    for name in ("mixture", "broad", "found"):
        before, after = getattr(state, name), getattr(there, name)
        np.testing.assert_allclose(after.log_prob(z) + log_det, before.log_prob(x), atol=1e-5)
    assert there.pool is state.pool


def test_adopting_no_warp_leads_back():
    state = make_state(make_context())
    again = adopt(adopt(state, LINEAR), None)
    assert again.warp is None
    x = make_mixture(5).draw(np.random.default_rng(1), 20)
    np.testing.assert_allclose(again.broad.log_prob(x), state.broad.log_prob(x), atol=1e-5)


def test_the_same_warp_changes_nothing():
    context = make_context()
    for warp in (None, LINEAR):
        state = make_state(context, warp)
        assert adopt(state, warp) is state


@pytest.mark.parametrize(("stage", "next_stage"), [(Stage.EXPLORE, Stage.POOL), (Stage.TEMPER, Stage.TEMPER)])
def test_what_particles_have_seen_is_left_behind(stage, next_stage):
    state = make_state(make_context(), stage=stage, frontier=make_mixture(7))
    there = adopt(state, LINEAR)
    assert there.stage is next_stage
    assert (there.was_hard, there.frontier, there.frontier_particles, there.archive) == (False, None, (), ())


def test_the_first_warp_begins_anew_and_a_second_one_does_not():
    context = make_context()
    first = adopt(make_state(context), LINEAR)
    assert (first.best_ess, first.num_stale) == (0.0, 0)
    second = adopt(make_state(context, funnel_warp()), LINEAR)
    assert (second.best_ess, second.num_stale) == (0.3, 2)


def test_the_mixture_in_the_users_coordinates():
    context = make_context()
    state = make_state(context)
    assert in_user_coordinates(state) is state.mixture
    there = adopt(state, LINEAR)
    x = make_mixture(5).draw(np.random.default_rng(1), 20)
    np.testing.assert_allclose(in_user_coordinates(there).log_prob(x), state.mixture.log_prob(x), atol=1e-5)


@pytest.mark.parametrize("has_warp", [False, True])
def test_pool_and_target_are_in_base_coordinates_meanwhile(has_warp):
    context, warp = make_context(), funnel_warp() if has_warp else None
    state = make_state(context, warp)
    with in_base(context, state) as inside:
        assert context.evaluator.coordinates is warp
        # Stored values are those of the target there, and of the proposal.
        np.testing.assert_allclose(context.evaluator.values(inside.pool.x), inside.pool.log_p, rtol=1e-9)
        np.testing.assert_allclose(inside.pool.proposals[-1].log_prob(inside.pool.x), inside.pool.log_q[-1], rtol=1e-9)
        np.testing.assert_allclose(inside.pool.log_ratio, state.pool.log_ratio, rtol=1e-9)
    assert context.evaluator.coordinates is None


def test_the_evaluator_comes_back_when_something_is_raised():
    context = make_context()
    state = make_state(context, LINEAR)
    x = np.ones((1, DIM))
    before = context.evaluator.values(x)
    with pytest.raises(RuntimeError, match="halfway"), in_base(context, state):
        raise RuntimeError("halfway")
    assert context.evaluator.coordinates is None
    np.testing.assert_array_equal(context.evaluator.values(x), before)
