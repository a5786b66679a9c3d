"""A function, packed once to be sent to many workers, with what tells whether they have the same one."""

import dataclasses
import functools
import hashlib
import importlib
import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from klover.workers.task import VERSION, Parcel
from klover.workers.work import Work

REMEDY = (
    "Define it at the top level of a module that the workers can import, keep what cannot be pickled (locks, open "
    "files) out of it, or install cloudpickle (pip install cloudpickle), which packs lambdas and inner functions."
)


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """A function of chunks, which errors call by a name, and its parcel, which is packed where it has to be sent.

    A chunk is to take no more than ``most_seconds``, which is what is lost with a worker, but has one task at least.
    Where JAX has a part in the work, ``is_double`` is the precision that it computes in.

    Examples
    --------
    >>> from klover.workers.work import OnPoints
    >>> job = Job("logdensity", OnPoints(max))
    >>> len(job.parcel.key), job.parcel.version.split()[0]
    (64, 'klover')
    """

    name: str
    work: Work
    most_seconds: float = 5.0
    is_double: bool | None = None

    @functools.cached_property
    def parcel(self) -> Parcel:
        """The function, packed by cloudpickle where it is installed, and by pickle otherwise."""
        pickler = _pickler()
        if pickler is not pickle:
            _take_along(pickler, self.work)
        packed = _packed(self.name, self.work)
        key = hashlib.sha256(packed + repr(self.is_double).encode()).hexdigest()
        return Parcel(key, pickler.__name__, packed, fingerprints(self.work), VERSION, self.is_double)

    def chunk_of(self, tasks: Any, indices: np.ndarray) -> Any:
        """Return rows of an array, or items of a list, packed so that only a worker that expects them loads them."""
        if isinstance(tasks, np.ndarray):
            return tasks[indices]
        return _packed(f"an item of {self.name}", [tasks[index] for index in indices])


def _pickler() -> Any:
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return pickle


def _packed(name: str, value: Any) -> bytes:
    try:
        return _pickler().dumps(value)
    except Exception as error:
        raise TypeError(f"{name} cannot be sent to other processes ({error}). {REMEDY}") from error


def fingerprints(work: Any) -> dict[str, str]:
    """Return a hash of the code of each function that a work is made of, by the function's name.

    A function in a module is packed as its name, and another machine may have an older file.
    """
    return {f"{each.__module__}.{each.__qualname__}": _print_of(each.__code__) for each in _functions_in(work)}


def _functions_in(work: Any) -> Iterator[types.FunctionType]:
    """Walk through what wraps functions of the user's: works, partial functions, methods, objects that are called.

    What has more than one of them names them as ``users_functions``.
    """
    if hasattr(work, "users_functions"):
        for each in work.users_functions:
            yield from _functions_in(each)
    elif isinstance(work, types.FunctionType):
        yield work
    elif isinstance(work, functools.partial):
        yield from _functions_in(work.func)
    elif isinstance(work, types.MethodType):
        yield from _functions_in(work.__func__)
    elif hasattr(work, "function"):
        yield from _functions_in(work.function)
    elif isinstance(vars(type(work)).get("__call__"), types.FunctionType):
        yield vars(type(work))["__call__"]


def _print_of(code: types.CodeType) -> str:
    """Hash what code does, whatever file and line it stands in."""
    print_ = hashlib.sha256(code.co_code + repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            print_.update(_print_of(constant).encode())
        elif isinstance(constant, int | float | complex | str | bytes | None):
            print_.update(repr(constant).encode())
    return print_.hexdigest()


def _take_along(pickler: Any, work: Any) -> None:
    """Let functions of modules that were made by hand, and that no worker can import, travel with their code."""
    for each in _functions_in(work):
        module = sys.modules.get(each.__module__)
        if module is not None and module.__name__ != "__main__" and module.__spec__ is None:
            pickler.register_pickle_by_value(module)
