"""klover: cover the posterior by the forward KL, then correct by importance sampling."""

from klover.boosting import BoostInfo, BoostState, boost
from klover.diagnostics import Verdict
from klover.families import Components, Family
from klover.fit import Fit, Summary
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
    "Components",
    "Diagonal",
    "Family",
    "Fit",
    "Full",
    "LowRank",
    "Mixture",
    "RoundInfo",
    "Settings",
    "Status",
    "Summary",
    "Target",
    "TargetCheck",
    "Verdict",
    "WeightedDraws",
    "boost",
    "diffuse",
    "refine",
    "sample_importance",
]


def __getattr__(name: str) -> str:
    """Read the version where it is asked for: importing the metadata machinery costs time."""
    if name != "__version__":
        raise AttributeError(f"module 'klover' has no attribute {name!r}")
    from importlib.metadata import version

    return version("klover")
