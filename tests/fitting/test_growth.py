import dataclasses
import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from klover.fitting import em, growth
from klover.fitting.growth import Rules, fit, fit_best, grow, score
from klover.fitting.sample import Sample, equal
from klover.fitting.splits import num_parameters
from klover.mixtures.algebra import join, take
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.tuning import Growth
from planar import DIM, FAMILIES, exact_draws, make_mixture, one_component, three_parts

SEEDS = st.integers(0, 2**32 - 1)
RULES = Rules(64)
all_families = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
both_tails = pytest.mark.parametrize("tail", ["normal", "student"])
few_examples = settings(max_examples=5)


def weighted_draws(rng, num_draws: int = 120) -> Sample:
    x = rng.choice([-2.0, 3.0], (num_draws, 1)) + rng.standard_t(5, (num_draws, DIM))
    return Sample(x, rng.dirichlet(np.ones(num_draws)), log_p=stats.norm.logpdf(x, 0, 3).sum(1))


def assert_same(first: Mixture, second: Mixture):
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(one, other)


@all_families
def test_score_is_the_weighted_mean_log_density(family):
    mixture, sample = make_mixture(family), weighted_draws(np.random.default_rng(0))
    assert score(mixture, sample) == pytest.approx(np.average(mixture.log_prob(sample.x), weights=sample.weight))


def test_score_is_finite_where_the_density_is_not():
    mixture = make_mixture(FAMILIES["normal-full"])
    with np.errstate(over="ignore"):
        assert np.isfinite(score(mixture, equal(np.array([[0.0, 0.0], [1e200, 0.0]]), np.zeros(2))))


@all_families
@given(seed=SEEDS, pull=st.sampled_from([1.0, 100.0]))
@few_examples
def test_fit_raises_the_score(family, pull, seed):
    # The pull is to where the covariances are, so that whatever it costs has been gained.
    sample, mixture = weighted_draws(np.random.default_rng(seed)), make_mixture(family, seed=seed % 100)
    scores = [score(mixture, sample)]
    for _ in range(3):
        mixture = fit(mixture, sample, RULES, pull, 2)
        scores.append(score(mixture, sample))
    assert np.all(np.diff(scores) > -1e-9)
    assert scores[1] > scores[0]


def test_fit_drops_components_without_draws():
    location = np.array([[0.0, 0.0], [1e4, 1e4]])
    mixture = Mixture.of(FAMILIES["normal-full"].components(location, np.ones((2, DIM))))
    fitted = fit(mixture, equal(np.random.default_rng(0).normal(size=(50, DIM)), np.zeros(50)), RULES)
    assert len(fitted.log_weights) == 1
    np.testing.assert_allclose(fitted.weights, 1.0)


def test_a_stronger_pull_keeps_covariances_where_they_were():
    sample, start = weighted_draws(np.random.default_rng(0)), make_mixture(FAMILIES["normal-full"], (1.0,))
    before = start.components.spread.covariance()
    moved = [
        np.linalg.norm(fit(start, sample, RULES, pull).components.spread.covariance() - before)
        for pull in (0.1, 1.0, 10.0, 1e3)
    ]
    assert np.all(np.diff(moved) < 0)
    assert moved[-1] < 0.1 * moved[0]


@pytest.mark.parametrize("family", [FAMILIES["normal-full"], FAMILIES["student-low-rank"]], ids=["full", "low-rank"])
@given(seed=SEEDS)
@few_examples
def test_best_fit_never_lowers_the_held_out_score(family, seed):
    rng = np.random.default_rng(seed)
    train, test, mixture = weighted_draws(rng, 15), weighted_draws(rng), make_mixture(family, seed=seed % 100)
    pull, fitted = fit_best(mixture, train, test, RULES)
    best = score(fitted, test)
    assert best >= score(mixture, test)
    assert best >= max(score(fit(mixture, train, RULES, choice), test) for choice in RULES.tuning.pulls)
    assert (pull == np.inf) == (fitted is mixture)


def test_a_mixture_that_every_fit_would_spoil_is_left_as_it_is():
    truth = three_parts("normal")
    stray = equal(np.random.default_rng(0).normal(8.0, 0.1, (10, DIM)), np.zeros(10))
    test = exact_draws(truth, 500)
    pull, fitted = fit_best(truth, stray, test, RULES)
    assert pull == np.inf
    assert fitted is truth


