import datetime
import math

import pytest

from klover.targets.budget import AT_A_TIME, HELD_BACK, SPENT, Allowance, Bound, BudgetExhausted, check_budget


def seconds(number):
    return datetime.timedelta(seconds=number)


def test_budgets():
    assert check_budget(None) is None
    assert check_budget(seconds(3)) == seconds(3)
    assert check_budget(7) == 7
    with pytest.raises(ValueError, match="budget must be 0 seconds or more, got .*datetime.timedelta"):
        check_budget(seconds(-1))
    with pytest.raises(ValueError, match="budget must be a whole number of at least 2, got 1"):
        check_budget(1, 2)
    with pytest.raises(TypeError, match="budget must be a whole number, got 2.5"):
        check_budget(2.5)


def test_without_a_budget_everything_is_allowed():
    allowance = Allowance(None, 10)
    assert allowance.affords(1e9, 10**9)
    assert allowance.num_affordable(1e9) is None
    assert allowance.has_room(1e9, 1e9)


def test_evaluations_are_kept_back_until_the_reserve_is_opened():
    allowance = Allowance(100, 30)
    assert allowance.affords(60, 10)
    assert not allowance.affords(60, 11)
    assert allowance.num_affordable(60) == 40
    allowance.open_reserve(60)
    assert allowance.affords(60, 40)
    assert not allowance.affords(60, 41)
    assert allowance.num_affordable(100) == 0
    assert allowance.has_room(100, 1e9)


def test_time_becomes_evaluations_by_the_fastest_pace():
    allowance = Allowance(seconds(10), 5)
    assert allowance.num_affordable(0.0) is None
    allowance.note_pace(1.0, 1)
    allowance.note_pace(2.0, 4)
    allowance.note_pace(1.0, 1)
    assert allowance.num_affordable(0.0) == 20
    # Five evaluations, 2.5 s, are kept back.
    assert allowance.affords(0.0, 15)
    assert not allowance.affords(0.0, 16)


@pytest.mark.parametrize(("reserve", "share"), [(1, HELD_BACK[0]), (10**6, HELD_BACK[1])])
def test_a_share_of_the_time_is_kept_back(reserve, share):
    allowance = Allowance(seconds(10), reserve)
    allowance.note_pace(0.1, 1)
    assert allowance.has_room(10 * (1 - share) - 1.001, 1.0)
    assert not allowance.has_room(10 * (1 - share) - 0.999, 1.0)


def test_blocks_take_a_share_of_the_time_at_the_latest_pace():
    allowance = Allowance(seconds(10), 1)
    assert allowance.num_at_a_time(0.0) == math.inf
    allowance.note_pace(0.1, 1)
    assert allowance.num_at_a_time(0.0) == pytest.approx(AT_A_TIME * 10 / 0.1)
    # By chance the latest was slow: one is worth a try.
    allowance.note_pace(60.0, 1)
    assert allowance.num_at_a_time(0.0) == 1.0
    assert allowance.num_at_a_time(9.49) == 0.0
    allowance.open_reserve(9.49)
    assert allowance.num_at_a_time(9.49) == 1.0
    assert allowance.num_at_a_time(9.95) == 0.0


def test_a_time_that_is_over_leaves_a_little_for_the_answer():
    allowance = Allowance(seconds(10), 100)
    allowance.note_pace(0.1, 1)
    assert allowance.num_affordable(12.0) == 0
    allowance.open_reserve(12.0)
    assert allowance.num_affordable(12.0) == int(HELD_BACK[0] * 10 / 0.1)


@pytest.mark.parametrize("budget", [100, seconds(100)])
def test_a_part(budget):
    allowance = Allowance(budget, 20)
    allowance.note_pace(1.0, 1)
    with allowance.part(20, 0.5):
        assert allowance.affords(20, 30)
        assert not allowance.affords(20, 31)
    assert allowance.affords(20, 60)


def test_an_exhausted_budget_says_so():
    assert str(BudgetExhausted()) == SPENT


def test_a_bound_ends_the_work_in_words():
    bound = Bound((1000, 60.0), (100, 5.0))
    bound.check((900, 60.0), 100)
    with pytest.raises(BudgetExhausted, match="1,000 evaluations, the bound without a budget"):
        bound.check((900, 0.0), 101)
    with pytest.raises(BudgetExhausted, match="60 s of klover's own work"):
        bound.check((0, 60.1))
    assert bound.leaves_rounds((999, 59.9))
    assert not bound.leaves_rounds((1000, 0.0))
    assert not bound.leaves_rounds((0, 60.0))


def test_a_bound_leaves_what_the_answer_takes():
    bound = Bound((1000, 60.0), (100, 5.0))
    bound.extend((950, 58.0), 30)
    bound.check((1000, 63.0), 80)
    with pytest.raises(BudgetExhausted):
        bound.check((1000, 63.0), 81)
    assert not bound.leaves_rounds((1000, 0.0))
    bound.shorten()
    with pytest.raises(BudgetExhausted):
        bound.check((1000, 0.0), 1)


def test_a_part_of_a_bound():
    bound = Bound((1000, 60.0))
    with bound.part((200, 20.0), 0.5):
        bound.check((600, 40.0))
        with pytest.raises(BudgetExhausted):
            bound.check((601, 0.0))
    bound.check((1000, 60.0))


def test_no_bound_ends_nothing():
    Bound().check((10**12, 1e9), 10**12)
    assert Bound().leaves_rounds((10**12, 1e9))
