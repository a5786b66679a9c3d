"""What pools cost for each evaluation, and how well they share out a function that takes 20 ms.

    python -m benchmarks pools [--num 4000]

Overhead is the time of a block of points beyond what one process takes, for a function of a microsecond; efficiency is
the time that the sleeping function would take in one process, over that of the pool times its workers. On a machine
with other work the caller's processor time is what can be compared: Dask's scheduler runs in its process here.
"""

import argparse
import concurrent.futures
import functools
import multiprocessing
import time

import numpy as np

from klover.workers.crew import connect
from klover.workers.parcel import Job
from klover.workers.work import OnPoints

SECONDS = 0.02


def cheap(x):
    return x[0]


def slow(x):
    time.sleep(SECONDS)
    return x[0]


def cost_of(workers, job, num):
    """Time a block by the clock and by this process's use of the processor, when the function's pace is known."""
    x = np.zeros((num, 3))
    workers.run(job, x[:64], lambda *_: None)
    began, used = time.perf_counter(), time.process_time()
    workers.run(job, x, lambda *_: None)
    return time.perf_counter() - began, time.process_time() - used


def seconds_of(workers, job, num):
    """Time a block by the clock."""
    return cost_of(workers, job, num)[0]


def pools(num_workers):
    """Return functions that open each kind of pool."""
    context = multiprocessing.get_context("spawn")
    kinds = {
        "processes (pool=N)": lambda: num_workers,
        "ProcessPoolExecutor": functools.partial(concurrent.futures.ProcessPoolExecutor, num_workers, context),
        "multiprocessing.Pool (.map)": functools.partial(context.Pool, num_workers),
    }
    try:
        from distributed import Client
    except ImportError:
        return kinds
    options = {"n_workers": num_workers, "threads_per_worker": 1, "dashboard_address": None, "host": "127.0.0.1"}
    return kinds | {"Dask": functools.partial(Client, **options)}


def main() -> None:
    """Measure each kind of pool."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num", type=int, default=4000, help="points of a block (4000)")
    num = parser.parse_args().num
    alone = seconds_of(connect(None), Job("cheap", OnPoints(cheap)), num)
    print(
        f"| pool | workers | overhead, µs a point | efficiency at {1000 * SECONDS:.0f} ms a point | the caller's "
        "processor time there, µs a point |\n|---|---|---|---|---|"
    )
    for num_workers in (2, 4):
        for name, start in pools(num_workers).items():
            pool = start()
            workers = connect(pool)
            overhead = (seconds_of(workers, Job("cheap", OnPoints(cheap)), num) - alone) / num
            taken, used = cost_of(workers, Job("slow", OnPoints(slow)), num // 10)
            efficiency = SECONDS * (num // 10) / (num_workers * taken)
            used *= 1e6 / (num // 10)
            print(f"| {name} | {num_workers} | {1e6 * overhead:.1f} | {efficiency:.0%} | {used:.0f} |", flush=True)
            workers.close()
            for end in ("terminate", "close", "shutdown"):
                if hasattr(pool, end):
                    getattr(pool, end)()
                    break


if __name__ == "__main__":
    main()
