"""Blocks of points on several cores: XLA runs most programs on one, and a block's values do not depend on others."""

import numbers
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from klover.base.jaxpr import calls_host
from klover.targets.target import LARGEST_INTERMEDIATE, Target

WORTH_A_THREAD = 5e-4
"""Seconds of a block from which on another thread is worth its while: to hand a block over takes some 0.1 ms."""


class Cores:
    """The threads that blocks of a target can be run on.

    Parameters
    ----------
    target
        The target. One that calls the host runs on one thread: foreign code need not bear two. So does one whose data
        lie on several devices: these work at the same time anyway, and have to begin programs in one order.
    """

    def __init__(self, target: Target):
        self._target = target
        self._most = num_side_by_side() if jax.default_backend() == "cpu" and target.num_devices < 2 else 1
        self._most_points = LARGEST_INTERMEDIATE // target.largest_intermediate
        self._pool: ThreadPoolExecutor | None = None
        self._fastest: dict[tuple[Any, int], float] = {}
        self._programs: dict[tuple[Any, int], Callable | None] = {}

    def note(self, program: Any, size: int, seconds: float) -> None:
        """Remember how long a block has taken; the fastest counts, because the first is compiled."""
        self._fastest[program, size] = min(seconds, self._fastest.get((program, size), np.inf))

    def num_threads(self, program: Any, size: int, num_blocks: int) -> int:
        """Return how many threads to run blocks on: one where they are quick, large, or not to be run side by side."""
        most = min(self._most, num_blocks, self._most_points // size)
        if most < 2 or self._fastest.get((program, size), 0.0) < WORTH_A_THREAD:
            return 1
        return 1 if self._compiled(program, size) is None else most

    def run(
        self,
        program: Any,
        blocks: Sequence[np.ndarray],
        num_threads: int,
        done: Callable[[int, list[np.ndarray]], list[np.ndarray]],
    ) -> list[list[np.ndarray]]:
        """Return the results of blocks of one size, in their order: the same numbers as one after another.

        ``done`` gets the number of a block and its results, in the thread that has made them, and returns them.
        """
        size, is_double = len(blocks[0]), blocks[0].dtype == np.float64
        compiled = self._compiled(program, size)
        assert compiled is not None

        def run_one(place):
            began = time.perf_counter()
            with jax.enable_x64(is_double):  # a thread does not inherit it
                results = [np.asarray(result, float) for result in compiled(self._target, blocks[place])]
            seconds = time.perf_counter() - began
            return done(place, results), seconds

        # Threads that wait for the next call end with this object.
        self._pool = self._pool or ThreadPoolExecutor(self._most)
        shares = np.array_split(np.arange(len(blocks)), num_threads)
        parts = self._pool.map(lambda share: [run_one(place) for place in share], shares)
        finished = [result for part in parts for result in part]
        self.note(program, size, min(seconds for _, seconds in finished))
        return [results for results, _ in finished]

    def _compiled(self, program: Any, size: int) -> Callable | None:
        """Return a program as it was compiled, whatever a thread's settings are; None where it calls the host."""
        if (program, size) not in self._programs:
            shape = jax.ShapeDtypeStruct((size, self._target.dim), self._target.start.dtype)
            traced = program.trace(self._target, shape)
            is_alone = calls_host(traced.jaxpr.jaxpr)
            self._programs[program, size] = None if is_alone else traced.lower().compile()
        return self._programs[program, size]


def num_cores() -> int:
    """Return the number of cores that this process may use: no more than JAX itself was told to."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    told = os.environ.get("PJRT_NPROC", "")
    return min(there, int(told)) if told.isdigit() and int(told) > 0 else there


def num_side_by_side() -> int:
    """Return how many compiled programs may run at a time: one fewer than there are cores, or one.

    With as many as XLA has threads, two on two cores, a fit once waited for both of them without end.
    """
    return max(num_cores() - 1, 1)


def threads_each(pool: Any) -> int:
    """Return how many threads each of a whole number of processes gets: they share the cores."""
    return max(num_cores() // max(int(pool), 1), 1) if isinstance(pool, numbers.Integral) else 1
