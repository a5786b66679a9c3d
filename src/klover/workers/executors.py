"""Workers of the user's: any ``concurrent.futures.Executor``, so those of mpi4py, and functions that open one.

An executor that loses a process is broken for good. What had been sent to it then may have killed the process: if
another executor can be opened, these chunks are suspects, each evaluated in a process of its own.
"""

import math
import os
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from typing import Any

from klover.base.checks import in_words
from klover.workers import apart, task
from klover.workers.errors import PoolGone, gone
from klover.workers.parcel import Job

MOST_FALSE_STARTS = 3
"""Executors in a row that break before one chunk is finished."""
SECONDS_TO_LOAD = 60.0
"""What a worker may take to load a function, with all that it imports, where nobody can see when it has done so."""


class Foreign:
    """Engine on an executor: what hangs there keeps its worker, and what dies takes all of it down.

    Parameters
    ----------
    executor
        The executor, which is left open.
    """

    def __init__(self, executor: Any):
        self._executor: Any = executor
        self._stuck: list[Future] = []
        self._loading: dict[Future, float] = {}
        self.name = f"pool={type(executor).__name__}"

    @property
    def num_workers(self) -> int:
        """How many workers there are that are not stuck."""
        self._stuck = [future for future in self._stuck if not future.done()]
        return max(self._count() - len(self._stuck), 0)

    def _count(self) -> int:
        """Ask the executor for the number of its workers; the interface has none."""
        known = (getattr(self._executor, name, None) for name in ("num_workers", "_max_workers"))
        return next((num for num in known if isinstance(num, int) and num > 0), None) or os.cpu_count() or 1

    def submit(self, job: Job, chunk: Any, with_function: bool, is_suspect: bool) -> Future:
        """Send a chunk; a suspect gets a process of its own, which the worker starts, and outlives."""
        if is_suspect:
            return self._send(apart.run, job.parcel, chunk)
        future = self._send(task.run, job.parcel.key, job.parcel if with_function else None, chunk)
        if with_function:
            self._loading = {each: since for each, since in self._loading.items() if not each.done()}
            self._loading[future] = time.monotonic()
        return future

    def is_death(self, error: BaseException) -> bool:
        """Return False: an executor that has lost a worker is broken."""
        return False

    def is_end(self, error: BaseException) -> bool:
        """Whether the executor has broken, or was shut down."""
        return isinstance(error, BrokenExecutor | CancelledError)

    def _send(self, function: Callable, *arguments: Any) -> Future:
        try:
            return self._executor.submit(function, *arguments)
        except RuntimeError as error:
            raise gone(self.name, error) from error

    def is_ready(self, future: Future) -> bool:
        """Whether the worker of a chunk has loaded the function, as far as one can tell."""
        return time.monotonic() - self._loading.get(future, -math.inf) > SECONDS_TO_LOAD

    def is_false_start(self, future: Future) -> bool:
        """Return False: nobody can see it."""
        return False

    def give_up(self, future: Future) -> None:
        """Take a chunk back if it still waits; count its worker out while it does not."""
        if not future.cancel():
            self._stuck.append(future)

    def close(self) -> None:
        """Leave the executor open: it is the user's."""


class Opened(Foreign):
    """Engine on executors that a function opens, one after the other as they break; what is open at the end is closed.

    Parameters
    ----------
    open_one
        Returns a new executor.
    """

    def __init__(self, open_one: Callable[[], Executor]):
        super().__init__(None)
        self._open_one, self.name = open_one, f"pool={in_words(open_one)}"
        self._num_false_starts = 0

    def _count(self) -> int:
        """Count the workers of what is open; the first chunk opens it."""
        return 1 if self._executor is None else super()._count()

    def _open(self) -> None:
        """Open an executor, unless one is open."""
        if self._executor is not None:
            return
        expected = f"{self.name} must return a new concurrent.futures.Executor when it is called without arguments"
        try:
            opened = self._open_one()
        except Exception as error:
            raise PoolGone(f"{expected}, but {type(error).__name__}: {error}.") from error
        if not isinstance(opened, Executor):
            raise PoolGone(f"{expected}, got {in_words(opened)}.")
        self._executor = opened

    def _send(self, function: Callable, *arguments: Any) -> Future:
        """Send a task; where the executor has broken, to a new one."""
        for _ in range(MOST_FALSE_STARTS):
            self._open()
            try:
                future = self._executor.submit(function, *arguments)
            except BrokenExecutor:
                self._renew()
            except RuntimeError as error:
                raise gone(self.name, error) from error
            else:
                future.add_done_callback(self._note)
                return future
        raise self._never_works()

    def _note(self, future: Future) -> None:
        """Count executors that work."""
        if not future.cancelled() and future.exception() is None:
            self._num_false_starts = 0

    def _renew(self) -> None:
        """Let go of an executor that has broken."""
        self.close()
        self._num_false_starts += 1
        if self._num_false_starts > MOST_FALSE_STARTS:
            raise self._never_works()

    def _never_works(self) -> PoolGone:
        return PoolGone(
            f"the executors of {self.name} break before they have finished anything. Where they are processes, a "
            "script needs `if __name__ == '__main__':`; otherwise see what they wrote to stderr."
        )

    def is_death(self, error: BaseException) -> bool:
        """Whether the executor has lost a worker: nobody knows which, so that all chunks on it are suspects."""
        return isinstance(error, BrokenExecutor)

    def is_end(self, error: BaseException) -> bool:
        """Return False: what has broken is opened again."""
        return False

    def close(self) -> None:
        """Close what is open, without waiting for what is stuck; the next chunk opens another."""
        if self._executor is not None:
            self._executor.shutdown(wait=not self._stuck, cancel_futures=True)
        self._executor, self._stuck = None, []
