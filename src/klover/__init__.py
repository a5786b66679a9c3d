"""klover: cover the posterior by the forward KL, then correct by importance sampling."""

import importlib
from typing import TYPE_CHECKING, Any

from klover.diagnostics import Verdict
from klover.families import Components, Family
from klover.fit import Fit, Summary, load
from klover.frontend import FrontEnd
from klover.importance import WeightedDraws, sample_importance
from klover.initialisation import diffuse
from klover.mixture import Mixture
from klover.refinement import refine
from klover.settings import Settings
from klover.spreads import Diagonal, Full, LowRank
from klover.state import RoundInfo
from klover.status import Status
from klover.target import Target, TargetCheck

if TYPE_CHECKING:
    from klover.adapters.callback import from_callback
    from klover.adapters.numpyro import from_numpyro
    from klover.adapters.pymc import from_pymc
    from klover.adapters.stan import from_stan
    from klover.algorithm import VIAlgorithm, vi_algorithm
    from klover.boosting import BoostInfo, BoostState, boost
    from klover.comparison import Comparison, compare

__all__ = [
    "BoostInfo",
    "BoostState",
    "Comparison",
    "Components",
    "Diagonal",
    "Family",
    "Fit",
    "FrontEnd",
    "Full",
    "LowRank",
    "Mixture",
    "RoundInfo",
    "Settings",
    "Status",
    "Summary",
    "Target",
    "TargetCheck",
    "VIAlgorithm",
    "Verdict",
    "WeightedDraws",
    "boost",
    "compare",
    "diffuse",
    "from_callback",
    "from_numpyro",
    "from_pymc",
    "from_stan",
    "load",
    "refine",
    "sample_importance",
    "vi_algorithm",
]


_LATER = {
    "BoostInfo": "boosting",
    "BoostState": "boosting",
    "Comparison": "comparison",
    "VIAlgorithm": "algorithm",
    "boost": "boosting",
    "compare": "comparison",
    "from_callback": "adapters.callback",
    "from_numpyro": "adapters.numpyro",
    "from_pymc": "adapters.pymc",
    "from_stan": "adapters.stan",
    "vi_algorithm": "algorithm",
}
"""What :func:`refine` does not need is imported where it is first asked for: a quarter of the time to import klover."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f"klover.{_LATER[name]}"), name)
    if name == "__version__":
        # The metadata machinery costs time too.
        from importlib.metadata import version

        return version("klover")
    raise AttributeError(f"module 'klover' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
