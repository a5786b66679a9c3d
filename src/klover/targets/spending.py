"""What a fit has spent, and what it may still spend: evaluations and seconds, of a budget or up to a bound."""

import contextlib
import time
from collections.abc import Iterator

import numpy as np

from klover.base.shapes import Float
from klover.targets.budget import Allowance, Bound, BudgetExhausted, Work


def clocks() -> Float[np.ndarray, " clock"]:
    """Return the seconds on the clock, and those of this process's cores."""
    return np.array([time.perf_counter(), time.process_time()])


class Spending:
    """Count evaluations and time, and end the work where no more is allowed.

    Parameters
    ----------
    allowance
        The budget, and what is kept back of it.
    bound
        Where the work ends besides.
    """

    def __init__(self, allowance: Allowance, bound: Bound):
        self._allowance, self._bound = allowance, bound
        self.num_evaluations = self.num_nan = self.num_infinite = self.num_raised = 0
        self._seconds_outside = 0.0
        self._evaluated, self._evaluating_since = np.zeros(2), None
        self._began = clocks()

    @property
    def elapsed(self) -> float:
        """Seconds since the evaluator was made."""
        return float((clocks() - self._began)[0])

    @property
    def seconds(self) -> float:
        """Seconds of evaluations, and compilations for them, that have ended."""
        return float(self._evaluated[0])

    @property
    def own_seconds(self) -> float:
        """Seconds of all other work."""
        return float(self._own[0])

    @property
    def _own(self) -> Float[np.ndarray, " clock"]:
        now = clocks()
        running = 0.0 if self._evaluating_since is None else now - self._evaluating_since
        return now - self._began - self._evaluated - running

    @property
    def is_bound_reached(self) -> bool:
        """Whether a fit without a budget has come to its bound."""
        return not self._bound.leaves_rounds(self._work)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Count the time meanwhile as that of evaluations."""
        if self._evaluating_since is not None:
            yield
            return
        self._evaluating_since = clocks()
        try:
            yield
        finally:
            self._evaluated += clocks() - self._evaluating_since
            self._evaluating_since = None

    @property
    def reserve(self) -> int:
        """Evaluations that are kept back from the budget until :meth:`open_reserve`."""
        return self._allowance.reserve

    @property
    def num_left(self) -> int | None:
        """Evaluations that the budget still allows; None without such a budget."""
        return None if self._allowance.is_timed else self.num_affordable

    @property
    def num_affordable(self) -> int | None:
        """Evaluations that the rest of the budget pays for, at the present pace if it is a time; None if any number."""
        return self._allowance.num_affordable(self._spent)

    @property
    def num_allowed(self) -> int | None:
        """The same, without the reserve and what lies beyond the present part; None without a budget of evaluations."""
        return None if self._allowance.is_timed else self._allowance.num_allowed(self._spent)

    @property
    def seconds_left(self) -> float | None:
        """Seconds that the budget still allows; None without such a budget."""
        return float(self._allowance.rest(self.elapsed)) if self._allowance.is_timed else None

    @property
    def _spent(self) -> int | float:
        return self.elapsed if self._allowance.is_timed else self.num_evaluations

    @property
    def _work(self) -> Work:
        # A machine that is busy with something else shall not end a fit: then the cores' seconds are the fewer.
        return self.num_evaluations, float(self._own.min())

    @contextlib.contextmanager
    def part(self, share: float) -> Iterator[None]:
        """Let no more than a share of the rest of the budget, or up to the bound, be spent meanwhile."""
        with self._allowance.part(self._spent, share), self._bound.part(self._work, share):
            yield

    @contextlib.contextmanager
    def expect_as_long(self, factor: float) -> Iterator[None]:
        """Refuse a step of work if there is no time for one that, the target left aside, takes longer than the last."""
        self.check_clock(factor * self._seconds_outside)
        began = self.own_seconds
        yield
        self._seconds_outside = self.own_seconds - began

    def check_clock(self, seconds: float = 0.0) -> None:
        """End the work where the time is over, or would be after so many seconds, and at the bound."""
        if not self._allowance.has_room(self._spent, seconds):
            raise BudgetExhausted
        self._bound.check(self._work)

    def open_reserve(self) -> None:
        """Let the reserve be used from now on."""
        self._allowance.open_reserve(self._spent)
        self._bound.extend(self._work)

    def close_reserve(self) -> None:
        """Keep the reserve back again."""
        self._allowance.close_reserve()
        self._bound.shorten()

    def charge(self, num: int) -> None:
        """Count evaluations that are about to be made here or elsewhere, if the budget allows them."""
        if not self._allowance.affords(self._spent, num):
            raise BudgetExhausted
        self._bound.check(self._work, num)
        self.num_evaluations += num
