import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from helpers import gaussian, gaussian_mixture
from klover import Family, Target
from klover.mixtures.mixture import Mixture
from klover.mixtures.scale import Diagonal, Full, LowRank
from klover.refinement.start import BOX_DF, REGION_WEIGHTS, cover, from_given, from_target
from klover.refinement.state import Context, Stage
from klover.targets.evaluator import Evaluator
from klover.tuning import Defence, Search, Tuning

DIM = 2
TUNING = Tuning()


def make_context(target: Target, family="student", tuning=TUNING, seed=0) -> Context:
    return Context(np.random.default_rng(seed), Evaluator(target), 16, Family.parse(family), tuning)


def quadratic(dim=DIM, box=None):
    return Target(lambda x: -0.5 * jnp.sum((x - 1.0) ** 2), jnp.full(dim, 5.0), box=box)


def test_a_box_is_covered_by_one_wide_component():
    lower, upper = np.array([-4.0, 0.0]), np.array([6.0, 0.5])
    broad = cover(make_context(quadratic(box=(lower, upper))))
    np.testing.assert_allclose(broad.components.location, [[1.0, 0.25]])
    np.testing.assert_allclose(broad.components.spread.variance(), [(1.2 * (upper - lower)) ** 2 / 12])
    np.testing.assert_array_equal(broad.components.df, [BOX_DF])
    np.testing.assert_allclose(broad.weights, 1.0)


def test_without_a_box_the_example_is_surrounded_on_several_scales():
    broad = cover(make_context(quadratic()))
    np.testing.assert_array_equal(broad.components.location, np.full((3, DIM), 5.0))
    scales = TUNING.search.start_scale**2 * np.array([1.0, 10.0, 100.0])
    np.testing.assert_allclose(broad.components.spread.variance(), np.tile(scales[:, None], DIM))
    np.testing.assert_array_equal(broad.components.df, TUNING.start.wide_df)
    np.testing.assert_allclose(broad.weights, REGION_WEIGHTS)


@pytest.mark.parametrize(
    ("name", "spread"), [("student", Full), ("normal-diagonal", Diagonal), ("student-low-rank", LowRank)]
)
def test_a_cover_is_of_the_family(name, spread):
    tail = name.split("-")[0]
    for box in (None, (np.full(3, -1.0), np.ones(3))):
        broad = cover(make_context(quadratic(3, box), name))
        assert type(broad.components.spread) is spread
        assert broad.components.tail == tail
        assert np.all(np.isinf(broad.components.df)) == (tail == "normal")


def test_beyond_the_largest_dimension_of_matrices_variances_do():
    tuning = Tuning(search=Search(full_dim=2))
    for dim, spread in ((2, Full), (3, Diagonal)):
        assert type(cover(make_context(quadratic(dim), tuning=tuning)).components.spread) is spread
        assert type(from_target(make_context(quadratic(dim), tuning=tuning)).mixture.components.spread) is spread


def test_a_state_begins_with_nothing_drawn():
    state = from_target(make_context(quadratic()))
    assert (state.stage, state.is_done, state.history) == (Stage.BEGIN, False, ())
    assert (state.pool.sizes, state.num_stale, state.best_ess, state.frontier) == ((), 0, 0.0, None)


def test_the_first_mixture_has_copies_of_the_mode_and_the_region():
    known, start = gaussian(DIM), TUNING.start
    state = from_target(make_context(known.target))
    mixture, num = state.mixture, len(start.copies)
    assert not state.was_hard
    np.testing.assert_allclose(mixture.components.location[:num], np.tile(known.mean, (num, 1)), atol=1e-3)
    expected = np.array(start.copies)[:, None, None] * known.covariance
    np.testing.assert_allclose(mixture.components.spread.covariance()[:num], expected, rtol=1e-3, atol=1e-6)
    parts = np.array(start.copy_weights) / sum(start.copy_weights)
    np.testing.assert_allclose(mixture.weights[:num], (1 - start.broad_share) * parts)
    x = 5 * np.random.default_rng(0).normal(size=(9, DIM))
    rest = klover.mixtures.algebra.take(mixture, np.arange(num, len(mixture.log_weights)))
    np.testing.assert_allclose(rest.log_prob(x), state.broad.log_prob(x), rtol=1e-12)
    np.testing.assert_allclose(mixture.weights[num:].sum(), start.broad_share)


