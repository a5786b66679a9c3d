"""A stream of draws on a pool: processes, an executor, a cluster, whatever ``klover.workers.crew`` connects.

Tasks are those of :mod:`klover.importance.stream`, by number, and a worker has the density, the proposal and the key to
make them with. What they find comes in any order and is added in theirs: the sums are those of one process.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from klover.base.shapes import RandomKey
from klover.importance.stream import Functions, Part, Tasks, Total
from klover.targets.cores import threads_each
from klover.targets.target import Target
from klover.warps.warped import Proposal
from klover.workers.crew import connect
from klover.workers.parcel import Job
from klover.workers.work import Errors, OnItems

WAVE = 256
"""Tasks between two times that all workers wait for each other: what has been found meanwhile stays bounded."""
SECONDS_OF_CHUNK = 2.0
"""What is lost with a worker, and how often there is something to tell."""


def stream_on_pool(
    pool: Any,
    key: RandomKey,
    target: Target,
    proposal: Proposal,
    functions: Functions,
    num_draws: int,
    tell: Callable[[int], None] = lambda num_done: None,
) -> Iterator[Part]:
    """Do what :func:`klover.importance.stream.stream` does, on a pool."""
    here = Tasks.of(key, target, proposal, functions, num_draws)
    work = OneTask(
        np.asarray(jax.random.key_data(key)),
        str(jax.random.key_impl(key)),
        target,
        jax.tree.map(np.asarray, proposal),
        dict(functions),
        num_draws,
        (jax.default_backend(), here.size),
    )
    job = Job("the stream", OnItems(work), SECONDS_OF_CHUNK, here.is_double)
    total = Total(num_draws, tell)
    workers = connect(pool, num_threads=threads_each(pool))
    try:
        for first in range(0, here.num_tasks, WAVE):
            wave = _Wave(range(first, min(first + WAVE, here.num_tasks)), total)
            workers.run(job, wave, wave.keep)
            yield total.so_far
    except KeyboardInterrupt:
        if total.done is not None:
            yield total.done
        raise
    finally:
        workers.close()


class _Wave(Sequence[tuple[int, float]]):
    """Tasks that are looked up when they are sent, each with what is known by then of the ratios that count."""

    def __init__(self, numbers: range, total: Total):
        self._numbers, self._total = numbers, total
        self._waiting: dict[int, Part] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, place: Any) -> Any:
        return self._numbers[place], self._total.floor

    def keep(self, places: np.ndarray, values: Sequence[Part | None], errors: Errors) -> None:
        """Add up what has come, as far as all before it is there; an error in one task is that of the stream."""
        for _, error in errors:
            raise error
        self._waiting.update((place, part) for place, part in zip(places.tolist(), values, strict=True) if part)
        while self._next in self._waiting:
            self._total.add(self._waiting.pop(self._next))
            self._next += 1


@dataclasses.dataclass(frozen=True, eq=False)
class OneTask:
    """What a worker does with the number of a task.

    Parameters
    ----------
    key_data, key_impl
        The key of the stream, as it can be sent.
    target, proposal, functions, num_draws
        As :func:`klover.importance.stream.stream` takes them.
    kind
        The kind of device and the size of a chunk, on which the draws depend.
    """

    key_data: np.ndarray
    key_impl: str
    target: Target
    proposal: Proposal
    functions: Functions
    num_draws: int
    kind: tuple[str, int]

    @property
    def users_functions(self) -> tuple[Any, ...]:
        """What another machine may have another version of."""
        return (*self.functions.values(), *self.target.made_of)

    @functools.cached_property
    def tasks(self) -> Tasks:
        """The tasks, compiled once in each worker."""
        key = jax.random.wrap_key_data(jnp.asarray(self.key_data), impl=self.key_impl)
        tasks = Tasks.of(key, self.target, self.proposal, self.functions, self.num_draws)
        kind = jax.default_backend(), tasks.size
        if kind != self.kind:
            raise RuntimeError(
                f"the worker draws {kind[1]} at a time on its {kind[0]}, but klover was called on a {self.kind[0]}, "
                f"where it is {self.kind[1]}: their draws would differ. Call from a process with the workers' device."
            )
        return tasks

    def __call__(self, task: tuple[int, float]) -> Part:
        """Run a task; what JAX has on a device comes to the host."""
        part = self.tasks.run(*task)
        return Part(jax.tree.map(np.asarray, part.sums), part.largest)
