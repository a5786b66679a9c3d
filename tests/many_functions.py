"""Functions that many fits map, here and in processes."""

import os
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import klover

POISON, RAISING = 3, 4


def normal(mean):
    """Return the target of a Normal posterior with standard deviation 1 and log evidence log(2π)/2."""
    y = np.full(4, float(mean))
    return klover.Target(lambda x: -0.5 * jnp.mean((x - y) ** 2), 0.0)


class Loads:
    """Returns a fit that was made before; some items raise, kill."""

    def __init__(self, path: Path, log: Path):
        self.path, self.log = str(path), str(log)

    def __call__(self, item):
        with open(self.log, "a", encoding="utf-8") as file:
            file.write(f"{item} {os.environ.get('PJRT_NPROC')}\n")
        if item == POISON:
            os._exit(1)
        if item == RAISING:
            raise LookupError("no such data")
        return klover.load(self.path)


def no_target(item):
    return item
