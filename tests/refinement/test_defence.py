import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from klover import Target
from klover.fitting.splits import num_parameters
from klover.mixtures.algebra import inflate, mixture_of, stretch
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.refinement.defence import FEWEST_COMPONENTS, MOST_COMPONENTS, final_proposal, most_components, next_proposal
from klover.refinement.pool import Pool
from klover.refinement.state import Context, RoundInfo, State
from klover.targets.evaluator import Evaluator
from klover.tuning import Defence, Rounds, Tuning

INFO = RoundInfo(0, 1, 2048, 0.5, 0.1, 0.0, 0.1, 0.0, 2048, 1.0)


def make_mixture(dim: int, seed: int = 0, num: int = 2) -> Mixture:
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(num, dim, dim))
    covariance = root @ root.swapaxes(1, 2) + np.eye(dim)
    return mixture_of(Family(), rng.normal(size=(num, dim)), covariance, 7.0, rng.uniform(0.5, 1.0, num))


def make_context(dim: int, box=None, tuning=None) -> Context:
    target = Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(dim), box=box)
    return Context(np.random.default_rng(0), Evaluator(target), 8, tuning=tuning or Tuning())


def make_state(dim: int, **known) -> State:
    known = {"pool": Pool.empty(dim), "history": (INFO,)} | known
    return State(make_mixture(dim), make_mixture(dim, 1), **known)


def points(dim: int) -> np.ndarray:
    return 4 * np.random.default_rng(9).normal(size=(20, dim))


def mixed(dim: int, *parts: tuple[float, Mixture]) -> np.ndarray:
    """Log density of mixtures with shares, by definition."""
    assert sum(share for share, _ in parts) == pytest.approx(1.0)
    return np.log(sum(share * np.exp(mixture.log_prob(points(dim))) for share, mixture in parts))


@pytest.mark.parametrize("dim", [1, 2, 4, 5, 10, 20, 22, 30, 60, 100, 400])
def test_as_many_components_as_draws_can_tell_apart(dim):
    found = most_components(dim, Rounds())
    if dim <= 4:
        assert found == 64
    else:
        by_draws = int(8192 / num_parameters(dim))
        assert found == min(max(by_draws, FEWEST_COMPONENTS), MOST_COMPONENTS)


def test_more_draws_tell_more_components_apart():
    assert most_components(30, Rounds(most_draws=2 * 8192)) == 33 - 1
    assert most_components(6, Rounds(tiled_dim=6)) == 64
    assert most_components(30, Rounds()) < most_components(22, Rounds())


def test_the_first_round_draws_from_the_mixture_itself():
    state = make_state(2, history=())
    assert next_proposal(make_context(2), state) is state.mixture


@pytest.mark.parametrize("dim", [2, 9])
def test_later_rounds_are_defended_by_wider_copies(dim):
    state = make_state(dim)
    wide = inflate(state.mixture, 1 + 2 / np.sqrt(dim), 4.0)
    found = next_proposal(make_context(dim), state).log_prob(points(dim))
    np.testing.assert_allclose(found, mixed(dim, (0.9, state.mixture), (0.1, wide)), rtol=1e-10)


def test_hard_targets_are_defended_by_longer_copies_too():
    state = make_state(2, was_hard=True)
    wide, long = inflate(state.mixture, 1 + 2 / np.sqrt(2), 4.0), stretch(state.mixture, 6.0, 4.0)
    found = next_proposal(make_context(2), state).log_prob(points(2))
    np.testing.assert_allclose(found, mixed(2, (0.9, state.mixture), (0.05, wide), (0.05, long)), rtol=1e-10)


def test_a_box_and_a_frontier_have_their_shares():
    frontier = make_mixture(2, 5)
    state = make_state(2, frontier=frontier)
    wide = inflate(state.mixture, 1 + 2 / np.sqrt(2), 4.0)
    context = make_context(2, (np.full(2, -9.0), np.full(2, 9.0)))
    plain = 0.85 * 0.995
    expected = mixed(
        2, (0.9 * plain, state.mixture), (0.1 * plain, wide), (0.85 * 0.005, state.broad), (0.15, frontier)
    )
    np.testing.assert_allclose(next_proposal(context, state).log_prob(points(2)), expected, rtol=1e-10)


def test_parts_that_a_search_has_found_keep_a_share_however_small_they_are():
    found = make_mixture(2, 6)
    state = make_state(2, found=found)
    wide = inflate(state.mixture, 1 + 2 / np.sqrt(2), 4.0)
    expected = mixed(2, (0.9 * 0.995, state.mixture), (0.1 * 0.995, wide), (0.005, found))
    np.testing.assert_allclose(next_proposal(make_context(2), state).log_prob(points(2)), expected, rtol=1e-10)


def test_the_shares_are_those_of_the_tuning():
    tuning = Tuning(defence=Defence(share=0.4, df=3.0))
    state = make_state(2)
    wide = inflate(state.mixture, 1 + 2 / np.sqrt(2), 3.0)
    found = next_proposal(make_context(2, tuning=tuning), state).log_prob(points(2))
    np.testing.assert_allclose(found, mixed(2, (0.6, state.mixture), (0.4, wide)), rtol=1e-10)


def test_a_proposal_bounds_the_loss_of_effective_draws():
    # A share of 0.1 elsewhere can lower the density by a tenth at most.
    state = make_state(3, was_hard=True)
    x = state.mixture.draw(np.random.default_rng(0), 500)
    defended = next_proposal(make_context(3), state).log_prob(x)
    assert np.all(defended > state.mixture.log_prob(x) + np.log(0.9) - 1e-12)


def pooled(dim: int, num: int = 4) -> Pool:
    proposals = tuple(make_mixture(dim, seed) for seed in range(10, 10 + num))
    return dataclasses.replace(Pool.empty(dim), proposals=proposals, sizes=(5,) * num)


def test_what_is_not_done_ends_with_the_next_proposal():
    state, context = make_state(5, pool=pooled(5)), make_context(5)
    np.testing.assert_array_equal(
        final_proposal(context, state).log_prob(points(5)), next_proposal(context, state).log_prob(points(5))
    )


@pytest.mark.parametrize(("dim", "was_hard"), [(1, False), (4, False), (4, True), (5, True), (20, True)])
def test_a_good_mixture_is_used_as_it_was_measured(dim, was_hard):
    state = make_state(dim, pool=pooled(dim), is_done=True, was_hard=was_hard)
    assert final_proposal(make_context(dim), state) is state.pool.proposals[-1]


@pytest.mark.parametrize("dim", [5, 20])
def test_some_final_draws_are_a_little_wider_in_more_dimensions(dim):
    state = make_state(dim, pool=pooled(dim), is_done=True)
    wider = inflate(state.mixture, 1 + 0.6 / np.sqrt(dim))
    expected = mixed(dim, (0.6, state.pool.proposals[-1]), (0.4, wider))
    found = final_proposal(make_context(dim), state)
    np.testing.assert_allclose(found.log_prob(points(dim)), expected, rtol=1e-10)
    # Their tails are as they were.
    np.testing.assert_array_equal(found.components.df, 7.0)
