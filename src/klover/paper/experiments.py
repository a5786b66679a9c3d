"""Runs the paper's experiments, side by side where that is faster.

A *cell* is one method on one data set of one table, with all of its splits, or one row of the failure-mode and
wall-clock tables. A fit's key comes from the seed and the names of its cell and split, so that a run that was
interrupted and resumed draws what an uninterrupted one draws.
"""

import concurrent.futures
import contextlib
import dataclasses
import itertools
import multiprocessing
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from klover.paper import failure_modes, methods, problems, tuning
from klover.paper.datasets import DATASETS
from klover.paper.measurements import Cell, Results
from klover.paper.models import MODELS
from klover.paper.published import CHAINS

FAILURE_SEEDS = (1, 2, 3)
VIEWS = {"blr-noIS": "blr", "bnn-noIS": "bnn", "heavy-noIS": "heavy"}
"""Tables that show fits of another table without their weights, with the methods of the paper's appendix."""
VIEWED_METHODS = ("hmc3", "rkl-vi", "rkl-vb2", "rkl-vb3")
WALL_CLOCK_METHODS = ("fkl-vi", "rkl-vi")
ON_CPU = ("blr", "heavy", "failure-modes")
"""Programs of many small steps: a GPU spends its time on starting them (NUTS: 200 s instead of 20)."""
IN_SINGLE_PRECISION = ("bnn", "wall-clock")
"""Neural networks wait for memory, not for arithmetic; their log densities keep three digits behind the point."""
NUM_GPU_THREADS = 4
LONGEST = ("refine", "nuts")
"""Methods to begin with, so that nobody is left alone with one of them at the end; the one that compiles fast first."""
MEASURED = ("failure-modes", "wall-clock")
TABLES = (*MODELS, *VIEWS, *MEASURED)


def plan(
    table: str,
    chosen_methods: Iterable[str] | None,
    datasets: Iterable[str] | None,
    num_splits: int,
    seed: int,
    tuned: dict[str, Any] | None = None,
) -> list[Cell]:
    """List the cells of a table; ``tuned`` replaces the hyperparameters that come with the package."""
    if table == "failure-modes":
        names = [name for name in failure_modes.METHODS if chosen_methods is None or name in chosen_methods]
        pairs = itertools.product(failure_modes.PROPERTIES, names)
        return [Cell(table, property_name, name, FAILURE_SEEDS, seed) for property_name, name in pairs]
    if table == "wall-clock":
        return [Cell(table, "boston", name, (1, 20), seed) for name in WALL_CLOCK_METHODS]
    names = VIEWED_METHODS if table in VIEWS else methods.METHODS
    fitted, chosen = VIEWS.get(table, table), tuned or tuning.shipped()
    return [
        Cell(fitted, dataset, name, tuple(range(1, num_splits + 1)), seed, tuning.of(chosen, fitted, dataset, name))
        # Data sets change fastest, so that processes side by side do not all hold the largest one in memory.
        for name in names
        for dataset in datasets or DATASETS
        if chosen_methods is None or name in chosen_methods
    ]


def batches(cell: Cell) -> list[Cell]:
    """Cut a cell into parts that fit the memory: on a CPU, neural networks go one split at a time."""
    if cell.table != "bnn" or jax.default_backend() != "cpu":
        return [cell]
    return [dataclasses.replace(cell, splits=(split,)) for split in cell.splits]


def compute(cell: Cell) -> list[dict[str, Any]]:
    """Compute the lines of a cell."""
    device = jax.devices("cpu" if cell.table in ON_CPU else None)[0]
    is_double = cell.table not in IN_SINGLE_PRECISION and jax.numpy.result_type(float) == np.float64
    # A GPU would round products of single precision to ten bits.
    with jax.default_device(device), jax.enable_x64(is_double), jax.default_matmul_precision("float32"):
        return [{**row, "device": device.device_kind} for row in _compute(cell)]


def _compute(cell: Cell) -> list[dict[str, Any]]:
    if cell.table == "failure-modes":
        found = [failure_modes.measure(cell.method, cell.dataset, split) for split in cell.splits]
        return [{**row, "split": row["seed"], "seed": cell.seed} for row in found]
    if cell.table == "wall-clock":
        return [wall_clock(cell, size) for size in cell.splits]
    problem = problems.load(cell.table, cell.dataset, cell.splits)
    keys = jax.vmap(lambda split: jax.random.fold_in(_key(cell), split))(np.array(cell.splits))
    scores, seconds = methods.solve(cell.method, keys, problem, cell.choices)
    return [_row(cell, scores, seconds, which) for which in range(len(problem))]


def number_of(name: str) -> int:
    """Return the number that stands for a name in keys."""
    return zlib.crc32(name.encode())


