"""Stan code, compiled and called.

The stanc that httpstan brings translates a program to C++; it is compiled with ``stan_bridge.cpp`` behind it, and kept
in the user's cache folder. The library is called directly, a block of points at a time, with all constants. httpstan's
own module leaves out those of ``~`` statements, builds the model anew at each call, and crashes in threads other than
the one that loaded it, in which JAX may make its callbacks.
"""

import ctypes
import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
import tempfile
import weakref
from pathlib import Path

import numpy as np

from klover.base import optional
from klover.base.checks import check_path
from klover.base.shapes import Float
from klover.targets.adapters.host import Failures, Points

BRIDGE = Path(__file__).with_name("stan_bridge.cpp")
OPTIONS = ("-O2", "-std=c++17", "-w", "-shared", "-fPIC")
# The libraries that httpstan brings were built with the last of these.
MACROS = ("BOOST_DISABLE_ASSERTS", "STAN_THREADS", "_REENTRANT", "_GLIBCXX_USE_CXX11_ABI=0")
LIBRARIES = ("tbb", "sundials_cvodes", "sundials_idas", "sundials_kinsol", "sundials_nvecserial")
NO_PRIOR = re.compile(r"The parameter (\S+) (?:has no priors|was declared but was not used)")


def translate(program: str | os.PathLike) -> tuple[str, list[str]]:
    """Translate Stan code, or a file, to C++; return it with the parameters that have no prior, as stanc judges."""
    package = Path(str(optional.httpstan().__file__)).parent
    is_code = isinstance(program, str) and ("{" in program or "\n" in program)
    path = Path("program.stan" if is_code else check_path("program", program, is_read=True))
    code = str(program) if is_code else path.read_text()
    # Two libraries in one process should not have classes of one name.
    name = f"klover_{hashlib.sha256(code.encode()).hexdigest()[:12]}"
    options = [f"--name={name}", f"--filename-in-msg={path.name}", "--warn-pedantic", "--print-cpp"]
    if not is_code:
        options.append(f"--include-paths={path.parent.resolve()}")
    with tempfile.TemporaryDirectory() as folder:
        # A path of its own would make every translation a different one.
        Path(folder, "program.stan").write_text(code)
        command = [package / "stanc", *options, "program.stan"]
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise ValueError(f"program was refused by Stan's compiler:\n{result.stderr.strip()}")
    return result.stdout, NO_PRIOR.findall(" ".join(result.stderr.split()))


def compile_program(code: str) -> Path:
    """Compile translated code into a library, if the cache does not have it."""
    package = Path(str(optional.httpstan().__file__)).parent
    bridge = BRIDGE.read_text()
    digest = hashlib.sha256("\n".join([code, bridge, str(package), platform.machine()]).encode()).hexdigest()[:24]
    folder = optional.load("httpstan.cache", "Stan programs need", "stan").cache_directory() / "klover"
    library = folder / f"{digest}.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        source, made = Path(scratch, "program.cpp"), Path(scratch, "program.so")
        source.write_text(f"{code}\n{bridge}")
        command = [*shlex.split(os.environ.get("CXX", "c++")), *OPTIONS, *(f"-D{macro}" for macro in MACROS)]
        command += [f"-I{package / 'include'}", str(source), "-o", str(made), f"-L{package / 'lib'}"]
        command += [*(f"-l{name}" for name in LIBRARIES), f"-Wl,-rpath,{package / 'lib'}"]
        try:
            result = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            error.add_note("Stan programs need a C++ compiler: install g++ or clang++, or name yours in CXX.")
            raise
        if result.returncode != 0:
            raise RuntimeError(f"the C++ compiler failed on the translated Stan program:\n{result.stderr[-2000:]}")
        made.replace(library)
    return library


class CompiledModel:
    """A compiled program with its data, by name."""

    def __init__(self, library: Path, data: dict[str, np.ndarray]):
        self._library = _load(library)
        # Stan knows no booleans.
        lists = {name: (value.astype(int) if value.dtype == bool else value).tolist() for name, value in data.items()}
        self._handle = self._library.klover_open(json.dumps(lists).encode())
        weakref.finalize(self, self._library.klover_close, self._handle).atexit = False
        self.dim: int = self._library.klover_dim(self._handle)
        if self.dim < 0:
            raise ValueError(f"data do not fit the program: {self._text()}")
        self.parameters: list[str] = self._library.klover_names(self._handle, 0).decode().split()
        self.names: list[str] = self._library.klover_names(self._handle, 1).decode().split()
        self.failures = Failures()

    def values(self, points: Points) -> Float[np.ndarray, " draw"]:
        """Log densities of points."""
        values = np.empty(len(points))
        self._evaluate(points, values, None)
        return values

    def values_and_gradients(self, points: Points) -> tuple[Float[np.ndarray, " draw"], Points]:
        """Log densities of points, and their gradients."""
        values, gradients = np.empty(len(points)), np.empty(points.shape)
        self._evaluate(points, values, gradients.ctypes.data)
        return values, gradients

    def constrain(self, points: Points, is_complete: bool = True) -> Float[np.ndarray, "draw value"]:
        """Quantities that people read, in the order of ``names``, or of ``parameters`` if not complete."""
        points = np.ascontiguousarray(points, float)
        values = np.empty((len(points), len(self.names if is_complete else self.parameters)))
        shape = is_complete, values.shape[1]
        self._library.klover_constrain(self._handle, len(points), points.ctypes.data, *shape, values.ctypes.data)
        return values

    def unconstrain(self, values: Float[np.ndarray, "draw value"]) -> Points:
        """Points of parameters; NaN where these break their constraints."""
        values = np.ascontiguousarray(values, float)
        points = np.empty((len(values), self.dim))
        self._library.klover_unconstrain(self._handle, *values.shape, values.ctypes.data, points.ctypes.data)
        return points

    def _evaluate(self, points: Points, values: np.ndarray, gradients: int | None) -> None:
        points, first = np.ascontiguousarray(points, float), ctypes.c_long()
        num_raised = self._library.klover_evaluate(
            self._handle, len(points), points.ctypes.data, values.ctypes.data, gradients, ctypes.byref(first)
        )
        if num_raised > 0:
            self.failures.add(points[first.value], RuntimeError(self._text()), num_raised)

    def _text(self) -> str:
        return self._library.klover_text(self._handle).decode()


def _load(path: Path) -> ctypes.CDLL:
    """Load a library, and tell ctypes the types of ``stan_bridge.cpp``."""
    library = ctypes.CDLL(str(path))
    number, flag, pointer, text = ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p
    types = {
        "open": (pointer, [text]),
        "close": (None, [pointer]),
        "text": (text, [pointer]),
        "dim": (number, [pointer]),
        "names": (text, [pointer, flag]),
        "evaluate": (number, [pointer, number, pointer, pointer, pointer, pointer]),
        "constrain": (None, [pointer, number, pointer, flag, number, pointer]),
        "unconstrain": (None, [pointer, number, number, pointer, pointer]),
    }
    for name, (result, arguments) in types.items():
        function = getattr(library, f"klover_{name}")
        function.restype, function.argtypes = result, arguments
    return library
