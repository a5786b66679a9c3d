"""One case, from its name to its line: built, fitted under a limit of time, judged."""

import dataclasses
import signal
import time
import traceback
import warnings
from typing import Any

import jax

import klover
from benchmarks.reliability import case as cases
from benchmarks.reliability import outcome, peering

LIMIT = 20.0
"""Seconds on one core that a fit may take."""


class OutOfTime(BaseException):
    """The limit is reached; no handler of ``Exception`` on the way may swallow it."""


class Limit:
    """Raise :class:`OutOfTime` inside the block once its seconds are over, or do nothing where they are None.

    Seconds of this process's work, so that others on the machine do not make a fit unfinished.
    """

    def __init__(self, seconds: float | None):
        self.seconds = seconds

    def __enter__(self):
        if self.seconds is not None:
            signal.signal(signal.SIGPROF, _alarm)
            signal.setitimer(signal.ITIMER_PROF, self.seconds)
        return self

    def __exit__(self, *_):
        if self.seconds is not None:
            signal.setitimer(signal.ITIMER_PROF, 0.0)


def _alarm(number, frame):
    raise OutOfTime


def run(name: str, limit: float | None = LIMIT, progress: bool = False, peer: str | None = None) -> dict[str, Any]:
    """Fit one case with klover's defaults, or with another tool, and return its line.

    The clock runs for the fit alone, compilation included: neither for the making of the case nor for the comparison.
    """
    try:
        case = cases.build(name)
    except ArithmeticError as error:  # an integral that is not as accurate as a truth has to be
        return outcome.not_made(name, error)
    line = outcome.about(case) | ({} if peer is None else {"peer": peer})
    seed = cases.seed_of(name, "fit") % 2**31
    began, cpu_began, seen = time.perf_counter(), time.process_time(), []
    try:
        with warnings.catch_warnings(record=True) as seen, case.precision():
            warnings.simplefilter("default")
            with Limit(limit):
                if peer is None:
                    found = klover.refine(seed, case.target, progress=progress)
                else:
                    found = peering.solve(case, peer, seed)
            line |= {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu_began}
            line |= found if isinstance(found, dict) else outcome.line_of_fit(case, found)
    except OutOfTime:
        line |= {"outcome": outcome.UNFINISHED, "seconds": time.perf_counter() - began}
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        line |= outcome.line_of_error(error) | {"seconds": time.perf_counter() - began}
        line["where"] = f"{frame.filename.rpartition('/')[2]}:{frame.lineno} in {frame.name}"
    return outcome.jsonable(line | outcome.warned(seen))


@dataclasses.dataclass(frozen=True)
class Job:
    """What a worker process does: :func:`run`, with a limit and a tool."""

    limit: float = LIMIT
    peer: str | None = None

    def begin(self) -> None:
        """Make the first fit of a process, which pays for imports, on a target of no interest."""
        if self.peer is not None:
            peering.load(self.peer)
        klover.refine(0, klover.Target(lambda x: -0.5 * jax.numpy.sum(x**2), jax.numpy.zeros(1)))

    def run(self, name: str) -> dict[str, Any]:
        """Run one case."""
        return run(name, self.limit, peer=self.peer)

    def tidy(self) -> None:
        """Forget what was compiled, so that the memory of a process stays bounded."""
        jax.clear_caches()
