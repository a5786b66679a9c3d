"""Particles that look beyond the final draws find a tail without draws, and raise few alarms where there is none."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from klover import Family, Target, refine
from klover.fitting.sample import equal
from klover.importance.draws import weigh_on_host
from klover.mixtures.algebra import mixture_of
from klover.refinement import answer
from klover.refinement.beyond import FEWEST, look_beyond
from klover.refinement.pool import Pool
from klover.refinement.state import Context, State
from klover.targets.evaluator import Evaluator
from klover.tuning import Search, Tuning
from klover.verdict.status import Status

SHARE = 0.06


def component(scale=1.0, df=np.inf, dim=2):
    family = Family("normal") if np.isinf(df) else Family("student")
    return mixture_of(family, np.zeros((1, dim)), scale**2 * np.eye(dim)[None], df, np.ones(1))


def with_a_wing(log_constant=0.0):
    """Return a Normal, six hundredths of which lie along a wing that a Normal does not reach."""

    def log_density(x):
        wing = -0.5 * ((x[0] - 4.0) / 2.0) ** 2 - 0.5 * x[1] ** 2 - jnp.log(2.0)
        both = jnp.logaddexp(jnp.log1p(-SHARE) - 0.5 * x @ x, jnp.log(SHARE) + wing)
        return both - jnp.log(2 * jnp.pi) + log_constant

    return Target(log_density, jnp.zeros(2))


def look(target, proposal, seed=0, num=4000, pareto_k=0.5, **known):
    """Look beyond draws of a proposal whose weights are said to be doubtful; return what is found, and the draws."""
    evaluator = Evaluator(target)
    context = Context(np.random.default_rng(seed), evaluator, 8, **known)
    draws = weigh_on_host(context.generator, evaluator, proposal, num)
    draws = dataclasses.replace(draws, pareto_k=np.asarray(pareto_k))
    state = State(proposal, component(10.0), Pool.empty(target.dim))
    return *look_beyond(context, state, proposal, draws, np.asarray(draws.x)), draws


@pytest.mark.parametrize("log_constant", [0.0, -500.0, 3000.0])
def test_a_wing_that_no_draw_has_seen_is_found(log_constant):
    found = [look(with_a_wing(log_constant), component(), seed) for seed in range(8)]
    # Unless a draw has seen it: with far fewer than this, log Z is right.
    found = [(seen, drift) for seen, drift, draws in found if draws.log_evidence - log_constant < -0.02]
    assert len(found) >= 6
    assert all(drift > Tuning().answer.largest_beyond for _, drift in found)
    assert np.median([drift for _, drift in found]) > 3
    for seen, _ in found:
        assert seen is not None
        # A part of the wing, since particles begin at the draws; three standard deviations of the body are far out.
        assert 0.2 * SHARE < seen.weight @ (seen.x[:, 0] > 3) < SHARE
        np.testing.assert_allclose(seen.log_p, [with_a_wing(log_constant).log_prob(x) for x in seen.x], rtol=1e-9)


def test_where_draws_tell_of_the_tail_there_are_few_alarms():
    # Heavier tails than the proposal's, which draws have met: what lies beyond them is what k̂ says.
    target = Target(lambda x: -2.5 * jnp.log1p(x @ x / 4), jnp.zeros(2))
    found = [look(target, component(1.3, df=7.0), seed, pareto_k=0.3, num=8192) for seed in range(20)]
    alarms = sum(seen is not None for seen, _, _ in found)
    assert alarms <= 3
    assert np.mean([drift for _, drift, _ in found]) < 0.5


@pytest.mark.parametrize(
    ("pareto_k", "known"),
    [(0.1, {}), (0.5, {"goal": 400}), (0.5, {"tuning": Tuning(search=Search(full_dim=1))})],
    ids=["light", "thrifty", "many dimensions"],
)
def test_where_nothing_is_doubtful_or_it_costs_too_much_nobody_looks(pareto_k, known):
    seen, drift, draws = look(with_a_wing(), component(1.5, df=5.0), pareto_k=pareto_k, **known)
    assert seen is None
    assert drift == 0.0
    assert float(draws.ess) > 0.5 * draws.num_draws


def test_a_budget_is_not_spent_on_it():
    # Fewer particles where less is left; none where so few would see nothing.
    target, numbers = with_a_wing(), []
    for budget in (10**6, 4 * 41 * (FEWEST + 50), 4 * 41 * (FEWEST - 1)):
        evaluator = Evaluator(target, budget)
        context = Context(np.random.default_rng(0), evaluator, 8)
        draws = dataclasses.replace(
            weigh_on_host(context.generator, Evaluator(target), component(), 1000), pareto_k=np.asarray(0.6)
        )
        state = State(component(), component(10.0), Pool.empty(2))
        seen, _ = look_beyond(context, state, component(), draws, np.asarray(draws.x))
        numbers.append(0 if seen is None else len(seen))
        assert evaluator.num_evaluations <= budget / 4 + 41
    assert numbers == [1024, FEWEST + 50, 0]


def test_a_fit_goes_on_with_what_is_found_and_is_refused_where_that_does_not_help(monkeypatch):
    given = []

    def found(context, state, proposal, draws, x):
        given.append(state.seen)
        return equal(x[:100], np.zeros(100)), 7.0

    monkeypatch.setattr(answer, "look_beyond", found)
    fit = refine(0, Target(lambda x: -0.5 * x @ x, jnp.zeros(2)))
    assert [seen is None for seen in given] == [True, *[False] * Tuning().missed.most_retries]
    assert fit.verdict.status is Status.DRIFTING_PARTICLES
    assert "7.0 standard errors" in fit.verdict.reason
    assert fit.verdict.searched is None
