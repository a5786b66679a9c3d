"""Necks: what narrows for ever and keeps its mass is named, and what is proper passes."""

import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.search import necks
from klover.targets.evaluator import Evaluator

PRIOR_SD = 5.0
PRIORS = {
    "half-Cauchy": lambda c: c - jnp.log1p(jnp.exp(2 * c) / 25),
    "half-normal": lambda c: c - jnp.exp(2 * c) / 50,
    "inverse gamma": lambda c: -2 * c - jnp.exp(-2 * c),
    "small inverse gamma": lambda c: -0.02 * c - 0.01 * jnp.exp(-2 * c),
    "log-normal": lambda c: -0.5 * (c / 2) ** 2,
    "small gamma": lambda c: 0.1 * c - jnp.exp(c) / 5,
}
FLAT = {"flat": lambda c: 0.0 * c, "one over tau": lambda c: -0.5 * c}


def data(num, spread):
    generator = np.random.default_rng(1)
    return generator.uniform(5, 18, size=num), spread * generator.normal(size=num)


def centred(num, spread, log_prior):
    """Effects θ of groups around μ, with the log of their spread as the first coordinate."""
    errors, effects = data(num, spread)

    def log_density(x):
        log_scale, mean, theta = x[0], x[1], x[2:]
        log = -0.5 * jnp.sum(((effects - theta) / errors) ** 2) - 0.5 * (mean / PRIOR_SD) ** 2
        return (
            log - 0.5 * jnp.sum((theta - mean) ** 2) * jnp.exp(-2 * log_scale) - num * log_scale + log_prior(log_scale)
        )

    return klover.Target(log_density, jnp.zeros(num + 2))


def marginal(num, spread, log_scale):
    """Log integral over μ and θ at a spread, with a flat prior on its log."""
    errors, effects = data(num, spread)
    covariance = np.diag(errors**2 + np.exp(2 * log_scale)) + PRIOR_SD**2
    _, log_det = np.linalg.slogdet(covariance)
    constant = np.log(errors).sum() + np.log(PRIOR_SD) + 0.5 * num * np.log(2 * np.pi) + 0.5 * np.log(2 * np.pi)
    return -0.5 * log_det - 0.5 * effects @ np.linalg.solve(covariance, effects) + constant


def place(num, spread):
    """Centre and scales of the part around the effects, as a fit that has missed the neck would have them."""
    errors, effects = data(num, spread)
    grid = np.linspace(-1, 8, 400)
    log = np.array([marginal(num, spread, each) for each in grid])
    weight = np.exp(log - log.max()) / np.exp(log - log.max()).sum()
    centre = weight @ grid
    variance = 1 / (1 / errors**2 + np.exp(-2 * centre))
    scale = np.sqrt(weight @ (grid - centre) ** 2)
    return np.r_[centre, 0.0, variance * effects / errors**2], np.r_[scale, 3.0, np.sqrt(variance)]


GROUPS = [(3, 10.0), (3, 40.0), (8, 10.0), (8, 40.0), (8, 60.0), (20, 10.0)]


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize(("num", "spread"), GROUPS)
def test_hierarchies_without_an_end_are_named(num, spread, name):
    evaluator = Evaluator(centred(num, spread, FLAT[name]))
    assert necks.endless_neck(evaluator, *place(num, spread)) == 0
    assert evaluator.num_evaluations < 1000


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize(("num", "spread"), GROUPS)
def test_hierarchies_with_a_proper_prior_pass(num, spread, name):
    assert necks.endless_neck(Evaluator(centred(num, spread, PRIORS[name])), *place(num, spread)) is None


def test_the_mass_along_the_way_is_exact_where_the_rest_is_normal():
    centre, scale = place(8, 40.0)
    step = np.zeros(10)
    step[0] = -scale[0]
    found = necks._log_masses(Evaluator(centred(8, 40.0, FLAT["flat"])), centre, scale, step)
    assert len(found) >= 6
    radii = np.r_[0.0, necks.RADII][: len(found)]
    exact = np.array([marginal(8, 40.0, centre[0] - radius * scale[0]) for radius in radii])
    # Laplace's approximation here is in units of the scales, and without (2π)^(9/2).
    exact -= np.log(scale[1:]).sum() + 4.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(found, exact, atol=2 * necks.TOLERANCE)


@pytest.mark.parametrize("width", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("dim", [2, 5, 10, 20])
def test_funnels_pass(dim, width):
    def log_density(x):
        return -0.5 * (x[0] / width) ** 2 - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]) - 0.5 * (dim - 1) * x[0]

    scale = np.r_[width, np.full(dim - 1, np.exp(width**2 / 4))]
    assert necks.endless_neck(Evaluator(klover.Target(log_density, jnp.zeros(dim))), np.zeros(dim), scale) is None


@pytest.mark.parametrize(("num_rows", "found"), [(20, None), (3, 0)])
def test_a_regression_that_fits_exactly_has_no_end(num_rows, found):
    """With as many coefficients as rows and a flat prior on log σ, all mass is at σ = 0."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(num_rows, 3))
    y = inputs @ np.ones(3) + generator.normal(size=num_rows)

    def log_density(x):
        return -num_rows * x[0] - 0.5 * jnp.sum((y - inputs @ x[1:]) ** 2) * jnp.exp(-2 * x[0])

    centre = np.r_[0.0, np.linalg.lstsq(inputs, y)[0]]
    assert necks.endless_neck(Evaluator(klover.Target(log_density, jnp.zeros(4))), centre, np.full(4, 0.2)) == found


def test_a_round_target_costs_six_gradients_a_coordinate():
    evaluator = Evaluator(klover.Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(5)))
    assert necks.endless_neck(evaluator, np.zeros(5), np.ones(5)) is None
    assert evaluator.num_evaluations == 6 * 5


def test_nothing_is_looked_for_without_gradients_or_in_many_dimensions():
    callback = klover.from_callback(lambda x: -0.5 * float(x @ x), 3)
    wide = klover.Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(31))
    for target in (callback, wide):
        evaluator = Evaluator(target)
        assert necks.endless_neck(evaluator, np.zeros(target.dim), np.ones(target.dim)) is None
        assert evaluator.num_evaluations == 0
