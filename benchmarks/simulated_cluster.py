"""What would bind on a thousand workers: a simulation of the scheduler with costs that are measured here.

    OPENBLAS_NUM_THREADS=1 python -m benchmarks simulated_cluster --out DIR

Measured, in seconds of processor time: what klover takes to send a chunk and to look at its workers, on a pretended
cluster of 10 to 1000; and what Dask takes for a chunk, and for a byte of it, on two workers. Simulated, event by event:
one block of points, cut by the scheduler's own rule and sent by one thread of the client to idle workers. Assumed: a
network that takes a millisecond each way, and run times with a log-normal spread. Writes ``simulated_cluster.png``.
"""

import argparse
import concurrent.futures
import heapq
import pathlib
import time
from types import SimpleNamespace

import numpy as np

from benchmarks.pools import cheap
from klover.workers.cluster import Dask
from klover.workers.crew import connect
from klover.workers.parcel import Job
from klover.workers.scheduler import Chunk, Scheduler, _Run
from klover.workers.work import OnPoints

SIZES = (10, 100, 300, 1000)
WORKERS = (1, 3, 10, 30, 100, 300, 1000)
LIKELIHOODS = {0.02: "20 ms", 1.0: "1 s", 60.0: "60 s"}
BLOCKS = (2048, 8192)
"""Points of an early round of ``refine``, and its final draws."""
LATENCY, SPREAD, NUM_BYTES = 1e-3, 0.3, 80
"""Seconds of the network each way, standard deviation of log run times, and bytes of a point of ten numbers."""


class Pretended:
    """A client of a cluster that never answers."""

    def __init__(self, num_workers: int):
        self.addresses = {f"tcp://10.0.{number // 250}.{number % 250}:40000": 1 for number in range(num_workers)}

    def nthreads(self) -> dict[str, int]:
        return self.addresses

    def submit(self, *_: object, **__: object) -> concurrent.futures.Future:
        return concurrent.futures.Future()


def per_chunk(num_workers: int, num: int = 100) -> tuple[float, float]:
    """Measure what klover takes to send a chunk, and to wait for one, while all workers have one."""
    engine, job, x = Dask(Pretended(num_workers)), Job("cheap", OnPoints(cheap)), np.zeros((num_workers, 10))
    run = _Run(Scheduler(engine), job, x, lambda *_: None)
    run.flying = {engine.submit(job, x[:1], False, False): Chunk(np.arange(1)) for _ in range(num_workers)}
    began = time.process_time()
    for _ in range(num):
        engine.submit(job, job.chunk_of(x, np.arange(1)), False, False)
        engine._places.popitem()
    sending = (time.process_time() - began) / num
    next(iter(run.flying)).set_result(None)
    began = time.process_time()
    for _ in range(num):
        concurrent.futures.wait(run.flying, run.patience(), concurrent.futures.FIRST_COMPLETED)
        [future for future in run.flying if run.seconds_left(future) <= 0]
    return sending, (time.process_time() - began) / num


def of_dask(num: int = 300) -> tuple[float, float]:
    """Measure what the client's process, with Dask's scheduler in it, takes for a chunk, and for a byte."""
    from distributed import Client

    taken = []
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as client:
        for num_numbers in (1, 100_000):
            workers, x = connect(client), np.zeros((num, num_numbers))
            job = Job("cheap", OnPoints(cheap), most_seconds=0.0)
            workers.run(job, x[:20], lambda *_: None)
            began = time.process_time()
            workers.run(job, x, lambda *_: None)
            taken.append((time.process_time() - began) / num)
    return taken[0], (taken[1] - taken[0]) / (8 * 99_999)


def measure() -> SimpleNamespace:
    """Return costs in seconds: fixed ones, and those that grow with the workers."""
    sending, waiting = np.transpose([per_chunk(size) for size in SIZES])
    (send_each, send), (wait_each, wait) = np.polyfit(SIZES, sending, 1), np.polyfit(SIZES, waiting, 1)
    chunk, byte = of_dask()
    dask = max(chunk - send - wait, 0.0)
    return SimpleNamespace(
        send_each=send_each, send=max(send, 0), wait_each=wait_each, wait=max(wait, 0), dask=dask, byte=byte
    )


