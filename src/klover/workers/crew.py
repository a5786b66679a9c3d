"""The door: what a user may pass as ``pool=``, and who then does the work."""

import contextlib
import numbers
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any, Protocol, runtime_checkable

import numpy as np

from klover.base.checks import check_count, check_positive, in_words
from klover.workers.cluster import Dask, is_dask
from klover.workers.executors import Foreign, Opened
from klover.workers.parcel import Job
from klover.workers.plain import Alone, Mapped
from klover.workers.processes import MOST_PROCESSES, Processes
from klover.workers.scheduler import Done, Scheduler

KINDS = (
    "a whole number of processes, a concurrent.futures.Executor (such as mpi4py's MPIPoolExecutor) or a function that "
    "opens one, a Dask Client, or an object with .map"
)


@runtime_checkable
class Workers(Protocol):
    """Those who do the work."""

    def run(self, job: Job, tasks: Any, done: Done) -> None:
        """Evaluate a function at all tasks, and call ``done`` with each chunk that is finished."""
        ...

    def close(self) -> None:
        """End what was started here."""
        ...


def check_pool(pool: Any, timeout: Any = None) -> None:
    """Refuse what cannot be a pool, and a time limit that nobody could keep."""
    is_count = isinstance(pool, numbers.Integral) or isinstance(pool, float | np.floating)
    if is_count:
        check_count("pool", pool, 1, "Pass an Executor or a Dask client for more.", maximum=MOST_PROCESSES)
    is_pool = isinstance(pool, Executor) or is_dask(pool) or callable(getattr(pool, "map", None)) or opens(pool)
    if pool is not None and not is_count and (not is_pool or isinstance(pool, type)):
        raise TypeError(f"pool must be {KINDS}, got {in_words(pool)}.")
    if is_dask(pool) and getattr(pool, "asynchronous", False):
        raise ValueError("pool must be a Dask Client that waits, got one with asynchronous=True. Make another one.")
    if timeout is None:
        return
    check_positive("timeout", timeout, "Pass the seconds that one point may take.")
    if not (is_count or isinstance(pool, Executor) or is_dask(pool) or opens(pool)):
        raise ValueError(
            "timeout= needs workers that can be done without, pool= as a whole number, an Executor or a Dask Client: "
            f"nobody else stops waiting for a point. Got pool={in_words(pool)}."
        )


def opens(pool: Any) -> bool:
    """Whether this is a function, which is to open an executor."""
    return callable(pool) and not isinstance(pool, Executor | type) and not hasattr(pool, "map") and not is_dask(pool)


def connect(pool: Any, timeout: float | None = None, num_threads: int = 1) -> Workers:
    """Return who does the work; nobody starts before the first task. Our own processes have so many threads each.

    Examples
    --------
    >>> import numpy as np
    >>> from klover.workers.work import OnPoints
    >>> found = np.zeros(3)
    >>> connect(None).run(Job("sum", OnPoints(np.sum)), np.ones((3, 2)), lambda at, values, _: found.put(at, values))
    >>> found
    array([2., 2., 2.])
    """
    check_pool(pool, timeout)
    if pool is None:
        return Alone()
    if isinstance(pool, numbers.Integral):
        return Scheduler(Processes(int(pool), num_threads), timeout)
    if is_dask(pool):
        return Scheduler(Dask(pool), timeout)
    if isinstance(pool, Executor):
        return Scheduler(Foreign(pool), timeout)
    if opens(pool):
        return Scheduler(Opened(pool), timeout)
    return Mapped(pool)


class Crew:
    """The workers of one target, who may be replaced for a while.

    Parameters
    ----------
    pool, timeout
        Who does the work, and the seconds that one point may take, as :func:`connect` has them.
    """

    def __init__(self, pool: Any = None, timeout: float | None = None):
        self._timeout = timeout
        self._workers = connect(pool, timeout)

    def run(self, job: Job, tasks: Any, done: Done) -> None:
        """Evaluate a function at all tasks; ``done`` hears of each chunk as it is finished."""
        self._workers.run(job, tasks, done)

    @contextlib.contextmanager
    def replaced_by(self, pool: Any) -> Iterator[None]:
        """Let another pool do the work meanwhile; None keeps the present one. Processes of our own end with it."""
        before = self._workers
        if pool is not None:
            self._workers = connect(pool, self._timeout)
        try:
            yield
        finally:
            self._workers.close()
            self._workers = before
