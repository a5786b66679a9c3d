"""Persistent worker processes, one core each: many cases, each a line of JSON that is never made twice.

A worker whose case runs over the limit is stopped by its own alarm, answers, and is replaced, for an exception at any
place may have left anything behind. The alarm counts the worker's own seconds; one that has not answered within several
times as many seconds on the wall is killed.
"""

import contextlib
import itertools
import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

from benchmarks import processes

CASES_PER_CACHE = 15
"""Cases after which a worker forgets what it has compiled, so that its memory stays bounded."""
PATIENCE, GRACE = 6.0, 60.0
"""A worker is killed after this many times the limit, and so many seconds for its start and the making of a case."""
READY = "ready"
"""What a worker says once it has begun."""
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_X64": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}


class Job(Protocol):
    """What workers do; it travels to them, so that it has to be importable there."""

    limit: float
    """Seconds that a case may take; ``run`` has to keep to it by itself."""

    def begin(self) -> None:
        """Prepare a new process."""
        ...

    def run(self, name: str) -> dict[str, Any]:
        """Turn the name of a case into its line."""
        ...

    def tidy(self) -> None:
        """Free memory, now and then."""
        ...


class Worker:
    """A process that takes one name at a time and sends one line back."""

    def __init__(self, job: Job, cores: set[int]):
        context = multiprocessing.get_context("spawn")
        self.job, self.cores, self.name, self.deadline, self.has_begun = job, cores, None, 0.0, False
        self.connection, other = context.Pipe()
        before = {key: os.environ.get(key) for key in ENVIRONMENT}
        os.environ.update(ENVIRONMENT)
        try:
            self.process = context.Process(target=_serve, args=(other, job, cores), daemon=True)
            self.process.start()
        finally:
            for key, value in before.items():
                os.environ.pop(key) if value is None else os.environ.update({key: value})
        other.close()

    def give(self, name: str, seconds: float) -> None:
        """Hand over a case, to be answered within so many seconds."""
        self.name, self.deadline = name, time.monotonic() + seconds
        with contextlib.suppress(BrokenPipeError):  # of a process that has died; its answer will tell
            self.connection.send(name)

    def answer(self) -> Any:
        """Return what the process has sent, or the line of a case that it has died of."""
        try:
            return self.connection.recv()
        except (EOFError, ConnectionError):
            if not self.has_begun:
                # Every other process would fail like this one, and every case with them.
                raise RuntimeError("a worker process could not begin; what it said is above.") from None
            return self.lost("the process died")

    def lost(self, reason: str) -> dict[str, Any]:
        """Return the line of a case that will not be answered."""
        arm, _, family, _ = self.name.split("/")
        return {"id": self.name, "arm": arm, "family": family, "outcome": "unfinished", "reason": reason}

    def replace(self) -> "Worker":
        """End this process, and begin another one on the same cores."""
        self.end()
        return Worker(self.job, self.cores)

    def end(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def _serve(connection, job: Job, cores: set[int]) -> None:
    """Answer names with lines until the pipe closes."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    job.begin()
    connection.send(READY)
    for count in itertools.count(1):
        try:
            name = connection.recv()
        except EOFError:
            return
        connection.send(job.run(name))
        if count % CASES_PER_CACHE == 0:
            job.tidy()


def collect(path: pathlib.Path, names: Sequence[str], job: Job, num_workers: int) -> list[dict[str, Any]]:
    """Run the cases that a file does not hold yet, some at a time, and return the lines of all of them."""
    held = {line["id"]: line for line in processes.read(path)}
    if path.exists():
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)  # a torn last line
    waiting = [name for name in names if name not in held][::-1]
    total, done, patience = len(waiting), 0, PATIENCE * job.limit + GRACE
    workers = [Worker(job, cores) for cores in _lanes(num_workers)[:total]]
    with path.open("a") as file:
        try:
            for worker in workers:
                worker.give(waiting.pop(), patience)
            while any(worker.name for worker in workers):
                for place, line in _answers(workers):
                    done += 1
                    held[line["id"]] = line
                    file.write(json.dumps(line) + "\n")
                    file.flush()
                    print(f"{done} of {total}: {summary(line)}", file=sys.stderr, flush=True)
                    if line["outcome"] == "unfinished":
                        workers[place] = workers[place].replace()
                    workers[place].name = None
                    if waiting:
                        workers[place].give(waiting.pop(), patience)
        finally:
            for worker in workers:
                worker.end()
    return [held[name] for name in names]


def _lanes(num_workers: int) -> list[set[int]]:
    """Choose a core for each worker; where there are more, not always the first ones, which others may have chosen."""
    processes.share_cores(1, num_workers)  # says so where there are too few
    lanes = processes.share_cores(1)
    first = os.getpid() % len(lanes)
    return (lanes[first:] + lanes[:first])[:num_workers]


def _answers(workers: list[Worker]) -> list[tuple[int, dict]]:
    """Wait for answers; those of workers that have died or are late are "unfinished"."""
    busy = [place for place, worker in enumerate(workers) if worker.name]
    patience = max(min(workers[place].deadline for place in busy) - time.monotonic(), 0.0)
    ready = multiprocessing.connection.wait([workers[place].connection for place in busy], timeout=patience)
    found = []
    for place in busy:
        worker = workers[place]
        if worker.connection in ready:
            answer = worker.answer()
            if answer == READY:
                worker.has_begun = True
            else:
                found.append((place, answer))
        elif time.monotonic() >= worker.deadline:
            found.append((place, worker.lost("no answer in time, killed")))
    return found


def summary(line: dict[str, Any]) -> str:
    """Say in a few words what a line holds."""
    words = [line["id"], line["outcome"], line.get("status", ""), "+".join(line.get("wrong_by") or [])]
    error = line.get("log_z_error")
    words += [] if error is None else [f"log Z {error:+.3f} ± {line['log_z_se'] or 0:.3f}"]
    return " ".join([*filter(None, words), f"{line.get('seconds') or 0:.1f} s"])
