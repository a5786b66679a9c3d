"""Decisions of a round: a table of what follows from what, and laws that hold for all measurements."""

import dataclasses

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from klover.fitting.splits import num_parameters
from klover.mixtures.algebra import mixture_of
from klover.mixtures.components import Family
from klover.refinement.pool import Pool
from klover.refinement.stages import Look, Measurement, Plan, conclude, decide
from klover.refinement.state import RoundInfo, Stage, State
from klover.tuning import Rounds, Search, Tuning
from klover.warps.warp import Warp

BEGIN, TEMPER, CHAIN, DESCEND, POOL, EXPLORE = Stage
TUNING = Tuning()
MIXTURE = mixture_of(Family(), np.zeros((1, 1)), np.ones((1, 1, 1)), 5.0, np.ones(1))


def make_state(stage=POOL, **known) -> State:
    return State(MIXTURE, MIXTURE, Pool.empty(1), stage, **known)


def measure(ess_share, pareto_k=0.1, pool_ess=0.0, num_draws=2048) -> Measurement:
    return Measurement(num_draws, ess_share, pareto_k, 0.0, 0.01, pool_ess)


GOOD, FAIR, POOR = measure(0.9, 0.1, 1e4), measure(0.3, 0.5, 1e4), measure(1e-3, 0.9, 2.0)
HARD = {"was_hard": True}
STALE = {"best_ess": 0.95, "num_stale": 1}
"""The next round without a gain is the second."""


@pytest.mark.parametrize(
    ("stage", "known", "dim", "measured", "expected"),
    [
        # begin: draws are effective enough to fit, by their own number or by that of the pool.
        (BEGIN, {}, 2, GOOD, (POOL, Look.LAST, True)),
        (BEGIN, HARD, 2, GOOD, (POOL, Look.LONG_LAST, True)),
        (BEGIN, {}, 2, FAIR, (POOL, Look.NONE, False)),
        (BEGIN, {}, 2, measure(1e-3, pool_ess=10.0), (POOL, Look.NONE, False)),
        (BEGIN, {}, 2, POOR, (TEMPER, Look.NONE, False)),
        (BEGIN, {}, 200, POOR, (TEMPER, Look.NONE, False)),
        # Where nothing lies in the support there is nothing to temper either.
        (BEGIN, {}, 2, measure(0.0), (POOL, Look.NONE, False)),
        # temper
        (TEMPER, {}, 2, GOOD, (POOL, Look.LAST, True)),
        (TEMPER, {}, 2, FAIR, (POOL, Look.NONE, False)),
        (TEMPER, HARD, 2, FAIR, (POOL, Look.NONE, False)),
        (TEMPER, HARD, 20, FAIR, (POOL, Look.NONE, False)),
        (TEMPER, HARD, 31, FAIR, (POOL, Look.NONE, False)),
        (TEMPER, {}, 2, POOR, (TEMPER, Look.NONE, False)),
        (TEMPER, STALE, 2, POOR, (DESCEND, Look.DESCEND, False)),
        (TEMPER, STALE, 128, POOR, (DESCEND, Look.DESCEND, False)),
        (TEMPER, STALE, 129, POOR, (DESCEND, Look.NONE, False)),
        # Tempering helps as long as the pool has as many effective draws as dimensions, and one more.
        (TEMPER, STALE, 2, measure(1e-3, pool_ess=3.0), (TEMPER, Look.NONE, False)),
        (TEMPER, {"best_ess": 0.95}, 2, POOR, (TEMPER, Look.NONE, False)),
        (TEMPER, STALE, 2, measure(0.0), (TEMPER, Look.NONE, False)),
        # Where chains can move, they supply draws instead, two windows at the least and eight at the most.
        (TEMPER, {**STALE, "can_chain": True}, 20, POOR, (CHAIN, Look.CHAIN, False)),
        (CHAIN, {"can_chain": True}, 20, measure(0.0), (CHAIN, Look.CHAIN, False)),
        (CHAIN, {"num_windows": 1}, 20, FAIR, (CHAIN, Look.CHAIN, False)),
        (CHAIN, {"num_windows": 2}, 20, FAIR, (POOL, Look.NONE, False)),
        (CHAIN, {"num_windows": 7}, 20, POOR, (CHAIN, Look.CHAIN, False)),
        (CHAIN, {"num_windows": 8}, 20, POOR, (POOL, Look.NONE, False)),
        # descend: once
        (DESCEND, HARD, 2, POOR, (POOL, Look.NONE, False)),
        (DESCEND, HARD, 4, GOOD, (POOL, Look.LONG_LAST, True)),
        (DESCEND, HARD, 31, POOR, (POOL, Look.NONE, False)),
        (DESCEND, HARD, 5, GOOD, (POOL, Look.LAST, True)),
        # pool
        (POOL, {}, 2, GOOD, (POOL, Look.LAST, True)),
        (POOL, HARD, 4, GOOD, (POOL, Look.LONG_LAST, True)),
        (POOL, HARD, 5, GOOD, (POOL, Look.LAST, True)),
        (POOL, {}, 2, FAIR, (POOL, Look.NONE, False)),
        (POOL, STALE, 2, POOR, (POOL, Look.NONE, False)),
        (POOL, {}, 2, measure(0.0), (POOL, Look.NONE, False)),
        # explore
        (EXPLORE, HARD, 2, GOOD, (EXPLORE, Look.EXPLORE, True)),
        (EXPLORE, HARD, 2, POOR, (EXPLORE, Look.EXPLORE, False)),
        (EXPLORE, HARD, 2, measure(0.0), (EXPLORE, Look.EXPLORE, False)),
    ],
)
def test_what_follows_from_a_measurement(stage, known, dim, measured, expected):
    plan = decide(measured, make_state(stage, **known), dim, TUNING)
    assert (plan.stage, plan.look, plan.could_stop) == expected
    assert plan.was_hard == (known.get("was_hard", False) or plan.stage in (DESCEND, EXPLORE))
    assert plan.is_beyond == (plan.stage is DESCEND and dim > 128)


