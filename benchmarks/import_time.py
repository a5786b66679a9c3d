"""Seconds to import jax, and klover with it, each in a process of its own.

    python -m benchmarks import_time

Interleaved, so that a busy spell of the machine falls on both; the fastest, because noise only ever adds.
"""

import importlib.metadata
import platform
import subprocess
import sys

REPEATS = 5
MODULES = ("jax", "klover.refinement.refine")
PROGRAM = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


def import_seconds(module: str) -> float:
    command = [sys.executable, "-c", PROGRAM.format(module)]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def main() -> None:
    rounds = [[import_seconds(module) for module in MODULES] for _ in range(REPEATS)]
    fastest = dict(zip(MODULES, map(min, zip(*rounds, strict=True)), strict=True))
    print(f"Python {platform.python_version()}, jax {importlib.metadata.version('jax')}, fastest of {REPEATS}")
    for module, seconds in fastest.items():
        print(f"import {module:<24} {seconds:.3f} s")
    print(f"ratio           {fastest['klover.refinement.refine'] / fastest['jax']:.3f}")


if __name__ == "__main__":
    main()
