"""klover: cover the posterior by the forward KL, then correct by importance sampling."""

from klover.boosting import BoostInfo, BoostState, boost
from klover.diagnostics import Verdict
from klover.families import Components, Diagonal, Family, Full, LowRank
from klover.fit import Fit, Summary
from klover.importance import WeightedDraws, sample_importance
from klover.initialisation import diffuse
from klover.mixture import Mixture
from klover.settings import Settings
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
    "Settings",
    "Status",
    "Summary",
    "Target",
    "TargetCheck",
    "Verdict",
    "WeightedDraws",
    "boost",
    "diffuse",
    "sample_importance",
]
