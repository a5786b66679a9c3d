import numpy as np
import pytest

from klover.base.linalg import moments
from klover.fitting import em
from klover.fitting.growth import Rules, fit, score
from klover.fitting.sample import Sample, equal
from klover.fitting.splits import num_parameters, split, split_all
from klover.mixtures.algebra import join
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from planar import DIM, FAMILIES, exact_draws, make_mixture, one_component, three_parts

RULES = Rules(64)
both_tails = pytest.mark.parametrize("tail", ["normal", "student"])


def split_once(mixture: Mixture, train: Sample, test: Sample, max_components: int) -> Mixture | None:
    room = max_components - len(mixture.log_weights)
    return split_all(mixture, train, test, room, lambda now, draws: fit(now, draws, RULES))


def two_modes(separation: float = 3.0, num_draws: int = 800) -> tuple[Sample, Sample]:
    means = np.array([[-separation, 0.5], [separation, -0.5]])
    truth = Mixture.of(Family("normal", "full").components(means, np.tile(0.4 * np.eye(DIM), (2, 1, 1))))
    return exact_draws(truth, num_draws, 0), exact_draws(truth, num_draws, 1)


@pytest.mark.parametrize(("dim", "expected"), [(1, 2), (2, 5), (10, 65)])
def test_number_of_parameters(dim, expected):
    assert num_parameters(dim) == dim + dim * (dim + 1) / 2 == expected


@both_tails
def test_splits_find_two_modes_in_one_component(tail):
    train, test = two_modes()
    truth, mixture = test.weight @ test.log_p, one_component(train, tail)
    scores = [score(mixture, test)]
    for _ in range(3):
        mixture = split_once(mixture, train, test, 6)
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
    responsibility, _, log_q = em.responsibilities(mixture, train)
    children = split(mixture, 0, train, train.log_p - log_q, responsibility[0])
    assert children is not None
    mass = responsibility[0] @ train.weight
    assert children.weights.sum() == pytest.approx(mass)
    # The median halves the responsibility, but for the one draw that it goes through.
    assert np.all(np.abs(children.weights / mass - 0.5) < 0.01)
    assert np.prod(children.components.location[:, 0]) < 0


def test_a_flat_residual_has_no_direction():
    mixture = three_parts("student")
    sample = exact_draws(mixture, 500)
    responsibility, _, log_q = em.responsibilities(mixture, sample)
    for slot in range(3):
        assert split(mixture, slot, sample, np.zeros(500), responsibility[slot]) is None
        # Rounding may give it one: the children are then halves like any others, for held-out draws to judge.
        children = split(mixture, slot, sample, sample.log_p - log_q, responsibility[slot])
        if children is not None:
            assert children.weights.sum() == pytest.approx(responsibility[slot] @ sample.weight)
            assert np.isfinite(children.log_prob(sample.x)).all()


def test_one_heavy_draw_is_no_child():
    train = exact_draws(three_parts("normal"), 40)
    mixture, weight = one_component(train), np.full(40, 0.4 / 39)
    weight[np.argmin(train.x[:, 0])] = 0.6
    sample = Sample(train.x, weight, log_p=train.log_p)
    # The residual is tilted along the first axis, at whose end the heavy draw is.
    assert split(mixture, 0, sample, train.x[:, 0], np.ones(40)) is None


def test_components_with_few_draws_are_not_split():
    train, test = two_modes(num_draws=6)
    assert split_once(one_component(train), train, test, 10) is None


@pytest.mark.parametrize("name", ["student-diagonal", "normal-low-rank"])
def test_only_full_covariances_are_split(name):
    train, test = two_modes()
    assert split_once(make_mixture(FAMILIES[name], (1.0,)), train, test, 10) is None


def test_no_split_without_room():
    train, test = two_modes()
    assert split_once(one_component(train), train, test, 1) is None


