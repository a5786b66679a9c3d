import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from helpers import judged
from klover.importance.draws import sample_importance, weigh
from klover.targets.evaluator import Evaluator
from klover.verdict.case import Case
from klover.verdict.judge import judge


def standard_normal(dim=2):
    return klover.Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(dim))


def test_a_good_proposal_is_trusted(make_case):
    verdict = judge(make_case(num_draws=4000))
    assert verdict.trusted
    assert verdict.remedy == ""
    assert "effective draws of 4000" in str(verdict)
    assert str(verdict).startswith("trusted: k̂ = ")


def test_a_narrow_proposal_is_refused_for_its_weights(make_case):
    verdict = judge(make_case(standard_normal(5), scale=0.4, num_draws=4000))
    assert verdict.status is klover.Status.HEAVY_WEIGHTS
    assert "family='student'" in verdict.remedy
    assert str(verdict).startswith("REFUSED: k̂ = ")
    assert str(verdict) == f"REFUSED: {verdict.reason} {verdict.remedy}"


def test_too_few_effective_draws_are_refused(make_case):
    verdict = judge(make_case(num_draws=60))
    assert verdict.status is klover.Status.FEW_EFFECTIVE_DRAWS
    assert "of 60 draws are effective; 100 are needed" in verdict.reason


def test_few_effective_draws_come_before_work_that_is_unfinished(make_case):
    assert judge(make_case(num_draws=60, cause="budget")).status is klover.Status.FEW_EFFECTIVE_DRAWS


def test_no_support_is_refused(make_case):
    target = klover.Target(lambda x: jnp.where(x[0] > 50, 0.0, -jnp.inf), jnp.full(2, 60.0))
    verdict = judge(make_case(target, scale=1.0))
    assert verdict.status is klover.Status.NO_SUPPORT
    assert not verdict.trusted


def test_many_invalid_values_are_refused_and_few_are_noted(make_case):
    def target(limit):
        return klover.Target(lambda x: jnp.where(x[0] > limit, jnp.nan, -0.5 * jnp.sum(x**2)), jnp.zeros(2))

    many = judge(make_case(target(0.0), num_draws=4000))
    assert many.status is klover.Status.NOT_A_NUMBER
    case = make_case(target(3.0), num_draws=4000)
    few = judge(case)
    assert few.trusted
    assert f"({int(case.draws.num_nan)} draws were NaN and 0 +inf: taken as outside the support.)" in few.reason


def test_a_nan_in_k_hat_is_never_trusted(make_case):
    case = make_case()
    broken = dataclasses.replace(case.draws, pareto_k=np.asarray(np.nan))
    assert not judge(dataclasses.replace(case, draws=broken)).trusted


def test_a_mode_that_was_never_visited_is_found(make_case):
    modes = jnp.array([[-6.0, -6.0], [6.0, -6.0]])
    target = klover.Target(lambda x: jax.nn.logsumexp(-0.5 * jnp.sum((x - modes) ** 2, axis=1)), jnp.zeros(2))
    case = make_case(target, scale=1.0, location=-6.0, num_draws=4000, is_searched=True)
    # The weights alone see nothing wrong: they are constant.
    assert float(case.draws.ess) == pytest.approx(4000)
    verdict = judge(case)
    assert verdict.status is klover.Status.UNCOVERED_MODE
    assert "x[0] = 6" in verdict.reason


@pytest.mark.parametrize("tail", ["normal", "student"])
def test_a_covered_target_has_no_uncovered_mode(make_case, tail):
    assert judge(make_case(standard_normal(4), scale=1.3, tail=tail)).trusted


@pytest.mark.parametrize(("scale", "is_trusted"), [(1.2, True), (0.4, False)])
def test_arrays_of_jax_are_judged_alike(make_case, getkey, scale, is_trusted):
    # What the other door hands over: a mixture and draws on the device.
    target = standard_normal(4)
    family = klover.Family("normal")
    mixture = klover.Mixture.of(family.components(jnp.zeros((1, 4)), jnp.full((1, 4), scale**2)))
    draws = sample_importance(getkey(), target, mixture, 4000)
    case = Case(draws, mixture, mixture, Evaluator(target), np.random.default_rng(0))
    verdict, expected = judge(case), judge(make_case(target, scale=scale, num_draws=4000))
    assert verdict.trusted is is_trusted
    assert verdict.status is expected.status


@pytest.mark.parametrize("family", ["normal", "normal-diagonal", "normal-low-rank"])
def test_a_missed_mode_is_found_with_arrays_of_jax(getkey, family):
    modes = jnp.array([[-6.0, 0.0], [6.0, 0.0]])
    target = klover.Target(lambda x: jax.nn.logsumexp(-0.5 * jnp.sum((x - modes) ** 2, axis=1)), jnp.zeros(2))
    components = klover.Family.parse(family).components(modes[:1], jnp.ones((1, 2)))
    # Slots that are free have no part in it.
    mixture = klover.Mixture.of(components).with_capacity(3)
    draws = sample_importance(getkey(), target, mixture, 4000)
    verdict = judged(draws, mixture)
    assert verdict.status is klover.Status.UNCOVERED_MODE
    assert "x[0] = 6" in verdict.reason


def test_weights_of_a_constant_ratio_are_equal(getkey):
    mixture = klover.Mixture.of(klover.Family("normal").components(jnp.zeros((1, 2)), jnp.ones((1, 2))))
    x = mixture.sample(getkey(), 500)
    draws = weigh(standard_normal(), x, mixture.log_prob(x))
    np.testing.assert_allclose(np.exp(draws.log_weight), 1 / 500, rtol=1e-9)
    assert draws.log_evidence == pytest.approx(np.log(2 * np.pi), rel=1e-12)
