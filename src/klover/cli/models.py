"""Models and data that a command names: a name in a Python file, a Stan file; data in JSON, CSV or npz."""

import contextlib
import csv
import inspect
import json
import sys
import traceback
import types
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from klover.targets.target import Target

DATA = (".json", ".csv", ".npz")
NUM_FRAMES = 3
MOST_NAMES = 12
MODULE = "klover_model"
"""What the user's file is called as a module: a name of its own could be that of another one."""
KINDS = "a NumPyro model, a PyMC model, a klover.Target, or a function of the data that returns one of the last two"


class ModelError(Exception):
    """An error inside the user's own file, with the last lines of its traceback."""


def load_target(place: str, data_path: Path | None, allows_latent: bool = False) -> "Target":
    """Make the target that ``FILE.py:NAME``, ``FILE.py`` or ``FILE.stan`` names; a model takes its data by name.

    A variable that is named after an argument without data is refused, unless it is allowed to be latent.
    """
    path, name = split(place)
    if path.suffix not in (".py", ".stan"):
        raise ValueError(f"the model must be FILE.py:NAME or FILE.stan, got {place!r}.")
    if not path.is_file():
        raise ValueError(f"the model's file {path} does not exist.")
    data = {} if data_path is None else read_data(data_path)
    if path.suffix == ".stan":
        import klover

        print(f"klover fit: compiling {path}, which takes about a minute at the first time", file=sys.stderr)
        return klover.from_stan(path, data)
    with errors_in(path):
        target = _target_of(_find(path, name), data, place, data_path)
    if not allows_latent:
        _check_not_given(target, place, data_path)
    return target


def describe(target: "Target") -> str:
    """Say which parameters a target has, how many numbers they are, and what is observed."""
    import jax

    sizes = {"parameters": jax.tree_util.tree_leaves_with_path(target.unravel(np.asarray(target.start)))}
    if target.model_info is not None and target.model_info.observed:
        sizes["observed"] = jax.tree_util.tree_leaves_with_path(target.model_info.observed)
    words = []
    for what, leaves in sizes.items():
        named = [
            f"{jax.tree_util.keystr(path, simple=True, separator='.') or 'x'} ({np.size(leaf):,})"
            for path, leaf in leaves
        ]
        more = f" and {len(named) - MOST_NAMES} more" if len(named) > MOST_NAMES else ""
        words.append(f"{what}: {', '.join(named[:MOST_NAMES])}{more}")
    return "; ".join([words[0], f"d = {target.dim:,}", *words[1:]])


def split(place: str) -> tuple[Path, str]:
    """Return the file of a model, and its name there, which is ``model`` where none is given."""
    file, _, name = place.rpartition(":") if ".py:" in place else (place, "", "model")
    return Path(file), name


def read_data(path: Path) -> dict[str, Any]:
    """Read data by name: an object of JSON, columns of numbers under a header, or arrays of NumPy's."""
    if path.suffix not in DATA:
        raise ValueError(f"--data must be a file that ends in {', '.join(DATA)}, got {path}.")
    if not path.is_file():
        raise ValueError(f"--data names {path}, which does not exist.")
    try:
        return {".json": _read_json, ".csv": _read_csv, ".npz": _read_npz}[path.suffix](path)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"--data {path} cannot be read: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_bytes())
    if not isinstance(content, dict):
        raise ValueError(f"it must hold an object with the data's names, but it holds a {type(content).__name__}.")
    return {name: _as_array(name, value) if isinstance(value, list) else value for name, value in content.items()}


def _as_array(name: str, value: list) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"the lists in {name} differ in length; make them as long as each other.") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must hold numbers only.")
    return array


def _read_csv(path: Path) -> dict[str, np.ndarray]:
    with open(path, newline="", encoding="utf-8-sig") as file:
        header, *rows = [row for row in csv.reader(file) if row] or [[]]
    columns: dict[str, np.ndarray] = {}
    for place, name in enumerate(header):
        cells = [row[place] if place < len(row) else "" for row in rows]
        try:
            numbers = np.array([float(cell) for cell in cells])
        except ValueError:
            raise ValueError(f"column {name} must hold numbers only; code words as numbers.") from None
        # A column of whole numbers may be an index, which a float cannot be.
        is_whole = all(cell.strip().lstrip("+-").isdigit() for cell in cells)
        columns[name.strip()] = numbers.astype(int) if is_whole else numbers
    return columns


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


@contextlib.contextmanager
def errors_in(path: Path) -> Iterator[None]:
    """Show an error that comes out of the user's file as one of the file, with the lines that led to it."""
    try:
        yield
    except Exception as error:
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path.resolve()]
        is_syntax = isinstance(error, SyntaxError) and error.filename == str(path.resolve())
        if not own and not is_syntax:
            raise
        lines = [*traceback.format_list(own[-NUM_FRAMES:]), *traceback.format_exception_only(error)]
        raise ModelError(f"an error in {path}:\n{''.join(lines).rstrip()}") from error


