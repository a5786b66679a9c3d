"""Records in one file: arrays, and a description of their structure in JSON, so that nothing in it can run code."""

import collections
import dataclasses
import enum
import json
import os
import zipfile
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from klover.base.shapes import Float

DAMAGE = (OSError, KeyError, IndexError, TypeError, ValueError, AttributeError, EOFError, zipfile.BadZipFile)
"""What a truncated, changed or foreign file can raise."""
NUM_COMPARED = 8
TOLERANCE, SINGLE_TOLERANCE = 1e-8, 1e-4
"""Relative difference of log densities that two machines may have, in double and in single precision."""


def encode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Turn records, containers and numbers into JSON; arrays are put aside under a name, each of them once."""
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return {"array": _put_aside(value, arrays)}
    if isinstance(value, enum.Enum):
        return {"member": value.name, "of": type(value).__name__}
    if dataclasses.is_dataclass(value):
        fields = {field.name: encode(getattr(value, field.name), arrays) for field in dataclasses.fields(value)}
        return {"record": type(value).__name__, "fields": fields}
    if isinstance(value, dict):
        tag = "ordered" if isinstance(value, collections.OrderedDict) else "dict"
        return {tag: {name: encode(entry, arrays) for name, entry in value.items()}}
    if isinstance(value, tuple):
        return {"tuple": [encode(entry, arrays) for entry in value]}
    if isinstance(value, list):
        return [encode(entry, arrays) for entry in value]
    return value


def _put_aside(value: Any, arrays: dict[str, np.ndarray]) -> str:
    for name, array in arrays.items():
        if array is value:
            return name
    array = np.asarray(value)
    name = str(len(arrays))
    # Python objects (labels, as a rule) could only be stored by pickle.
    arrays[name] = array.astype(str) if array.dtype.hasobject else array
    return name


def decode(value: Any, arrays: dict[str, np.ndarray], classes: dict[str, type]) -> Any:
    """Turn what :func:`encode` has made into records again; a dict without a tag stays one."""
    if isinstance(value, list):
        return [decode(entry, arrays, classes) for entry in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays[value["array"]]
    if "member" in value:
        return classes[value["of"]][value["member"]]  # pyright: ignore[reportIndexIssue]
    if "tuple" in value:
        return tuple(decode(value["tuple"], arrays, classes))
    if "ordered" in value:
        return collections.OrderedDict(decode({"dict": value["ordered"]}, arrays, classes))
    content = value.get("dict", value.get("fields", value))
    entries = {name: decode(entry, arrays, classes) for name, entry in content.items()}
    return classes[value["record"]](**entries) if "record" in value else entries


def write(path: str | os.PathLike, description: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write a description (with its ``kind`` and ``version``) and arrays; the file is never seen half written."""
    arrays = arrays | {"description": np.array(json.dumps(description))}
    temporary = f"{os.fspath(path)}.part"
    with open(temporary, "wb") as file:
        np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
    os.replace(temporary, path)


def read(path: str | os.PathLike, kind: str, version: int, classes: Iterable[type], remedy: str) -> dict[str, Any]:
    """Read what :func:`write` has written, and decode it.

    Parameters
    ----------
    kind, version
        What the file must be, and the newest version of it that can be read.
    classes
        The records that may be in it.
    remedy
        What to do about a file that is damaged.
    """
    with open(path, "rb") as file:
        try:
            with np.load(file, allow_pickle=False) as archive:
                arrays = dict(archive)
            description = json.loads(str(arrays["description"]))
            found, number = description.get("kind", kind), description["version"]
        except DAMAGE as error:
            raise ValueError(f"{kind} {path} is damaged or is no klover {kind}: {remedy}") from error
    if found != kind:
        raise ValueError(f"{path} is a klover {found}, but a {kind} was expected. Choose another file.")
    if number > version:
        raise ValueError(f"{kind} {path} was written by a newer klover (format {number}): update klover.")
    try:
        return decode(description, arrays, {cls.__name__: cls for cls in classes})
    except DAMAGE as error:
        raise ValueError(f"{kind} {path} is damaged: {remedy}") from error


def find_change(
    log_density: Callable[[np.ndarray], np.ndarray],
    x: Float[np.ndarray, "draw dim"],
    log_p: Float[np.ndarray, " draw"],
) -> float:
    """Compare a log density with stored values at a few draws; return how far it is off, zero within rounding."""
    inside = np.flatnonzero(np.isfinite(log_p))[:NUM_COMPARED]
    if not len(inside):
        return 0.0
    now, before = np.asarray(log_density(x[inside])), log_p[inside]
    is_single = any(np.array_equal(values, np.float32(values)) for values in (now, before))
    difference = np.abs(now - before)
    is_same = np.all(difference <= (SINGLE_TOLERANCE if is_single else TOLERANCE) * (1 + np.abs(before)))
    return 0.0 if is_same else float(difference.max())