@pytest.mark.parametrize("dim", [1, 2, 5, 20, 100])
def test_draws_are_effective_enough_for_the_parameters_of_a_component(dim):
    rounds = TUNING.rounds
    for factor, stage in ((1.001, POOL), (0.999, TEMPER)):
        assert decide(measure(factor * rounds.begun_ess), make_state(BEGIN), dim, TUNING).stage is stage
        pooled = measure(1e-9, pool_ess=factor * rounds.begun_pool * num_parameters(dim))
        assert decide(pooled, make_state(BEGIN), dim, TUNING).stage is stage


@pytest.mark.parametrize(
    ("stage", "dim", "is_stale", "ess_share", "pareto_k", "expected"),
    [
        (POOL, 2, False, 0.81, 0.39, True),
        (POOL, 2, False, 0.79, 0.39, False),
        (POOL, 2, False, 0.81, 0.41, False),
        (POOL, 2, True, 0.51, 0.59, True),
        (POOL, 2, True, 0.49, 0.59, False),
        (POOL, 2, True, 0.51, 0.61, False),
        (POOL, 4, True, 0.06, 0.59, False),
        (POOL, 5, True, 0.06, 0.59, True),
        (POOL, 5, True, 0.04, 0.59, False),
        (EXPLORE, 2, False, 0.66, 0.39, True),
        (EXPLORE, 2, False, 0.64, 0.39, False),
        (EXPLORE, 2, True, 0.06, 0.59, True),
        (EXPLORE, 2, True, 0.04, 0.59, False),
        (EXPLORE, 2, True, 0.06, 0.61, False),
        (EXPLORE, 2, False, 0.66, np.nan, False),
        (POOL, 2, True, 0.51, np.nan, False),
    ],
)
def test_when_draws_are_good_enough_to_stop(stage, dim, is_stale, ess_share, pareto_k, expected):
    known = STALE if is_stale else {}
    plan = decide(measure(ess_share, pareto_k, 1e4), make_state(stage, **known), dim, TUNING)
    assert plan.could_stop == expected


def make_plan(stage=POOL, **known) -> Plan:
    chosen = {"was_hard": stage in (DESCEND, EXPLORE), "best_ess": 0.4, "num_stale": 0, "could_stop": False}
    chosen |= {"look": Look.NONE, "is_beyond": False}
    return Plan(stage, **(chosen | known))