def _find(path: Path, name: str) -> Any:
    """Run a Python file, and return what it calls by the name."""
    resolved = path.resolve()
    # Files beside it are found as if Python ran it.
    sys.path.insert(0, str(resolved.parent))
    module = sys.modules[MODULE] = types.ModuleType(MODULE)
    module.__file__ = str(resolved)
    exec(compile(resolved.read_bytes(), str(resolved), "exec"), vars(module))
    if not hasattr(module, name):
        known = [each for each, value in vars(module).items() if not each.startswith("_") and _is_own(value, module)]
        raise ValueError(f"{path} has no name {name!r}; it has {', '.join(known) or 'none'}.")
    return getattr(module, name)


def _is_own(value: Any, module: Any) -> bool:
    """Whether the file has made the value, and not imported it."""
    is_definition = inspect.isclass(value) or inspect.isfunction(value)
    return not inspect.ismodule(value) and (not is_definition or value.__module__ == module.__name__)


def _target_of(model: Any, data: dict[str, Any], place: str, data_path: Path | None) -> "Target":
    import klover

    if isinstance(model, klover.Target) or _is_pymc(model):
        if data:
            raise ValueError(
                f"--data {data_path} was given, but {place} is a {type(model).__name__}, which holds its data already. "
                "Leave --data out, or name a function of the data that returns the model."
            )
        return klover.from_pymc(model) if _is_pymc(model) else model
    if not callable(model):
        raise ValueError(f"{place} must be {KINDS}, but it is of type {type(model).__name__}.")
    _check_arguments(model, data, place, data_path)
    is_numpyro, made = _call(model, data)
    if is_numpyro:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "model observes nothing", UserWarning)  # this command has its own words
            return klover.from_numpyro(model, **data)
    if isinstance(made, klover.Target):
        return made
    if _is_pymc(made):
        return klover.from_pymc(made)
    raise ValueError(f"{place} must be {KINDS}, but it is a function that returned type {type(made).__name__}.")


def _is_pymc(model: Any) -> bool:
    return "pymc" in sys.modules and isinstance(model, sys.modules["pymc"].Model)


def _check_arguments(model: Callable, data: dict[str, Any], place: str, data_path: Path | None) -> None:
    """Refuse data that do not match the model's arguments, and tell which arguments keep their defaults."""
    parameters = inspect.signature(model).parameters.values()
    source = "there is no --data" if data_path is None else f"{data_path} holds {', '.join(data) or 'nothing'}"
    named = [each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    missing = [each.name for each in named if each.default is each.empty and each.name not in data]
    if missing:
        raise ValueError(f"{place} needs {', '.join(missing)}, but {source}.")
    unknown = [name for name in data if name not in {each.name for each in named}]
    if unknown and not any(each.kind is each.VAR_KEYWORD for each in parameters):
        takes = ", ".join(each.name for each in named) or "nothing"
        raise ValueError(f"{place} takes {takes}, but {source}. Leave {', '.join(unknown)} out of the data.")
    kept = [f"{each.name}={each.default!r}" for each in named if each.name not in data]
    if kept:
        print(f"klover fit: {place} keeps {', '.join(kept)}, for {source}.", file=sys.stderr)


def _check_not_given(target: "Target", place: str, data_path: Path | None) -> None:
    """Refuse to infer what the model takes as an argument: as a rule it is data that were forgotten."""
    not_given = () if target.model_info is None else target.model_info.not_given
    if not_given:
        position = target.unravel(target.start)
        sizes = ", ".join(f"{name} ({np.size(position.get(name, 0)):,})" for name in not_given)
        source = "there is no --data" if data_path is None else f"{data_path} does not hold it"
        raise ValueError(
            f"{place} has arguments without data, which the model would infer with the parameters: {sizes}; {source}. "
            f"Put {not_given[0]} into the data, or let it be inferred by --allow-latent. {describe(target)}."
        )


def _call(model: Callable, data: dict[str, Any]) -> tuple[bool, Any]:
    """Call the model; return whether it is one of NumPyro's, at whose first primitive it is stopped, and its result."""
    if "numpyro" not in sys.modules:
        return False, model(**data)
    import klover

    primitives = sys.modules["numpyro.primitives"]

    class Met(Exception):
        pass

    class Stop(primitives.Messenger):
        def process_message(self, msg):
            raise Met

    try:
        with Stop():
            return False, model(**data)
    except Met as met:
        # A function that makes a target of a NumPyro model meets the primitives inside the adapter.
        frames = traceback.walk_tb(met.__traceback__)
        if any(frame.f_globals.get("__name__") == klover.from_numpyro.__module__ for frame, _ in frames):
            return False, model(**data)
        return True, None
