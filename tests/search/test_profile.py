"""Draws along a coordinate: exact where the others are Normal given it, refused where they are not."""

import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

from klover import Target
from klover.fitting.sample import equal
from klover.search.profile import STEP, draw_along, follow
from klover.targets.evaluator import Evaluator

DIM = 8


def funnel(x):
    return norm.logpdf(x[2], 1.0, 2.0) + jnp.sum(norm.logpdf(jnp.delete(x, 2), 0.0, jnp.exp(0.5 * x[2])))


def draw_wide_part(num):
    """Draws of the funnel that have not entered its neck."""
    generator = np.random.default_rng(0)
    lead = generator.normal(1.0, 2.0, 4 * num)
    lead = lead[lead > 0][:num]
    return np.insert(np.exp(0.5 * lead)[:, None] * generator.normal(size=(num, DIM - 1)), 2, lead, axis=1)


def test_draws_along_a_lead_enter_a_neck_that_nobody_has_seen():
    evaluator, x = Evaluator(Target(funnel, jnp.zeros(DIM))), draw_wide_part(4000)
    found = draw_along(np.random.default_rng(1), evaluator, equal(x, evaluator.values(x)), 2)
    assert found is not None
    # Given the lead all others are Normal, so that only what is between two tops is not exact.
    assert found.ess > 0.5 * len(x)
    error = 2.0 / np.sqrt(found.ess)
    mean = found.weight @ np.asarray(found.x)[:, 2]
    assert abs(mean - 1.0) < 5 * error
    assert abs(np.sqrt(found.weight @ (np.asarray(found.x)[:, 2] - mean) ** 2) - 2.0) < 5 * error
    np.testing.assert_allclose(found.log_p, evaluator.values(np.asarray(found.x)))


def test_a_profile_is_the_density_of_the_lead():
    evaluator = Evaluator(Target(funnel, jnp.zeros(DIM)))
    profile = follow(evaluator, np.array([0.0, 0.0, 1.0, *[0.0] * (DIM - 3)]), np.full(DIM, 2.0), 2)
    assert profile is not None
    np.testing.assert_allclose(np.diff(profile.place), STEP)
    expected = -0.5 * profile.place**2
    np.testing.assert_allclose(profile.log_mass - profile.log_mass.max(), expected - expected.max(), atol=1e-3)


def test_where_the_others_have_no_top_there_are_no_draws():
    target = Target(lambda x: -0.5 * x[0] ** 2 + jnp.sum(jnp.cosh(jnp.minimum(jnp.abs(x[1:]), 3.0))), jnp.zeros(3))
    evaluator, x = Evaluator(target), np.random.default_rng(0).normal(size=(200, 3))
    assert draw_along(np.random.default_rng(1), evaluator, equal(x, evaluator.values(x)), 0) is None
