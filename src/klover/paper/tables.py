"""The tables of the paper from lines of measurements: what was measured beside what was published.

A fit of any method is one line of ``results.jsonl``. A ``Table`` holds all that a reader is shown, words included, and
knows nothing of its looks: ``markdown`` renders it here, ``klover.paper.report`` renders it as HTML.
"""

import dataclasses
import math
from collections.abc import Iterable

import numpy as np

from klover.base.checks import check_choice
from klover.paper.datasets import DATASETS
from klover.paper.published import CHAINS, DISPLAY, EXACT, FAILURE_MODES, FIVE_SPLITS, PUBLISHED, WALL_CLOCK

TITLES = {
    "blr": "Linear regression, Gaussian prior",
    "bnn": "Neural networks, Gaussian prior",
    "heavy": "Linear regression, heavy-tailed prior",
}
TITLES |= {f"{name}-noIS": f"{title}, without importance weights" for name, title in TITLES.items()}
TITLES |= {"failure-modes": "Failure modes, measured", "wall-clock": "Wall-clock time of one component"}
"""Names that ``build`` accepts, with the titles of their tables."""

METRICS = {
    "mean_of_logs_is": "Mean of logs, weighted",
    "log_of_mean_is": "Log of mean, weighted",
    "mean_of_logs": "Mean of logs, plain",
    "log_of_mean": "Log of mean, plain",
}
NUM_SPLITS = 20
FEWEST_DRAWS, LARGEST_PARETO_K = 10.0, 0.7
MISSING, TICK, CROSS, DAGGER = "–", "✓", "✗", " †"

FEW = (
    "Importance-sampled rows that rest on a handful of draws "
    f"(median ESS below {FEWEST_DRAWS:g} or median Pareto k above {LARGEST_PARETO_K:g}, marked{DAGGER}): {{}}."
)
BELOW = "Rows below the paper's value by more than their standard error: {}."
BROKEN = "Fits with values missing or not finite, which the means leave out: {}."
NOTES = (FEW, BELOW, BROKEN)
"""What is noted below a grid, in this order, with the names of the rows that it is true of."""


@dataclasses.dataclass(frozen=True)
class Grid:
    """Cells under a header, and notes on what they show; ``num_text`` columns from the left hold words, not numbers."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    num_text: int = 1


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of the paper: a lead that says how to read it, and its grids."""

    name: str
    lead: str
    grids: tuple[Grid, ...]


def build(table: str, rows: list[dict]) -> Table:
    """Build one of ``TITLES`` from the lines of all tables; it has no grids where there are no lines for it.

    The tables without importance weights are views on the fits of the others.
    """
    check_choice("table", table, TITLES)
    source = table.removesuffix("-noIS")
    own = [row for row in rows if row["table"] == source]
    if table == "failure-modes":
        return _build_failure_modes(own)
    if table == "wall-clock":
        return _build_wall_clock(own)
    return _build_regression(table, [row for row in own if table == source or row["method"] in PUBLISHED[table]])


def markdown(table: str, rows: list[dict]) -> str:
    """Write a table as Markdown; table and rows are those of ``build``."""
    built = build(table, rows)
    blocks = [f"## {TITLES[table]}", built.lead if built.grids else "No lines of this table yet."]
    for grid in built.grids:
        blocks += [f"### {grid.caption}", markdown_grid(grid)]
        if grid.notes:
            blocks.append("\n".join(f"- {note}" for note in grid.notes))
    return "\n\n".join(blocks) + "\n"


def markdown_grid(grid: Grid) -> str:
    """Write a grid with padded cells: such a text is read in a terminal as often as in a browser."""
    lines = [[cell.replace("|", r"\|") for cell in line] for line in (grid.header, *grid.rows)]
    columns = []
    for number, column in enumerate(zip(*lines, strict=True)):
        width, is_text = max(3, *map(len, column)), number < grid.num_text
        padded = [cell.ljust(width) if is_text else cell.rjust(width) for cell in column]
        padded.insert(1, ":" + "-" * (width - 1) if is_text else "-" * (width - 1) + ":")
        columns.append(padded)
    return "\n".join(f"| {' | '.join(line)} |" for line in zip(*columns, strict=True))