@pytest.mark.parametrize("dim", [2, 12])
def test_the_narrowest_copies_have_lighter_tails_in_more_dimensions(dim):
    mixture = from_target(make_context(quadratic(dim))).mixture
    np.testing.assert_array_equal(mixture.components.df[:3], [max(dim, 5.0), 5.0, 5.0])


def test_with_a_box_less_is_drawn_over_the_region():
    box = (np.full(DIM, -9.0), np.full(DIM, 9.0))
    mixture = from_target(make_context(quadratic(box=box))).mixture
    assert mixture.weights[-1] == pytest.approx(TUNING.defence.share)
    assert len(mixture.log_weights) == len(TUNING.start.copies) + 1


@pytest.mark.parametrize(("small", "expected"), [(0.2, 0.25), (1e-6, 1 / 20)])
def test_modes_begin_with_their_evidence_but_none_with_next_to_nothing(small, expected):
    means = np.array([[-8.0, 0.0], [8.0, 0.0]])
    known = gaussian_mixture(means, (1 - small, small), 0.7)
    target = Target(known.target.log_prob, jnp.zeros(DIM), box=(np.full(DIM, -12.0), np.full(DIM, 12.0)))
    mixture = from_target(make_context(target)).mixture
    is_small = mixture.components.location[:6, 0] > 4
    assert is_small.sum() == 3
    weights = mixture.weights[:6]
    assert weights[is_small].sum() / weights[~is_small].sum() == pytest.approx(expected, rel=1e-3)


def test_a_search_without_end_makes_a_target_hard():
    # A top in every unit of length: sixteen starts find as many.
    target = Target(lambda x: 5 * jnp.cos(2 * jnp.pi * x[0]) - 1e-4 * x[0] ** 2, jnp.zeros(1), box=([-50.0], [50.0]))
    tuning = Tuning(search=Search(most_modes=16))
    assert from_target(make_context(target, tuning=tuning)).was_hard
    assert not from_target(make_context(quadratic())).was_hard


def test_without_gradients_only_the_region_is_covered():
    context = make_context(quadratic())
    context.evaluator.has_gradient = False
    state = from_target(context)
    assert state.mixture is state.broad
    assert context.evaluator.num_evaluations == 0


def test_without_a_mode_only_the_region_is_covered():
    target = Target(lambda x: jnp.where(x[0] > 1e6, 0.0, -jnp.inf), jnp.zeros(DIM))
    state = from_target(make_context(target))
    assert state.mixture is state.broad


def given_mixture(tail="student", dim=DIM):
    location = jnp.asarray([[0.0] * dim, [3.0] * dim])
    components = Family(tail, df=8.0 if tail == "student" else None).components(location, jnp.full((2, dim), 0.5))
    return Mixture(components, jnp.log(jnp.asarray([0.3, 0.7])))


@pytest.mark.parametrize("tail", ["student", "normal"])
def test_what_is_given_has_most_of_the_weight(tail):
    context = make_context(quadratic())
    begun, state = from_target(make_context(quadratic())), from_given(context, given_mixture(tail).with_capacity(5))
    num = len(begun.mixture.log_weights)
    # Free slots are left out, and a Normal becomes a Student-t with many degrees of freedom.
    assert len(state.mixture.log_weights) == num + 2
    np.testing.assert_allclose(state.mixture.weights[num:], [0.27, 0.63])
    np.testing.assert_allclose(state.mixture.weights[:num], 0.1 * begun.mixture.weights)
    np.testing.assert_array_equal(state.mixture.components.df[num:], 8.0 if tail == "student" else 200.0)
    np.testing.assert_allclose(state.mixture.components.spread.covariance()[num:], [0.5 * np.eye(DIM)] * 2)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(state.mixture))


