"""Tables, figures and a page of what ``run`` has measured.

python -m benchmarks report DIR
"""

import argparse
import collections
import datetime
import importlib.metadata
import pathlib
import platform

import matplotlib.pyplot as plt
import numpy as np

from benchmarks import targets
from benchmarks.field import is_wrong
from benchmarks.processes import read
from klover.paper.figures import DPI, FORWARD, REVERSE, STUDENT, STYLE, TARGET
from klover.paper.tables import Grid, format_number, markdown_grid, median
from klover.results import html

OUTCOMES = {
    "right": FORWARD,
    "right, but doubted": "#8fb8d0",
    "wrong, and said so": STUDENT,
    "no answer": TARGET,
    "wrong in silence": REVERSE,
}
SIMULATED = tuple(build.__name__ for build in targets.SIMULATED)
"""Tasks that are no posteriors of data."""
ERROR = 0.1
"""The error of the means, in standard deviations, to which time is measured."""


def outcome(run: dict) -> str:
    """Name what came of a run."""
    if "failure" in run:
        return "no answer"
    if is_wrong(run):
        return "wrong, and said so" if run["complaint"] else "wrong in silence"
    return "right, but doubted" if run["complaint"] else "right"


def seconds_to(run: dict, error: float = ERROR) -> float:
    """Warm seconds until the means are, and stay, within an error; infinite if they never are."""
    if "failure" in run or not run.get("mean_error", np.inf) <= error:
        return np.inf
    late = [seconds for seconds, found in run["progress"] if found > error]
    later = [seconds for seconds, _ in run["progress"] if not late or seconds > max(late)]
    return min(later, default=run["warm"])


def by(runs: list[dict], field: str) -> dict[str, list[dict]]:
    """Group runs by a field, in the order in which they came."""
    groups = collections.defaultdict(list)
    for run in runs:
        groups[run[field]].append(run)
    return dict(groups)


def ratio(runs: list[dict], peer: str, value) -> float:
    """Geometric mean over tasks of a peer's median over klover's, where both were always right, and came to one."""
    logs = []
    for own in by(runs, "task").values():
        pair = [[run for run in own if run["peer"] == name] for name in (peer, "klover")]
        if all(pair) and all(outcome(run).startswith("right") for part in pair for run in part):
            medians = [np.median([value(run) for run in part]) for part in pair]
            logs += [np.log(medians[0] / medians[1])] if np.isfinite(medians).all() else []
    return float(np.exp(np.mean(logs))) if logs else np.nan


def summary(caption: str, runs: list[dict]) -> Grid:
    """One row a tool: what came of its runs, and its times as multiples of klover's."""
    rows = []
    for peer, own in by(runs, "peer").items():
        counts = collections.Counter(map(outcome, own))
        multiples = [
            ratio(runs, peer, lambda run: run["cold"]),
            ratio(runs, peer, lambda run: run["warm"]),
            ratio(runs, peer, seconds_to),
            1 / ratio(runs, peer, lambda run: run["ess"] / run["warm"]),
        ]
        rows.append((peer, str(len(own)), *(str(counts[name]) for name in OUTCOMES), *map(_multiple, multiples)))
    header = ("Tool", "Runs", *(name.capitalize() for name in OUTCOMES))
    times = ("Cold time", "Warm time", f"Time to {ERROR} sd", "klover's effective draws per second")
    return Grid(
        caption,
        (*header, *times),
        tuple(rows),
        (
            "Times are multiples of klover's: geometric means of medians over the tasks on which both tools were right "
            "with every seed.",
        ),
    )


def _multiple(value: float) -> str:
    return f"{float(f'{value:.2g}'):g} ×" if np.isfinite(value) else "–"


def task_grid(name: str, runs: list[dict]) -> Grid:
    """One row a tool: medians over the seeds."""
    rows, notes = [], []
    for peer, own in by(runs, "peer").items():
        good = [run for run in own if "failure" not in run]
        notes += sorted({f"{peer}: {run['failure']}" for run in own if "failure" in run})
        counts = collections.Counter(map(outcome, own))
        calls = np.median([run["num_evaluations"] + run["num_gradients"] for run in good]) if good else np.nan
        rate = np.median([run["ess"] / run["warm"] for run in good]) if good else np.nan
        log_z = np.median([abs(run["log_z_error"]) for run in good if "log_z_error" in run] or [np.nan])
        rows.append(
            (
                peer,
                f"{len(good)}/{len(own)}",
                format_number(median(good, "cold"), 2),
                format_number(median(good, "warm"), 3),
                format_number(float(calls), 0),
                format_number(float(rate), 0),
                format_number(median(good, "mean_error"), 3),
                format_number(median(good, "sd_error"), 3),
                format_number(float(log_z), 4),
                format_number(median(good, "mode_error"), 3),
                str(counts["right, but doubted"] + counts["wrong, and said so"]),
                str(counts["wrong in silence"]),
            )
        )
    header = ("Tool", "Answers", "Cold s", "Warm s", "Calls", "Effective/s", "Mean error", "Sd error", "log Z error")
    return Grid(name, (*header, "Mode error", "Doubted", "Wrong in silence"), tuple(rows), tuple(notes))