def _key(cell: Cell) -> jax.Array:
    return jax.random.fold_in(jax.random.key(cell.seed), number_of(f"{cell.table} {cell.dataset} {cell.method}"))


def _row(cell: Cell, scores: problems.Scores, seconds: np.ndarray, which: int) -> dict[str, Any]:
    names = ("log_of_mean", "mean_of_logs", "log_of_mean_is", "mean_of_logs_is", "pareto_k", "ess")
    found = dict.fromkeys(names, np.nan) | {name: float(values[which]) for name, values in scores.items()}
    # JSON has neither NaN nor infinities.
    numbers = {name: value if np.isfinite(value) else None for name, value in found.items()}
    kind = "chains" if cell.method in CHAINS else "importance"
    if cell.method == "refine" and cell.table == "bnn":
        kind = "particles"
    return _line(cell, cell.splits[which], **numbers, seconds=float(seconds[which]), kind=kind)


def _line(cell: Cell, split: int, **found: Any) -> dict[str, Any]:
    names = {"table": cell.table, "dataset": cell.dataset, "method": cell.method, "split": split}
    return {**names, **found, "seed": cell.seed}


def wall_clock(cell: Cell, size: int) -> dict[str, Any]:
    """Time the fit that the paper timed: one component, 200 steps of 100 draws, on a stack of splits."""
    problem = problems.load("bnn", "boston", tuple(range(1, size + 1)))
    choices = methods.Choices(num_steps=200, num_draws_per_step=100)
    seconds = methods.time_component(cell.method, jax.random.split(_key(cell), size), problem, choices)
    return _line(cell, size, batch=size, num_steps=choices.num_steps, seconds=seconds)


def run(
    cells: list[Cell], results: Results, num_jobs: int, set_up: Callable[[str], None], tell: Callable[[Cell, int], None]
) -> None:
    """Compute what is missing of all cells, in ``num_jobs`` processes; only this one writes, and uses a GPU.

    The others call ``set_up``, which must be importable, with the name of their device, ``"cpu"``. When a cell, or a
    part of it, is done, ``tell`` is called with it and with the number of its splits.
    """
    parts = [part for cell in cells for part in batches(results.missing(cell)) if part.splits]
    # Times are taken alone, at the end.
    alone = [part for part in parts if num_jobs == 1 or part.table == "wall-clock"]
    shared = [part for part in parts if part not in alone]
    done = itertools.chain(
        _side_by_side(shared, num_jobs, set_up) if shared else (), ((part, compute(part)) for part in alone)
    )
    for part, rows in done:
        results.add(rows)
        tell(part, len(part.splits))


def _side_by_side(
    parts: list[Cell], num_jobs: int, set_up: Callable[[str], None]
) -> Iterator[tuple[Cell, list[dict[str, Any]]]]:
    """Compute parts in processes, those for a GPU in threads; yield each with its lines."""
    parts = sorted(parts, key=lambda part: (*LONGEST, part.method).index(part.method))
    on_gpu = [part for part in parts if jax.default_backend() != "cpu" and part.table not in ON_CPU]
    on_cpu = [part for part in parts if part not in on_gpu]
    num_processes = max(num_jobs - (NUM_GPU_THREADS if on_gpu else 0), 1)
    with contextlib.ExitStack() as stack:
        waiting = {}
        # Processes that share a GPU take turns in it, and slow each other down. Threads compile side by side, and run
        # one after the other.
        threads = concurrent.futures.ThreadPoolExecutor(NUM_GPU_THREADS)
        for queue, workers in ((on_cpu, pool(num_processes, set_up)), (on_gpu, threads)):
            stack.enter_context(workers)
            # Without this an error would wait for all that is queued.
            stack.callback(workers.shutdown, wait=False, cancel_futures=True)
            waiting |= {workers.submit(compute, part): part for part in queue}
        for done in concurrent.futures.as_completed(waiting):
            yield waiting[done], done.result()


def pool(num_jobs: int, set_up: Callable[[str], None]) -> concurrent.futures.ProcessPoolExecutor:
    """Return processes that work side by side on the CPU; JAX does not survive a fork, so they are spawned."""
    # NumPy's products spin on as many threads as there are cores, in each process: one took ten cores of sixteen.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    context = multiprocessing.get_context("spawn")
    return concurrent.futures.ProcessPoolExecutor(num_jobs, context, _stand_back, (set_up,))


def _stand_back(set_up: Callable[[str], None]) -> None:
    # A GPU waits for the thread that feeds it: networks took three to eight times as long beside busy processes.
    if hasattr(os, "nice"):
        os.nice(10)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    set_up("cpu")


def _leave_with_parent() -> None:
    """End this process when the one that began it is gone, as after ``kill -9``: it would wait for work forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
