"""Work without a scheduler: in this process, and on any object that has nothing but ``.map``."""

import functools
import time
from typing import Any

import numpy as np

from klover.workers import task
from klover.workers.errors import Refused, gone
from klover.workers.parcel import Job
from klover.workers.scheduler import CHUNKS_PER_WORKER, Done

SECONDS = 1.0
"""After so much time the next chunk begins, so that what was evaluated can be kept."""


class Alone:
    """Work in this process."""

    def run(self, job: Job, tasks: Any, done: Done) -> None:
        """Evaluate a function at all tasks; one that takes many at once gets all of them."""
        size = len(tasks) if getattr(job.work, "vectorized", False) else 1
        first = 0
        while first < len(tasks):
            indices = np.arange(first, min(first + size, len(tasks)))
            chunk = tasks[indices] if isinstance(tasks, np.ndarray) else [tasks[index] for index in indices]
            began = time.perf_counter()
            values, errors = job.work(chunk)
            done(indices, values, [(first + place, error) for place, error in errors])
            pace = max(time.perf_counter() - began, 1e-9) / len(indices)
            first, size = first + len(indices), max(int(SECONDS / pace), 1)

    def close(self) -> None:
        """Nothing was started."""


class Mapped:
    """Work on an object with ``.map``: what dies or hangs there is nobody's business here.

    Parameters
    ----------
    pool
        The object, which is left open.
    """

    def __init__(self, pool: Any):
        self._pool, self.name = pool, f"pool={type(pool).__name__}"

    def run(self, job: Job, tasks: Any, done: Done) -> None:
        """Evaluate a function at all tasks, by one call of ``.map`` for those that know the function, and one more."""
        known = (getattr(self._pool, name, None) for name in ("_processes", "size", "num_workers"))
        num_workers = next((num for num in known if isinstance(num, int) and num > 0), 1)
        num_chunks = min(len(tasks), CHUNKS_PER_WORKER * num_workers)
        waiting = [part for part in np.array_split(np.arange(len(tasks)), max(num_chunks, 1)) if len(part) > 0]
        for parcel in (None, job.parcel):
            chunks = [job.chunk_of(tasks, indices) for indices in waiting]
            later = []
            for indices, answer in zip(waiting, self._map(job, parcel, chunks), strict=True):
                if isinstance(answer, task.Unknown):
                    later.append(indices)
                elif isinstance(answer, task.Refusal):
                    raise Refused(f"{job.name} cannot be run by the workers of {self.name}: {answer.reason}.")
                else:
                    done(indices, answer.values, [(int(indices[place]), error) for place, error in answer.errors])
            waiting = later

    def _map(self, job: Job, parcel: task.Parcel | None, chunks: list[Any]) -> list[Any]:
        try:
            return list(self._pool.map(functools.partial(task.run, job.parcel.key, parcel), chunks)) if chunks else []
        except Exception as error:
            raise gone(self.name, error) from error

    def close(self) -> None:
        """Leave the pool open: it is the user's."""
