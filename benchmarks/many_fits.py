"""Many small regressions by ``klover.map_fits``: what sharing them out among processes costs.

    OPENBLAS_NUM_THREADS=1 python -m benchmarks many_fits [--num 1000] [--jobs 2]

Start-up is the time until all processes have finished their first fit, in which they compile. The goal is 1.3 times
the pure time of all fits in one process, over the number of processes, and the start-up. On a machine with other
work the seconds of processor time are what can be compared.
"""

import argparse
import functools
import os
import pathlib
import resource
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np

import klover

NUM_ROWS = 50


@functools.cache
def listen(path):
    """Write down each program that this process compiles."""

    def note(event, seconds, fun_name="", **about):
        if event == "/jax/core/compile/backend_compile_duration":
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{os.getpid()} {time.time()} {fun_name}\n")

    jax.monitoring.register_event_duration_secs_listener(note)


def regression(seed, path):
    """Make a regression with four slopes and unknown noise, on data of its own."""
    listen(path)
    generator = np.random.default_rng(seed)
    x = np.column_stack([np.ones(NUM_ROWS), generator.normal(size=(NUM_ROWS, 3))])
    y = x @ np.array([1.0, 2.0, -1.0, 0.5]) + 0.5 * generator.normal(size=NUM_ROWS)

    def log_density(position):
        slope, log_noise = position["slope"], position["log_noise"]
        residual = (y - x @ slope) * jnp.exp(-log_noise)
        prior = -0.5 * (jnp.sum(slope**2) / 9 + log_noise**2)
        return prior - 0.5 * jnp.sum(residual**2) - NUM_ROWS * log_noise

    return klover.Target(log_density, {"slope": np.zeros(4), "log_noise": np.zeros(())})


def processor_seconds():
    used = (resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def measure(num, pool, folder):
    """Return what a run took and found."""
    path = pathlib.Path(folder, f"compiled-{pool}")
    path.touch()
    began, used, started = time.time(), processor_seconds(), 0.0
    lines = klover.map_fits(functools.partial(regression, path=str(path)), range(num), pool=pool, progress=True)
    wall, used = time.time() - began, processor_seconds() - used
    compiled = [line.split(" ") for line in path.read_text(encoding="utf-8").splitlines()]
    started = max(float(at) for _, at, _ in compiled) - began
    num_compiled = {pid: sum(each[0] == pid for each in compiled) for pid in {each[0] for each in compiled}}
    return lines, wall, used, started, sorted(num_compiled.values())


def main() -> None:
    """Compare one process with several."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num", type=int, default=1000, help="regressions (1000)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    print("| pool | s | compiled, s | in fits, s | processor, s | trusted | programs |\n|---|---|---|---|---|---|---|")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for pool in (None, arguments.jobs):
            lines, wall, used, started, compiled = measure(arguments.num, pool, folder)
            inside, trusted = sum(line.seconds for line in lines), sum(line.trusted for line in lines)
            figures = f"{wall:.1f} | {started:.1f} | {inside:.1f} | {used:.1f}"
            print(f"| {pool} | {figures} | {trusted} of {len(lines)} | {compiled} |", flush=True)
            found.append([line.log_evidence for line in lines])
    print("\nThe same numbers:", found[0] == found[1])


if __name__ == "__main__":
    main()
