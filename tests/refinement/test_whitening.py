"""Coordinates that scores whiten; the judge is a Gaussian, for which they are exact."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.many_dimensions import logistic, low_rank

import klover
from klover import Target
from klover.refinement.start import from_given, from_target
from klover.refinement.state import Context
from klover.refinement.whitening import loss_of, ranks_of, whiten
from klover.results.integrity import check_warp
from klover.search.modes import climb_target
from klover.targets.evaluator import Evaluator
from klover.tuning import Search, Tuning
from klover.warps.linear import Linear
from klover.warps.low_rank import LowRankLinear
from klover.warps.warp import WHITENED

DIM = 200
PROBLEM = low_rank(DIM)
MEAN, SD = np.asarray(PROBLEM.mean), np.asarray(PROBLEM.sd)


def make_context(target: Target, **options) -> Context:
    return Context(np.random.default_rng(0), Evaluator(target), 4, **options)


def highest_top(context: Context):
    tops, values = climb_target(context.evaluator, context.region.draw_starts(context.generator, 4))
    return tops[np.argmax(values)]


def test_the_covariance_of_a_gaussian_is_found_exactly():
    context = make_context(PROBLEM.target)
    warp = whiten(context, highest_top(context))
    assert warp is not None
    assert warp.kind == WHITENED
    (layer,) = warp.layers
    assert isinstance(layer, LowRankLinear)
    # Ten directions, of which no number between 8 and 16 is tried.
    assert layer.rank == 16
    np.testing.assert_allclose(layer.variance(), SD**2, rtol=1e-4)
    np.testing.assert_allclose((layer.centre - MEAN) / SD, 0.0, atol=1e-4)
    assert loss_of(context, layer) < 1e-6
    check_warp(warp, DIM)


def test_ranks_that_are_tried():
    assert ranks_of(0, 128, 1000) == [0, 2, 4, 8, 16, 32]
    assert ranks_of(128, 512, 1000) == [64, 128]
    assert ranks_of(0, 128, 9) == [0, 2, 4]


def test_a_whole_matrix_where_directions_are_not_enough():
    rng = np.random.default_rng(0)
    scales, rotation = np.geomspace(0.03, 30.0, 130), np.linalg.qr(rng.normal(size=(130, 130)))[0]
    matrix = rotation / scales
    context = make_context(Target(lambda x: -0.5 * jnp.sum((matrix.T @ x) ** 2), np.ones(130)))
    warp = whiten(context, highest_top(context))
    assert warp is not None
    assert isinstance(warp.layers[0], Linear)
    assert loss_of(context, warp.layers[0]) < 1e-3


@pytest.mark.parametrize(
    ("can_whiten", "change"),
    [
        (True, {}),
        (False, {"goal": 400}),
        (False, {"family": klover.Family("student", "diagonal")}),
        (False, {"tuning": Tuning(search=Search(full_dim=DIM))}),
    ],
)
def test_it_is_for_many_dimensions_and_full_covariances(can_whiten, change):
    context = dataclasses.replace(make_context(PROBLEM.target), **change)
    assert context.can_whiten == can_whiten


def test_a_state_begins_behind_it():
    context = make_context(PROBLEM.target)
    state = from_target(context)
    assert state.warp is not None
    assert not state.was_hard
    z = state.warp.to_base(MEAN[None])[0]
    np.testing.assert_allclose(z, 0.0, atol=1e-3)
    # One mode, three copies of it that are no wider than a Normal's shell, and the region.
    components = state.mixture.components
    np.testing.assert_array_equal(components.location[:3], 0.0)
    scales = components.spread.variance()[:3] ** 0.5
    np.testing.assert_allclose(scales[:, 0], [1.0, 1 + 0.6 / DIM**0.5, 1 + 2 / DIM**0.5])
    np.testing.assert_array_equal(components.df[:3], 10.0 * DIM)


def test_what_a_user_gives_is_taken_there():
    context = make_context(PROBLEM.target)
    x = MEAN + SD * np.random.default_rng(0).normal(size=(300, DIM))
    state = from_given(context, x)
    assert state.warp is not None
    mixture = klover.Mixture.of(klover.Family("student").components(MEAN[None], SD[None] ** 2))
    begun = from_given(make_context(PROBLEM.target), mixture)
    assert begun.warp is not None
    np.testing.assert_allclose(begun.mixture.components.location[-1], 0.0, atol=1e-3)
    # A proposal of an earlier fit keeps its coordinates.
    warped = klover.warps.warped.WarpedMixture(begun.mixture, begun.warp)
    again = from_given(make_context(PROBLEM.target), warped)
    assert again.warp is not None
    np.testing.assert_array_equal(again.warp.layers[0].centre, begun.warp.layers[0].centre)


def test_a_gaussian_of_low_rank_is_trusted():
    fit = klover.refine(0, PROBLEM.target)
    assert fit.verdict.trusted
    assert fit.draws.kind == "importance"
    assert fit.ess >= 0.8 * fit.draws.num_draws
    assert PROBLEM.log_evidence is not None
    assert abs(fit.log_evidence - PROBLEM.log_evidence) < 5 * fit.log_evidence_se
    assert fit.log_evidence_se < 0.01


def test_a_density_without_a_top_is_left_alone():
    funnel = Target(
        lambda x: -0.5 * x[0] ** 2 / 9 - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]) - 75 * x[0], np.zeros(151)
    )
    # It ends, and warns of nothing; what it returns has finite numbers.
    warp = whiten(make_context(funnel), np.zeros(151))
    assert warp is None or all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(warp))


@pytest.mark.slow
def test_two_modes_are_both_found():
    shift = np.where(np.arange(DIM) < 4, 4.0, 0.0)

    def log_density(x):
        near, far = (-0.5 * jnp.sum((x - sign * shift) ** 2) for sign in (1, -1))
        return jnp.logaddexp(near + np.log(0.3), far + np.log(0.7))

    fit = klover.refine(0, Target(log_density, np.zeros(DIM)))
    assert fit.verdict.trusted
    assert abs(fit.log_evidence - 0.5 * DIM * np.log(2 * np.pi)) < 5 * fit.log_evidence_se


@pytest.mark.slow
def test_a_logistic_regression_is_trusted():
    fit = klover.refine(0, logistic(200, 2000).target)
    assert fit.verdict.trusted
    assert fit.draws.kind == "importance"
