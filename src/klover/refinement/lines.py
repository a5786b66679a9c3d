"""Many fits in a file: a line of JSON each, written when the fit is finished, and found there by the next call."""

import dataclasses
import functools
import hashlib
import json
import math
import numbers
import os
import pickle
import types
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import jax
import numpy as np

from klover.base.checks import DamagedFile
from klover.base.version import __version__
from klover.results.fit import Fit
from klover.workers.parcel import fingerprints

VERSION = 1
BEGINNING = b'{"klover fits": '
ERROR = "ERROR"
"""The status of an item whose fit could not be made."""


@dataclasses.dataclass(frozen=True)
class FitLine:
    """What is kept of one of many fits.

    Parameters
    ----------
    index, label
        Which of the items it is.
    trusted, status, reason
        The verdict; where the fit has raised an error, the status is ``"ERROR"``, and the reason says which.
    log_evidence, log_evidence_se, ess, pareto_k
        Of the draws.
    mean, sd
        Of each quantity, by its name.
    num_evaluations, seconds
        Spent on it. Seconds are those of the whole item, with what compiles.
    """

    index: int
    label: str
    trusted: bool
    status: str
    reason: str
    log_evidence: float = math.nan
    log_evidence_se: float = math.nan
    ess: float = math.nan
    pareto_k: float = math.nan
    mean: dict[str, float] = dataclasses.field(default_factory=dict)
    sd: dict[str, float] = dataclasses.field(default_factory=dict)
    num_evaluations: int | None = None
    seconds: float = math.nan

    @classmethod
    def of(cls, index: int, label: str, fit: Fit, seconds: float) -> "FitLine":
        """Take from a fit what is kept of it."""
        verdict, table = fit.verdict, fit.summary()
        mean, sd = (dict(zip(table.names, table.columns[name].tolist(), strict=True)) for name in ("mean", "sd"))
        told = verdict.trusted, verdict.status.name, verdict.reason
        figures = fit.log_evidence, fit.log_evidence_se, fit.ess, fit.pareto_k
        return cls(index, label, *told, *figures, mean, sd, fit.num_evaluations, seconds)

    @classmethod
    def failed(cls, index: int, label: str, error: Exception) -> "FitLine":
        """Say what an item has raised instead of a fit."""
        return cls(index, label, False, ERROR, f"{type(error).__name__}: {error}")