def make_info(drift=0.0, pareto_k=0.1, log_evidence=0.0, error=0.1, number=0) -> RoundInfo:
    return RoundInfo(number, 1, 2048, 0.5, pareto_k, log_evidence, error, drift, 2048, 1.0)


STOP, HARD_STOP = {"could_stop": True, "best_ess": 0.9}, {"could_stop": True, "best_ess": 0.9, "was_hard": True}
STUCK = {"num_stale": 2}


@pytest.mark.parametrize(
    ("plan", "info", "dim", "expected"),
    [
        # Good draws, and the look has found nothing, or something.
        (make_plan(POOL, **STOP), make_info(), 2, (True, POOL)),
        (make_plan(POOL, **STOP), make_info(2.9), 2, (True, POOL)),
        (make_plan(POOL, **STOP), make_info(3.1), 2, (False, EXPLORE)),
        (make_plan(POOL, **STOP), make_info(3.1), 4, (False, EXPLORE)),
        (make_plan(POOL, **STOP), make_info(3.1), 5, (False, POOL)),
        (make_plan(POOL, **STOP), make_info(-5.0), 2, (True, POOL)),
        (make_plan(POOL), make_info(), 2, (False, POOL)),
        # Rounds no longer get better.
        (make_plan(POOL, **STUCK), make_info(), 2, (False, EXPLORE)),
        (make_plan(POOL, **STUCK), make_info(), 5, (False, POOL)),
        (make_plan(POOL, num_stale=1), make_info(), 2, (False, POOL)),
        (make_plan(POOL, num_stale=1), make_info(pareto_k=0.71), 2, (False, EXPLORE)),
        (make_plan(POOL, num_stale=1), make_info(pareto_k=0.69), 2, (False, POOL)),
        (make_plan(POOL, num_stale=0), make_info(pareto_k=0.9), 2, (False, POOL)),
        # With a fair share effective only the tails of the weights vary, and there is more patience.
        (make_plan(POOL, num_stale=7, best_ess=0.6), make_info(pareto_k=0.9), 2, (False, POOL)),
        (make_plan(POOL, num_stale=8, best_ess=0.6), make_info(), 2, (False, EXPLORE)),
        # They have been good: it is chance that they are not now.
        (make_plan(POOL, num_stale=2, best_ess=0.85), make_info(), 2, (False, POOL)),
        (make_plan(POOL, num_stale=2, best_ess=0.85, could_stop=True), make_info(), 2, (True, POOL)),
        # Only the pool goes out.
        (make_plan(TEMPER, **STUCK), make_info(), 2, (False, TEMPER)),
        (make_plan(DESCEND, **STUCK), make_info(np.inf), 2, (False, DESCEND)),
        (make_plan(EXPLORE, **STUCK), make_info(9.0), 2, (False, EXPLORE)),
    ],
)
def test_what_follows_from_a_look(plan, info, dim, expected):
    assert conclude(plan, (info,) * 4, (1.0, 1.0), dim, TUNING)[:2] == expected


@pytest.mark.parametrize("dim", [2, 5, 40])
def test_what_is_stuck_is_searched_in_any_dimension(dim):
    found, late, fine = make_plan(POOL, **STOP), make_plan(POOL, **STUCK), make_plan(POOL, **STOP)
    plans = (found, make_info(3.1)), (late, make_info()), (fine, make_info()), (make_plan(TEMPER, **STUCK), make_info())
    stuck = [conclude(plan, (info,) * 4, (1.0, 1.0), dim, TUNING).is_stuck for plan, info in plans]
    assert stuck == [True, True, False, False]


def test_warps_have_their_chance_before_particles_go_out():
    plan = make_plan(POOL, **STUCK)
    stages = [conclude(plan, (make_info(),) * num, (1.0, 1.0), 2, TUNING)[1] for num in (3, 4)]
    assert stages == [POOL, EXPLORE]
    # Behind a warp fewer effective draws are enough.
    warped = make_plan(POOL, is_warped=True, **STUCK)
    assert conclude(warped, (make_info(),) * 4, (1.0, 1.0), 2, TUNING)[1] is POOL
    poor = dataclasses.replace(warped, best_ess=0.1)
    assert conclude(poor, (make_info(),) * 4, (1.0, 1.0), 2, TUNING)[1] is EXPLORE


