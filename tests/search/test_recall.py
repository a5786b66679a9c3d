"""The search tested on known modes: against searches that are really made."""

import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.mixtures.algebra import mixture_of
from klover.search.recall import MOST_PARTS, Part, modes_of, num_apart, recall, relative_width, standing
from klover.search.region import Region

NONE = np.zeros((0, 2))


def part(x, scale, mass, dim=2):
    return Part(np.full(dim, float(x)), scale**2 * np.eye(dim), float(np.log(mass)))


def mixture_of_parts(parts):
    family = klover.Family("normal")
    x, shape = np.stack([each.x for each in parts]), np.stack([each.covariance for each in parts])
    return mixture_of(family, x, shape, np.inf, np.exp([each.log_mass for each in parts]))


def run_test(parts, num_starts=50, num_draws=100, box=None, seed=0):
    dim = len(parts[0].x)
    target = klover.Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(dim), box=box)
    generator = np.random.default_rng(seed)
    return recall(generator, Region(target), mixture_of_parts(parts), parts, np.zeros((0, dim)), num_starts, num_draws)


def test_equal_modes_near_each_other_would_be_found():
    assert run_test((part(0.0, 1.0, 0.5), part(6.0, 1.0, 0.5))) > 0.999


def test_a_needle_would_not():
    needle = part(6.0, 1e-4, 0.5)
    assert run_test((part(0.0, 1.0, 0.5), needle)) < 0.5


def test_the_hardest_of_the_known_modes_counts():
    parts = part(0.0, 1.0, 0.4), part(6.0, 1.0, 0.3), part(-6.0, 1e-4, 0.3)
    assert run_test(parts) < 0.5


def test_a_box_and_more_starts_help():
    parts = part(0.0, 1.0, 0.5), part(40.0, 0.3, 0.5)
    box = np.full(2, -10.0), np.full(2, 50.0)
    assert run_test(parts, num_starts=1, num_draws=1) < 0.99
    assert run_test(parts, num_starts=50, num_draws=1, box=box) > 0.99


@pytest.mark.parametrize("dim", [3, 8])
def test_more_modes_than_the_test_takes_are_no_problem(dim):
    parts = tuple(part(7.0 * number, 1.0, 0.1, dim) for number in range(MOST_PARTS + 3))
    assert 0 <= run_test(parts, num_starts=20) <= 1


def test_components_on_one_hill_are_one_mode():
    hill, bump, far, faint = part(0.0, 1.0, 0.5), part(0.5, 0.8, 0.2), part(8.0, 1.0, 0.295), part(-9.0, 1.0, 0.005)
    modes = modes_of(mixture_of_parts((bump, far, hill, faint)), 0.01)
    assert [mode.x.tolist() for mode in modes] == [hill.x.tolist(), far.x.tolist()]
    np.testing.assert_allclose(np.exp([mode.log_mass for mode in modes]), [0.7, 0.295])
    np.testing.assert_allclose(modes[0].covariance, hill.covariance)


def test_a_ridge_is_one_mode_although_its_ends_are_far_apart():
    ridge = tuple(part(1.5 * number, 1.0, 0.125) for number in range(8))
    assert len(modes_of(mixture_of_parts(ridge), 0.01)) == 1
    gap = ridge[:3] + ridge[5:]
    assert len(modes_of(mixture_of_parts(gap), 0.01)) == 2


@pytest.mark.parametrize(
    ("parts", "num"),
    [
        ((part(0.0, 1.0, 0.5), part(0.5, 0.8, 0.2), part(0.2, 3.0, 0.3)), 1),
        ((part(0.0, 1.0, 0.5), part(1.5, 1.0, 0.3), part(3.0, 1.0, 0.2)), 2),
        ((part(0.0, 1.0, 0.995), part(9.0, 1.0, 0.005)), 1),
        ((part(0.0, 3.0, 0.9), part(3.0, 0.5, 0.05), part(-3.0, 0.5, 0.05)), 2),
        ((part(0.0, 1.0, 1.0),), 1),
    ],
    ids=["hill", "touching", "light", "flanks", "one"],
)
def test_components_of_one_hill_that_lie_far_apart_are_counted(parts, num):
    assert num_apart(mixture_of_parts(parts), 0.01) == num
    variances = [Part(each.x, np.diagonal(each.covariance), each.log_mass) for each in parts]
    assert num_apart(mixture_of_parts(variances), 0.01) == num


def log_cauchy(x):
    return -1.5 * np.log1p(np.sum(x**2, axis=1))


@pytest.mark.parametrize("has_variances", [False, True])
@pytest.mark.parametrize(
    ("log_prob", "parts", "stays"),
    [
        # Components of one heavy tail: the mixture dips between them, and the target does not.
        (log_cauchy, (part(0.0, 1.0, 0.9), part(30.0, 8.0, 0.1)), (0,)),
        (log_cauchy, (part(30.0, 8.0, 0.9), part(0.0, 1.0, 0.1)), (1,)),
        # True modes, the second seen a standard deviation beside its top.
        (
            lambda x: np.logaddexp(log_cauchy(x), log_cauchy(x - 30.0)),
            (part(0.0, 1.0, 0.5), part(31.0, 1.0, 0.5)),
            (0, 1),
        ),
        # A wide component between two modes is none, and does not make them one.
        (
            lambda x: np.logaddexp(log_cauchy(x - 30.0), log_cauchy(x + 30.0)),
            (part(-30.0, 1.0, 0.4), part(2.0, 20.0, 0.2), part(30.0, 1.0, 0.4)),
            (0, 2),
        ),
        # Outside of the support nothing stands.
        (lambda x: np.where(x[:, 0] < 20, log_cauchy(x), -np.inf), (part(0.0, 1.0, 0.9), part(30.0, 8.0, 0.1)), (0,)),
        (log_cauchy, (part(30.0, 1.0, 1.0),), (0,)),
    ],
    ids=["tail", "heavy_tail_first", "modes", "between", "outside", "one"],
)
def test_hills_of_the_mixture_that_the_target_does_not_have_are_no_modes(log_prob, parts, stays, has_variances):
    if has_variances:
        parts = tuple(Part(each.x, np.diagonal(each.covariance), each.log_mass) for each in parts)
    assert standing(log_prob, parts) == tuple(parts[place] for place in stays)


def test_modes_of_diagonal_covariances_have_variances():
    parts = tuple(Part(np.full(3, x), np.ones(3), float(np.log(0.5))) for x in (0.0, 9.0))
    assert [mode.covariance.shape for mode in modes_of(mixture_of_parts(parts), 0.01)] == [(3,), (3,)]


def test_the_narrowest_part_is_compared_with_the_widest():
    parts = part(0.0, 2.0, 0.5), part(6.0, 0.5, 0.2), part(9.0, 1.0, 0.3)
    assert relative_width(parts) == pytest.approx(0.25)
    assert relative_width(parts[:1]) == relative_width(()) == 1.0
    variances = tuple(Part(each.x, np.diagonal(each.covariance), each.log_mass) for each in parts)
    assert relative_width(variances) == pytest.approx(0.25)
