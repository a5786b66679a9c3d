"""Processes of klover's own: spawned, never forked, with a thread for each core of their share, mostly one.

Each is a ``ProcessPoolExecutor`` with one worker: the end of a process ends the executor that it belongs to, and all of
its tasks, so that a death costs one chunk, and everybody knows which.
"""

import contextlib
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from klover.workers import task
from klover.workers.errors import PoolGone
from klover.workers.parcel import Job

MOST_PROCESSES = 128
"""Each takes eight of a process's file descriptors, of which there are often 1024."""
MOST_FALSE_STARTS = 2
"""Processes in a row, beside the first ones, that die before they have the function."""
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "PJRT_NPROC")
"""What linear algebra and JAX read when they are imported."""
GUARD = (
    "If this is a script, start the work under `if __name__ == '__main__':`, for each process imports the script; "
    "otherwise see what they wrote to stderr."
)


class _Process:
    """One process, and what was sent to it."""

    def __init__(self, num_threads: int):
        context = multiprocessing.get_context("spawn")
        self.executor = ProcessPoolExecutor(1, context, task.settle)
        self.known: set[str] = set()
        self.future: Future | None = None
        try:
            with _threads(num_threads):
                self.hello = self.loaded = self.executor.submit(os.getpid)
        except (RuntimeError, OSError) as error:
            raise PoolGone(f"klover cannot start a process: {error} {GUARD}") from error

    @property
    def is_idle(self) -> bool:
        """Whether a chunk can be sent to it."""
        return self.future is None or self.future.done()

    @property
    def is_ready(self) -> bool:
        """Whether it has started and loaded the function, so that it is at work on its chunk."""
        return self.loaded.done() and not self.loaded.cancelled() and self.loaded.exception() is None

    def submit(self, job: Job, chunk: Any) -> Future:
        """Send a chunk, and the function before the first."""
        if job.parcel.key not in self.known:
            self.loaded = self.executor.submit(task.run, job.parcel.key, job.parcel, None)
            self.known.add(job.parcel.key)
        self.future = self.executor.submit(task.run, job.parcel.key, None, chunk)
        return self.future

    def close(self) -> None:
        """End it: at once where it is at work."""
        if not self.is_idle:
            pid = None
            with contextlib.suppress(BrokenProcessPool):
                pid = self.hello.result()
            for process in multiprocessing.active_children():
                if process.pid == pid:
                    process.kill()
        self.executor.shutdown(wait=True, cancel_futures=True)


class Processes:
    """Engine of so many processes, which start at the first chunk."""

    def __init__(self, num_workers: int, num_threads: int = 1):
        self.num_workers, self._num_threads = num_workers, num_threads
        self.name = f"pool={num_workers}"
        self._processes: list[_Process] = []
        self._num_false_starts = 0

    def submit(self, job: Job, chunk: Any, with_function: bool, is_suspect: bool) -> Future:
        """Send a chunk to a process that has nothing to do; those that have died are replaced."""
        while True:
            while len(self._processes) < self.num_workers:
                self._processes.append(_Process(self._num_threads))
            process = next(process for process in self._processes if process.is_idle)
            if with_function:
                process.known.clear()
            try:
                return process.submit(job, chunk)
            except BrokenProcessPool:
                self._bury(process)

    def _bury(self, process: _Process) -> None:
        """Forget a process that has died, unless they die as they start."""
        self._num_false_starts = 0 if process.is_ready else self._num_false_starts + 1
        self._processes.remove(process)
        process.close()
        if self._num_false_starts >= MOST_FALSE_STARTS + self.num_workers:
            raise PoolGone(f"the processes of {self.name} end as soon as they are started. {GUARD}")

    def is_death(self, error: BaseException) -> bool:
        """Whether a process has died."""
        return isinstance(error, BrokenProcessPool)

    def is_end(self, error: BaseException) -> bool:
        """Return False: what dies is replaced."""
        return False

    def is_ready(self, future: Future) -> bool:
        """Whether the process of a chunk has got as far as the chunk."""
        return any(process.future is future and process.is_ready for process in self._processes)

    def is_false_start(self, future: Future) -> bool:
        """Whether the process of a chunk has not got as far as the chunk."""
        return not self.is_ready(future)

    def give_up(self, future: Future) -> None:
        """Kill the process that works on a chunk."""
        for process in list(self._processes):
            if process.future is future:
                self._processes.remove(process)
                process.close()

    def close(self) -> None:
        """End the processes; the next chunk starts new ones."""
        for process in self._processes:
            process.close()
        self._processes = []


@contextlib.contextmanager
def _threads(num_threads: int) -> Iterator[None]:
    """Let a process that starts meanwhile compute in so many threads: several of them share the cores."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, str(num_threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
