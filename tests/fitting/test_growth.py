import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from helpers import correlated_covariance
from klover.fitting import em, growth
from klover.fitting.growth import fit, fit_best, grow, score, split_all
from klover.fitting.sample import Sample, equal, moments
from klover.mixtures.algebra import join
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture

DIM = 2
SEEDS = st.integers(0, 2**32 - 1)
FAMILIES = {
    f"{tail}-{covariance}": Family(tail, covariance, rank=1)
    for tail in ("normal", "student")
    for covariance in ("full", "diagonal", "low-rank")
}
all_families = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
both_tails = pytest.mark.parametrize("tail", ["normal", "student"])
few_examples = settings(max_examples=5)


def make_mixture(family=FAMILIES["student-full"], weights=(0.5, 0.3, 0.2), seed: int = 0) -> Mixture:
    rng = np.random.default_rng(seed)
    covariance = np.stack([correlated_covariance(DIM, seed + slot) for slot in range(len(weights))])
    components = family.components(3 * rng.normal(size=(len(weights), DIM)), covariance)
    return Mixture(components, np.log(np.asarray(weights)))


def three_parts(tail: str) -> Mixture:
    means = np.array([[-4.0, 0.0], [4.0, 1.0], [0.0, 4.0]])
    covariance = np.stack([0.5 * correlated_covariance(DIM, seed) for seed in range(3)])
    components = Family(tail, "full", df=8.0 if tail == "student" else None).components(means, covariance)
    return Mixture(components, np.log([0.5, 0.3, 0.2]))


def exact_draws(mixture: Mixture, num_draws: int, seed: int = 0) -> Sample:
    x = mixture.draw(np.random.default_rng(seed), num_draws)
    return equal(x, mixture.log_prob(x))


def weighted_draws(rng, num_draws: int = 120) -> Sample:
    x = rng.choice([-2.0, 3.0], (num_draws, 1)) + rng.standard_t(5, (num_draws, DIM))
    return Sample(x, stats.norm.logpdf(x, 0, 3).sum(1), rng.dirichlet(np.ones(num_draws)))


def one_component(sample: Sample, tail: str = "student") -> Mixture:
    mean, covariance = moments(sample.x, sample.weight)
    return Mixture.of(Family(tail, "full").components(mean[None], covariance[None]))


def assert_same(first: Mixture, second: Mixture):
    for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(one, other)


@given(seed=SEEDS)
@few_examples
def test_samples_are_chosen_and_joined_by_weight(seed):
    rng = np.random.default_rng(seed)
    one, other = weighted_draws(rng), weighted_draws(rng, 50)
    assert (len(one), len(other)) == (120, 50)
    assert one.ess == pytest.approx(one.weight.sum() ** 2 / (one.weight**2).sum())
    both = one.join(other, 0.3)
    assert both.weight.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(both.weight @ both.x, 0.7 * one.weight @ one.x + 0.3 * other.weight @ other.x)
    chosen = np.arange(170) >= 120
    back = both.where(chosen)
    np.testing.assert_array_equal(back.x, other.x)
    np.testing.assert_array_equal(back.log_p, other.log_p)
    np.testing.assert_allclose(back.weight, other.weight, rtol=1e-12)


def test_equal_weights_are_all_effective():
    sample = equal(np.zeros((7, DIM)), np.zeros(7))
    np.testing.assert_allclose(sample.weight, 1 / 7)
    assert sample.ess == pytest.approx(7)


@all_families
@pytest.mark.parametrize("share", [0.25, 1e-9])
def test_density_of_joined_mixtures_is_the_mixed_density(family, share):
    first, second, x = (
        make_mixture(family),
        make_mixture(family, (0.6, 0.4), 5),
        np.random.default_rng(0).normal(size=(9, 2)),
    )
    joined = join(first, second, share)
    expected = np.logaddexp(np.log1p(-share) + first.log_prob(x), np.log(share) + second.log_prob(x))
    np.testing.assert_allclose(joined.log_prob(x), expected, rtol=1e-12)
    np.testing.assert_allclose(joined.weights.sum(), 1.0)


