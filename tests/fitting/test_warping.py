import numpy as np
import pytest

from coordinates import draw_banana, draw_funnel, draw_product, equal_weights
from helpers import correlated_covariance
from klover.fitting.growth import Rules
from klover.fitting.sample import Sample
from klover.fitting.warping import behind, choose, matched, mismatch
from klover.mixtures.algebra import mixture_of
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.warps.linear import decorrelate
from klover.warps.triangular import Triangular
from klover.warps.warp import fit_warp
from klover.warps.warped import WarpedMixture

FAMILY, RULES = Family("student"), Rules(4)
ROTATION = np.linalg.qr(np.random.default_rng(3).normal(size=(4, 4)))[0]
NUM = 6000
CONSTANT = 3.0
"""What the log densities of samples are too large by."""


def log_funnel(x):
    return -0.5 * ((x[:, 0] / 1.5) ** 2 + (x[:, 1:] ** 2).sum(1) * np.exp(-x[:, 0]) + (x.shape[1] - 1) * x[:, 0])


def log_product(x):
    """Return the log density of :func:`coordinates.draw_product` in four dimensions."""
    gamma = np.pi / np.sqrt(6) * x[:, 1] - np.euler_gamma
    each = [-column + np.where(column >= -1, 0.0, -50.0) for column in (x[:, 0], x[:, 3])]
    return sum(each) + gamma - np.exp(gamma) - np.sqrt(2) * np.abs(x[:, 2])


def log_banana(x):
    return -0.5 * (((x[:, 0] - x[:, 1] ** 2) / 0.3) ** 2 + x[:, 1] ** 2 + x[:, 2] ** 2)


CASES = {
    "funnel": (draw_funnel(NUM, 5), log_funnel),
    "banana": (draw_banana(NUM), log_banana),
    "product": (draw_product(NUM, 4), log_product),
}


def sample_of(name):
    x, log_density = CASES[name]
    return Sample(x, equal_weights(len(x)), log_p=log_density(x))


def one_component(x):
    covariance = np.cov(x.T)
    return mixture_of(FAMILY, x.mean(0)[None], covariance[None], 10.0, np.ones(1))


def gaussian_mixture(num, dim=4):
    """Return a mixture of two Normals, and draws of it."""
    location = np.array([[-2.0] * dim, [2.0] * dim])
    covariance = np.stack([correlated_covariance(dim, seed) for seed in (0, 1)])
    mixture = mixture_of(Family("normal"), location, covariance, np.inf, np.array([0.4, 0.6]))
    x = mixture.draw(np.random.default_rng(0), num)
    return mixture, Sample(x, equal_weights(num), log_p=mixture.log_prob(x) + CONSTANT)


def choice(sample, mixture=None, warp=None, seed=0):
    mixture = mixture or one_component(np.asarray(sample.x))
    return choose(np.random.default_rng(seed), FAMILY, mixture, warp, sample, RULES)


@pytest.mark.parametrize("seed", range(3))
def test_no_warp_is_taken_where_the_mixture_is_right(seed):
    mixture, sample = gaussian_mixture(4000)
    fitted, warp = choice(sample, mixture, seed=seed)
    assert warp is None
    assert isinstance(fitted, Mixture)
    # What was right stays right: the mismatch is that of estimated parameters.
    assert mismatch(fitted, sample) - CONSTANT < 0.05


@pytest.mark.parametrize("name", ["funnel", "banana"])
def test_leads_are_taken_where_something_leads(name):
    mixture, warp = choice(sample_of(name))
    assert warp is not None
    assert isinstance(warp.layers[0], Triangular)
    assert len(mixture.log_weights) == 1


