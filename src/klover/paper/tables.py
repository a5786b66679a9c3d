"""The tables of the paper from lines of measurements: what was measured beside what was published.

A fit of any method is one line of ``results.jsonl``. A ``Table`` holds all that a reader is shown, words included, and
knows nothing of its looks: ``markdown`` renders it here, ``klover.paper.page`` renders it as HTML.
"""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np

from klover.paper.datasets import DATASETS
from klover.paper.grids import (
    MISSING,
    Grid,
    Table,
    as_number,
    distinct,
    format_number,
    format_pair,
    markdown_grid,
    mean_and_error,
    median,
)
from klover.paper.published import CHAINS, DISPLAY, EXACT, FAILURE_MODES, FIVE_SPLITS, PUBLISHED, WALL_CLOCK

TITLES = {
    "blr": "Linear regression, Gaussian prior",
    "bnn": "Neural networks, Gaussian prior",
    "heavy": "Linear regression, heavy-tailed prior",
    "blr-noIS": "Linear regression, Gaussian prior, without importance weights",
    "bnn-noIS": "Neural networks, Gaussian prior, without importance weights",
    "heavy-noIS": "Linear regression, heavy-tailed prior, without importance weights",
    "failure-modes": "Failure modes, measured",
    "wall-clock": "Wall-clock time of one component",
}
"""Names that ``build`` accepts, with the titles of their tables."""

METRICS = {
    "mean_of_logs_is": "Mean of logs, weighted",
    "log_of_mean_is": "Log of mean, weighted",
    "mean_of_logs": "Mean of logs, plain",
    "log_of_mean": "Log of mean, plain",
}
NUM_SPLITS = 20
FEWEST_DRAWS, LARGEST_PARETO_K = 10.0, 0.7
TICK, CROSS, DAGGER = "✓", "✗", " †"
UNPUBLISHED = (math.nan, math.nan)


@dataclasses.dataclass(frozen=True)
class Summary:
    """All fits of a method on a data set.

    ``label`` names the method and what sets these fits apart from its others. ``num_broken`` fits have a value that is
    missing or not finite; ``means`` (mean and standard error by metric) leave it out. The last three are medians.
    """

    method: str
    label: str
    has_weights: bool
    num_fits: int
    num_broken: int
    means: dict[str, tuple[float, float]]
    pareto_k: float
    ess: float
    seconds: float


def read(path: Path) -> list[dict]:
    """Read the lines of measurements; a last line that a kill has torn is left out.

    Parameters
    ----------
    path
        File of one JSON object a line, each with a field ``table``.
    """
    # Bytes are split, not text: a tear may go through a character.
    lines = path.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise ValueError(f"{path}, line {number} is damaged ({error}): delete it, and fit again.") from error
        if not isinstance(row, dict) or "table" not in row:
            raise ValueError(f"{path}, line {number} is no JSON object with a field 'table': delete it.")
        rows.append(row)
    return rows


def build(table: str, rows: list[dict]) -> Table:
    """Build a table; it has no grids where there are no lines for it.

    Parameters
    ----------
    table
        One of ``TITLES``. The tables without importance weights are views on the fits of the others.
    rows
        What ``read`` returned: lines of all tables.
    """
    if table not in TITLES:
        raise ValueError(f"table is {table!r}, but there is no such table: choose one of {', '.join(TITLES)}.")
    source = table.removesuffix("-noIS")
    own = [row for row in rows if row["table"] == source]
    if table == "failure-modes":
        return _build_failure_modes(own)
    if table == "wall-clock":
        return _build_wall_clock(own)
    return _build_regression(table, [row for row in own if table == source or row["method"] in PUBLISHED[table]])


