"""Libraries that come with an extra: imported where they are used, named with their extra where they are missing."""

import importlib
from types import ModuleType


def pyplot() -> ModuleType:
    """Import matplotlib's pyplot, without a window unless the user has chosen one."""
    load("matplotlib", "Figures need", "plots").use("Agg", force=False)
    return load("matplotlib.pyplot", "Figures need", "plots")


def blackjax() -> ModuleType:
    """Import blackjax."""
    return load("blackjax", "The paper's Markov chains need", "paper")


def xarray() -> ModuleType:
    """Import xarray."""
    return load("xarray", "Labelled results need", "arviz")


def arviz() -> ModuleType:
    """Import ArviZ."""
    return load("arviz", "Results for ArviZ need", "arviz")


def pandas() -> ModuleType:
    """Import pandas."""
    return load("pandas", "DataFrames need", "arviz")


def joblib() -> ModuleType:
    """Import joblib."""
    return load("joblib", "Several processes (num_jobs) need", "parallel")


def httpstan() -> ModuleType:
    """Import httpstan, which brings Stan's compiler and headers."""
    return load("httpstan", "Stan programs need", "stan")


def load(name: str, need: str, extra: str) -> ModuleType:
    """Import a module; where it is missing, say what needs it and which extra brings it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        error.add_note(f"{need} {name.split('.')[0]}: pip install 'klover[{extra}]'.")
        raise
