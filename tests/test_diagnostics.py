import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.diagnostics import judge, uncovered_mode
from klover.importance import weigh


def standard_normal(dim=2):
    return klover.Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(dim))


def proposal(scale, location=0.0, tail="normal", dim=2):
    return klover.Mixture.of(klover.Family(tail).components(jnp.full((1, dim), location), jnp.full((1, dim), scale**2)))


def draws_of(mixture, target, key, num_draws=4000):
    return klover.sample_importance(key, target, mixture, num_draws)


def test_a_good_proposal_is_trusted(getkey):
    verdict = judge(draws_of(proposal(1.2), standard_normal(), getkey()))
    assert verdict.trusted
    assert verdict.remedy == ""
    assert "effective draws of 4000" in str(verdict)


def test_a_narrow_proposal_is_refused_for_its_weights(getkey):
    verdict = judge(draws_of(proposal(0.4, dim=5), standard_normal(5), getkey()))
    assert verdict.status is klover.Status.HEAVY_WEIGHTS
    assert "family='student'" in verdict.remedy


def test_too_few_effective_draws_are_refused(getkey):
    verdict = judge(draws_of(proposal(1.2), standard_normal(), getkey(), num_draws=60))
    assert verdict.status is klover.Status.FEW_EFFECTIVE_DRAWS


def test_no_support_is_refused(getkey):
    target = klover.Target(lambda x: jnp.where(x[0] > 50, 0.0, -jnp.inf), jnp.full(2, 60.0))
    verdict = judge(draws_of(proposal(1.0), target, getkey()))
    assert verdict.status is klover.Status.NO_SUPPORT
    assert not verdict.trusted


def test_many_invalid_values_are_refused_and_few_are_noted(getkey):
    def target(limit):
        return klover.Target(lambda x: jnp.where(x[0] > limit, jnp.nan, -0.5 * jnp.sum(x**2)), jnp.zeros(2))

    many = judge(draws_of(proposal(1.2), target(0.0), getkey()))
    assert many.status is klover.Status.NOT_A_NUMBER
    few = judge(draws_of(proposal(1.2), target(3.0), getkey()))
    assert few.trusted
    assert "NaN" in few.reason


def test_a_nan_in_k_hat_is_never_trusted(getkey):
    draws = draws_of(proposal(1.2), standard_normal(), getkey())
    broken = dataclasses.replace(draws, pareto_k=jnp.array(jnp.nan))
    assert not judge(broken).trusted


def test_a_mode_that_was_never_visited_is_found(getkey):
    modes = jnp.array([[-6.0, 0.0], [6.0, 0.0]])
    target = klover.Target(lambda x: jax.nn.logsumexp(-0.5 * jnp.sum((x - modes) ** 2, axis=1)), jnp.zeros(2))
    one_mode = klover.Mixture.of(klover.Family("normal").components(modes[:1], jnp.ones((1, 2))))
    draws = draws_of(one_mode, target, getkey())
    # The weights alone see nothing wrong: they are constant.
    assert judge(draws).trusted
    missed = uncovered_mode(getkey(), draws, one_mode)
    assert missed is not None
    assert "x[0] = 6" in missed
    verdict = judge(draws, missed)
    assert verdict.status is klover.Status.UNCOVERED_MODE
    assert missed in verdict.reason


@pytest.mark.parametrize("tail", ["normal", "student"])
def test_a_covered_target_has_no_uncovered_mode(tail, getkey):
    mixture = proposal(1.3, tail=tail, dim=4)
    draws = draws_of(mixture, standard_normal(4), getkey())
    assert uncovered_mode(getkey(), draws, mixture) is None


def test_weights_of_a_constant_ratio_are_equal(getkey):
    mixture = proposal(1.0)
    x = mixture.sample(getkey(), 500)
    draws = weigh(standard_normal(), x, mixture.log_prob(x))
    np.testing.assert_allclose(np.exp(draws.log_weight), 1 / 500, rtol=1e-9)
    assert draws.log_evidence == pytest.approx(np.log(2 * np.pi), rel=1e-12)
