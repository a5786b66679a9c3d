"""Workers of the user's: any ``concurrent.futures.Executor``, so those of mpi4py."""

import math
import os
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Future
from typing import Any

from klover.workers import apart, task
from klover.workers.errors import gone
from klover.workers.parcel import Job

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
        self._executor = executor
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
