r"""What became of a fit: the rule by which an answer is wrong, and the line that is kept of it.

An answer is **wrong** if

- log Z is off by more than 5 of its stated standard errors *and* by more than 0.05 (by more than 0.2 where a tool
  states none), or
- a mean is off by more than 0.2 standard deviations, or
- a standard deviation is off by more than 20 %, where 4000 exact draws would tell it to 4 % (they do not in the wide
  coordinates of a funnel), or
- it is trusted although there is no posterior.

Moments count only where they exist: means with a finite variance, standard deviations with a finite fourth moment.
Where the truth is an estimate, five of its own standard errors are added to every limit.
"""

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.reliability import inside
from benchmarks.reliability.case import Case
from benchmarks.reliability.truth import Truth

LOG_Z_LIMIT, NUM_ERRORS, MEAN_LIMIT, SD_LIMIT = 0.05, 5.0, 0.2, 0.2
BARE_LOG_Z_LIMIT = 0.2
"""For a tool that states no error."""
RIGHT, WRONG, REFUSED, UNFINISHED, RAISED = "trusted right", "trusted wrong", "refused", "unfinished", "raised"
TRUSTED = "trusted"
"""Trusted, where the right answer is not known: simulation-based calibration judges many of them together."""
UNSUITED = "unsuited"
"""Another tool cannot be asked: a nested sampler needs a box, a sampler of gradients needs them."""
NOT_MADE = "not made"
"""The case itself failed; it counts neither for the engine nor against it."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What klover, or a peer, says about the quantities of a case; None where it says nothing.

    ``mean_se`` are the stated errors of the means.
    """

    mean: np.ndarray
    sd: np.ndarray
    mean_se: np.ndarray | None = None
    log_evidence: float | None = None
    log_evidence_se: float | None = None


def compare(truth: Truth, answer: Answer) -> dict[str, Any]:
    """Return errors, z-scores, and what is wrong by the rule above."""
    found: dict[str, Any] = {"wrong_by": []}
    if not truth.is_proper:
        return found | {"wrong_by": ["improper"]}
    if truth.log_evidence is not None and answer.log_evidence is not None:
        found |= _compare_evidence(truth, answer)
    if truth.mean is not None:
        found |= _compare_moments(truth, answer)
    wrong = [name for name in ("log_z", "mean", "sd") if found.pop(f"is_{name}_wrong", False)]
    return found | {"wrong_by": wrong}


def _compare_evidence(truth: Truth, answer: Answer) -> dict[str, Any]:
    error, stated = answer.log_evidence - truth.log_evidence, answer.log_evidence_se
    limit = BARE_LOG_Z_LIMIT if stated is None else max(NUM_ERRORS * stated, LOG_Z_LIMIT)
    found = {
        "log_z_error": float(error),
        "log_z_se": stated,
        "is_log_z_wrong": not abs(error) <= limit + NUM_ERRORS * truth.log_evidence_se,
    }
    if stated is not None:
        found["log_z_score"] = _divide(error, math.hypot(stated, truth.log_evidence_se))
    return found


def _compare_moments(truth: Truth, answer: Answer) -> dict[str, Any]:
    mean_error, has_sd = answer.mean - truth.mean, np.broadcast_to(truth.has_sd, truth.mean.shape)
    ratio = answer.sd / truth.sd
    mean_excess = np.abs(mean_error) - NUM_ERRORS * truth.mean_se
    sd_excess = np.abs(answer.sd - truth.sd) - NUM_ERRORS * truth.sd_se
    far = np.where(has_sd, np.abs(np.log(np.maximum(ratio, 1e-300))), -1.0)
    found = {
        "mean_error": float(np.max(np.abs(mean_error) / truth.sd)),
        "is_mean_wrong": not (mean_excess <= MEAN_LIMIT * truth.sd).all(),
        "sd_ratio": float(ratio[np.argmax(far)]) if has_sd.any() else None,
        "is_sd_wrong": not (sd_excess <= SD_LIMIT * truth.sd)[has_sd].all(),
    }
    if answer.mean_se is not None:
        scales = np.hypot(answer.mean_se, truth.mean_se)
        found["mean_scores"] = [_divide(*pair) for pair in zip(mean_error, scales, strict=True)]
    return found


