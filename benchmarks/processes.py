"""Runs in fresh processes, some at a time on cores of their own, each result a line of JSON that is never run again."""

import contextlib
import json
import os
import pathlib
import queue
import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing.pool import ThreadPool

ROOT = pathlib.Path(__file__).resolve().parents[1]


def read(path: pathlib.Path) -> list[dict]:
    """Read the results that a file holds; a torn last line does not count."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def share_cores(num_each: int, num_lanes: int | None = None) -> list[set[int]]:
    """Share the machine's cores out to lanes, so many to each; as many lanes as there are cores for if None."""
    free = sorted(os.sched_getaffinity(0))
    most = len(free) // num_each if num_each > 0 else 0
    num_lanes = max(most, 1) if num_lanes is None else num_lanes
    if not 1 <= num_lanes <= most:
        raise SystemExit(
            f"{num_lanes} runs at a time with {num_each} cores each do not fit this machine's {len(free)} cores."
        )
    return [set(free[lane * num_each : (lane + 1) * num_each]) for lane in range(num_lanes)]


def collect(
    path: pathlib.Path, plan: Sequence[tuple], run: Callable[[tuple], dict | None], lanes: list[set[int]] | None = None
) -> list[dict]:
    """Append the result of each part of a plan to a file, and return all results that the file then holds.

    Parameters
    ----------
    run
        Makes the result of a part; None where there is none to keep.
    lanes
        Cores of the runs that are made at a time, each by a thread that is bound to them and whose processes inherit
        them; one run after the other in this thread if None.
    """
    held = read(path)
    if path.exists():
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)  # a torn last line
    with path.open("a") as file, contextlib.ExitStack() as stack:
        results = map(run, plan)
        if lanes is not None:
            cores = queue.SimpleQueue()
            for lane in lanes:
                cores.put(lane)
            pool = ThreadPool(len(lanes), initializer=lambda: os.sched_setaffinity(0, cores.get()))
            results = stack.enter_context(pool).imap_unordered(run, plan)
        for number, result in enumerate(results, 1):
            if result is None:
                continue
            held.append(result)
            file.write(json.dumps(result) + "\n")
            file.flush()
            words = " ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in result.values())
            print(f"{number} of {len(plan)}: {words:.100}", file=sys.stderr, flush=True)
    return held


def run_command(name: str, *arguments: str, timeout: float | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run a command of this package in a fresh process, on the cores of this thread."""
    # No answer may come out of a cache of programs that an earlier run has left.
    environment = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
    num_cores = str(len(os.sched_getaffinity(0)))
    environment = {"OPENBLAS_NUM_THREADS": num_cores, "OMP_NUM_THREADS": num_cores} | environment
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=timeout, check=False)


def last_words(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return the last line of what a process said of its failure."""
    return (done.stderr.decode().strip().splitlines() or ["no output"])[-1][:300]


def run_one(name: str, *arguments: str) -> dict | None:
    """Run a command whose last line of output is its result; say why, and return None, where it fails."""
    done = run_command(name, *arguments)
    if done.returncode:
        print(f"{name} {' '.join(arguments)} failed: {last_words(done)}", file=sys.stderr, flush=True)
        return None
    return json.loads(done.stdout.splitlines()[-1])
