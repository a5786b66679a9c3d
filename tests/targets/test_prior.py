"""Draws of a prior: made once, in the target's precision, and never silently lost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.targets.evaluator import Evaluator
from klover.targets.model_info import ModelInfo


def evaluator(prior):
    return Evaluator(klover.Target(lambda x: -jnp.sum(x**2), jnp.zeros(2), model_info=ModelInfo("made", prior=prior)))


def normal(key, num):
    return jax.random.normal(key, (num, 2))


@pytest.mark.parametrize("is_ahead", [False, True])
def test_draws_are_made_once(is_ahead):
    calls = []
    made = evaluator(lambda key, num: calls.append(num) or normal(key, num))
    if is_ahead:
        made.draw_prior_ahead()
    np.testing.assert_array_equal(made.prior_draws(), normal(jax.random.key(0), 256))
    made.prior_draws()
    assert calls == [256]


def test_draws_that_are_not_finite_are_left_out():
    made = evaluator(lambda key, num: normal(key, num).at[:10].set(jnp.inf))
    assert made.prior_draws().shape == (246, 2)


def unable(key, num):
    raise NotImplementedError("no sampler")


def broken(key, num):
    raise ZeroDivisionError("the user's own code")


@pytest.mark.parametrize("is_ahead", [False, True])
def test_what_cannot_be_drawn_is_none_and_an_error_is_told(is_ahead):
    for prior in (None, unable):
        made = evaluator(prior)
        if is_ahead:
            made.draw_prior_ahead()
        assert made.prior_draws().shape == (0, 2)
    made = evaluator(broken)
    if is_ahead:
        made.draw_prior_ahead()
    with pytest.warns(UserWarning, match="failed with ZeroDivisionError: the user's own code.*without such draws"):
        assert made.prior_draws().shape == (0, 2)
    assert made.prior_draws().shape == (0, 2)
