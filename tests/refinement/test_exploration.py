"""Wider and longer copies of a mixture, and what particles find beyond it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from klover.mixtures.algebra import inflate, mixture_of, stretch
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.refinement.exploration import uncovered_mass
from klover.refinement.pool import Pool
from klover.sampling.hamiltonian import Particles

DIM = 3


def mixture(seed, scale=1.0):
    generator = np.random.default_rng(seed)
    factor = generator.normal(size=(4, DIM, DIM))
    covariance = (factor @ factor.swapaxes(1, 2) + 0.1 * np.eye(DIM)) * np.outer(
        scale * np.ones(DIM), scale * np.ones(DIM)
    )
    location = generator.normal(size=(4, DIM)) * scale
    return mixture_of(Family(), location, covariance, np.array([3.0, 5.0, 50.0, 9.0]), generator.uniform(0.1, 1, 4))


@given(seed=st.integers(0, 1000), factor=st.floats(1.5, 20))
def test_stretching_lengthens_the_longest_axis_alone(seed, factor):
    before = mixture(seed)
    after = stretch(before, factor, 4.0)
    old, new = before.components.spread.covariance(), after.components.spread.covariance()
    # A change of rank one, by the factor along its own direction.
    values = np.linalg.eigvals(np.linalg.solve(old, new)).real
    np.testing.assert_allclose(np.sort(values, axis=1), [[1, 1, factor**2]] * 4, rtol=1e-6)
    np.testing.assert_array_equal(after.components.location, before.components.location)
    np.testing.assert_array_equal(after.components.df, [3.0, 4.0, 4.0, 4.0])
    np.testing.assert_allclose(after.weights.sum(), 1.0)
    assert after.weights.min() > before.weights.min()


def test_stretching_does_not_depend_on_units():
    scale = np.array([1e-3, 1.0, 1e4])
    plain, scaled = stretch(mixture(0), 6.0, 4.0), stretch(mixture(0, scale), 6.0, 4.0)
    np.testing.assert_allclose(
        scaled.components.spread.covariance(), plain.components.spread.covariance() * np.outer(scale, scale), rtol=1e-6
    )


def test_diagonal_copies_are_wider_in_all_directions():
    before = mixture_of(Family("student", "diagonal"), np.zeros((1, DIM)), np.ones((1, DIM)), np.ones(1), np.ones(1))
    np.testing.assert_allclose(stretch(before, 6.0, 4.0).components.spread.scale, 6.0)
    np.testing.assert_allclose(inflate(before, 2.0, 4.0).components.spread.scale, 2.0)


def discoveries(seed):
    """Mass that particles find beyond a Gaussian fitted to draws: by the draws of its own round, and by all draws."""
    generator, num, dim = np.random.default_rng(seed), 400, 6

    def log_target(x):
        return -0.5 * (x**2).sum(1)

    first = mixture_of(Family("normal"), np.zeros((1, dim)), np.eye(dim)[None], np.full(1, np.inf), np.ones(1))
    x = first.draw(generator, num)
    fitted = Mixture.of(Family("normal").components(x.mean(0)[None], np.cov(x.T)[None]))
    fresh = fitted.draw(generator, num)
    pool = Pool.empty(dim).add(first, x, log_target(x)).add(fitted, fresh, log_target(fresh))
    point = generator.normal(size=(num, dim))
    particles = Particles(point, log_target(point), -point)
    return uncovered_mass(particles, pool.fresh)[0], uncovered_mass(particles, pool)[0]


def test_draws_that_a_proposal_was_not_fitted_to_raise_no_false_alarm():
    found = np.array([discoveries(seed) for seed in range(60)])
    error = found.std(axis=0) / np.sqrt(len(found))
    assert abs(found[:, 0].mean()) < 4 * error[0]
    assert found[:, 1].mean() > 4 * error[1]
