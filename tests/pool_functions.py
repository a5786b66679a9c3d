"""Functions that the processes of tests evaluate: these import nothing but NumPy."""

import os
import time
from pathlib import Path

import numpy as np

POISON, HANGING, HANGING_ONCE, RAISING = 7.0, 5.0, 12.0, 3.0


def bell(x):
    """Return the log density of independent Normals around 1, for one point or many."""
    return -0.5 * np.sum((x - 1.0) ** 2, -1) - 0.5 * x.shape[-1] * np.log(2 * np.pi)


def bell_gradient(x):
    return 1.0 - x


def poisoned(x):
    """End the process where the first coordinate is 7."""
    if x[0] == POISON:
        os._exit(1)
    return bell(x)


def fragile(x):
    """End the process in a small part of the plane, where a few of a fit's points fall."""
    if np.abs(x - 1.5).max() < 0.12:
        os._exit(1)
    return bell(x)


def raising(x):
    if x[0] == RAISING:
        raise Awkward("beyond the table", None)
    return bell(x)


def square(item):
    if item == "none":
        raise LookupError("nothing to square")
    return item**2


def far(x):
    return x[0] > 4


def kind_of(array):
    return array.dtype.name


class Awkward(Exception):
    """An error that cannot be pickled."""

    def __init__(self, text, other):
        super().__init__(text)


class Hanging:
    """A function that takes for ever at one point, and at another the first time; it counts how often it is tried."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __call__(self, x):
        if x[0] in (HANGING, HANGING_ONCE):
            with open(self.folder / f"{x[0]}", "a") as file:
                file.write(".")
            if x[0] == HANGING or self.num_tries(HANGING_ONCE) == 1:
                time.sleep(1000)
        return bell(x)

    def num_tries(self, point: float) -> int:
        return len((self.folder / f"{point}").read_text())


class Slow:
    """A function that says in a file which processes have loaded it, and which are at work."""

    def __init__(self, folder: Path, seconds: float):
        self.folder, self.seconds = folder, seconds

    def __setstate__(self, state):
        self.__dict__.update(state)
        with open(self.folder / "loaded", "a") as file:
            file.write(f"{os.getpid()}\n")

    def __call__(self, x):
        (self.folder / f"busy-{os.getpid()}").touch()
        time.sleep(self.seconds)
        return bell(x)

    @property
    def loaded(self) -> list[int]:
        return [int(line) for line in (self.folder / "loaded").read_text().split()]