@all_families
def test_density_of_taken_components_is_conditional(family):
    mixture, x = make_mixture(family), np.random.default_rng(0).normal(size=(9, 2))
    log_joint = mixture.log_weights[:, None] + mixture.component_log_prob(x)
    for index in ([0], [2, 0], [1, 2], [0, 1, 2]):
        taken = growth.take(mixture, np.array(index))
        expected = special.logsumexp(log_joint[index], axis=0) - np.log(mixture.weights[index].sum())
        np.testing.assert_allclose(taken.log_prob(x), expected, rtol=1e-12)
    assert_same(growth.take(join(mixture, mixture, 0.5), np.arange(3)).components, mixture.components)


@given(seed=SEEDS, num_draws=st.integers(2, 50))
@few_examples
def test_moments_are_those_of_the_weights_with_correlations_shrunk(seed, num_draws):
    rng = np.random.default_rng(seed)
    x, weight = rng.normal(size=(num_draws, 4)) * np.geomspace(1e-4, 1e4, 4), rng.dirichlet(np.ones(num_draws))
    mean, covariance = moments(x, 5 * weight)
    np.testing.assert_allclose(mean, np.average(x, axis=0, weights=weight), rtol=1e-9)
    plain = np.cov(x.T, aweights=weight, ddof=0)
    np.testing.assert_allclose(np.diagonal(covariance), np.diagonal(plain), rtol=1e-8)
    scale = np.sqrt(np.diagonal(plain))
    ratio = (covariance / plain)[np.triu_indices(4, 1)]
    # Four dimensions over the effective draws count as noise beside one.
    noise = 4 / (weight.sum() ** 2 / (weight**2).sum())
    np.testing.assert_allclose(ratio, 1 / (1 + noise), rtol=1e-6)
    assert np.linalg.eigvalsh(covariance / np.outer(scale, scale)).min() > 0


@pytest.mark.parametrize(("dim", "expected"), [(1, 2), (2, 5), (10, 65)])
def test_number_of_parameters(dim, expected):
    assert growth.num_parameters(dim) == dim + dim * (dim + 1) / 2 == expected


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
        mixture = fit(mixture, sample, pull, 2)
        scores.append(score(mixture, sample))
    assert np.all(np.diff(scores) > -1e-9)
    assert scores[1] > scores[0]


def test_fit_drops_components_without_draws():
    location = np.array([[0.0, 0.0], [1e4, 1e4]])
    mixture = Mixture.of(FAMILIES["normal-full"].components(location, np.ones((2, DIM))))
    fitted = fit(mixture, equal(np.random.default_rng(0).normal(size=(50, DIM)), np.zeros(50)))
    assert len(fitted.log_weights) == 1
    np.testing.assert_allclose(fitted.weights, 1.0)