def test_independent_coordinates_are_taken_for_a_rotated_product():
    plain = sample_of("product")
    rotated = Sample(np.asarray(plain.x) @ ROTATION.T, plain.weight, log_p=plain.log_p)
    _, warp = choice(rotated)
    # The first layer undoes the rotation: an entry of each row stands out.
    product = np.abs(warp.layers[0].matrix @ ROTATION)
    assert not isinstance(warp.layers[0], Triangular)
    assert sorted(product.argmax(1)) == [0, 1, 2, 3]
    assert np.sort(product, axis=1)[:, -2].max() < 0.2


def test_marginals_are_enough_for_a_product():
    sample = sample_of("product")
    _, warp = choice(sample)
    assert warp is not None
    assert warp.num_leads == 0
    # Coordinates stay apart, whether they were separated or only decorrelated.
    matrix = np.abs(warp.layers[0].matrix)
    assert sorted(matrix.argmax(1)) == [0, 1, 2, 3]
    assert np.sort(matrix, axis=1)[:, -2].max() < 0.2


def test_a_good_warp_stays():
    sample = sample_of("funnel")
    mixture, warp = choice(sample)
    assert choice(sample, mixture, warp, seed=1)[1] is warp


def test_a_warp_pays_on_fresh_draws():
    mixture, warp = choice(sample_of("funnel"))
    fresh = draw_funnel(NUM, 5, seed=9)
    sample = Sample(fresh, equal_weights(NUM), log_p=log_funnel(fresh))
    plain = one_component(CASES["funnel"][0])
    log_evidence = 2.5 * np.log(2 * np.pi) + np.log(1.5)
    found = [mismatch(one, each) - log_evidence for one, each in ((mixture, sample.in_base(warp)), (plain, sample))]
    assert found[0] < 0.15 < 0.5 < found[1]


def test_a_constant_in_the_log_density_changes_no_choice():
    sample = sample_of("funnel")
    shifted = Sample(sample.x, sample.weight, log_p=sample.log_p + 1000.0)
    (one, warp), (other, again) = choice(sample), choice(shifted)
    np.testing.assert_array_equal(one.components.location, other.components.location)
    np.testing.assert_array_equal(warp.layers[0].mean, again.layers[0].mean)


def test_a_constant_is_the_mismatch_of_the_target_itself_and_is_added_to_that_of_others():
    mixture, sample = gaussian_mixture(500)
    np.testing.assert_allclose(mismatch(mixture, sample), CONSTANT, atol=1e-9)
    other = one_component(np.asarray(sample.x))
    shifted = Sample(sample.x, sample.weight, log_p=sample.log_p - 700.0)
    np.testing.assert_allclose(mismatch(other, sample), mismatch(other, shifted) + 700.0, rtol=1e-9)


def test_mismatch_grows_with_distance():
    mixture, sample = gaussian_mixture(500)
    x = np.asarray(sample.x)
    found = [mismatch(one_component(x + shift), sample) for shift in (0.0, 1.0, 3.0)]
    assert CONSTANT < found[0] < found[1] < found[2]


def test_mismatch_is_the_logarithm_of_the_draws_for_an_effective_one():
    """For p = N(0, 1) and q = N(0, s²): E_p[p/q] = s² / √(2s² - 1)."""
    x = np.random.default_rng(0).normal(size=(200_000, 1))
    sample = Sample(x, equal_weights(len(x)), log_p=-0.5 * x[:, 0] ** 2 - 0.5 * np.log(2 * np.pi))
    wide = mixture_of(Family("normal"), np.zeros((1, 1)), np.full((1, 1, 1), 4.0), np.inf, np.ones(1))
    np.testing.assert_allclose(mismatch(wide, sample), np.log(4 / np.sqrt(7)), atol=0.005)


def test_a_draw_without_weight_says_nothing():
    mixture, sample = gaussian_mixture(500)
    weight = np.where(np.arange(500) < 400, 1 / 400, 0.0)
    some = Sample(np.asarray(sample.x)[:400], weight[:400], log_p=np.asarray(sample.log_p)[:400])
    other = one_component(np.asarray(sample.x))
    found = mismatch(other, Sample(sample.x, weight, log_p=sample.log_p))
    np.testing.assert_allclose(found, mismatch(other, some), atol=0.01)  # medians differ, and ratios are cut there


