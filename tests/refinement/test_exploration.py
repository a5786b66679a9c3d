"""Wider and longer copies of a mixture, and what particles find beyond it."""

import numpy as np

from klover.mixtures.algebra import mixture_of
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.refinement.exploration import uncovered_mass
from klover.refinement.pool import Pool
from klover.sampling.hamiltonian import Particles


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