def test_a_stronger_pull_keeps_covariances_where_they_were():
    sample, start = weighted_draws(np.random.default_rng(0)), make_mixture(FAMILIES["normal-full"], (1.0,))
    before = start.components.spread.covariance()
    moved = [
        np.linalg.norm(fit(start, sample, pull).components.spread.covariance() - before)
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
    best, pull, fitted = fit_best(mixture, train, test)
    assert best == pytest.approx(score(fitted, test))
    assert best >= score(mixture, test)
    assert best >= max(score(fit(mixture, train, choice), test) for choice in growth.PULLS)
    assert (pull == np.inf) == (fitted is mixture)


def test_a_mixture_that_every_fit_would_spoil_is_left_as_it_is():
    truth = three_parts("normal")
    stray = equal(np.random.default_rng(0).normal(8.0, 0.1, (10, DIM)), np.zeros(10))
    test = exact_draws(truth, 500)
    best, pull, fitted = fit_best(truth, stray, test)
    assert (pull, fitted) == (np.inf, truth)
    assert best == score(truth, test)


def test_best_fit_of_many_draws_tries_one_pull(monkeypatch):
    pulls = []
    monkeypatch.setattr(growth, "fit", lambda mixture, sample, pull: pulls.append(pull) or mixture)
    mixture = three_parts("normal")
    sample = exact_draws(mixture, 400)
    fit_best(mixture, sample, sample)
    assert pulls == [1.0]
    pulls.clear()
    fit_best(mixture, sample.where(np.arange(400) < 100), sample)
    assert pulls == list(growth.PULLS)


@all_families
def test_gain_of_a_deletion_is_the_difference_of_scores(family):
    # Components that overlap: where one has all of the responsibility, the rest of it is lost to rounding.
    location = np.array([[-1.0, 0.0], [1.0, 0.5], [0.0, 1.0]])
    mixture = Mixture(family.components(location, np.tile(2 * np.eye(DIM), (3, 1, 1))), np.log([0.5, 0.3, 0.2]))
    sample = exact_draws(mixture, 200)
    responsibility, _, _ = em.responsibilities(mixture, sample.without_target)
    for slot in range(3):
        rest = growth.take(mixture, np.delete(np.arange(3), slot))
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
        others = [growth.take(left, np.delete(np.arange(num), slot)) for slot in range(num)]
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


@both_tails
def test_splits_find_two_modes_in_one_component(tail):
    train, test = two_modes()
    truth, mixture = test.weight @ test.log_p, one_component(train, tail)
    scores = [score(mixture, test)]
    for _ in range(3):
        mixture = split_all(mixture, train, test, 6)
        assert mixture is not None
        scores.append(score(mixture, test))
    # One component over both modes lies three quarters of a nat below the truth, and more.
    assert scores[0] < truth - 0.75
    assert scores[1] > scores[0] + 0.05
    assert scores[-1] > truth - 0.05
    heavy = mixture.components.location[mixture.weights > 0.1]
    assert heavy[:, 0].min() < -2.5
    assert heavy[:, 0].max() > 2.5


def test_children_lie_on_both_sides_of_the_parent_and_share_its_weight():
    train, _ = two_modes()
    mixture = join(one_component(train, "normal"), make_mixture(FAMILIES["normal-full"], (1.0,), 3), 0.2)
    responsibility, _, log_q = em.responsibilities(mixture, train.without_target)
    children = growth.split(mixture, 0, train, train.log_p - log_q, responsibility[0])
    assert children is not None
    mass = responsibility[0] @ train.weight
    assert children.weights.sum() == pytest.approx(mass)
    # The median halves the responsibility, but for the one draw that it goes through.
    assert np.all(np.abs(children.weights / mass - 0.5) < 0.01)
    assert np.prod(children.components.location[:, 0]) < 0


def test_a_flat_residual_is_not_split():
    mixture = three_parts("student")
    sample = exact_draws(mixture, 500)
    responsibility, _, log_q = em.responsibilities(mixture, sample.without_target)
    for slot in range(3):
        assert growth.split(mixture, slot, sample, sample.log_p + 7.0 - log_q, responsibility[slot]) is None
    assert split_all(mixture, sample, sample, 10) is None


def test_one_heavy_draw_is_no_child():
    train = exact_draws(three_parts("normal"), 40)
    mixture, weight = one_component(train), np.full(40, 0.4 / 39)
    weight[np.argmin(train.x[:, 0])] = 0.6
    sample = Sample(train.x, train.log_p, weight)
    # The residual is tilted along the first axis, at whose end the heavy draw is.
    assert growth.split(mixture, 0, sample, train.x[:, 0], np.ones(40)) is None


def test_components_with_few_draws_are_not_split():
    train, test = two_modes(num_draws=6)
    assert split_all(one_component(train), train, test, 10) is None


@pytest.mark.parametrize("name", ["student-diagonal", "normal-low-rank"])
def test_only_full_covariances_are_split(name):
    train, test = two_modes()
    assert split_all(make_mixture(FAMILIES[name], (1.0,)), train, test, 10) is None


def test_no_split_without_room():
    train, test = two_modes()
    assert split_all(one_component(train), train, test, 1) is None


@pytest.mark.parametrize("max_components", [3, 4, 5, 6, 9])
def test_best_splits_come_first_where_there_is_room_for_few(max_components):
    # Each of three components stands for two parts of six.
    angle = np.arange(6) * np.pi / 3
    location = 6 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    truth = Mixture.of(FAMILIES["normal-full"].components(location, np.full((6, DIM), 0.5)))
    train, test = exact_draws(truth, 2000, 0), exact_draws(truth, 2000, 1)
    pairs = 0.5 * (location[::2] + location[1::2])
    start = fit(Mixture.of(FAMILIES["normal-full"].components(pairs, np.full((3, DIM), 4.0))), train)
    after = split_all(start, train, test, max_components)
    if max_components == 3:
        assert after is None
    else:
        assert after is not None
        assert len(after.log_weights) == min(max_components, 6)
        assert score(after, test) > score(start, test)


@functools.cache
def grown(tail: str, seed: int) -> tuple[Mixture, Sample]:
    sample = exact_draws(three_parts(tail), 3000, seed)
    return grow(np.random.default_rng(seed), one_component(sample, tail), sample, 6, 8), sample


@both_tails
@pytest.mark.parametrize("seed", range(3))
def test_growth_on_exact_draws_comes_as_near_to_the_truth_as_estimation_can(tail, seed):
    truth, (mixture, sample) = three_parts(tail), grown(tail, seed)
    fresh = exact_draws(truth, 20_000, 100 + seed)
    gap = fresh.log_p - mixture.log_prob(fresh.x)
    # Half a parameter for each draw is what maximum likelihood costs on average (Wilks); it is doubled here.
    cost = 6 * (growth.num_parameters(DIM) + 2) / len(sample)
    assert gap.mean() < cost + 5 * gap.std() / np.sqrt(len(fresh))
    # On its own draws the fit may be better than the truth, and by as much.
    assert abs(score(mixture, sample) - sample.weight @ sample.log_p) < cost


@given(max_components=st.integers(1, 6), seed=SEEDS)
@settings(max_examples=8)
def test_growth_never_exceeds_the_largest_number_of_components(max_components, seed):
    sample = weighted_draws(np.random.default_rng(seed), 400)
    mixture = grow(np.random.default_rng(seed), one_component(sample), sample, max_components, 6)
    assert 1 <= len(mixture.log_weights) <= max_components
    np.testing.assert_allclose(mixture.weights.sum(), 1.0)


def test_growth_follows_the_seed():
    mixture, sample = grown("normal", 0)
    start = one_component(sample, "normal")
    assert_same(grow(np.random.default_rng(0), start, sample, 6, 8), mixture)
    other = grow(np.random.default_rng(1), start, sample, 6, 8)
    assert other.log_weights.shape != mixture.log_weights.shape or np.any(other.log_weights != mixture.log_weights)


def test_growth_without_rounds_is_a_fit():
    train, _ = two_modes()
    start = one_component(train)
    mixture = grow(np.random.default_rng(0), start, train, 10, 0)
    assert len(mixture.log_weights) == 1
    assert score(mixture, train) > score(start, train)


def test_growth_deletes_what_nothing_needs():
    sample = exact_draws(three_parts("student"), 1000)
    useless = Mixture.of(FAMILIES["student-full"].components(np.array([[15.0, -15.0]]), np.eye(DIM)[None]))
    mixture = grow(np.random.default_rng(0), join(three_parts("student"), useless, 0.5), sample, 4, 0)
    assert len(mixture.log_weights) == 3


def test_two_draws_are_enough_to_grow_on():
    sample = equal(np.array([[0.0, 0.0], [1.0, 2.0]]), np.zeros(2))
    for seed in range(5):  # with most seeds both draws are on one side
        grown = grow(np.random.default_rng(seed), make_mixture(), sample, 4, 2)
        assert np.isfinite(grown.log_prob(sample.x)).all()
