import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.importance.draws import weigh_on_host
from klover.mixtures.algebra import mixture_of
from klover.refinement.answer import goes_on
from klover.refinement.pool import Pool
from klover.refinement.state import Context, State
from klover.search.recall import Part
from klover.targets.evaluator import Evaluator
from klover.tuning import Tuning
from klover.verdict.case import Case
from klover.verdict.judge import Verdict
from klover.verdict.status import Status

MOST = Tuning().missed


PART = Part(np.full(2, 5.0), np.eye(2), -9.0)


@pytest.mark.parametrize(
    ("status", "parts", "most"),
    [
        (Status.TRUSTED, (), 0),
        (Status.TRUSTED, (PART,), 1),
        (Status.UNCOVERED_MODE, (PART,), MOST.most_returns),
        (Status.UNSTABLE_EVIDENCE, (), MOST.most_retries),
        (Status.IMPROPER, (PART,), 0),
    ],
    ids=["good", "good_but_for_a_trifle", "a_mode_is_missed", "unstable", "improper"],
)
def test_work_goes_on_for_so_many_times(status, parts, most):
    target = klover.Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2))
    mixture = mixture_of(klover.Family(), np.zeros((1, 2)), np.eye(2)[None], 7.0, np.ones(1))
    context = Context(np.random.default_rng(0), Evaluator(target), 8)
    draws = weigh_on_host(context.generator, context.evaluator, mixture, 50)
    case = Case(draws, mixture, mixture, context.evaluator, context.generator, parts=parts)
    verdict, state = Verdict(status is Status.TRUSTED, "", "", status), State(mixture, mixture, Pool.empty(2))
    found = [goes_on(verdict, context, dataclasses.replace(state, num_returns=num), case) for num in range(6)]
    assert found == [True] * most + [False] * (6 - most)