def test_the_share_of_what_is_given_is_what_is_no_defence():
    tuning = Tuning(defence=Defence(share=0.5))
    state = from_given(make_context(quadratic(), tuning=tuning), given_mixture())
    assert state.mixture.weights[-2:].sum() == pytest.approx(0.5)


@pytest.mark.parametrize("family", ["normal", "student-diagonal", "normal-low-rank"])
def test_what_is_given_becomes_one_of_the_family(family):
    context = make_context(quadratic(), family)
    mixture = from_given(context, given_mixture()).mixture
    assert mixture.components.family_name == (family if "-" in family else f"{family}-full")
    assert mixture.components.tail == family.split("-")[0]
    np.testing.assert_allclose(mixture.components.spread.variance()[-2:], 0.5, rtol=1e-9)


def test_draws_that_are_given_are_fitted_to():
    known = gaussian(DIM)
    x = np.random.default_rng(0).multivariate_normal(known.mean, known.covariance, 3000)
    state = from_given(make_context(known.target), x)
    num = len(from_target(make_context(known.target)).mixture.log_weights)
    fitted = klover.mixtures.algebra.take(state.mixture, np.arange(num, len(state.mixture.log_weights)))
    error = np.sqrt(np.diagonal(known.covariance) / len(x))
    assert np.all(np.abs(fitted.mean() - known.mean) < 5 * error)
    # A Normal is fitted by a Student-t of many degrees of freedom; the density is the same to a hundredth of a nat.
    fresh = np.random.default_rng(1).multivariate_normal(known.mean, known.covariance, 3000)
    truth = np.asarray(known.target.log_prob(fresh)) - known.log_evidence
    assert abs(np.mean(truth - fitted.log_prob(fresh))) < 0.02


def test_given_modes_are_found_by_splits():
    means = np.array([[-30.0, 0.0], [30.0, 0.0]])
    known = gaussian_mixture(means, (0.4, 0.6), 0.7)
    rng = np.random.default_rng(0)
    x = means[(rng.uniform(size=2000) < 0.6).astype(int)] + 0.7 * rng.normal(size=(2000, DIM))
    state = from_given(make_context(known.target), x)
    right = state.mixture.components.location[:, 0] > 20
    left = state.mixture.components.location[:, 0] < -20
    assert state.mixture.weights[right].sum() == pytest.approx(0.9 * 0.6, abs=0.05)
    assert state.mixture.weights[left].sum() == pytest.approx(0.9 * 0.4, abs=0.05)


def test_a_start_of_another_dimension_is_refused():
    with pytest.raises(ValueError, match="start must have the target's dimension, 2, got 3"):
        from_given(make_context(quadratic()), given_mixture(dim=3))


def test_draws_outside_of_the_support_are_left_out_or_refused():
    target = Target(lambda x: jnp.where(x[0] > 0, -0.5 * jnp.sum(x**2), -jnp.inf), jnp.ones(DIM))
    x = np.random.default_rng(0).normal(size=(400, DIM))
    state = from_given(make_context(target), x)
    assert np.all(np.isfinite(state.mixture.components.location))
    with pytest.raises(ValueError, match=r"two or more draws in the support .* finite at 1 of 200"):
        from_given(make_context(target), np.concatenate([-np.abs(x[:199]), np.ones((1, DIM))]))


def test_draws_of_weight_zero_do_not_count():
    x = np.random.default_rng(0).normal(size=(400, DIM))
    weight = (np.arange(400) < 200).astype(float)
    stray = np.where(weight[:, None] > 0, x, x + 1e3)
    state = from_given(make_context(quadratic()), (stray, weight))
    assert np.abs(state.mixture.components.location).max() < 100


@pytest.mark.parametrize(
    "value",
    [0.0, 3.0],
)
def test_draws_that_do_not_vary_are_named(value):
    x = np.random.default_rng(0).normal(size=(100, DIM))
    x[:, 1] = value
    with pytest.raises(ValueError, match=r"got x\[1\] the same in all 100 that count"):
        from_given(make_context(quadratic()), x)