def _divide(error: float, scale: float) -> float | None:
    """Return a z-score; None where no error was stated."""
    return round(float(error / scale), 4) if scale > 0 else None


def answer_of(fit) -> Answer:
    """Read a fit as a person does: weighted moments of the constrained quantities."""
    values = np.asarray(fit.target.flat_position(fit.draws.x), float)
    mean, mean_se = (np.asarray(each, float) for each in fit.draws.mean_and_error(values))
    weight = np.exp(np.asarray(fit.draws.log_weight, float))
    inside = weight > 0
    sd = np.sqrt(weight[inside] @ (values[inside] - mean) ** 2)
    return Answer(mean, sd, mean_se, fit.log_evidence, fit.log_evidence_se)


def outcome_of(truth: Truth, is_trusted: bool, wrong_by: list[str]) -> str:
    """Name the outcome of a fit that came to an end."""
    if not is_trusted:
        return REFUSED
    if wrong_by:
        return WRONG
    is_known = truth.log_evidence is not None or truth.mean is not None
    return RIGHT if is_known else TRUSTED


def line_of_fit(case: Case, fit) -> dict[str, Any]:
    """Return what is kept of a fit that came to an end."""
    found = compare(case.truth, answer_of(fit))
    line = {
        "outcome": outcome_of(case.truth, fit.verdict.trusted, found["wrong_by"]),
        "status": fit.verdict.status.name,
        "reason": fit.verdict.reason,
        **found,
        "ess": fit.ess,
        "num_draws": fit.draws.num_draws,
        "pareto_k": fit.pareto_k,
        "kind": fit.kind,
        "evaluations": fit.num_evaluations,
        "rounds": len(fit.history["round"]),
        "components": int(fit.mixture.num_components),
    }
    searched, masses = fit.verdict.searched, None
    smallest = None if searched is None else searched.smallest_scale
    line["envelope"] = None if searched is None else dataclasses.asdict(searched) | {"smallest_scale": smallest}
    if case.parts is not None:
        shares = case.parts.shares(np.asarray(fit.draws.x, float))
        masses = np.exp(np.asarray(fit.draws.log_weight, float)) @ np.nan_to_num(shares)
        line["weights"] = np.round(case.parts.weights, 5).tolist()
        line["masses"] = np.round(masses, 5).tolist()
    if line["outcome"] == WRONG:
        line |= inside.judge(case.parts, case.is_unimodal, masses, smallest)
    return line if case.measure is None else line | case.measure(fit)


def line_of_error(error: BaseException) -> dict[str, Any]:
    """Return what is kept of an exception: its type and its last words."""
    words = (str(error).strip().splitlines() or [""])[-1]
    return {"outcome": RAISED, "status": type(error).__name__, "reason": words[:300]}


def warned(seen: Sequence[warnings.WarningMessage]) -> dict[str, Any]:
    """Return which warnings about arithmetic a user would have read, each with its place: there should be none."""
    places = {
        f"{each.filename.rpartition('/')[2]}:{each.lineno} {each.message}"
        for each in seen
        if issubclass(each.category, RuntimeWarning)
    }
    return {"warned": sorted(places)} if places else {}


def not_made(name: str, error: BaseException) -> dict[str, Any]:
    """Return what is kept of a case whose truth could not be computed."""
    arm, _, family, _ = name.split("/")
    return {"id": name, "arm": arm, "family": family, "outcome": NOT_MADE, "reason": str(error)[:300]}


def about(case: Case) -> dict[str, Any]:
    """Return what every line says about its case."""
    return {
        "id": case.id,
        "arm": case.arm,
        "family": case.family,
        "dim": case.target.dim,
        "unimodal": case.is_unimodal,
        "in_reach": case.is_in_reach and case.arm == "known",
        "has_box": case.target.box is not None,
    }


def jsonable(value: Any) -> Any:
    """Turn arrays, NumPy numbers and numbers that JSON has no word for into what it has."""
    if isinstance(value, dict):
        return {str(key): jsonable(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set):
        return [jsonable(each) for each in value]
    if isinstance(value, np.ndarray):
        return jsonable(value.tolist())
    if isinstance(value, np.generic):
        return jsonable(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else repr(value)
