"""What runs in a worker: tasks bring arrays, and the function once.

It stays in a dictionary of the process, by the hash of what it was packed into; a task whose function is not there says
so, and is sent again with it. Workers import this module: it needs NumPy alone.
"""

import contextlib
import importlib
import multiprocessing
import os
import pickle
import platform
import signal
import threading
import time
from typing import Any, NamedTuple

from klover.base.version import __version__
from klover.workers.work import Errors, Work

VERSION = f"klover {__version__} on Python {'.'.join(platform.python_version_tuple()[:2])}"
MOST_FUNCTIONS = 16
"""Functions that a worker keeps, with their data; the one that came first goes first."""


class Parcel(NamedTuple):
    """A function as it is sent."""

    key: str
    """Its hash."""
    pickler: str
    """The module that packed it, and unpacks it."""
    packed: bytes
    prints: dict[str, str]
    """Fingerprints of the code that it names, to be found the same in the worker."""
    version: str
    is_double: bool | None = None
    """Whether JAX computes in double precision where it comes from; None if JAX has no part in it."""


class Answer(NamedTuple):
    """What a worker has found for a chunk, and how long it took."""

    values: Any
    errors: Errors
    seconds: float


class Unknown(NamedTuple):
    """The answer of a worker that was not sent the function yet."""


class Died(NamedTuple):
    """The answer of a worker whose own process for a chunk has died."""


class Refusal(NamedTuple):
    """The answer of a worker that cannot run the function, and why."""

    reason: str


_functions: dict[str, tuple[Work, bool | None]] = {}
"""Functions, and whether JAX is to compute in double precision."""
_refused: dict[str, str] = {}
"""Why functions cannot be run here."""


def run(key: str, parcel: Parcel | None, chunk: Any) -> Answer | Unknown | Refusal:
    """Run a function on a chunk of rows, or of items that are packed; without a chunk it is only kept."""
    if key not in _functions and parcel is not None:
        _refused[key] = _unpack(parcel)
    if _refused.get(key):
        return Refusal(_refused[key])
    if key not in _functions:
        return Unknown()
    if chunk is None:
        return Answer(None, [], 0.0)
    work, is_double = _functions[key]
    with _precision(is_double):
        if isinstance(chunk, bytes):
            try:
                chunk = pickle.loads(chunk)
            except Exception as error:
                return Refusal(f"the worker cannot load its items ({type(error).__name__}: {error})")
        began = time.perf_counter()
        values, errors = work(chunk)
        return Answer(values, _portable(errors), time.perf_counter() - began)


def _precision(is_double: bool | None) -> contextlib.AbstractContextManager[Any]:
    """Let JAX compute in a precision; arrays of its own that are unpickled elsewhere would be rounded in silence."""
    return contextlib.nullcontext() if is_double is None else importlib.import_module("jax").enable_x64(is_double)


def _unpack(parcel: Parcel) -> str:
    """Keep the function of a parcel, or say why it cannot be run here; nothing if it can."""
    from klover.workers.parcel import fingerprints

    if parcel.version != VERSION:
        return f"it is to run with {parcel.version}, but the worker has {VERSION}"
    try:
        with _precision(parcel.is_double):
            work = importlib.import_module(parcel.pickler).loads(parcel.packed)
    except Exception as error:
        return f"the worker cannot load it ({type(error).__name__}: {error})"
    found = fingerprints(work)
    for name, value in parcel.prints.items():
        if found.get(name) != value:
            return f"the worker has another version of {name}"
    while len(_functions) >= MOST_FUNCTIONS:
        del _functions[next(iter(_functions))]
    _functions[parcel.key] = work, parcel.is_double
    return ""


def _portable(errors: Errors) -> Errors:
    """Replace errors that cannot be pickled by a RuntimeError with their message."""
    for place, (index, error) in enumerate(errors):
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            errors[place] = index, RuntimeError(f"{type(error).__name__}: {error}")
    return errors


def settle() -> None:
    """Prepare a process of klover's own: Ctrl-C is for the parent, and none outlives it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