def test_best_fit_of_many_draws_tries_one_pull(monkeypatch):
    pulls = []
    monkeypatch.setattr(growth, "fit", lambda mixture, sample, rules, pull: pulls.append(pull) or mixture)
    mixture = three_parts("normal")
    sample = exact_draws(mixture, 400)
    fit_best(mixture, sample, sample, RULES)
    assert pulls == [1.0]
    pulls.clear()
    fit_best(mixture, sample.where(np.arange(400) < 100), sample, RULES)
    assert pulls == list(RULES.tuning.pulls)


@all_families
def test_gain_of_a_deletion_is_the_difference_of_scores(family):
    # Components that overlap: where one has all of the responsibility, the rest of it is lost to rounding.
    location = np.array([[-1.0, 0.0], [1.0, 0.5], [0.0, 1.0]])
    mixture = Mixture(family.components(location, np.tile(2 * np.eye(DIM), (3, 1, 1))), np.log([0.5, 0.3, 0.2]))
    sample = exact_draws(mixture, 200)
    responsibility, _, _ = em.responsibilities(mixture, sample)
    for slot in range(3):
        rest = take(mixture, np.delete(np.arange(3), slot))
        gain = sample.weight @ np.log1p(-responsibility[slot]) - np.log1p(-mixture.weights[slot])
        assert score(rest, sample) - score(mixture, sample) == pytest.approx(gain, rel=1e-9)


@all_families
@given(seed=SEEDS)
@few_examples
def test_deletions_stop_where_every_further_one_would_lose(family, seed):
    sample = weighted_draws(np.random.default_rng(seed))
    mixture = make_mixture(family, (0.3, 0.3, 0.2, 0.1, 0.1), seed % 100)
    left = growth.delete_useless(mixture, sample)
    num, best = len(left.log_weights), score(left, sample)
    assert best >= score(mixture, sample)
    if num > 1:
        others = [take(left, np.delete(np.arange(num), slot)) for slot in range(num)]
        assert best >= max(score(other, sample) for other in others)


@both_tails
def test_a_superfluous_component_is_deleted_and_the_others_are_kept(tail):
    mixture = three_parts(tail)
    sample = exact_draws(mixture, 1000)
    useless = Mixture.of(Family(tail, "full").components(np.array([[15.0, -15.0]]), np.eye(DIM)[None]))
    left = growth.delete_useless(join(mixture, useless, 0.05), sample)
    assert_same(left.components, mixture.components)
    np.testing.assert_allclose(left.log_weights, mixture.log_weights, atol=1e-12)
    assert growth.delete_useless(mixture, sample) is mixture


def test_the_last_component_is_never_deleted():
    mixture = make_mixture(weights=(1.0,))
    assert growth.delete_useless(mixture, equal(np.full((3, DIM), 50.0), np.zeros(3))) is mixture


def two_modes(separation: float = 3.0, num_draws: int = 800) -> tuple[Sample, Sample]:
    means = np.array([[-separation, 0.5], [separation, -0.5]])
    truth = Mixture.of(Family("normal", "full").components(means, np.tile(0.4 * np.eye(DIM), (2, 1, 1))))
    return exact_draws(truth, num_draws, 0), exact_draws(truth, num_draws, 1)


@functools.cache
def grown(tail: str, seed: int) -> tuple[Mixture, Sample]:
    sample = exact_draws(three_parts(tail), 3000, seed)
    return grow(np.random.default_rng(seed), one_component(sample, tail), sample, Rules(6), 8), sample


@both_tails
@pytest.mark.parametrize("seed", range(3))
def test_growth_on_exact_draws_comes_as_near_to_the_truth_as_estimation_can(tail, seed):
    truth, (mixture, sample) = three_parts(tail), grown(tail, seed)
    fresh = exact_draws(truth, 20_000, 100 + seed)
    gap = fresh.log_p - mixture.log_prob(fresh.x)
    # Half a parameter for each draw is what maximum likelihood costs on average (Wilks); it is doubled here.
    cost = 6 * (num_parameters(DIM) + 2) / len(sample)
    assert gap.mean() < cost + 5 * gap.std() / np.sqrt(len(fresh))
    # On its own draws the fit may be better than the truth, and by as much.
    assert abs(score(mixture, sample) - sample.weight @ sample.log_p) < cost


