"""Budgets: a number of evaluations, or a time, which the pace of the target turns into a number of evaluations.

Where there is no budget there is a :class:`Bound`, so that no fit goes on for ever.
"""

import contextlib
import datetime
import math
from collections.abc import Iterator
from typing import Any

from klover.base.checks import check_count

Budget = int | datetime.timedelta | None
Amount = int | float
"""Evaluations, or seconds."""
Work = tuple[Amount, float]
"""Evaluations, and seconds of other work."""

AT_A_TIME = 0.1
"""Share of a time that one block of evaluations may take: between blocks the clock is looked at."""
HELD_BACK = 0.05, 0.25
"""Least and largest share of a time that a reserve is: final draws take time beside the evaluations as well."""


SPENT = "the budget is spent"


class BudgetExhausted(Exception):
    """Raised before an evaluation that the budget, or the bound in its place, does not allow; it says which."""

    def __init__(self, cause: str = SPENT):
        super().__init__(cause)


def check_budget(budget: Any, minimum: int = 1) -> Budget:
    """Return a budget: none, a time, or a whole number of evaluations, at least so many."""
    remedy = "Pass a number of evaluations, or a datetime.timedelta."
    if isinstance(budget, datetime.timedelta):
        if budget < datetime.timedelta(0):
            raise ValueError(f"budget must be 0 seconds or more, got {budget!r}. {remedy}")
        return budget
    return None if budget is None else check_count("budget", budget, minimum, remedy)


class Allowance:
    """What a budget still allows; amounts are evaluations, or seconds where the budget is a time.

    Parameters
    ----------
    budget
        Most evaluations, or most time.
    reserve
        Evaluations that are kept back until :meth:`open_reserve`.
    """

    def __init__(self, budget: Budget, reserve: int = 0):
        self.is_timed, self.reserve = isinstance(budget, datetime.timedelta), reserve
        self._total: Amount = math.inf if budget is None else 0
        if budget is not None:
            self._total = budget.total_seconds() if isinstance(budget, datetime.timedelta) else budget
        self._is_reserve_open, self._ceiling = False, math.inf
        self._latest, self._fastest = 0.0, math.inf

    def note_pace(self, seconds: float, num: int) -> None:
        """Remember how long a block of evaluations took: the fastest pace for plans, the latest for the next block."""
        self._latest = seconds / num
        self._fastest = min(self._fastest, self._latest)

    @property
    def _price(self) -> Amount:
        """Amount that one of many evaluations costs; 0 if nothing is known yet."""
        return 1 if not self.is_timed else self._fastest if math.isfinite(self._fastest) else 0.0

    @property
    def _limit(self) -> Amount:
        """Amount up to which may be spent by now."""
        if self._is_reserve_open:
            return self._total
        held_back = self.reserve * self._price
        if self.is_timed and self.reserve > 0:
            held_back = min(max(held_back, HELD_BACK[0] * self._total), HELD_BACK[1] * self._total)
        return min(self._total - held_back, self._ceiling)

    def affords(self, spent: Amount, num: int) -> bool:
        """Whether so many evaluations may be made."""
        return spent + num * self._price <= self._limit

    def has_room(self, spent: Amount, seconds: float) -> bool:
        """Whether so many seconds may pass, beside evaluations."""
        return not self.is_timed or spent + seconds <= self._limit

    def rest(self, spent: Amount) -> Amount:
        """Return what is left, the reserve included."""
        return max(self._total - spent, 0)

    def num_affordable(self, spent: Amount) -> int | None:
        """Return the evaluations that all of the rest pays for, the reserve included; None if that is not known."""
        rest = self.rest(spent)
        if rest > 0 and (math.isinf(rest) or self._price == 0):
            return None
        return int(rest / self._price) if rest > 0 else 0

    def num_allowed(self, spent: Amount) -> int | None:
        """Return the evaluations that may be made by now; None if any number."""
        return None if math.isinf(self._limit) else max(int((self._limit - spent) / self._price), 0)

    def num_at_a_time(self, spent: Amount) -> float:
        """Return how many evaluations may be made before the clock is looked at again; none if the time is up."""
        rest = self._limit - spent
        if rest < self._price or rest <= 0:
            return 0.0
        at_a_time = min(rest, AT_A_TIME * self._total)
        # The latest block may have been slow by chance, so that one evaluation is always worth a try.
        return max(at_a_time / self._latest, 1.0) if self._latest > 0 else math.inf

    @contextlib.contextmanager
    def part(self, spent: Amount, share: float) -> Iterator[None]:
        """Let no more than a share of the rest be spent meanwhile."""
        self._ceiling = spent + share * max(self._limit - spent, 0)
        try:
            yield
        finally:
            self._ceiling = math.inf

    def close_reserve(self) -> None:
        """Keep the reserve back again."""
        self._is_reserve_open = False

    def open_reserve(self, spent: Amount) -> None:
        """Let all of the budget be spent from now on; of a time that is over, the least share once more."""
        self._is_reserve_open = True
        if self.is_timed:
            self._total = max(self._total, spent + HELD_BACK[0] * self._total)


class Bound:
    """Where a fit without a budget ends: after so many evaluations, or so many seconds of work beside them.

    It changes nothing before it is reached.

    Parameters
    ----------
    most
        Where the work ends; none at all if the first of them is 0.
    last
        What is left for the answer (final draws, the last search, checks) in any case.
    """

    def __init__(self, most: Work = (0, 0.0), last: Work = (0, 0.0)):
        self._most, self._last = most, last
        self._limit = most

    def check(self, spent: Work, num: int = 0) -> None:
        """End the work where so many evaluations more exceed the bound, and say in words which one it is."""
        if self._most[0] == 0:
            return
        if spent[0] + num > self._limit[0]:
            raise BudgetExhausted(f"{self._most[0]:,} evaluations, the bound without a budget")
        if spent[1] > self._limit[1]:
            raise BudgetExhausted(f"{self._most[1]:.0f} s of klover's own work, the bound without a budget")

    def extend(self, spent: Work, num: int = 0) -> None:
        """Allow what belongs to the answer, and so many evaluations beside it."""
        self._limit = (
            max(self._limit[0], spent[0] + num + self._last[0]),
            max(self._limit[1], spent[1] + self._last[1]),
        )

    def shorten(self) -> None:
        """Keep back what belongs to the answer."""
        self._limit = self._most

    def leaves_rounds(self, spent: Work) -> bool:
        """Whether anything is left but what belongs to the answer."""
        return self._most[0] == 0 or all(amount < most for amount, most in zip(spent, self._most, strict=True))

    @contextlib.contextmanager
    def part(self, spent: Work, share: float) -> Iterator[None]:
        """Let no more than a share of the rest be spent meanwhile."""
        limit = self._limit
        self._limit = spent[0] + share * (limit[0] - spent[0]), spent[1] + share * (limit[1] - spent[1])
        try:
            yield
        finally:
            self._limit = limit
