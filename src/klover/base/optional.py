"""Libraries that come with an extra: imported where they are used, named with their extra where they are missing."""

import importlib
from collections.abc import Callable
from types import ModuleType


def load(name: str, need: str, extra: str) -> ModuleType:
    """Import a module; where it is missing, say what needs it and which extra brings it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        error.add_note(f"{need} {name.split('.')[0]}: pip install 'klover[{extra}]'.")
        raise


def _loader(name: str, need: str, extra: str) -> Callable[[], ModuleType]:
    return lambda: load(name, need, extra)


arviz = _loader("arviz", "Results for ArviZ need", "arviz")
blackjax = _loader("blackjax", "The paper's Markov chains need", "paper")
distributed = _loader("distributed", "A cluster (--dask) needs", "dask")
httpstan = _loader("httpstan", "Stan programs need", "stan")
mlxtend = _loader("mlxtend", "The Boston data need", "paper")
pandas = _loader("pandas", "DataFrames need", "arviz")
xarray = _loader("xarray", "Labelled results need", "arviz")


def pyplot() -> ModuleType:
    """Import matplotlib's pyplot, without a window unless the user has chosen one."""
    load("matplotlib", "Figures need", "plots").use("Agg", force=False)
    return load("matplotlib.pyplot", "Figures need", "plots")