AGREED = tuple(make_info(log_evidence=value, number=number) for number, value in enumerate([0.0, 0.2, 0.1]))


@pytest.mark.parametrize(
    ("stage", "history", "discovered", "is_done"),
    [
        (POOL, AGREED, (1.0, 1.0), True),
        (EXPLORE, AGREED, (0.02, -0.01), True),
        (EXPLORE, AGREED, (0.02, 0.04), False),
        (EXPLORE, AGREED, (0.04, 0.0), False),
        (EXPLORE, AGREED, (1.0, 1.0), False),
        # Three rounds must agree, to twice their errors, and none more.
        (EXPLORE, AGREED[1:], (0.0, 0.0), False),
        (EXPLORE, (make_info(log_evidence=9.0), *AGREED), (0.0, 0.0), True),
        (EXPLORE, (make_info(log_evidence=0.5), *AGREED[1:]), (0.0, 0.0), False),
        (EXPLORE, (make_info(log_evidence=0.5, error=0.3), *AGREED[1:]), (0.0, 0.0), True),
        (EXPLORE, (*AGREED[:2], make_info(drift=4.0, log_evidence=0.1)), (0.0, 0.0), False),
    ],
)
def test_hard_targets_end_when_all_is_steady(stage, history, discovered, is_done):
    plan = make_plan(stage, **HARD_STOP)
    assert conclude(plan, history, discovered, 2, TUNING)[0] is is_done
    # An easy target does not wait.
    is_found = history[-1].drift > 3
    assert conclude(make_plan(POOL, **STOP), history, discovered, 2, TUNING)[0] is not is_found


def warped_state(shares, evidences, **known) -> State:
    """Return a state behind a warp, after rounds with such shares of effective draws and log evidences."""
    history = tuple(
        dataclasses.replace(make_info(log_evidence=evidence, error=0.01, number=number), ess_share=share)
        for number, (share, evidence) in enumerate(zip(shares, evidences, strict=True))
    )
    return make_state(POOL, warp=Warp(()), history=history, best_ess=max(shares), **known)


@pytest.mark.parametrize(
    ("shares", "evidences", "measured", "could_stop", "look"),
    [
        # It no longer gets much better.
        ((0.25, 0.4), (0.0, 0.01), measure(0.45), True, Look.LAST),
        ((0.25, 0.4), (0.0, 0.01), measure(0.5), False, Look.NONE),
        ((0.15, 0.15), (0.0, 0.01), measure(0.16), False, Look.NONE),
        ((0.25, 0.4), (0.0, 0.01), measure(0.45, 0.5), False, Look.NONE),
        # Good as it is, it has to be steady before particles look: a rise of the ESS is, a fall is not.
        ((0.1, 0.4), (0.0, 0.01), measure(0.9), True, Look.LAST),
        ((0.9, 0.2), (0.0, 0.01), measure(0.9), True, Look.NONE),
        ((0.8, 0.8), (0.1, 0.0), measure(0.9), True, Look.NONE),
        # Less than 0.02 nats are not worth a round, whatever the errors are.
        ((0.8, 0.8), (0.019, 0.0), measure(0.9), True, Look.LAST),
        ((0.8,), (0.0,), measure(0.9), True, Look.NONE),
    ],
)
def test_the_end_behind_a_warp(shares, evidences, measured, could_stop, look):
    exact = dataclasses.replace(measured, log_evidence_se=0.001)
    state = warped_state(shares, evidences)
    state = dataclasses.replace(
        state, history=tuple(dataclasses.replace(info, log_evidence_se=0.001) for info in state.history)
    )
    plan = decide(exact, state, 20, TUNING)
    assert (plan.could_stop, plan.look) == (could_stop, look)