def _build_regression(table: str, rows: list[dict]) -> Table:
    """One grid a data set, one row a method."""
    lead = (
        f"Test log-likelihood in original units: mean ± standard error over {NUM_SPLITS} splits, or over fewer where a "
        "row says so. Pareto k, effective number of draws (ESS) and seconds per fit are medians. Compare the paper's "
        "numbers with the mean of logs"
    )
    plain = table.endswith("-noIS")
    if plain:
        lead += "; those with an asterisk are of 5 splits. Pareto k, and the ESS of VI and VB, judge weights that are "
        lead += "not used here."
    else:
        lead += ", weighted except for HMC."
    metrics = [metric for metric in METRICS if not (plain and metric.endswith("_is"))]
    header = ("Method", "Paper", *(METRICS[metric] for metric in metrics), "Pareto k", "ESS", "Seconds")
    grids = []
    for dataset in distinct((row["dataset"] for row in rows), DATASETS):
        own = [row for row in rows if row["dataset"] == dataset]
        # A fit that was run again replaces the earlier one, so that no split counts twice.
        fits = list({(row["method"], row["split"]): row for row in own}.values())
        methods = distinct((fit["method"] for fit in fits), DISPLAY)
        found: dict[str, list[str]] = {}
        lines = [_line(table, [fit for fit in fits if fit["method"] == name], metrics, found) for name in methods]
        notes = [note.format(", ".join(found[note]) or "none") for note in NOTES if note in found]
        if len(fits) < len(own):
            notes.append(f"Lines left out because a later line holds the same fit: {len(own) - len(fits)}.")
        if exact := EXACT.get(table.removesuffix("-noIS")):
            # Weighted or plain, an estimate has the same number to reach.
            cells = [format_number(as_number(exact[metric.removesuffix("_is")].get(dataset)), 4) for metric in metrics]
            lines.insert(0, ("Exact posterior", MISSING, *cells, MISSING, MISSING, MISSING))
        grids.append(Grid(dataset, header, tuple(lines), tuple(notes)))
    return Table(table, lead, tuple(grids))


def _line(table: str, fits: list[dict], metrics: list[str], notes: dict[str, list[str]]) -> tuple[str, ...]:
    """Write all fits of a method on a data set, and note by name what the numbers show."""
    method, dataset, plain = fits[0]["method"], fits[0]["dataset"], table.endswith("-noIS")
    kind = fits[0].get("kind") if method == "refine" else None
    size = f"{len(fits)} split" + "s" * (len(fits) > 1) if len(fits) < NUM_SPLITS else ""
    details = ", ".join(filter(None, [kind, size]))
    label = DISPLAY.get(method, method) + (f" ({details})" if details else "")
    values = {metric: [as_number(fit.get(metric)) for fit in fits] for metric in METRICS}
    means = {metric: mean_and_error(column) for metric, column in values.items()}
    pareto_k, ess, seconds = (median(fits, field) for field in ("pareto_k", "ess", "seconds"))
    has_weights = method not in CHAINS and kind in (None, "importance")
    is_heavy, is_few = has_weights and pareto_k > LARGEST_PARETO_K, has_weights and ess < FEWEST_DRAWS
    if has_weights and not plain:
        notes.setdefault(FEW, []).extend([label] * (is_heavy or is_few))
    published = PUBLISHED[table].get(method, {}).get(dataset, (math.nan, math.nan))
    # The mean of logs is the metric behind the published numbers, and the paper's HMC has no weights either.
    mean, error = means["mean_of_logs" if plain or method in CHAINS else "mean_of_logs_is"]
    gap = published[0] - mean
    notes.setdefault(BELOW, []).extend([f"{label} by {format_number(gap, 4)}"] * (gap > error))
    needed = [values[metric] for metric in METRICS if has_weights or not metric.endswith("_is")]
    num_broken = sum(not all(map(math.isfinite, fit)) for fit in zip(*needed, strict=True))
    if num_broken:
        notes.setdefault(BROKEN, []).append(f"{label} {num_broken} of {len(fits)}")
    return (
        label,
        format_pair(published, 3) + "*" * ((table, method, dataset) in FIVE_SPLITS),
        *(format_pair(means[metric]) for metric in metrics),
        format_number(pareto_k, 2) + DAGGER * (is_heavy and not plain),
        format_number(ess, 1) + DAGGER * (is_few and not plain),
        format_number(seconds, 2),
    )


