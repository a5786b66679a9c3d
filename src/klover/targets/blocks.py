"""Blocks of points through a compiled program: on several cores where that pays, and what a journal has not at all."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np

from klover.base.processes import to_host
from klover.targets.change import find_change
from klover.targets.cores import Cores
from klover.targets.journal import Journal
from klover.targets.positions import pad
from klover.targets.target import Target

# What a target that raises on the host raises here; a ValueError where that surfaces with the result.
RAISED = (jax.errors.JaxRuntimeError, ValueError)

Results = list[np.ndarray]
"""What a program returns for the points of a block: one array, or several."""
Done = Callable[[int, Results, list[int]], None]
"""Called with the number of a block, its results, and the rows that raised."""


class Blocks:
    """Run blocks of points.

    Parameters
    ----------
    target
        The target.
    """

    def __init__(self, target: Target):
        self._target, self._cores = target, Cores(target)
        self.journal: Journal | None = None
        self._num_replayed = lambda: 0
        self.num_raised = 0

    @contextlib.contextmanager
    def keeping(self, journal: Journal, values: Callable, size: int) -> Iterator[None]:
        """Let results be kept in a journal meanwhile, and taken from it; ``values`` is the program for values alone.

        A target that writes its evaluations down by itself, in smaller pieces than blocks, is told to do so.
        """
        x, log_p = journal.sample()
        tape = getattr(self._target.model_info, "tape", None)
        if tape is not None and tape.journal is not None:
            raise ValueError(f"target is being fitted with the journal {tape.journal.path}. Make another one of it.")
        if len(x) > 0:
            run_again = (lambda: tape.values(x)) if tape else lambda: joined(self._run(values, cut(x, size), size))[0]
            _check_same(journal, run_again(), log_p)
        keeper = self if tape is None else tape
        keeper.journal, self._num_replayed = journal, lambda: journal.num_replayed
        try:
            yield
        finally:
            keeper.journal = None

    @property
    def num_replayed(self) -> int:
        """Evaluations that were not made, because the journal held them."""
        return self._num_replayed()

    def run(self, program: Callable, kind: bytes, blocks: Sequence[np.ndarray], size: int) -> list[Results]:
        """Return the results of blocks, which are filled up to a size; of what the journal holds nothing is run."""
        if self.journal is None:
            return self._run(program, blocks, size)
        journal, found = self.journal, [self.journal.find(kind, block) for block in blocks]
        self.num_raised += sum(len(known.words) for known in found)
        places = [place for place, known in enumerate(found) if not known.is_known.all()]
        missing = [blocks[place][~found[place].is_known] for place in places]

        def note(place, results, raised):
            rows = np.column_stack(results)
            journal.append(kind, missing[place], rows, dict.fromkeys(raised, "raised an error"))
            known = found[places[place]]
            known.rows[~known.is_known] = rows

        self._run(program, missing, size, note)
        return [[known.rows[:, 0], known.rows[:, 1:]][: 1 + (known.rows.shape[1] > 1)] for known in found]

    def _run(
        self, program: Callable, blocks: Sequence[np.ndarray], size: int, done: Done = lambda *_: None
    ) -> list[Results]:
        """Run blocks side by side where that is worth it, or one after another."""
        num_threads = self._cores.num_threads(program, size, len(blocks))
        if num_threads > 1:

            def finish(place, results):
                results = [result[: len(blocks[place])] for result in results]
                done(place, results, [])
                return results

            return self._cores.run(program, [pad(block, size) for block in blocks], num_threads, finish)
        parts = []
        for place, block in enumerate(blocks):
            began = time.perf_counter()
            results, raised = self._run_one(program, block, size)
            self._cores.note(program, size, time.perf_counter() - began)
            self.num_raised += len(raised)
            done(place, results, raised)
            parts.append(results)
        return parts

    def _run_one(self, program: Callable, block: np.ndarray, size: int) -> tuple[Results, list[int]]:
        """Run one block; where the target raises, run its points one by one, and call those that raise NaN."""
        try:
            found = program(self._target, pad(block, size))
            return [np.asarray(to_host(result), float)[: len(block)] for result in found], []
        except RAISED:
            # Another process may not have failed, and would wait for ever for the next program.
            if self._target.is_shared:
                raise
            self._throw_if_asked()
        if size > 1:
            with _silent_callbacks():
                parts = [self._run_one(program, point[None], 1) for point in block]
            return joined([results for results, _ in parts]), [row for row, (_, raised) in enumerate(parts) if raised]
        return [np.full(result.shape, np.nan) for result in jax.eval_shape(program, self._target, block)], [0]

    def _throw_if_asked(self) -> None:
        """Pass an error on where the user wants to see it (``throw=True``), or where no point can be evaluated."""
        failures = getattr(self._target.model_info, "failures", None)
        if failures is None:
            return
        if failures.fatal is not None:
            raise failures.fatal
        if failures.throw:
            raise RuntimeError(str(failures)) from failures.error


@contextlib.contextmanager
def _silent_callbacks() -> Iterator[None]:
    """Keep JAX from logging every error of a callback with its traceback; errors are counted and reported once."""
    log = logging.getLogger("jax._src.callback")
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = was_disabled


def _check_same(journal: Journal, now: np.ndarray, before: np.ndarray) -> None:
    """Refuse the journal of another target, by log densities at the same points."""
    was_inside = np.isfinite(before)
    change = find_change(lambda _: now[was_inside], before[:, None], before)
    if change or np.isfinite(now[~was_inside]).any():
        raise ValueError(
            f"journal {journal.path} belongs to another target: at a point of the file its log density is another (by "
            f"{change or np.inf:.3g}). Were the model or its data changed, or is the density noisy? Choose another "
            "file, or delete this one to begin again."
        )


def cut(x: np.ndarray, size: int) -> list[np.ndarray]:
    """Cut points into blocks."""
    return [x[start : start + size] for start in range(0, len(x), size)]


def joined(parts: list[Results]) -> Results:
    """Put the parts of each result together."""
    return [np.concatenate(results) for results in zip(*parts, strict=True)]
