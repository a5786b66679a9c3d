"""Libraries that come with an extra: imported where they are used, named with their extra where they are missing."""

import functools
import importlib
from types import ModuleType


def load(name: str, need: str, extra: str) -> ModuleType:
    """Import a module; where it is missing, say what needs it and which extra brings it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        error.add_note(f"{need} {name.split('.')[0]}: pip install 'klover[{extra}]'.")
        raise


arviz = functools.partial(load, "arviz", "Results for ArviZ need", "arviz")
blackjax = functools.partial(load, "blackjax", "The paper's Markov chains need", "paper")
httpstan = functools.partial(load, "httpstan", "Stan programs need", "stan")
joblib = functools.partial(load, "joblib", "Several processes (num_jobs) need", "parallel")
pandas = functools.partial(load, "pandas", "DataFrames need", "arviz")
xarray = functools.partial(load, "xarray", "Labelled results need", "arviz")


def pyplot() -> ModuleType:
    """Import matplotlib's pyplot, without a window unless the user has chosen one."""
    load("matplotlib", "Figures need", "plots").use("Agg", force=False)
    return load("matplotlib.pyplot", "Figures need", "plots")
