"""klover: cover the posterior by the forward KL, then correct by importance sampling."""

import importlib
from typing import TYPE_CHECKING, Any

from klover.base.version import __version__ as __version__

if TYPE_CHECKING:
    from klover.boosting.blackjax import vi_algorithm
    from klover.boosting.boost import boost
    from klover.importance.draws import WeightedDraws
    from klover.mixtures.algebra import diffuse
    from klover.mixtures.components import Family
    from klover.mixtures.mixture import Mixture
    from klover.refinement.many import map_fits
    from klover.refinement.refine import refine
    from klover.results import plots
    from klover.results.comparison import compare
    from klover.results.explanation import explain
    from klover.results.fit import Fit, load
    from klover.results.streamed import StreamedDraws
    from klover.targets.adapters.callback import from_callback
    from klover.targets.adapters.numpyro import from_numpyro
    from klover.targets.adapters.prior_transform import from_prior_transform
    from klover.targets.adapters.pymc import from_pymc
    from klover.targets.adapters.stan import from_stan
    from klover.targets.target import Target
    from klover.verdict.judge import Verdict
    from klover.verdict.status import Status

__all__ = [
    "Family",
    "Fit",
    "Mixture",
    "Status",
    "StreamedDraws",
    "Target",
    "Verdict",
    "WeightedDraws",
    "boost",
    "compare",
    "diffuse",
    "explain",
    "from_callback",
    "from_numpyro",
    "from_prior_transform",
    "from_pymc",
    "from_stan",
    "load",
    "map_fits",
    "plots",
    "refine",
    "vi_algorithm",
]

_PLACES = {
    "Family": "mixtures.components",
    "Fit": "results.fit",
    "Mixture": "mixtures.mixture",
    "Status": "verdict.status",
    "StreamedDraws": "results.streamed",
    "Target": "targets.target",
    "Verdict": "verdict.judge",
    "WeightedDraws": "importance.draws",
    "boost": "boosting.boost",
    "compare": "results.comparison",
    "diffuse": "mixtures.algebra",
    "explain": "results.explanation",
    "from_callback": "targets.adapters.callback",
    "from_numpyro": "targets.adapters.numpyro",
    "from_prior_transform": "targets.adapters.prior_transform",
    "from_pymc": "targets.adapters.pymc",
    "from_stan": "targets.adapters.stan",
    "get_cobaya_class": "plugins.cobaya",
    "load": "results.fit",
    "map_fits": "refinement.many",
    "refine": "refinement.refine",
    "vi_algorithm": "boosting.blackjax",
}
"""What is public is imported where it is first asked for: JAX takes a second, and a worker that evaluates a function of
NumPy arrays imports this package without it. Cobaya asks a package for ``get_cobaya_class``."""


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return getattr(importlib.import_module(f"klover.{_PLACES[name]}"), name)
    if name == "plots":
        return importlib.import_module("klover.results.plots")
    raise AttributeError(f"module 'klover' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