def markdown(table: str, rows: list[dict]) -> str:
    """Write a table as Markdown.

    Parameters
    ----------
    table, rows
        As for ``build``.
    """
    built = build(table, rows)
    blocks = [f"## {TITLES[table]}", built.lead if built.grids else "No lines of this table yet."]
    for grid in built.grids:
        blocks += [f"### {grid.caption}", markdown_grid(grid)]
        if grid.notes:
            blocks.append("\n".join(f"- {note}" for note in grid.notes))
    return "\n\n".join(blocks) + "\n"


def _build_regression(table: str, rows: list[dict]) -> Table:
    """One grid a data set, one row a method."""
    lead = (
        f"Test log-likelihood in original units: mean ± standard error over {NUM_SPLITS} splits, or over fewer where a "
        "row says so. Pareto k, effective number of draws (ESS) and seconds per fit are medians. Compare the paper's "
        "numbers with the mean of logs"
    )
    if table.endswith("-noIS"):
        lead += "; those with an asterisk are of 5 splits. "
        lead += "Pareto k, and the ESS of VI and VB, judge weights that are not used here."
    else:
        lead += ", weighted except for HMC."
    grids = []
    for dataset in distinct((row["dataset"] for row in rows), DATASETS):
        own = [row for row in rows if row["dataset"] == dataset]
        # A fit that was run again replaces the earlier one, so that no split counts twice.
        fits = list({(row["method"], bool(row.get("tuned")), row["split"]): row for row in own}.values())
        summaries = _summarise(fits)
        notes = _regression_notes(table, dataset, summaries) + _mixed_kinds_notes(fits)
        if len(fits) < len(own):
            notes.append(f"Lines left out because a later line holds the same fit: {len(own) - len(fits)}.")
        grids.append(_regression_grid(table, dataset, summaries, tuple(notes)))
    return Table(table, lead, tuple(grids))


def _summarise(fits: list[dict]) -> list[Summary]:
    """Gather the fits of one data set: tuned ones apart, and those of ``refine`` by the kind of answer."""
    groups: dict[tuple[str, str, bool], list[dict]] = {}
    for method in distinct((fit["method"] for fit in fits), DISPLAY):
        for fit in (fit for fit in fits if fit["method"] == method):
            kind = fit.get("kind") or "" if method == "refine" else ""
            groups.setdefault((method, kind, bool(fit.get("tuned"))), []).append(fit)
    return [_summarise_group(*key, group) for key, group in groups.items()]


def _summarise_group(method: str, kind: str, tuned: bool, fits: list[dict]) -> Summary:
    has_weights = method not in CHAINS and kind in ("", "importance")
    values = {metric: [as_number(fit.get(metric)) for fit in fits] for metric in METRICS}
    needed = [values[metric] for metric in METRICS if has_weights or not metric.endswith("_is")]
    size = f"{len(fits)} split" + "s" * (len(fits) > 1) if len(fits) < NUM_SPLITS else ""
    details = ", ".join(filter(None, [kind, "tuned" if tuned else "", size]))
    return Summary(
        method=method,
        label=DISPLAY.get(method, method) + (f" ({details})" if details else ""),
        has_weights=has_weights,
        num_fits=len(fits),
        num_broken=sum(not all(map(math.isfinite, fit)) for fit in zip(*needed, strict=True)),
        means={metric: mean_and_error(column) for metric, column in values.items()},
        pareto_k=median(fits, "pareto_k"),
        ess=median(fits, "ess"),
        seconds=median(fits, "seconds"),
    )


