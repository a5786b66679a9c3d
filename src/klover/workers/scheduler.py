"""One scheduler for all workers: it cuts work into chunks, collects them as they finish, and finds what kills or hangs.

A chunk whose worker has died is sent again. If that one dies as well, it is halved, and so on, until the guilty point
stands alone and kills once more: it is quarantined. A chunk that takes too long is given up, and its points are sent
one by one; a point that is too slow twice is quarantined. No suspect is ever evaluated in this process.
"""

import concurrent.futures
import dataclasses
import math
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np

from klover.workers.engine import Engine
from klover.workers.errors import PoolGone, Refused, TooSlow, WorkerDied, gone
from klover.workers.parcel import Job
from klover.workers.task import Died, Refusal, Unknown
from klover.workers.work import Errors

CHUNKS_PER_WORKER = 4
"""Each worker gets this many at least, so that all end at about the same time."""
WORTH_SENDING = 10.0
"""A chunk takes so many times what was lost on its way at the least, if four a worker remain."""
FEWEST_LOST = 0.001
"""Seconds that are lost on the way of a chunk, unless more are measured."""
MEMORY = 0.7
"""Weight of what was known about the pace before, when a chunk tells more."""
SLACK = 3.0
"""A chunk may take so many times what its points are expected to, beside ``timeout``, before it is taken apart."""
LOOK_AGAIN = 0.1
"""Seconds after which a worker that loads the function is looked at again, where there is a ``timeout``."""
LOOK_AT_POOL = 1.0
"""Seconds after which the pool is asked whether it is still there."""
MOST_DEATHS = 20
"""Deaths in a row, without one chunk that is finished, for each worker: then the function does not work there."""

MOST_NAMED = 3
"""Points that the error of a broken pool names."""

Done = Callable[[np.ndarray, Any, Errors], None]
"""Called with each finished chunk: indices of its points, their values, and errors by index of the point."""


@dataclasses.dataclass
class Chunk:
    """Points that are evaluated together, and what has become of them so far."""

    indices: np.ndarray
    num_deaths: int = 0
    num_late: int = 0
    sent_at: float = math.nan
    began_at: float | None = None
    with_function: bool = False

    def split(self, num_parts: int) -> "list[Chunk]":
        """Share the points out among chunks with the same past."""
        parts = np.array_split(self.indices, num_parts)
        return [Chunk(part, self.num_deaths, self.num_late) for part in parts if len(part) > 0]


class Scheduler:
    """Evaluate functions on workers, and remember how long they take.

    Parameters
    ----------
    engine
        The workers.
    timeout
        Seconds that one point may take; None for as long as it likes.
    """

    def __init__(self, engine: Engine, timeout: float | None = None):
        self.engine, self.timeout = engine, timeout
        self._least_lost: float | None = None
        self._pace: weakref.WeakKeyDictionary[Job, float] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def run(self, job: Job, tasks: Any, done: Done) -> None:
        """Evaluate a function at all tasks, rows of an array or items of a list; results go to ``done``, by chunks."""
        run = _Run(self, job, tasks, done)
        with self._lock:
            try:
                run.work()
            finally:
                for future in run.flying:
                    self.engine.give_up(future)

    def pace(self, job: Job) -> float | None:
        """Return the seconds that one point is expected to take, or None if nothing is known yet."""
        return self._pace.get(job)

    def note_pace(self, job: Job, seconds: float) -> None:
        """Learn from a chunk how long one of its points took."""
        before = self.pace(job)
        self._pace[job] = seconds if before is None else MEMORY * before + (1 - MEMORY) * seconds

    @property
    def seconds_lost(self) -> float:
        """The seconds that are lost on the way of a chunk, there and back."""
        return max(self._least_lost or 0.0, FEWEST_LOST)

    def note_loss(self, seconds: float) -> None:
        """Learn from a chunk; what others have lost beyond the least was lost in waiting."""
        self._least_lost = seconds if self._least_lost is None else min(seconds, self._least_lost)

    def close(self) -> None:
        """End what was started here."""
        self.engine.close()