def test_rounds_with_heavy_weights_show_no_trend():
    rising = [make_info(log_evidence=value, error=0.01, pareto_k=1.0) for value in (-0.4, -0.3, -0.2, -0.1)]
    steady = [make_info(error=0.01)] * 3
    plan = make_plan(POOL, **HARD_STOP)
    assert conclude(plan, (*rising, *steady), (1.0, 1.0), 2, TUNING)[0]
    light = [dataclasses.replace(info, pareto_k=0.1) for info in rising]
    assert not conclude(plan, (*light, *steady), (1.0, 1.0), 2, TUNING)[0]


SHARES = st.one_of(st.just(0.0), st.floats(1e-6, 1.0))
# Made into states by the tests: what checks their types draws random numbers, which strategies must not.
STATES = st.fixed_dictionaries(
    {
        "stage": st.sampled_from(Stage),
        "was_hard": st.booleans(),
        "best_ess": SHARES,
        "num_stale": st.integers(0, 5),
        "discovered": st.tuples(st.floats(-0.1, 1.0), st.floats(-0.1, 1.0)),
    }
)
MEASUREMENTS = st.builds(
    Measurement,
    st.integers(100, 8192),
    SHARES,
    st.one_of(st.floats(-1.0, 2.0), st.just(np.nan), st.just(np.inf)),
    st.floats(-1e3, 1e3),
    st.floats(0.0, 1.0),
    st.floats(0.0, 1e4),
)
DIMS = st.integers(1, 300)
INFOS = st.lists(
    st.builds(
        make_info,
        drift=st.one_of(st.floats(-5.0, 10.0), st.just(np.inf)),
        pareto_k=st.floats(-1.0, 2.0),
        log_evidence=st.integers(-3, 3).map(float),
        error=st.floats(0.1, 2.0),
    ),
    min_size=1,
    max_size=5,
).map(tuple)
many_examples = settings(max_examples=300)
ORDER = list(Stage)


@given(measured=MEASUREMENTS, known=STATES, dim=DIMS)
@many_examples
def test_stages_are_never_gone_back_from(measured, known, dim):
    state = make_state(**known)
    plan = decide(measured, state, dim, TUNING)
    assert plan.stage is not BEGIN
    assert ORDER.index(plan.stage) >= ORDER.index(state.stage)
    if state.stage is EXPLORE:
        assert plan.stage is EXPLORE
    if state.stage is POOL:
        assert plan.stage is POOL


@given(measured=MEASUREMENTS, known=STATES, dim=DIMS, history=INFOS)
@many_examples
def test_a_look_sends_nobody_back(measured, known, dim, history):
    state = make_state(**known)
    plan = decide(measured, state, dim, TUNING)
    is_done, stage, _ = conclude(plan, history, state.discovered, dim, TUNING)
    assert stage is plan.stage or (plan.stage, stage) == (POOL, EXPLORE)
    assert not is_done or stage is plan.stage


@given(measured=MEASUREMENTS, known=STATES, dim=st.integers(TUNING.rounds.tiled_dim + 1, 300), history=INFOS)
@many_examples
def test_many_dimensions_are_not_explored(measured, known, dim, history):
    state = make_state(**known)
    if state.stage is EXPLORE:
        return
    plan = decide(measured, state, dim, TUNING)
    assert plan.stage is not EXPLORE
    assert plan.look not in (Look.EXPLORE, Look.LONG_LAST)
    assert conclude(plan, history, state.discovered, dim, TUNING)[1] is not EXPLORE


@given(measured=MEASUREMENTS, known=STATES, dim=DIMS)
@many_examples
def test_rounds_are_stale_exactly_without_a_gain(measured, known, dim):
    state = make_state(**known)
    plan = decide(measured, state, dim, TUNING)
    is_gain = measured.ess_share > TUNING.rounds.least_gain * state.best_ess
    assert plan.num_stale == (0 if is_gain else state.num_stale + 1)
    assert plan.best_ess == max(state.best_ess, measured.ess_share)


@given(measured=MEASUREMENTS, known=STATES, dim=DIMS)
@many_examples
def test_nothing_stops_with_heavy_weights_or_few_effective_draws(measured, known, dim):
    state = make_state(**known)
    rounds, plan = TUNING.rounds, decide(measured, state, dim, TUNING)
    if plan.could_stop:
        assert measured.pareto_k < rounds.fair_pareto_k
        assert measured.ess_share > rounds.least_ess
        if plan.num_stale < rounds.patience:
            assert measured.pareto_k < rounds.good_pareto_k
            assert measured.ess_share > rounds.good_explored_ess