def _regression_grid(table: str, dataset: str, summaries: list[Summary], notes: tuple[str, ...]) -> Grid:
    plain = table.endswith("-noIS")
    metrics = [metric for metric in METRICS if not (plain and metric.endswith("_is"))]
    rows = []
    exact = EXACT.get(table.removesuffix("-noIS"))
    if exact:
        # Weighted or plain, an estimate has the same number to reach.
        cells = [format_number(as_number(exact[metric.removesuffix("_is")].get(dataset)), 4) for metric in metrics]
        rows.append(("Exact posterior", MISSING, *cells, MISSING, MISSING, MISSING))
    for summary in summaries:
        published = format_pair(PUBLISHED[table].get(summary.method, {}).get(dataset, UNPUBLISHED), 3)
        star = "*" if (table, summary.method, dataset) in FIVE_SPLITS else ""
        cells = [format_pair(summary.means[metric]) for metric in metrics]
        marked = summary.has_weights and not plain
        pareto_k = format_number(summary.pareto_k, 2) + DAGGER * (marked and summary.pareto_k > LARGEST_PARETO_K)
        ess = format_number(summary.ess, 1) + DAGGER * (marked and summary.ess < FEWEST_DRAWS)
        rows.append((summary.label, published + star, *cells, pareto_k, ess, format_number(summary.seconds, 2)))
    names = (METRICS[metric] for metric in metrics)
    return Grid(dataset, ("Method", "Paper", *names, "Pareto k", "ESS", "Seconds"), tuple(rows), notes)


def _regression_notes(table: str, dataset: str, summaries: list[Summary]) -> list[str]:
    """Say by name what the numbers show."""
    plain = table.endswith("-noIS")
    few, below, broken = [], [], []
    for summary in summaries:
        if summary.has_weights and (summary.ess < FEWEST_DRAWS or summary.pareto_k > LARGEST_PARETO_K):
            few.append(summary.label)
        published, _ = PUBLISHED[table].get(summary.method, {}).get(dataset, UNPUBLISHED)
        # The mean of logs is the metric behind the published numbers, and the paper's HMC has no weights either.
        mean, error = summary.means["mean_of_logs" if plain or summary.method in CHAINS else "mean_of_logs_is"]
        if published - mean > error:
            below.append(f"{summary.label} by {format_number(published - mean, 4)}")
        if summary.num_broken:
            broken.append(f"{summary.label} {summary.num_broken} of {summary.num_fits}")
    notes = []
    if not plain and any(summary.has_weights for summary in summaries):
        rule = f"median ESS below {FEWEST_DRAWS:g} or median Pareto k above {LARGEST_PARETO_K:g}, marked{DAGGER}"
        notes.append(f"Importance-sampled rows that rest on a handful of draws ({rule}): {_list(few)}.")
    notes.append(f"Rows below the paper's value by more than their standard error: {_list(below)}.")
    if broken:
        notes.append(f"Fits with values missing or not finite, which the means leave out: {_list(broken)}.")
    return notes


