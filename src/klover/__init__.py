"""klover: cover the posterior by the forward KL, then correct by importance sampling."""

from klover.adapters.callback import from_callback
from klover.adapters.numpyro import from_numpyro
from klover.adapters.pymc import from_pymc
from klover.adapters.stan import from_stan
from klover.algorithm import VIAlgorithm, vi_algorithm
from klover.boosting import BoostInfo, BoostState, boost
from klover.comparison import Comparison, compare
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


def __getattr__(name: str) -> str:
    """Read the version where it is asked for: importing the metadata machinery costs time."""
    if name != "__version__":
        raise AttributeError(f"module 'klover' has no attribute {name!r}")
    from importlib.metadata import version

    return version("klover")
