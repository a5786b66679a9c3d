"""A journal of evaluations: each is written to a file when it is made, and taken from there when it is wanted again.

A fit is determined by its key and by the values of the density. So a fit that was killed is made again by the same
call, which finds in the file what it has evaluated before, and evaluates only the rest: its answer is the same to the
last bit. The file is a table, from points to results. A call with other arguments finds fewer of its points there, and
never a wrong number.

A point that was evaluated twice has two results in the file, which are given out in their order; a third time, it is
evaluated. What the file held when it was opened is kept in memory until it is asked for: as much as the file, and some
200 bytes for each evaluation. What is written afterwards is not.
"""

import contextlib
import dataclasses
import json
import math
import os
import struct
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import numpy as np

from klover.base.checks import DamagedFile
from klover.base.frames import damaged, pack, unpack
from klover.base.shapes import Bool, Float

MAGIC, VERSION = b"klover journal\n", 1
HEADER, FACT = b"h", b"f"
VALUES, BOTH, GRADIENTS = b"v", b"b", b"g"
"""Kinds of results: a log density, this and its gradient, and a gradient alone."""
NUM_ROWS = struct.Struct("<I")
SECONDS_OF_SYNC = 5.0
"""Between two times that the disk is waited for: a killed process loses nothing by it, a loss of power that much."""

Points = Float[np.ndarray, "draw dim"]


class Unwritable(OSError):
    """Raised where an evaluation cannot be written down, which ends the fit: it could not go on after a kill."""


@dataclasses.dataclass
class Known:
    """What a journal holds of some points: their results, NaN where it has none, and words of those that failed."""

    rows: Float[np.ndarray, "draw result"]
    is_known: Bool[np.ndarray, " draw"]
    words: dict[int, str]


