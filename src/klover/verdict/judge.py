"""From an answer to a verdict: trusted, or refused with the reason and the remedy."""

import contextlib
import dataclasses
from typing import Any

from klover.base.linalg import FAILURES, said_of
from klover.importance.draws import WeightedDraws
from klover.importance.islands import ParticleDraws
from klover.importance.psis import reliable_k
from klover.search.missed import Searched
from klover.search.necks import scale_coordinate
from klover.targets.evaluator import BudgetExhausted
from klover.tuning import Tuning
from klover.verdict.case import Case, Check, Doubt
from klover.verdict.checks import CHECKS, PARTICLE_CHECKS, moments_of
from klover.verdict.status import NON_CENTRE, NUTS, SHAPELESS, Status

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
    reason += _given_up(case)
    return Verdict(doubt.status is trusted, reason, doubt.status.remedy.format(**figures), doubt.status, case.searched)


def judge_weights(num_draws: int, ess: float, pareto_k: float, num_nan: int, num_infinite: int) -> Verdict:
    """Ask of draws of which only such numbers are left what the weights alone can tell."""
    answer, limit = TUNING.answer, reliable_k(num_draws)
    doubts = {
        Status.NO_SUPPORT: ess == 0,
        Status.NOT_A_NUMBER: num_nan + num_infinite > answer.largest_invalid * num_draws,
        Status.HEAVY_WEIGHTS: not pareto_k <= limit,
        Status.FEW_EFFECTIVE_DRAWS: not ess >= answer.fewest_effective,
    }
    status = next((status for status, is_doubtful in doubts.items() if is_doubtful), Status.TRUSTED)
    figures = {"num_draws": num_draws, "ess": ess, "pareto_k": pareto_k, "num_nan": num_nan}
    figures |= {"num_infinite": num_infinite, "limit": limit, "minimum": answer.fewest_effective}
    reason, remedy = status.reason.format(**figures), status.remedy.format(**figures)
    return Verdict(status is Status.TRUSTED, reason, remedy, status)


def _given_up(case: Case) -> str:
    """Name the first point that ended the process that evaluated it, or took too long, and count the others."""
    points = case.evaluator.quarantined
    if not points:
        return ""
    others = f", and at {len(points) - 1} more" if len(points) > 1 else ""
    return f" (The evaluation was given up at {points[0]}{others}: taken as outside the support.)"


def with_hints(verdict: Verdict, case: Case) -> Verdict:
    """Say in the remedy of a last verdict which parameter to non-centre, and which other sampler to try."""
    if verdict.status not in SHAPELESS:
        return verdict
    remedy = " ".join([*_other_coordinates(case), verdict.remedy, *_another_sampler(case)])
    return dataclasses.replace(verdict, remedy=remedy)


def _other_coordinates(case: Case) -> list[str]:
    """Name the parameter that leads others, by the warp, or by the curvature of the density along it."""
    lead = None if case.warp is None else case.warp.lead
    if lead is None and not isinstance(case.draws, ParticleDraws):
        with contextlib.suppress(BudgetExhausted, *FAILURES):
            lead = scale_coordinate(case.evaluator, *moments_of(case.draws))
    return [] if lead is None else [NON_CENTRE.format(lead=case.evaluator.target.coordinate_name(lead))]


def _another_sampler(case: Case) -> list[str]:
    """Name NUTS where it can run; what a budget has ended may not need it."""
    is_spent = case.cause is not None and case.evaluator.num_affordable is not None
    return [NUTS] if case.evaluator.has_gradient and not is_spent else []


def _ask(check: Check, case: Case) -> Doubt | None:
    """Ask a check; what cannot be looked at is unfinished, unless the budget has ended it already."""
    try:
        return check(case)
    except BudgetExhausted as error:
        return Doubt(Status.UNFINISHED, {"cause": str(error)}) if case.cause is None else None
    except FAILURES as failure:
        return Doubt(Status.UNFINISHED, {"cause": said_of(failure)})


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
