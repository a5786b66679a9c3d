"""What has to hold, and whether it does: the goals of the factory, one row each, with exact bounds of every share.

Random targets are those of the arms ``known`` and ``sbc``; adversarial ones are counted apart, except for exceptions,
of which there may be none anywhere. "Unfinished" is within the limit of time that the lines were made with.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from benchmarks import suite
from benchmarks.reliability import report, statistics
from benchmarks.reliability.outcome import NOT_MADE, RAISED, REFUSED, RIGHT, UNFINISHED, WRONG

MOST_WRONG, MOST_REFUSED, LEAST_RIGHT = 0.003, 0.03, 0.92
SPREADS, MOST_BEYOND = (0.95, 1.05), 0.004
MOST_EVALUATIONS = 25_000

Lines = Sequence[dict]


@dataclasses.dataclass(frozen=True)
class Row:
    """A goal, what was measured, and whether it is met; None where nothing was."""

    name: str
    measured: str
    goal: str
    is_met: bool | None


def table(lines: Lines, suite_runs: Lines, posterior_runs: Lines) -> str:
    """Write the goals as a table, in the order in which they were set."""
    rows = rows_of(lines, suite_runs, posterior_runs)
    marks = {True: "met", False: "MISSED", None: "not measured"}
    head = ["| | measured (exact bounds of 95 %) | goal | |", "|---|---|---|---|"]
    return "\n".join([*head, *(f"| {row.name} | {row.measured} | {row.goal} | {marks[row.is_met]} |" for row in rows)])


def rows_of(lines: Lines, suite_runs: Lines, posterior_runs: Lines) -> list[Row]:
    """Compare klover's lines with every goal."""
    own = [line for line in lines if line.get("peer") is None and line["outcome"] != NOT_MADE]
    random = [line for line in own if line["arm"] != "adversarial"]
    known = [line for line in random if line["arm"] == "known"]
    judged = report.of(random, RIGHT, WRONG)
    wrong, unimodal = report.of(judged, WRONG), [line for line in judged if line.get("unimodal")]
    in_reach = [line for line in known if line.get("in_reach")]
    return [
        at_most("trusted and wrong, all random targets", wrong, judged, MOST_WRONG, " of the trusted"),
        at_most("trusted and wrong, inside the stated envelope", report.broken(wrong), judged, 0, " of the trusted"),
        at_most("trusted and wrong, unimodal", report.of(unimodal, WRONG), unimodal, 0, " of the trusted"),
        at_most("exceptions", report.of(own, RAISED), own, 0),
        at_most("refused or unfinished, in reach", report.of(in_reach, REFUSED, UNFINISHED), in_reach, MOST_REFUSED),
        trusted_and_right(known),
        *scores(report.trusted(random)),
        evaluations([line for line in known if report.is_easy(line) and line.get("evaluations") is not None]),
        references(suite_runs, posterior_runs),
    ]


def at_most(name: str, found: Lines, among: Lines, limit: float, of: str = "") -> Row:
    """Compare a share with the largest that is allowed."""
    is_met = len(found) <= limit * len(among) if among else None
    return Row(name, statistics.share(len(found), len(among)) + of, f"≤ {limit:.1%}" if limit else "0", is_met)


def trusted_and_right(lines: Lines) -> Row:
    """Count what a user wants, over all known truths."""
    right = len(report.of(lines, RIGHT))
    is_met = right >= LEAST_RIGHT * len(lines) if lines else None
    return Row("trusted and right, all", statistics.share(right, len(lines)), f"≥ {LEAST_RIGHT:.0%}", is_met)


def scores(lines: Lines) -> list[Row]:
    """Say how true stated errors are, over all that is trusted and over the particles' answers.

    One answer that missed a mode is off by hundreds of its errors; so the figures of the right ones stand beside.
    """
    rows = []
    particles = [line for line in lines if line.get("kind") == "particles"]
    goal = f"sd {SPREADS[0]} to {SPREADS[1]}, beyond 3 ≤ {MOST_BEYOND:.1%}"
    for title, own in (("", lines), (", particles", particles)):
        pairs = zip(report.z_scores(own), report.z_scores(report.of(own, RIGHT)), strict=True)
        for name, (z, right) in zip(("log Z", "means"), pairs, strict=True):
            measured = f"{statistics.spread(z)}; of the right {statistics.spread(right)}"
            rows.append(Row(f"z of {name} over the trusted{title}", measured, goal, is_calibrated(z) if z else None))
    return rows


def is_calibrated(z: Sequence[float]) -> bool:
    """Whether z-scores have the spread and the tails that they must have."""
    return bool(SPREADS[0] <= np.std(z) <= SPREADS[1] and np.mean(np.abs(z) > 3) <= MOST_BEYOND)


def evaluations(lines: Lines) -> Row:
    """Give the median of the evaluations."""
    median = float(np.median([line["evaluations"] for line in lines])) if lines else None
    measured = "none" if median is None else f"{median:.0f} ({len(lines)} fits)"
    is_met = None if median is None else median <= MOST_EVALUATIONS
    return Row("evaluations on easy targets (median)", measured, f"≤ {MOST_EVALUATIONS}", is_met)


def references(suite_runs: Lines, posterior_runs: Lines) -> Row:
    """Count the runs of the suite and of the reference posteriors that are trusted and right."""
    good = [run["trusted"] and not suite.is_wrong(run) for run in suite_runs]
    good += [run["trusted"] and run["is_right"] for run in posterior_runs]
    measured = f"{sum(good)} of {len(good)} trusted and right"
    return Row("suite and reference posteriors", measured, "all trusted and right", all(good) if good else None)
