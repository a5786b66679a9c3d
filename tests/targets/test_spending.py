import time

import pytest

from klover.targets.budget import Allowance, Bound, BudgetExhausted
from klover.targets.spending import Spending


def test_time_is_that_of_evaluations_or_the_engines_own():
    spending = Spending(Allowance(None, 0), Bound())
    with spending.evaluating(), spending.evaluating():
        time.sleep(0.02)
    assert 0.02 <= spending.seconds <= spending.elapsed
    assert spending.own_seconds <= spending.elapsed - spending.seconds


def test_the_bound_counts_work_and_no_waiting():
    spending = Spending(Allowance(None, 0), Bound((1000, 0.1)))
    time.sleep(0.11)
    assert spending.own_seconds > 0.1
    spending.check_clock()
    began = time.process_time()
    while time.process_time() < began + 0.11:
        pass
    with pytest.raises(BudgetExhausted, match="klover's own work"):
        spending.check_clock()