class _Run:
    """The work on one array of tasks."""

    def __init__(self, scheduler: Scheduler, job: Job, tasks: Any, done: Done):
        self.scheduler, self.engine, self.job = scheduler, scheduler.engine, job
        self.tasks, self.done = tasks, done
        self.num_cut = self.num_deaths = 0
        self.waiting: list[Chunk] = []
        self.flying: dict[Future, Chunk] = {}

    def work(self) -> None:
        """Send and collect until everything is done."""
        while self.waiting or self.flying or self.num_cut < len(self.tasks):
            self.send()
            if not self.flying:
                raise PoolGone(
                    f"all workers of {self.engine.name} are stuck at points that take longer than timeout="
                    f"{self.scheduler.timeout} seconds. Where pool= is a whole number such workers are replaced."
                )
            finished = concurrent.futures.wait(self.flying, self.patience(), concurrent.futures.FIRST_COMPLETED).done
            for future in finished:
                self.take(future, self.flying.pop(future))
            for future in [future for future in self.flying if self.seconds_left(future) <= 0]:
                self.engine.give_up(future)
                self.suspect_hang(self.flying.pop(future))

    def send(self) -> None:
        """Send chunks to idle workers."""
        while len(self.flying) < self.engine.num_workers:
            chunk = self.next_chunk()
            if chunk is None:
                return
            chunk.sent_at, chunk.began_at = time.monotonic(), None
            packed = self.job.chunk_of(self.tasks, chunk.indices)
            future = self.engine.submit(self.job, packed, chunk.with_function, chunk.num_deaths > 0)
            self.flying[future] = chunk

    def next_chunk(self) -> Chunk | None:
        """Return what to send next: what comes back first, then what is new."""
        if self.waiting:
            return self.waiting.pop(0)
        if self.num_cut == len(self.tasks):
            return None
        first, self.num_cut = self.num_cut, self.num_cut + self.next_size()
        return Chunk(np.arange(first, self.num_cut))

    def next_size(self) -> int:
        """Return how many points go into a new chunk: fewer towards the end, and one while nothing is known of them."""
        pace, num_left = self.scheduler.pace(self.job), len(self.tasks) - self.num_cut
        if pace is None:
            return 1
        num_chunks = CHUNKS_PER_WORKER * max(self.engine.num_workers, 1)
        share = math.ceil(len(self.tasks) / num_chunks)
        worthwhile = min(math.ceil(WORTH_SENDING * self.scheduler.seconds_lost / max(pace, 1e-9)), share)
        affordable = max(int(self.job.most_seconds / max(pace, 1e-9)), 1)
        return min(max(math.ceil(num_left / num_chunks), worthwhile), affordable, num_left)

    def take(self, future: Future, chunk: Chunk) -> None:
        """Hand on what a worker has found, or find out what became of it."""
        try:
            answer = future.result()
        except (Exception, concurrent.futures.CancelledError) as error:
            self.suspect(future, chunk, error)
            return
        if isinstance(answer, Refusal):
            raise Refused(f"{self.job.name} cannot be run by the workers of {self.engine.name}: {answer.reason}.")
        if isinstance(answer, Died):
            self.mourn(chunk)
            return
        if isinstance(answer, Unknown):
            chunk.with_function = True
            self.waiting.insert(0, chunk)
            return
        self.num_deaths = 0
        self.scheduler.note_pace(self.job, answer.seconds / len(chunk.indices))
        self.scheduler.note_loss(time.monotonic() - chunk.sent_at - answer.seconds)
        self.hand_on(chunk, answer.values, [(int(chunk.indices[place]), error) for place, error in answer.errors])

    def hand_on(self, chunk: Chunk, values: Any, errors: Errors) -> None:
        """Give a chunk to whoever wants it."""
        self.done(chunk.indices, values, errors)

    def suspect(self, future: Future, chunk: Chunk, error: BaseException) -> None:
        """Find out whether all workers are gone, or one, or neither."""
        if self.engine.is_end(error):
            raise gone(self.engine.name, error, self.on_it([chunk, *self.flying.values()])) from error
        if not self.engine.is_death(error):
            if self.scheduler.pace(self.job) is None:
                raise Refused(
                    f"{self.job.name} cannot be run by the workers of {self.engine.name}: {error}."
                ) from error
            self.isolate(chunk, error)
            return
        if self.engine.is_false_start(future):
            self.waiting.append(chunk)
            return
        self.mourn(chunk)

    def on_it(self, chunks: list[Chunk]) -> str:
        """Say what was being evaluated when a pool broke: one of it may have been the cause."""
        indices = np.concatenate([chunk.indices for chunk in chunks])
        first = [str(self.tasks[index]) for index in indices[:MOST_NAMED]]
        more = ", ..." if len(indices) > MOST_NAMED else ""
        return f" It was at {len(indices)} of {len(self.tasks)} tasks of {self.job.name}: {', '.join(first)}{more}."

    def mourn(self, chunk: Chunk) -> None:
        """Send a chunk that has killed again, or its halves; give up a point that did so alone."""
        chunk.num_deaths += 1
        self.num_deaths += 1
        if self.num_deaths > MOST_DEATHS * max(self.engine.num_workers, 1):
            raise PoolGone(
                f"workers of {self.engine.name} have died {self.num_deaths} times in a row: {self.job.name} ends the "
                "processes that call it. What was evaluated until then is kept."
            )
        if chunk.num_deaths == 1:
            self.waiting.append(chunk)
        else:
            chunk.num_deaths = 1
            self.isolate(chunk, WorkerDied("the process that evaluated it has died, each time"), num_parts=2)

    def suspect_hang(self, chunk: Chunk) -> None:
        """Send the points of a late chunk again, one by one; give up one that was late before."""
        chunk.num_late += 1
        if len(chunk.indices) == 1 and chunk.num_late == 1:
            self.waiting.append(chunk)
        else:
            self.isolate(chunk, TooSlow(f"it took longer than timeout={self.scheduler.timeout} seconds, twice"))

    def isolate(self, chunk: Chunk, error: BaseException, num_parts: int | None = None) -> None:
        """Send the parts of a chunk alone; where it is one point, that is what the error belongs to."""
        if len(chunk.indices) > 1:
            self.waiting.extend(chunk.split(len(chunk.indices) if num_parts is None else num_parts))
            return
        known = error if isinstance(error, Exception) else RuntimeError(str(error))
        self.hand_on(chunk, self.job.work.missing(1), [(int(chunk.indices[0]), known)])

    def seconds_left(self, future: Future) -> float:
        """Return how long a chunk may still take, from when its worker had the function."""
        timeout, chunk = self.scheduler.timeout, self.flying[future]
        if timeout is None:
            return math.inf
        if chunk.began_at is None and self.engine.is_ready(future):
            chunk.began_at = time.monotonic()
        if chunk.began_at is None:
            return LOOK_AGAIN
        others = SLACK * (self.scheduler.pace(self.job) or 0.0) * (len(chunk.indices) - 1)
        return max(chunk.began_at + timeout + others - time.monotonic(), 0.0)

    def patience(self) -> float:
        """Return how long to wait for the next chunk, before one of them is late or the pool is looked at again."""
        return min(LOOK_AT_POOL, *(self.seconds_left(future) for future in self.flying))