def _build_failure_modes(rows: list[dict]) -> Table:
    """One row a method, one column a failure mode; what was measured takes too many words for a column."""
    methods = distinct((row["method"] for row in rows), DISPLAY)
    modes = distinct((row["property"] for row in rows), FAILURE_MODES)
    lines, notes = [[DISPLAY.get(method, method)] for method in methods], []
    for mode in modes:
        own = [row for row in rows if row["property"] == mode]
        notes.append("{property} passes at ≤ {threshold:g}: {measure}, on {target}.".format(**own[0]))
        for line, method in zip(lines, methods, strict=True):
            line.append(_failure_cell([row for row in own if row["method"] == method]))
    num_lost = sum(not math.isfinite(as_number(row["value"])) for row in rows)
    if num_lost:
        notes.append(f"Runs without a finite value, which count as failures: {num_lost} of {len(rows)}.")
    measured = Grid("Measured", ("Method", *modes), tuple(map(tuple, lines)), tuple(notes))
    names, ticked = FAILURE_MODES["multimodality"], FAILURE_MODES.values()
    marks = tuple((name, *(TICK if ticks[name] else CROSS for ticks in ticked)) for name in names)
    paper = Grid("Ticked in the paper", ("Method", *FAILURE_MODES), marks)
    lead = f"Median over the seeds, {TICK} if it passes and {CROSS} if not; in brackets how many seeds pass."
    return Table("failure-modes", lead, (measured, paper) if lines else ())


def _failure_cell(runs: list[dict]) -> str:
    """Tick or cross the median error; a run without a value has failed, so its error is larger than all others."""
    if not runs:
        return MISSING
    values = [value if math.isfinite(value := as_number(run["value"])) else math.inf for run in runs]
    middle = float(np.median(values))
    mark = TICK if middle <= runs[0]["threshold"] else CROSS
    return f"{mark} {format_number(middle, 3)} ({sum(run['passed'] for run in runs)}/{len(runs)})"


def _build_wall_clock(rows: list[dict]) -> Table:
    """One row a device, batch and method; a batch is fitted at once, so a fit costs its share."""
    best: dict[tuple[str, int, str], float] = {}
    for row in rows:
        key = (row["device"], row["batch"], row["method"])
        best[key] = min(as_number(row["seconds"]), best.get(key, math.inf))
    lines, notes = [], []
    for (device, batch, method), seconds in sorted(best.items()):
        share, published = seconds / batch, WALL_CLOCK.get(method, math.nan)
        numbers = ((seconds, 3), (share, 4), (published, 2), (published / share, 0))
        lines.append((device, DISPLAY.get(method, method), str(batch), *(format_number(*each) for each in numbers)))
        if method == "fkl-vi" and (device, batch, "rkl-vi") in best:
            ratio = format_number(seconds / best[device, batch, "rkl-vi"], 2)
            notes.append(f"FKL VI takes {ratio} times as long as RKL VI in batches of {batch} on {device}.")
    ratio = WALL_CLOCK["fkl-vi"] / WALL_CLOCK["rkl-vi"]
    notes.append(f"In the paper it takes {ratio:.2f} times as long, on another machine (eight cores of a Xeon).")
    header = ("Device", "Method", "Batch", "Seconds per batch", "Seconds per fit", "Paper, seconds", "Paper / ours")
    lead = "One component and 200 gradient steps on the Boston neural net (d = 753); the best of several runs."
    grids = (Grid("boston", header, tuple(lines), tuple(notes), num_text=2),) if lines else ()
    return Table("wall-clock", lead, grids)


def as_number(value: object) -> float:
    """Take null and absent fields for NaN."""
    return float(value) if isinstance(value, int | float) else math.nan


def median(rows: list[dict], field: str) -> float:
    """Median of a field over the lines that have it."""
    known = [value for row in rows if not math.isnan(value := as_number(row.get(field)))]
    return float(np.median(known)) if known else math.nan


def mean_and_error(values: Iterable[float]) -> tuple[float, float]:
    """Mean and standard error of the finite values; one value has no standard error."""
    finite = [value for value in values if math.isfinite(value)]
    error = float(np.std(finite, ddof=1)) / math.sqrt(len(finite)) if len(finite) > 1 else math.nan
    return (float(np.mean(finite)) if finite else math.nan), error


def format_number(value: float, num_decimals: int) -> str:
    """Write a number; one that is not finite is a dash."""
    if not math.isfinite(value):
        return MISSING
    return f"{value:.{num_decimals}f}" if abs(value) < 1e5 else f"{value:.3g}"


def format_pair(pair: tuple[float, float], num_decimals: int = 4) -> str:
    """Write a mean and its standard error."""
    mean, error = (format_number(value, num_decimals) for value in pair)
    return MISSING if mean == MISSING else f"{mean} ± {error}"


def distinct(values: Iterable[str], order: Iterable[str]) -> list[str]:
    """Names in the given order; names that it does not know come last, in that of their lines."""
    known = {name: number for number, name in enumerate(order)}
    return sorted(dict.fromkeys(values), key=lambda value: known.get(value, len(known)))