def _list(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _mixed_kinds_notes(fits: list[dict]) -> list[str]:
    """Join what the rows of ``refine`` keep apart: rows of different splits cannot stand beside other methods."""
    own = [fit for fit in fits if fit["method"] == "refine"]
    kinds = [fit.get("kind") or "importance" for fit in own]
    if len(set(kinds)) < 2:
        return []
    fields = ["_is" if kind == "importance" else "" for kind in kinds]
    logs, means = (
        format_pair(mean_and_error(as_number(fit.get(metric + field)) for fit, field in zip(own, fields, strict=True)))
        for metric in ("mean_of_logs", "log_of_mean")
    )
    counts = " and ".join(f"by {kind} on {kinds.count(kind)}" for kind in distinct(kinds, ["importance"]))
    return [
        f"refine answered {counts} of {len(own)} splits; over all of them its answers have "
        f"mean of logs {logs}, log of mean {means}."
    ]


def _build_failure_modes(rows: list[dict]) -> Table:
    """One row a method, one column a measure of a failure mode; what was measured takes too many words for a column."""
    methods = distinct((row["method"] for row in rows), DISPLAY)
    modes, notes, columns = [], [], []
    for mode in distinct((row["property"] for row in rows), FAILURE_MODES):
        own = [row for row in rows if row["property"] == mode]
        for target, measure in dict.fromkeys((row["target"], row["measure"]) for row in own):
            runs = [row for row in own if (row["target"], row["measure"]) == (target, measure)]
            sign = 1 if _passes_upward(runs) else -1
            threshold = median(runs, "threshold")
            rule = f"{'≥' if sign > 0 else '≤'} {threshold:g}"
            modes.append(mode)
            notes.append(f"{mode} passes at {rule}: {measure}, on {target}.")
            columns.append([_failure_cell([r for r in runs if r["method"] == m], threshold, sign) for m in methods])
    num_lost = sum(not math.isfinite(as_number(row["value"])) for row in rows)
    if num_lost:
        notes.append(f"Runs without a finite value, which count as failures: {num_lost} of {len(rows)}.")
    names = [DISPLAY.get(method, method) for method in methods]
    lines = tuple((name, *cells) for name, *cells in zip(names, *columns, strict=True))
    techniques = FAILURE_MODES["multimodality"]
    marks = tuple((name, *(TICK if row[name] else CROSS for row in FAILURE_MODES.values())) for name in techniques)
    measured = Grid("Measured", ("Method", *modes), lines, tuple(notes))
    paper = Grid("Ticked in the paper", ("Method", *FAILURE_MODES), marks)
    lead = (
        f"Median over the seeds, {TICK} where it passes and {CROSS} where it does not; in brackets how many seeds pass."
    )
    return Table("failure-modes", lead, (measured, paper) if lines else ())


def _failure_cell(runs: list[dict], threshold: float, sign: int) -> str:
    """Tick or cross the median value; ``sign`` is that of a difference to the threshold which passes."""
    if not runs:
        return MISSING
    # A run without a value has failed, so it lies beyond all others.
    values = [value if math.isfinite(value := as_number(run["value"])) else -sign * math.inf for run in runs]
    median = float(np.median(values))
    mark = TICK if sign * (median - threshold) >= 0 else CROSS
    return f"{mark} {format_number(median, 3)} ({sum(run['passed'] for run in runs)}/{len(runs)})"


def _passes_upward(runs: list[dict]) -> bool:
    """Tell from the runs themselves whether a measure passes above its threshold or below it."""
    known = [run for run in runs if math.isfinite(as_number(run["value"])) and run["value"] != run["threshold"]]
    return 2 * sum((run["value"] > run["threshold"]) == run["passed"] for run in known) > len(known)


def _build_wall_clock(rows: list[dict]) -> Table:
    """One row a device, batch and method; a batch is fitted at once, so a fit costs its share."""
    best: dict[tuple[str, int, str], float] = {}
    for row in rows:
        key = (row["device"], row["batch"], row["method"])
        best[key] = min(as_number(row["seconds"]), best.get(key, math.inf))
    lines, notes = [], []
    for device, batch, method in sorted(best):
        seconds, published = best[device, batch, method], WALL_CLOCK.get(method, math.nan)
        numbers = (
            str(batch),
            format_number(seconds, 3),
            format_number(seconds / batch, 4),
            format_number(published, 2),
        )
        lines.append((device, DISPLAY.get(method, method), *numbers, format_number(published / seconds * batch, 0)))
        reverse = best.get((device, batch, "rkl-vi"))
        if method == "fkl-vi" and reverse:
            ratio = format_number(seconds / reverse, 2)
            notes.append(f"FKL VI takes {ratio} times as long as RKL VI in batches of {batch} on {device}.")
    ratio = WALL_CLOCK["fkl-vi"] / WALL_CLOCK["rkl-vi"]
    notes.append(
        f"In the paper it takes {ratio:.2f} times as long, on eight cores of a Xeon at 2.20 GHz: another machine."
    )
    header = ("Device", "Method", "Batch", "Seconds per batch", "Seconds per fit", "Paper, seconds", "Paper / ours")
    lead = "One component and 200 gradient steps on the Boston neural net (d = 753); the best of several runs."
    grids = (Grid("boston", header, tuple(lines), tuple(notes), num_text=2),) if lines else ()
    return Table("wall-clock", lead, grids)