class LinesFile:
    """The file, which nobody else may write meanwhile.

    Parameters
    ----------
    path
        The file: new, or one of the same fits.
    made_with
        Digests of what all fits share, by name.
    items
        Digests of the items.
    """

    def __init__(self, path: str, made_with: Mapping[str, str], items: list[str]):
        self._path, self._items = path, items
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 (it stays open as long as the fits take)
        try:
            _lock(self._file.fileno(), path)
            self._file.seek(0)
            content = self._file.read()
            whole = content[: content.rfind(b"\n") + 1]  # the rest was torn by a kill
            if not content.startswith(BEGINNING[: len(content)]):
                raise ValueError(
                    f"out must be a new file, or one of these fits: {path} is another one. Choose another."
                )
            self.found = self._read(whole, made_with)
            self._file.truncate(len(whole))
            if not whole:
                self._write({"klover fits": VERSION, "klover": __version__, "made_with": dict(made_with)})
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "LinesFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let others write."""
        self._file.close()

    def append(self, line: FitLine) -> None:
        """Write a line, with the digest of its item."""
        fields = {
            name: {each: _finite(number) for each, number in value.items()}
            if isinstance(value, dict)
            else _finite(value)
            for name, value in dataclasses.asdict(line).items()
        }
        self._write(fields | {"item": self._items[line.index]})

    def _write(self, line: dict[str, Any]) -> None:
        # One write, so that a kill leaves all of the line or a part without its end.
        self._file.write(json.dumps(line, allow_nan=False, ensure_ascii=False).encode() + b"\n")

    def _read(self, content: bytes, made_with: Mapping[str, str]) -> dict[int, FitLine]:
        """Return the fits of the file by index, and refuse a file of others."""
        first, *others = content.splitlines() or [b""]
        if not first:
            return {}
        header = self._parse(1, first, {"klover fits": int, "made_with": dict})
        if header["klover fits"] != VERSION:
            raise ValueError(f"out must be a file of this klover: {self._path} is of a newer one. Choose another.")
        known = header["made_with"]
        changed = [name for name in {**known, **made_with} if known.get(name) != made_with.get(name)]
        if changed:
            raise ValueError(
                f"out must be a new file, or one of these fits: those in {self._path} were made with another "
                f"{', another '.join(changed)}. Choose another file, or delete this one."
            )
        found = {}
        for number, line in enumerate(others, 2):
            fields = self._parse(number, line, {"index": int, "label": str, "item": str, "mean": dict, "sd": dict})
            self._check_item(fields["index"], fields.pop("item"))
            found[fields["index"]] = self._line(number, fields)
        return found

    def _parse(self, number: int, line: bytes, kinds: Mapping[str, type]) -> dict[str, Any]:
        try:
            fields = json.loads(line)
            is_whole = all(isinstance(fields[name], kind) for name, kind in kinds.items())
        except (ValueError, TypeError, KeyError, LookupError):
            is_whole, fields = False, {}
        if not is_whole:
            raise self._damaged(number)
        return fields

    def _line(self, number: int, fields: dict[str, Any]) -> FitLine:
        floats = {field.name for field in dataclasses.fields(FitLine) if field.type is float}
        for each in (fields, fields["mean"], fields["sd"]):
            names = floats if each is fields else each.keys()
            each.update({name: math.nan for name in names if each.get(name) is None})
        try:
            return FitLine(**fields)
        except TypeError:
            raise self._damaged(number) from None

    def _damaged(self, number: int) -> DamagedFile:
        return DamagedFile(
            f"out: line {number} of {self._path} is not what was written there. Delete the line, so that its item is "
            "fitted again, or choose another file."
        )

    def _check_item(self, index: int, digest: str) -> None:
        if not 0 <= index < len(self._items) or self._items[index] != digest:
            what = f"items[{index}] of the fits in {self._path} is not "
            what += "the one that is given now" if 0 <= index < len(self._items) else f"among {len(self._items)} items"
            raise ValueError(f"{what}. Choose another file for out, or delete this one; items may be added at the end.")


def _finite(value: Any) -> Any:
    """Replace a number that JSON cannot hold by None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _lock(descriptor: int, path: str) -> None:
    """Keep others from writing, where the system and the file system know of locks."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"out: {path} is being written by another run. Wait for its end, or choose another.") from None
    except (ImportError, OSError):
        return


def digest(value: Any) -> str:
    """Return a short hash of what a value holds, the same in other runs: numbers of arrays, code and data of functions.

    Examples
    --------
    >>> digest({"x": np.ones(3)}) == digest({"x": np.ones(3)}) != digest({"x": np.zeros(3)})
    True
    """
    try:
        leaves, structure = jax.tree.flatten(value, is_leaf=lambda part: part is None)
    except (TypeError, ValueError):  # a dict whose keys have no order
        leaves, structure = [pickle.dumps(value)], type(value)
    print_ = hashlib.blake2b(str(structure).encode(), digest_size=8)
    for leaf in leaves:
        print_.update(_bytes_of(leaf))
    return print_.hexdigest()


def _bytes_of(leaf: Any) -> bytes:
    if isinstance(leaf, np.ndarray | jax.Array) and leaf.dtype != object:
        array = np.asarray(leaf)
        return f"{array.dtype}{array.shape}".encode() + array.tobytes()
    if leaf is None or isinstance(leaf, str | bytes | numbers.Number | os.PathLike):
        return repr(leaf).encode()
    if isinstance(leaf, set | frozenset):
        return repr(sorted(map(repr, leaf))).encode()
    code = repr(sorted(fingerprints(leaf).items())).encode()
    if isinstance(leaf, functools.partial):
        return digest((leaf.func, leaf.args, leaf.keywords)).encode()
    if isinstance(leaf, types.FunctionType):
        # Functions that it refers to are told by their code alone: they may refer to it.
        known = [cell.cell_contents for cell in leaf.__closure__ or ()]
        known = [fingerprints(each) if isinstance(each, types.FunctionType) else each for each in known]
        return code + digest((known, leaf.__defaults__)).encode()
    try:
        return code + pickle.dumps(leaf)
    except Exception:  # what cannot be pickled is told by its kind
        return code + type(leaf).__qualname__.encode()