@given(max_components=st.integers(1, 6), seed=SEEDS)
@settings(max_examples=8)
def test_growth_never_exceeds_the_largest_number_of_components(max_components, seed):
    sample = weighted_draws(np.random.default_rng(seed), 400)
    mixture = grow(np.random.default_rng(seed), one_component(sample), sample, Rules(max_components), 6)
    assert 1 <= len(mixture.log_weights) <= max_components
    np.testing.assert_allclose(mixture.weights.sum(), 1.0)


def test_growth_follows_the_seed():
    mixture, sample = grown("normal", 0)
    start = one_component(sample, "normal")
    assert_same(grow(np.random.default_rng(0), start, sample, Rules(6), 8), mixture)
    other = grow(np.random.default_rng(1), start, sample, Rules(6), 8)
    assert other.log_weights.shape != mixture.log_weights.shape or np.any(other.log_weights != mixture.log_weights)


def test_growth_without_rounds_is_a_fit():
    train, _ = two_modes()
    start = one_component(train)
    mixture = grow(np.random.default_rng(0), start, train, Rules(10), 0)
    assert len(mixture.log_weights) == 1
    assert score(mixture, train) > score(start, train)


def test_growth_deletes_what_nothing_needs():
    sample = exact_draws(three_parts("student"), 1000)
    useless = Mixture.of(FAMILIES["student-full"].components(np.array([[15.0, -15.0]]), np.eye(DIM)[None]))
    mixture = grow(np.random.default_rng(0), join(three_parts("student"), useless, 0.5), sample, Rules(4), 0)
    assert len(mixture.log_weights) == 3


def test_two_draws_are_enough_to_grow_on():
    sample = equal(np.array([[0.0, 0.0], [1.0, 2.0]]), np.zeros(2))
    for seed in range(5):  # with most seeds both draws are on one side
        grown = grow(np.random.default_rng(seed), make_mixture(), sample, Rules(4), 2)
        assert np.isfinite(grown.log_prob(sample.x)).all()


@pytest.mark.parametrize("is_df_fitted", [True, False])
def test_degrees_of_freedom_move_only_where_the_rules_say_so(is_df_fitted):
    train, _ = two_modes()
    start = one_component(train)
    grown = grow(np.random.default_rng(0), start, train, Rules(4, is_df_fitted), 2)
    assert len(grown.log_weights) > 1
    assert np.all(grown.components.df == start.components.df[0]) == (not is_df_fitted)


@both_tails
def test_a_mixture_without_a_residual_mostly_stays_as_it_is(tail):
    truth, nums = three_parts(tail), []
    for seed in range(6):
        sample = exact_draws(truth, 1000, seed)
        mixture = grow(np.random.default_rng(seed), truth, sample, Rules(10), 2)
        nums.append(len(mixture.log_weights))
        fresh = exact_draws(truth, 5000, 100 + seed)
        gap = fresh.log_p - mixture.log_prob(fresh.x)
        # What held-out draws like by chance costs no more than its parameters (Wilks; doubled).
        cost = nums[-1] * (num_parameters(DIM) + 2) / len(sample)
        assert gap.mean() < cost + 5 * gap.std() / np.sqrt(len(fresh))
    assert np.median(nums) == 3


def test_the_numbers_of_the_rules_are_used(monkeypatch):
    train, _ = two_modes()
    start, judges = one_component(train), []

    def watched(mixture, train, test, rules):
        judges.append(len(test) / (len(train) + len(test)))
        return fit_best(mixture, train, test, rules)

    def grown(**changes):
        return grow(np.random.default_rng(0), start, train, Rules(8, True, dataclasses.replace(Growth(), **changes)))

    monkeypatch.setattr(growth, "fit_best", watched)
    assert len(grown().log_weights) > 1
    assert len(grown(split_rounds=0).log_weights) == 1
    grown(held_out=0.5)
    # Each draw is held out by chance: the error of a share of 800 is at most 0.018.
    np.testing.assert_allclose(judges, [0.25, 0.25, 0.5], atol=5 * 0.018)
    few, many = (fit(start, train, Rules(8, True, Growth(em_steps=steps))) for steps in (1, 30))
    assert score(many, train) > score(few, train)


def test_growth_that_held_out_draws_do_not_confirm_leaves_all_as_it_is():
    truth = three_parts("normal")
    sample = exact_draws(truth, 200)
    grown = grow(np.random.default_rng(0), truth, sample, RULES, 0)
    assert len(grown.log_weights) == 3
    # A few draws of a truth say little against it: means stay within their errors.
    assert score(grown, exact_draws(truth, 5000, 1)) > score(truth, exact_draws(truth, 5000, 1)) - 0.1