class Journal:
    """The evaluations of one target in a file, which nobody else may write meanwhile.

    Parameters
    ----------
    path
        The file: new, or one that was written for the same target.
    dim, dtype
        Of the points.
    """

    def __init__(self, path: str, dim: int, dtype: np.dtype | type):
        self.path, self.num_replayed = path, 0
        self._dim, self._dtype = dim, np.dtype(dtype)
        self._table: dict[bytes, list[bytes]] = {}
        self._facts: dict[str, float] = {}
        self._sample: list[tuple[np.ndarray, float]] = []
        self._mutex, self._synced = threading.Lock(), time.monotonic()
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 (it stays open as long as the journal)
        try:
            _lock(self._file.fileno(), path)
            self._size = self._read()
            self._file.truncate(self._size)
            if self._size == 0:
                header = {"version": VERSION, "dim": dim, "dtype": self._dtype.name}
                self._write(MAGIC + pack(HEADER + json.dumps(header).encode()))
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """See to it that the disk has everything, and let others write."""
        with self._file, contextlib.suppress(OSError):  # some files, such as pipes, cannot be synchronised
            os.fsync(self._file.fileno())

    def find(self, kind: bytes, points: Points) -> Known:
        """Take out of the file's table what it holds of points."""
        found = Known(np.full((len(points), self._num_results(kind)), np.nan), np.zeros(len(points), bool), {})
        width = found.rows.itemsize * found.rows.shape[1]
        for row, point in enumerate(self._exact(points) if self._table else ()):
            entry, *others = self._table.pop(kind + point.tobytes(), (None,))
            if others:
                self._table[kind + point.tobytes()] = others
            if entry is not None:
                found.rows[row], found.is_known[row] = np.frombuffer(entry[:width]), True
                if len(entry) > width:
                    found.words[row] = entry[width:].decode()
        # A gradient alone belongs to a value that was counted.
        self.num_replayed += 0 if kind == GRADIENTS else int(found.is_known.sum())
        return found

    def append(
        self, kind: bytes, points: Points, rows: Float[np.ndarray, "draw result"], words: dict[int, str] | None = None
    ) -> None:
        """Write results at points, and words about those that failed, by their rows."""
        points, rows = self._exact(points), np.ascontiguousarray(rows, float)
        table = np.concatenate([points.view(np.uint8), rows.view(np.uint8)], axis=1)
        rest = json.dumps(words).encode() if words else b""
        self._write(pack(kind + NUM_ROWS.pack(len(points)) + table.tobytes() + rest))

    def fact(self, name: str, find: Callable[[], float]) -> float:
        """Return what was once found out by a clock, and may be found otherwise the next time."""
        if name not in self._facts:
            self._facts[name] = find()
            self._write(pack(FACT + json.dumps({name: self._facts[name]}).encode()))
        return self._facts[name]

    def sample(self) -> tuple[Points, Float[np.ndarray, " some"]]:
        """Return the first, the last and the highest point of the file as it was opened, and their log densities."""
        points = np.reshape([point for point, _ in self._sample], (-1, self._dim)).astype(self._dtype)
        return points, np.array([value for _, value in self._sample])

    def _exact(self, points: Points) -> Points:
        """Return points in the precision of the file, which has to hold every digit of them."""
        return np.ascontiguousarray(points.astype(self._dtype, casting="safe", copy=False))

    def _num_results(self, kind: bytes) -> int:
        """Return the length of a result; a kind that is none raises."""
        return (1, 1 + self._dim, self._dim)[(VALUES, BOTH, GRADIENTS).index(kind)]

    def _write(self, frame: bytes) -> None:
        """Add to the end of the file all of a frame, or nothing."""
        with self._mutex:
            try:
                rest = memoryview(frame)
                while rest:
                    rest = rest[self._file.write(rest) :]
                if time.monotonic() - self._synced > SECONDS_OF_SYNC:
                    os.fsync(self._file.fileno())
                    self._synced = time.monotonic()
            except BaseException as error:
                with contextlib.suppress(OSError):
                    self._file.truncate(self._size)
                if not isinstance(error, OSError):
                    raise
                raise Unwritable(
                    f"journal {self.path} cannot be written: {error.strerror or error}. All evaluations before are in "
                    "it. Make room, and call again."
                ) from error
            self._size += len(frame)

    def _read(self) -> int:
        """Read the file, and return how much of it is whole."""
        what, end = f"journal {self.path}", len(MAGIC)
        with open(self.path, "rb") as file:
            start = file.read(len(MAGIC))
            if start != MAGIC:
                if MAGIC.startswith(start):
                    return 0
                raise DamagedFile(f"{self.path} is no klover journal, or is damaged at byte 0. Choose another file.")
            for after, piece in unpack(file, what):
                is_first = end == len(MAGIC)
                try:
                    header = _parse(piece[1:]) if is_first else self._take(piece)
                except (ValueError, TypeError, AttributeError, struct.error) as error:
                    raise damaged(what, end) from error
                if is_first:
                    self._check_header(header)
                end = after
        return 0 if end == len(MAGIC) else end

    def _check_header(self, header: dict[str, Any]) -> None:
        version = header.get("version", math.inf)
        if version > VERSION:
            raise ValueError(f"journal {self.path} was written by a newer klover (format {version}): update klover.")
        for name, now, before in (
            ("dimension", self._dim, header.get("dim")),
            ("precision", self._dtype.name, header.get("dtype")),
        ):
            if before != now:
                raise ValueError(
                    f"journal {self.path} belongs to a target of {name} {before}, but this one has {now}. Call with "
                    "the target as it was, or choose another file."
                )

    def _take(self, piece: bytes) -> dict[str, Any]:
        """Understand a piece after the first, which is evaluations or facts; return the facts."""
        kind, content = piece[:1], piece[1:]
        if kind == FACT:
            self._facts |= {name: float(value) for name, value in _parse(content).items()}
            return self._facts
        width, (num,) = self._dim * self._dtype.itemsize, NUM_ROWS.unpack(content[: NUM_ROWS.size])
        whole = width + 8 * self._num_results(kind)
        table, rest = content[NUM_ROWS.size : NUM_ROWS.size + num * whole], content[NUM_ROWS.size + num * whole :]
        if len(table) != num * whole:
            raise ValueError("it holds fewer rows than it says")
        words = {int(row): text.encode() for row, text in _parse(rest).items()} if rest else {}
        for row in range(num):
            point, results = table[row * whole : row * whole + width], table[row * whole + width : (row + 1) * whole]
            self._table.setdefault(kind + point, []).append(results + words.get(row, b""))
            if kind != GRADIENTS:
                self._remember(point, results)
        return {}

    def _remember(self, point: bytes, results: bytes) -> None:
        """Keep the first point where the density is a number (or zero, outside the support), the last, and the top."""
        value = float(np.frombuffer(results[:8])[0])
        if math.isnan(value) or value == math.inf:
            return
        one = np.frombuffer(point, self._dtype), value
        first, _, top = self._sample or (one, one, one)
        self._sample = [first, one, max(top, one, key=lambda each: each[1])]


def _parse(content: bytes) -> dict[str, Any]:
    found = json.loads(content)
    if not isinstance(found, dict):
        raise TypeError("no dict")
    return found


def _lock(descriptor: int, path: str) -> None:
    """Keep others from writing to a file, where the system and the file system know of locks."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(
            f"journal {path} is being written by another run. Wait for its end, or choose another file."
        ) from None
    except (ImportError, OSError):
        return
