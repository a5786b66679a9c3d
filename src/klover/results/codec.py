"""Records in one file: arrays, and a description of their structure in JSON, so that nothing in it can run code.

A file is read with suspicion. Its directory and the headers of its arrays are looked at before anything is expanded:
arrays lie in it as they are, so that it can hold no more than its own length. Whatever else is wrong with it raises
:class:`~klover.base.checks.DamagedFile`.
"""

import collections
import contextlib
import dataclasses
import enum
import itertools
import json
import math
import os
import re
import zipfile
from collections.abc import Iterable, Iterator
from typing import IO, Any

import jax
import numpy as np

from klover.base.checks import DamagedFile

KINDS = "biufcUSMm"
"""Kinds of arrays that may be stored: truth values, numbers, words and dates. Others would need pickle."""
DEEPEST = 100
"""Levels of a description; those of a fit have ten or so."""
QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


@contextlib.contextmanager
def refuse_damage(path: str | os.PathLike, kind: str, remedy: str) -> Iterator[None]:
    """Turn whatever goes wrong while a file is understood into one error: a damaged file may raise anything."""
    try:
        yield
    except Exception as error:
        raise DamagedFile(f"{kind} {path} is damaged or is no klover {kind}: {remedy}") from error


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

    Raises
    ------
    DamagedFile
        If it was cut or changed, or is something else.
    ValueError
        If it is another kind of file of klover's, or was written by a newer klover.
    """
    with open(path, "rb") as file, refuse_damage(path, kind, remedy):
        arrays = _read_arrays(file)
        description = _parse(str(arrays["description"]))
        found, number = str(description.get("kind", kind)), int(description["version"])
    if found != kind:
        raise ValueError(f"{path} is a klover {found}, but a {kind} was expected. Choose another file.")
    if number > version:
        raise ValueError(f"{kind} {path} was written by a newer klover (format {number}): update klover.")
    with refuse_damage(path, kind, remedy):
        return decode(description, arrays, {cls.__name__: cls for cls in classes})


def _read_arrays(file: IO[bytes]) -> dict[str, np.ndarray]:
    """Read the arrays of an archive that holds no more than its own length."""
    length = file.seek(0, os.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("it holds compressed arrays")
        if sum(member.file_size for member in members) > length:
            raise ValueError("its arrays are longer than itself")
        return {member.filename.removesuffix(".npy"): _read_array(archive, member) for member in members}


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Read one array, if its header promises what is there: memory is taken by the header's word."""
    with archive.open(member) as file:
        is_long = np.lib.format.read_magic(file) != (1, 0)
        header = np.lib.format.read_array_header_2_0 if is_long else np.lib.format.read_array_header_1_0
        shape, _, dtype = header(file)
        if dtype.kind not in KINDS or file.tell() + math.prod(shape) * dtype.itemsize != member.file_size:
            raise ValueError(f"{member.filename} is not the array that its header promises")
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _parse(text: str) -> dict[str, Any]:
    """Read a description that is not nested too deeply to be followed."""
    steps = ((mark in "[{") - (mark in "]}") for mark in QUOTED.sub("", text))
    if max(itertools.accumulate(steps), default=0) > DEEPEST:
        raise ValueError("its description is nested too deeply")
    return json.loads(text)