@pytest.mark.parametrize("max_components", [3, 4, 5, 6, 9])
def test_best_splits_come_first_where_there_is_room_for_few(max_components):
    # Each of three components stands for two parts of six.
    angle = np.arange(6) * np.pi / 3
    location = 6 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    truth = Mixture.of(FAMILIES["normal-full"].components(location, np.full((6, DIM), 0.5)))
    train, test = exact_draws(truth, 2000, 0), exact_draws(truth, 2000, 1)
    pairs = 0.5 * (location[::2] + location[1::2])
    start = fit(Mixture.of(FAMILIES["normal-full"].components(pairs, np.full((3, DIM), 4.0))), train, RULES)
    after = split_once(start, train, test, max_components)
    if max_components == 3:
        assert after is None
    else:
        assert after is not None
        assert len(after.log_weights) == min(max_components, 6)
        assert score(after, test) > score(start, test)


def test_splits_that_held_out_draws_do_not_confirm_are_taken_back():
    # Two modes far from one that is a Normal already: the split of the latter must not stay.
    means = np.array([[-30.0, 0.0], [3.0, 0.5], [-3.0, -0.5]])
    truth = Mixture(
        Family("normal", "full").components(means, np.tile(0.4 * np.eye(DIM), (3, 1, 1))), np.log([0.5, 0.25, 0.25])
    )
    train, test = exact_draws(truth, 2000, 0), exact_draws(truth, 2000, 1)
    pair = train.where(train.x[:, 0] > -15)
    whole = one_component(pair, "normal")
    single = Mixture.of(Family("normal", "full").components(means[:1], 0.4 * np.eye(DIM)[None]))
    mixture = join(whole, single, 0.5)
    after = split_once(mixture, train, test, 10)
    assert after is not None
    far = after.components.location[:, 0] < -15
    assert (far.sum(), len(far)) == (1, 3)


def test_where_no_split_is_confirmed_all_are_kept():
    train, test = two_modes()
    mixture = one_component(train)
    # A fit that makes all worse: nothing is confirmed.
    worse = Mixture.of(Family("student", "full").components(np.full((2, DIM), 50.0), np.ones((2, DIM))))
    assert split_all(mixture, train, test, 5, lambda now, draws: worse) is worse
    assert split_all(mixture, train, test, 0, lambda now, draws: worse) is None


def test_children_keep_the_tail_of_their_parent():
    train, _ = two_modes()
    for tail, df in (("normal", np.inf), ("student", 7.5)):
        mean, covariance = moments(train.x, train.weight)
        family = Family(tail, "full", df=None if tail == "normal" else df)
        mixture = Mixture.of(family.components(mean[None], covariance[None]))
        residual = train.log_p - mixture.log_prob(train.x)
        children = split(mixture, 0, train, residual, np.ones(len(train)))
        assert children is not None
        assert children.components.tail == tail
        np.testing.assert_array_equal(children.components.df, [df, df])


@pytest.mark.parametrize("shape", ["tilted", "bent"])
def test_a_component_is_split_where_its_residual_has_structure(shape):
    # A round component, and a residual along the second axis alone.
    x = np.random.default_rng(0).normal(size=(4000, DIM))
    mixture = Mixture.of(Family("normal", "full").components(np.zeros((1, DIM)), np.eye(DIM)[None]))
    residual = 0.5 * (x[:, 1] if shape == "tilted" else x[:, 1] ** 2)
    children = split(mixture, 0, equal(x, residual), residual, np.ones(len(x)))
    assert children is not None
    gap = np.abs(np.diff(children.components.location, axis=0))[0]
    # Halves of a Normal have their means at ±√(2/π).
    assert gap[1] == pytest.approx(2 * np.sqrt(2 / np.pi), rel=0.05)
    # Across, the difference of two means of 2000 draws each, and as much for the direction: five errors.
    assert gap[0] < 5 * np.sqrt(2) * np.sqrt(2 / 2000)