def draw_outcomes(path: pathlib.Path, runs: list[dict]) -> pathlib.Path:
    """Draw what came of each tool's runs."""
    peers = by(runs, "peer")
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8, 0.38 * len(peers) + 1.3))
        left = np.zeros(len(peers))
        for name, colour in OUTCOMES.items():
            share = np.array([np.mean([outcome(run) == name for run in own]) for own in peers.values()])
            axes.barh(list(peers), share, left=left, color=colour, label=name)
            left += share
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        axes.set_xlabel("share of runs")
        axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
        figure.savefig(path, dpi=DPI)
        plt.close(figure)
    return path


def draw_times(path: pathlib.Path, runs: list[dict]) -> pathlib.Path:
    """Draw cold seconds of every task and tool as a grid of numbers; a cross where an answer was wrong or missing."""
    peers, tasks = by(runs, "peer"), by(runs, "task")
    seconds = np.full((len(tasks), len(peers)), np.nan)
    is_bad = np.zeros(seconds.shape, bool)
    for row, own in enumerate(tasks.values()):
        for column, peer in enumerate(peers):
            found = [run for run in own if run["peer"] == peer]
            seconds[row, column] = median([run for run in found if "failure" not in run], "cold")
            is_bad[row, column] = any(not outcome(run).startswith("right") for run in found)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(1.0 * len(peers) + 3, 0.3 * len(tasks) + 1.6))
        axes.imshow(np.log10(seconds), aspect="auto", cmap="YlGnBu", vmin=0, vmax=np.log10(600))
        for row, column in np.ndindex(seconds.shape):
            if np.isfinite(seconds[row, column]):
                text = f"{seconds[row, column]:.3g}" + (" ✗" if is_bad[row, column] else "")
                dark = np.log10(seconds[row, column]) > 1.8
                axes.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
            elif is_bad[row, column]:
                axes.text(column, row, "✗", ha="center", va="center", fontsize=8)
        axes.set_xticks(range(len(peers)), list(peers), rotation=35, ha="right")
        axes.set_yticks(range(len(tasks)), list(tasks))
        axes.spines[:].set_visible(False)
        figure.savefig(path, dpi=DPI)
        plt.close(figure)
    return path


def versions() -> str:
    """Name the machine and the versions of the tools; those of the report, since runs may come from elsewhere."""
    packages = "klover jax numpyro blackjax nutpie pymc pypmc nautilus-sampler dynesty".split()
    found = []
    for name in packages:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    return f"Report of {datetime.date.today()} by {machine}; {', '.join(found)}."


def write(folder: pathlib.Path) -> None:
    """Write ``report.md``, two figures and ``report.html``, and print the summary."""
    runs = [run for run in read(folder / "runs.jsonl") if "unsuited" not in run]
    if not runs:
        raise SystemExit(f"{folder / 'runs.jsonl'} holds no runs: python -m benchmarks run --out {folder}")
    posteriors = [run for run in runs if run["task"] not in SIMULATED]
    grids = [summary("All tasks", runs)]
    if posteriors:
        grids.append(summary("Posteriors: regressions, reference posteriors and eight schools", posteriors))
    num_summaries = len(grids)
    grids += [task_grid(name, own) for name, own in by(runs, "task").items()]
    figures = {
        draw_outcomes(folder / "outcomes.png", runs): "What came of all runs.",
        draw_times(folder / "times.png", runs): (
            "Cold seconds, medians over the seeds; a cross where an answer was wrong, or did not come, with any seed."
        ),
    }
    parts = [f"### {grid.caption}\n\n{markdown_grid(grid)}\n" for grid in grids]
    notes = [("\n".join(f"- {note}" for note in grid.notes) + "\n") if grid.notes else "" for grid in grids]
    text = "\n".join([versions(), "", *(part + "\n" + note for part, note in zip(parts, notes, strict=True))])
    (folder / "report.md").write_text(text, encoding="utf-8")
    sections = {"figures": ("Figures", "".join(html.figure(path, words) for path, words in figures.items()))}
    for grid in grids:
        body = html.table(grid.header, grid.rows, grid.caption) + (html.bullets(grid.notes) if grid.notes else "")
        sections[grid.caption.replace(" ", "-")] = grid.caption, body
    page = html.write(
        folder / "report.html",
        "klover and the field",
        f'<p class="soft">{html.escape(versions())}</p>{html.sections(sections)}',
    )
    for grid in grids[:num_summaries]:
        print(f"{grid.caption}\n{markdown_grid(grid)}\n")
    print(f"\ntables  {folder / 'report.md'}\npage    {page}")


def main() -> None:
    """Write the report of a folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, metavar="DIR", help="folder that holds runs.jsonl")
    write(parser.parse_args().folder)


if __name__ == "__main__":
    main()
