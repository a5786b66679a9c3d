"""The state of a refinement in one file: arrays and a description of their structure, no pickle."""

import dataclasses
import json
import os
import zipfile
from typing import Any

import numpy as np

from klover.families import Components
from klover.mixture import Mixture
from klover.particles import Particles
from klover.pool import Pool
from klover.spreads import Diagonal, Full
from klover.state import Context, RoundInfo, State

VERSION = 1
RECORDS = {cls.__name__: cls for cls in (Components, Diagonal, Full, Mixture, Particles, Pool, RoundInfo, State)}


def _encode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Turn records, tuples and numbers into JSON; arrays are put aside under a name."""
    if isinstance(value, np.ndarray):
        name = str(len(arrays))
        arrays[name] = value
        return {"array": name}
    if dataclasses.is_dataclass(value):
        fields = {field.name: _encode(getattr(value, field.name), arrays) for field in dataclasses.fields(value)}
        return {"record": type(value).__name__, "fields": fields}
    if isinstance(value, tuple):
        return {"tuple": [_encode(entry, arrays) for entry in value]}
    return value


def _decode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays[value["array"]]
    if "tuple" in value:
        return tuple(_decode(entry, arrays) for entry in value["tuple"])
    return RECORDS[value["record"]](**{name: _decode(entry, arrays) for name, entry in value["fields"].items()})


def save(path: str | os.PathLike, context: Context, state: State) -> None:
    """Write the state, the generator and the counts; the file is replaced at once, so that it is never half written."""
    arrays: dict[str, np.ndarray] = {}
    description = {
        "version": VERSION,
        "dim": context.dim,
        "state": _encode(state, arrays),
        "generator": context.generator.bit_generator.state,
        "counts": context.evaluator.counts(),
    }
    temporary = f"{os.fspath(path)}.part"
    with open(temporary, "wb") as file:
        np.savez(file, **arrays, description=np.array(json.dumps(description)))  # pyright: ignore
    os.replace(temporary, path)


def load(path: str | os.PathLike, context: Context) -> State:
    """Read a state, and put the generator and the counts to where they were."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        description = json.loads(str(arrays["description"]))
        version = description["version"]
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"checkpoint {path} is damaged or is no klover checkpoint: delete it, and begin again."
        ) from error
    if version > VERSION:
        raise ValueError(f"checkpoint {path} was written by a newer klover (format {version}): update klover.")
    if description["dim"] != context.dim:
        raise ValueError(
            f"checkpoint {path} belongs to a target of dimension {description['dim']}, but this one has {context.dim}. "
            "Choose another file."
        )
    context.generator.bit_generator.state = description["generator"]
    context.evaluator.set_counts(description["counts"])
    return _decode(description["state"], arrays)
