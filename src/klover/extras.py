"""Libraries that come with an extra: imported where they are used, named with their extra where they are missing."""

import importlib
from types import ModuleType


def pyplot() -> ModuleType:
    """Import matplotlib's pyplot, without a window unless the user has chosen one."""
    _import("matplotlib", "Figures need").use("Agg", force=False)
    return _import("matplotlib.pyplot", "Figures need")


def blackjax() -> ModuleType:
    """Import blackjax."""
    return _import("blackjax", "The paper's Markov chains need")


def _import(name: str, need: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        error.add_note(f"{need} {name.split('.')[0]}: pip install 'klover[paper]'.")
        raise