@given(measured=MEASUREMENTS, known=STATES, dim=DIMS)
@many_examples
def test_looks_follow_from_stages(measured, known, dim):
    state = make_state(**known)
    plan = decide(measured, state, dim, TUNING)
    assert (plan.look is Look.EXPLORE) == (plan.stage is EXPLORE)
    assert (plan.look in (Look.LAST, Look.LONG_LAST)) == (plan.stage is POOL and plan.could_stop)
    assert (plan.look is Look.DESCEND) == (plan.stage is DESCEND and not plan.is_beyond)
    assert not plan.is_beyond or dim > TUNING.search.full_dim
    assert plan.was_hard >= state.was_hard


@given(measured=MEASUREMENTS, known=STATES, dim=DIMS, history=INFOS)
# Ends are rare among what is drawn: an easy target's, and a hard one's.
@example(measured=GOOD, known={"stage": POOL}, dim=2, history=(make_info(),))
@example(measured=GOOD, known={"stage": EXPLORE, "discovered": (0.0, 0.0)} | HARD, dim=2, history=AGREED)
@many_examples
def test_the_end_needs_good_draws_and_a_look_without_a_find(measured, known, dim, history):
    state = make_state(**known)
    plan = decide(measured, state, dim, TUNING)
    if conclude(plan, history, state.discovered, dim, TUNING)[0]:
        assert plan.could_stop
        assert history[-1].drift < TUNING.answer.largest_drift
        assert not plan.was_hard or len(history) >= TUNING.rounds.steady_rounds


@given(measured=MEASUREMENTS, known=STATES, dim=DIMS, history=INFOS, shift=st.integers(-(10**6), 10**6))
@many_examples
def test_a_constant_in_the_log_density_changes_no_decision(measured, known, dim, history, shift):
    state = make_state(**known)
    moved = dataclasses.replace(measured, log_evidence=measured.log_evidence + shift)
    plan = decide(measured, state, dim, TUNING)
    assert decide(moved, state, dim, TUNING) == plan
    later = tuple(dataclasses.replace(info, log_evidence=info.log_evidence + shift) for info in history)
    discovered = state.discovered
    assert conclude(plan, later, discovered, dim, TUNING) == conclude(plan, history, discovered, dim, TUNING)


@given(measured=MEASUREMENTS, known=STATES, dim=DIMS)
def test_decisions_are_functions(measured, known, dim):
    state = make_state(**known)
    before = dataclasses.replace(state)
    first, second = (decide(measured, state, dim, TUNING) for _ in range(2))
    assert first == second
    assert all(getattr(state, f.name) is getattr(before, f.name) for f in dataclasses.fields(state))


@pytest.mark.parametrize(
    ("change", "stage", "known", "dim", "measured", "expected"),
    [
        ({"patience": 3}, TEMPER, STALE, 2, POOR, TEMPER),
        ({"patience": 1}, TEMPER, {"best_ess": 0.95}, 2, POOR, DESCEND),
        ({"begun_ess": 0.5, "begun_pool": 1e9}, BEGIN, {}, 2, FAIR, TEMPER),
    ],
)
def test_the_numbers_of_the_rounds_decide(change, stage, known, dim, measured, expected):
    tuning = Tuning(rounds=dataclasses.replace(Rounds(), **change))
    state = make_state(stage, **known)
    assert decide(measured, state, dim, tuning).stage is expected
    assert decide(measured, state, dim, TUNING).stage is not expected


def test_where_matrices_end_descending_ends():
    state, tuning = make_state(TEMPER, **STALE), Tuning(search=Search(full_dim=3))
    assert [decide(POOR, state, dim, tuning).is_beyond for dim in (3, 4)] == [False, True]
    assert [decide(POOR, state, dim, tuning).look for dim in (3, 4)] == [Look.DESCEND, Look.NONE]


def test_particles_descend_once():
    assert decide(measure(0.0), make_state(DESCEND, was_hard=True), 2, TUNING).stage is POOL
