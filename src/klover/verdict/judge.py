"""From an answer to a verdict: trusted, or refused with the reason and the remedy."""

import dataclasses
from typing import Any

from klover.importance.draws import WeightedDraws
from klover.importance.islands import ParticleDraws
from klover.importance.psis import reliable_k
from klover.search.missed import Searched
from klover.targets.evaluator import BudgetExhausted
from klover.tuning import Tuning
from klover.verdict.checks import CHECKS, PARTICLE_CHECKS, SPENT, Case, Check, Doubt
from klover.verdict.status import Status

TUNING = Tuning()


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether an answer is to be believed.

    Parameters
    ----------
    trusted
        True when nothing speaks against the answer.
    reason
        Why, in words.
    remedy
        What to do when it is refused; empty when it is trusted.
    status
        The same as a member of :class:`klover.Status`.
    searched
        How the target was searched for parts that the draws miss; None where it was not.
    """

    trusted: bool
    reason: str
    remedy: str
    status: Status
    searched: Searched | None = None

    def __str__(self) -> str:
        """Verdict, reason and remedy in one paragraph."""
        return f"{'trusted' if self.trusted else 'REFUSED'}: {self.reason} {self.remedy}".rstrip()


def judge(case: Case) -> Verdict:
    """Ask one check after the other; the first doubt is the verdict, and where there is none the answer is trusted."""
    is_particles = isinstance(case.draws, ParticleDraws)
    trusted = Status.PARTICLES if is_particles else Status.TRUSTED
    doubts = (_ask(check, case) for check in (PARTICLE_CHECKS if is_particles else CHECKS))
    doubt = next((doubt for doubt in doubts if doubt is not None), Doubt(trusted))
    figures = figures_of(case.draws, case.tuning) | doubt.figures
    reason = doubt.status.reason.format(**figures)
    num_invalid = figures["num_nan"] + figures["num_infinite"]
    if doubt.status is Status.TRUSTED and num_invalid > 0:
        reason += " ({num_nan} draws were NaN and {num_infinite} +inf: taken as outside the support.)".format(**figures)
    return Verdict(doubt.status is trusted, reason, doubt.status.remedy.format(**figures), doubt.status, case.searched)


def _ask(check: Check, case: Case) -> Doubt | None:
    """Ask a check; what cannot be looked at for want of budget is unfinished, unless it is so already."""
    try:
        return check(case)
    except BudgetExhausted:
        return Doubt(Status.UNFINISHED, {"cause": SPENT}) if case.cause is None else None


def figures_of(draws: WeightedDraws, tuning: Tuning = TUNING) -> dict[str, Any]:
    """Return the numbers that the texts of any status may name."""
    figures = {
        "pareto_k": float(draws.pareto_k),
        "ess": float(draws.ess),
        "num_draws": draws.num_draws,
        "num_nan": int(draws.num_nan),
        "num_infinite": int(draws.num_positive_infinite),
        "limit": reliable_k(draws.num_draws),
        "minimum": tuning.answer.fewest_effective,
    }
    if isinstance(draws, ParticleDraws):
        figures |= {"num_islands": draws.num_islands, "spread": draws.spread}
        figures |= {"drift": float(draws.drift), "agreement": float(draws.agreement)}
        figures |= {"largest_spread": tuning.islands.largest_spread, "largest_drift": tuning.answer.largest_drift}
        figures |= {"least_agreement": tuning.islands.least_agreement}
    return figures