def simulate(costs: SimpleNamespace, num_workers: int, seconds: float, num: int, num_bytes: int = NUM_BYTES) -> float:
    """Return the efficiency of one block: the time that all points take, over that of all workers."""
    generator = np.random.default_rng(0)
    scheduler, job = Scheduler(Dask(Pretended(num_workers))), Job("simulated", OnPoints(cheap))
    run = _Run(scheduler, job, np.zeros((num, 1)), lambda *_: None)
    # Both are known from the blocks before.
    scheduler.note_pace(job, seconds)
    scheduler.note_loss(2 * LATENCY + costs.send + costs.send_each * num_workers + costs.dask + costs.wait)
    times = seconds * np.exp(SPREAD * generator.normal(size=num) - SPREAD**2 / 2)
    now, num_busy, finished = 0.0, 0, []
    while run.num_cut < num or finished:
        while num_busy < num_workers and run.num_cut < num:
            size = run.next_size()
            work = times[run.num_cut : run.num_cut + size].sum()
            run.num_cut, num_busy = run.num_cut + size, num_busy + 1
            now += costs.send + costs.send_each * num_workers + costs.dask + costs.byte * num_bytes * size
            heapq.heappush(finished, now + work + 2 * LATENCY)
        now = max(now, finished[0]) + costs.wait + costs.wait_each * num_busy
        while finished and finished[0] <= now:
            heapq.heappop(finished)
            num_busy -= 1
    return times.sum() / (num_workers * now)


def without(costs: SimpleNamespace) -> SimpleNamespace:
    """Return costs of nothing: what is lost then is lost to idle workers at the end of a block."""
    return SimpleNamespace(**dict.fromkeys(vars(costs), 0.0))


def draw(costs: SimpleNamespace, path: pathlib.Path) -> None:
    """Draw efficiency against workers for each likelihood, with and without the costs."""
    import matplotlib.pyplot as plt

    from klover.paper.figures import DPI, STYLE

    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, len(BLOCKS), figsize=(8, 3.2), sharey=True, layout="constrained")
        for panel, num in zip(panels, BLOCKS, strict=True):
            for number, (seconds, label) in enumerate(LIKELIHOODS.items()):
                for each, line in ((costs, "o-"), (without(costs), ":")):
                    values = [100 * simulate(each, workers, seconds, num) for workers in WORKERS]
                    panel.semilogx(
                        WORKERS, values, line, color=f"C{number}", label=f"{label} a point" if each is costs else None
                    )
            panel.set(title=f"a block of {num:,} points", xlabel="workers", ylim=(0, 105))
        panels[0].set_ylabel("efficiency, %")
        panels[0].plot([], [], ":", color="0.4", label="idle tails alone")
        panels[0].legend(loc="lower left")
        figure.savefig(path, dpi=DPI)
        plt.close(figure)


def main() -> None:
    """Measure, simulate, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    costs = measure()
    print({name: float(f"{value:.3g}") for name, value in vars(costs).items()})
    print(
        "| likelihood | block | workers | efficiency | idle tails alone | points of 1 MB |\n|---|---|---|---|---|---|"
    )
    for seconds, label in LIKELIHOODS.items():
        for num in BLOCKS:
            for workers in (16, 100, 1000):
                found = [
                    simulate(costs, workers, seconds, num),
                    simulate(without(costs), workers, seconds, num),
                    simulate(costs, workers, seconds, num, 10**6),
                ]
                print(
                    f"| {label} | {num} | {workers} |", " | ".join(f"{value:.0%}" for value in found), "|", flush=True
                )
    draw(costs, out / "simulated_cluster.png")


if __name__ == "__main__":
    main()
