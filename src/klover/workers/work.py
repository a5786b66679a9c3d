"""What workers do with a chunk: evaluate a function at points, or call it on items, errors kept apart.

Workers import this module: it needs NumPy alone.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

Errors = list[tuple[int, Exception]]
"""Places in a chunk, and what was raised there."""


@runtime_checkable
class Work(Protocol):
    """A function of chunks."""

    def __call__(self, chunk: Any) -> tuple[Any, Errors]:
        """Return a value for each part of a chunk, and the errors."""
        ...

    def missing(self, num: int) -> Any:
        """Return what stands for so many values that there are not."""
        ...


@dataclasses.dataclass(frozen=True)
class OnPoints:
    """A function at points, (S, n) to (S, *shape); values are NaN where it raises.

    Parameters
    ----------
    function
        Of one point, or of many where it is ``vectorized``.
    shape
        Of its result at one point.
    vectorized
        Whether it takes many points.
    """

    function: Callable[[np.ndarray], Any]
    shape: tuple[int, ...] = ()
    vectorized: bool = False

    def __call__(self, chunk: np.ndarray) -> tuple[np.ndarray, Errors]:
        """Evaluate points; those that raise are NaN, and listed with their errors."""
        if self.vectorized:
            with contextlib.suppress(Exception):  # what is wrong comes up again where its point is known
                return np.asarray(self.function(chunk), float).reshape(len(chunk), *self.shape), []
        found, errors = self.missing(len(chunk)), []
        for index, point in enumerate(chunk):
            try:
                found[index] = self.function(point[None])[0] if self.vectorized else self.function(point)
            except Exception as error:
                errors.append((index, error))
        return found, errors

    def missing(self, num: int) -> np.ndarray:
        """Return NaN for so many points."""
        return np.full((num, *self.shape), np.nan)


@dataclasses.dataclass(frozen=True)
class OnItems:
    """A function of one item of any kind; its result is None where it raises."""

    function: Callable[[Any], Any]

    def __call__(self, chunk: Sequence[Any]) -> tuple[list[Any], Errors]:
        """Call the function on each item."""
        found, errors = self.missing(len(chunk)), []
        for index, item in enumerate(chunk):
            try:
                found[index] = self.function(item)
            except Exception as error:
                errors.append((index, error))
        return found, errors

    def missing(self, num: int) -> list[Any]:
        """Return None for so many items."""
        return [None] * num
