"""klover: cover the posterior by the forward KL, then correct by importance sampling."""

import importlib
from typing import TYPE_CHECKING, Any

from klover.base.version import __version__ as __version__
from klover.importance.draws import WeightedDraws
from klover.mixtures.algebra import diffuse
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.refinement.refine import refine
from klover.results.fit import Fit, load
from klover.targets.target import Target
from klover.verdict.judge import Verdict
from klover.verdict.status import Status

if TYPE_CHECKING:
    from klover.boosting.blackjax import vi_algorithm
    from klover.boosting.boost import boost
    from klover.results import plots
    from klover.results.comparison import compare
    from klover.results.explanation import explain
    from klover.targets.adapters.callback import from_callback
    from klover.targets.adapters.numpyro import from_numpyro
    from klover.targets.adapters.pymc import from_pymc
    from klover.targets.adapters.stan import from_stan

__all__ = [
    "Family",
    "Fit",
    "Mixture",
    "Status",
    "Target",
    "Verdict",
    "WeightedDraws",
    "boost",
    "compare",
    "diffuse",
    "explain",
    "from_callback",
    "from_numpyro",
    "from_pymc",
    "from_stan",
    "load",
    "plots",
    "refine",
    "vi_algorithm",
]

_LATER = {
    "boost": "boosting.boost",
    "compare": "results.comparison",
    "explain": "results.explanation",
    "from_callback": "targets.adapters.callback",
    "from_numpyro": "targets.adapters.numpyro",
    "from_pymc": "targets.adapters.pymc",
    "from_stan": "targets.adapters.stan",
    "vi_algorithm": "boosting.blackjax",
}
"""What :func:`refine` does not need is imported where it is first asked for: a quarter of the time to import klover."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f"klover.{_LATER[name]}"), name)
    if name == "plots":
        return importlib.import_module("klover.results.plots")
    raise AttributeError(f"module 'klover' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
