import pickle

import jax
import numpy as np
import pytest
from scipy import special, stats

import klover
from klover.verdict.status import Status

TURN = 2 * np.pi
LOWER, WIDTH = np.array([-3.0, 0.0]), np.array([10.0, 2.0])


def stretch(u):
    return LOWER + WIDTH * u


def bell(x):
    """Return the log density of independent Normals around (1, 1) with standard deviations 0.5."""
    return stats.norm.logpdf(x, 1.0, 0.5).sum(-1)


def ring(x):
    """Return a von Mises density around 0 in the first coordinate, and fall off from the edge in the second."""
    return 50 * (np.cos(x[..., 0]) - 1) - 1000 * x[..., 1]


def test_the_density_is_prior_times_likelihood_and_people_read_parameters():
    target = klover.from_prior_transform(bell, stretch, 2, names=["a", "b"])
    x = np.random.default_rng(0).normal(size=(7, 2))
    parameters = stretch(special.ndtr(x))
    np.testing.assert_allclose(target.flat_position(x), parameters, rtol=1e-12)
    np.testing.assert_allclose(target.log_prob(x), bell(parameters) + stats.norm.logpdf(x).sum(1), rtol=1e-12)
    assert target.names == ("a", "b")
    again = pickle.loads(pickle.dumps(target))
    np.testing.assert_array_equal(again.log_prob(x), target.log_prob(x))


def test_a_periodic_coordinate_is_the_angle_of_a_uniform_direction():
    target = klover.from_prior_transform(bell, lambda u: u, 2, names=["a", "b"], periodic=["b"], vectorized=True)
    assert target.dim == 3
    draws = target.model_info.prior(jax.random.key(0), 20_000)
    a, b = target.flat_position(draws).T
    assert stats.kstest(a, "uniform").pvalue > 1e-3
    assert stats.kstest(b, "uniform").pvalue > 1e-3
    # From just below a full turn to just above it is a small step, and no number is 0 or 1.
    near = np.array([[0.0, 1.0, -1e-3], [0.0, 1.0, 1e-3], [0.0, 1.0, -1e-300], [-99.0, 1.0, 0.0], [99.0, 1.0, 0.0]])
    u = target.flat_position(near)
    np.testing.assert_allclose(u[:2, 1], [1 - 1e-3 / TURN, 1e-3 / TURN], rtol=1e-6)
    assert np.all((u > 0) & (u < 1))


@pytest.mark.parametrize(
    ("loglike", "periodic", "log_evidence"),
    [
        (bell, None, -np.log(20.0) + np.log(np.diff(stats.norm.cdf([0.0, 2.0], 1.0, 0.5))[0])),
        (ring, [0], np.log(special.i0e(50)) - np.log(1000)),
    ],
)
def test_evidence_is_the_likelihood_averaged_over_the_prior(loglike, periodic, log_evidence):
    transform = stretch if loglike is bell else lambda u: u * [TURN, 1.0]
    fit = klover.refine(0, klover.from_prior_transform(loglike, transform, 2, periodic=periodic, vectorized=True))
    assert fit.verdict.trusted
    assert abs(fit.log_evidence - log_evidence) < 4 * fit.log_evidence_se
    assert fit.log_evidence_se < 0.01


def test_a_posterior_too_close_to_an_edge_is_refused():
    target = klover.from_prior_transform(lambda x: -1e17 * (1 - x[..., 0]), lambda u: u, 1, vectorized=True)
    assert klover.refine(0, target).verdict.status is Status.COARSE_NUMBERS


@pytest.mark.parametrize("vectorized", [False, True])
def test_parameters_that_are_no_numbers_are_not_evaluated(vectorized):
    seen = []

    def loglike(x):
        seen.append(np.isfinite(x).all())
        return bell(x)

    def transform(u):
        return np.where(u > 0.9, np.inf, u)

    target = klover.from_prior_transform(loglike, transform, 2, vectorized=vectorized)
    values = target.log_prob(np.array([[0.0, 0.0], [0.0, 5.0], [1.0, -1.0]]))
    np.testing.assert_array_equal(np.isnan(values), [False, True, False])
    assert all(seen)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ndim": 0}, "ndim"),
        ({"prior_transform": lambda u: u[:1]}, r"prior_transform must return real numbers of shape \(2,\)"),
        ({"prior_transform": lambda u: u / 0}, "prior_transform must return finite numbers"),
        ({"loglike": lambda x: x}, r"must return real numbers of shape \(\)"),
        ({"names": ["a"]}, "names must hold 2 names"),
        ({"periodic": [2]}, "periodic must hold indices from 0 to 1"),
        ({"periodic": ["phi"]}, "names among"),
        ({"start": [0.5, 1.0]}, "start must be a point of 2 numbers inside the unit cube"),
        ({"bounds": (0, 1)}, "takes no bounds"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_bad_input(changes, words):
    arguments = {"loglike": bell, "prior_transform": stretch, "ndim": 2} | changes
    with pytest.raises((TypeError, ValueError), match=words):
        klover.from_prior_transform(**arguments)
