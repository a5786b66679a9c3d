"""An answer that is to be judged, and a doubt about it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from klover.base.shapes import Float
from klover.importance.draws import WeightedDraws
from klover.mixtures.mixture import Mixture
from klover.search.missed import Searched
from klover.search.recall import Part
from klover.targets.evaluator import Evaluator
from klover.tuning import Tuning
from klover.verdict.status import Status
from klover.warps.warp import Warp
from klover.warps.warped import Proposal


@dataclasses.dataclass(frozen=True)
class Case:
    """An answer, and all that is known about how it was made.

    Parameters
    ----------
    draws
        Weighted draws that the proposal was not fitted to, or particles.
    proposal, mixture
        What they were drawn from, and the same without what was added in defence.
    evaluator, generator
        For searches.
    last_evidence, last_ess
        Log evidence of the last round with its error, and its share of effective draws, if there was a round.
    drift
        Standard errors by which the last particles found mass that the proposal misses.
    earliest
        The first points of all, and the log density that was found there, if there was a round.
    most_invalid
        NaN, +inf and draws of the round that had most of them.
    cause
        Why the work was stopped before it was done, in words; None if it was not.
    parts, searched
        What a search has found that the proposal does not cover, and what was searched; None if nothing was.
    warp
        From the user's coordinates to those of the mixture and of the parts; None if they are the same.
    tuning
        The numbers.
    beyond
        Standard errors by which particles find more than is expected beyond the heaviest of the draws.
    """

    draws: WeightedDraws
    proposal: Proposal
    mixture: Mixture
    evaluator: Evaluator
    generator: np.random.Generator
    last_evidence: tuple[float, float] | None = None
    last_ess: float | None = None
    drift: float = 0.0
    earliest: tuple[Float[np.ndarray, "draw dim"], Float[np.ndarray, " draw"]] | None = None
    most_invalid: tuple[int, int, int] = (0, 0, 1)
    cause: str | None = None
    parts: tuple[Part, ...] = ()
    searched: Searched | None = None
    warp: Warp | None = None
    tuning: Tuning = Tuning()
    beyond: float = 0.0


@dataclasses.dataclass(frozen=True)
class Doubt:
    """What speaks against an answer, and the numbers and words that its reason names."""

    status: Status
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)


Check = Callable[[Case], Doubt | None]


def place_in_words(case: Case, part: Part) -> str:
    """Name the first coordinates of a part."""
    target, x = case.evaluator.target, part.x[None]
    values = np.asarray(target.flat_position(x if case.warp is None else case.warp.from_base(x)[0]))[0]
    named = [f"{name} = {value:.3g}" for name, value in zip(target.names, values, strict=True)]
    return "at " + ", ".join(named[:4]) + (", ..." if len(named) > 4 else "")