def test_mismatch_does_not_depend_on_coordinates():
    mixture, sample = gaussian_mixture(2000)
    warp = fit_warp("correlated", sample.x, sample.weight)
    inside = sample.in_base(warp)
    other = behind(FAMILY, inside, RULES)
    # The same density as the draws and the target are seen in the user's coordinates.
    log_ratio = np.asarray(sample.log_p) - WarpedMixture(other, warp).log_prob(np.asarray(sample.x))
    np.testing.assert_allclose(mismatch(other, inside), np.log(np.mean(np.exp(log_ratio))), rtol=1e-9)


def test_few_draws_tell_of_no_rotation():
    generator = np.random.default_rng(0)
    x = generator.laplace(size=(400, 30))
    sample = Sample(x, equal_weights(len(x)), log_p=-np.abs(x).sum(1))
    assert choose(generator, FAMILY, one_component(x), None, sample, RULES, ("independent",))[1] is None


def test_without_rounds_of_splits_a_mixture_does_not_grow():
    mixture, sample = gaussian_mixture(4000)
    single = one_component(np.asarray(sample.x))
    sizes = [
        len(choose(np.random.default_rng(0), FAMILY, single, None, sample, RULES, (), num)[0].log_weights)
        for num in (0, None)
    ]
    assert sizes[0] == 1 < sizes[1]


def test_one_draw_that_is_all_but_excluded_is_one_draw():
    mixture, sample = gaussian_mixture(500)
    log_p = np.array(sample.log_p)
    log_p[0] += 1e6
    # A factor of a thousand for one of 500 draws.
    found = mismatch(mixture, Sample(sample.x, sample.weight, log_p=log_p))
    np.testing.assert_allclose(found, CONSTANT + np.log((499 + 1000) / 500), rtol=1e-6)


def test_what_is_behind_a_warp_is_fitted_to_the_draws_there():
    sample = sample_of("funnel")
    warp = fit_warp("led", sample.x, sample.weight)
    mixture = behind(FAMILY, sample.in_base(warp), RULES)
    z = warp.to_base(np.asarray(sample.x))[0]
    assert len(mixture.log_weights) == 1
    np.testing.assert_allclose(mixture.components.location[0], z.mean(0), atol=5 / np.sqrt(NUM))
    white = decorrelate(z, sample.weight).matrix
    np.testing.assert_allclose(white, np.eye(5), atol=5 / np.sqrt(NUM))


def test_draws_tell_the_covariance_of_a_flat_body_with_steep_sides():
    """The scores of exp(-|x|²⁰) are large at its sides alone, and ask for a component that is too narrow."""
    generator, dim = np.random.default_rng(0), 4
    direction = generator.normal(size=(NUM, dim))
    radius = generator.gamma(dim / 20, size=NUM) ** (1 / 20)
    x = radius[:, None] * direction / np.linalg.norm(direction, axis=1)[:, None]
    sample = Sample(x, equal_weights(NUM), log_p=-(radius**20))

    def scores(x):
        return -20 * (x**2).sum(1)[:, None] ** 9 * x

    warp = fit_warp("correlated", x, sample.weight)
    z = warp.to_base(x)[0]
    narrow = matched(FAMILY, sample.in_base(warp), (z, warp.pull_back(z, scores(x))), RULES)
    assert np.all(np.diagonal(narrow.components.spread.covariance()[0]) < 0.7 * z.var(0))
    found, again = choose(generator, FAMILY, narrow, warp, sample, RULES, ("correlated",), 0, scores)
    z = again.to_base(x)[0]
    np.testing.assert_allclose(np.diagonal(found.components.spread.covariance()[0]), z.var(0), rtol=0.1)
