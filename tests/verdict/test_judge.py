import dataclasses
import functools
import string

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.importance.draws import sample_importance, weigh
from klover.verdict.judge import judge, place_in_words, uncovered_mode


def standard_normal(dim=2):
    return klover.Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(dim))


def proposal(scale, location=0.0, tail="normal", dim=2):
    return klover.Mixture.of(klover.Family(tail).components(jnp.full((1, dim), location), jnp.full((1, dim), scale**2)))


def draws_of(mixture, target, key, num_draws=4000):
    return sample_importance(key, target, mixture, num_draws)


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
    verdict = judge(draws, klover.Status.UNCOVERED_MODE, mode=missed)
    assert verdict.status is klover.Status.UNCOVERED_MODE
    assert missed in verdict.reason


@functools.cache
def good_draws():
    return draws_of(proposal(1.2), standard_normal(), jax.random.key(0), 1000)


def figures_of(status):
    """Return a figure for each field of a status that the draws do not give: a number or, without a format, a word."""
    own = ("pareto_k", "ess", "num_draws", "num_nan", "num_infinite", "limit", "minimum")
    fields = [field for text in (status.reason, status.remedy) for field in string.Formatter().parse(text)]
    return {name: 0.25 if form else f"the {name}" for _, name, form, _ in fields if name and name not in own}


DOUBTS = ["UNCOVERED_MODE", "DRIFTING_PARTICLES", "UNSTABLE_EVIDENCE", "UNFINISHED", "IMPROPER", "TARGET_RAISED"]


@pytest.mark.parametrize("name", DOUBTS)
def test_a_doubt_refuses_good_weights_and_shows_its_figures(name):
    doubt = klover.Status[name]
    figures = figures_of(doubt)
    assert judge(good_draws()).trusted
    verdict = judge(good_draws(), doubt, **figures)
    assert not verdict.trusted
    assert verdict.status is doubt
    assert verdict.remedy == doubt.remedy.format(**figures)
    assert all(figure in str(verdict) for figure in figures.values() if isinstance(figure, str))
    assert not set("{}") & set(str(verdict))
    assert str(verdict).startswith("REFUSED: ")


@pytest.mark.parametrize("name", DOUBTS)
def test_a_doubt_that_explains_heavy_weights_comes_before_them(name):
    doubt = klover.Status[name]
    heavy = dataclasses.replace(good_draws(), pareto_k=jnp.array(1.5))
    is_decisive = name in ("IMPROPER", "TARGET_RAISED")
    verdict = judge(heavy, doubt, **figures_of(doubt))
    assert verdict.status is (doubt if is_decisive else klover.Status.HEAVY_WEIGHTS)


def test_a_doubt_comes_before_few_effective_draws(getkey):
    few = draws_of(proposal(1.2), standard_normal(), getkey(), num_draws=60)
    assert judge(few).status is klover.Status.FEW_EFFECTIVE_DRAWS
    assert judge(few, klover.Status.UNFINISHED, cause="budget").status is klover.Status.UNFINISHED


def test_a_place_is_named_by_its_first_coordinates():
    position = {"mean": jnp.zeros(2), "spread": 0.0}
    target = klover.Target(
        lambda at: -(at["spread"] ** 2), position, constrain=lambda at: at | {"spread": jnp.exp(at["spread"])}
    )
    assert place_in_words(target, np.array([1.0, -2.5, 0.0])) == "at mean[0] = 1, mean[1] = -2.5, spread = 1"
    many = place_in_words(standard_normal(6), np.arange(6.0))
    assert many == "at x[0] = 0, x[1] = 1, x[2] = 2, x[3] = 3, ..."


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
