"""The tables and figures of the paper as one self-contained HTML page."""

import json
import shlex
from pathlib import Path

from klover.paper.measurements import read
from klover.paper.tables import TITLES, Grid, Table, build
from klover.results import html

COMMANDS = {
    "tables": "klover paper all --out {folder}",
    "figures": "klover paper figure NAME --out {folder}",
    "page": "klover paper report --out {folder}",
}
"""What makes the lines of measurements, the figures and the page; ``{folder}`` stands for where they go."""


def write(folder: Path) -> Path:
    """Write ``report.html`` in a folder, from its ``results.jsonl`` and its ``figures``, and return its path.

    Each figure is a file ``figures/NAME.png``; ``figures/NAME.json`` holds its ``caption``.
    """
    if not folder.is_dir():
        raise ValueError(f"folder must be a folder of results, got {str(folder)!r}. Run the experiments first.")
    results = folder / "results.jsonl"
    rows = read(results) if results.exists() else []
    tables = [table for name in TITLES if (table := build(name, rows)).grids]
    commands = {name: command.format(folder=shlex.quote(str(folder))) for name, command in COMMANDS.items()}
    figures = sorted((folder / "figures").glob("*.png"))
    sections = {table.name: (TITLES[table.name], _table(table)) for table in tables}
    if not tables:
        sections["tables"] = ("Tables", _none("measurements", commands["tables"]))
    sections["figures"] = ("Figures", "".join(map(_figure, figures)) or _none("figures", commands["figures"]))
    sections["commands"] = ("Commands", f"<p>This page is made by:</p>{html.code(commands.values())}")
    devices = ", ".join(sorted({str(row["device"]) for row in rows if row.get("device")}))
    made = f"Made from {len(rows)} measurements{devices and ' on '}{devices}."
    body = f'<p class="soft">{html.escape(made)}</p>{html.sections(sections)}'
    return html.write(folder / "report.html", "The paper's experiments, measured with klover", body)


def _none(what: str, command: str) -> str:
    return f"<p>No {what} yet. This makes them:</p>{html.code([command])}"


def _table(table: Table) -> str:
    grids = "".join(_grid(grid, TITLES[table.name]) for grid in table.grids)
    return f"<p>{html.escape(table.lead)}</p>{grids}"


def _grid(grid: Grid, title: str) -> str:
    cells = html.table(grid.header, grid.rows, f"{title}: {grid.caption}", grid.num_text)
    return f"<h3>{html.escape(grid.caption)}</h3>{cells}" + (html.bullets(grid.notes) if grid.notes else "")


def _figure(path: Path) -> str:
    """Embed a figure; one without a caption is shown under its file's name."""
    words = path.with_suffix(".json")
    caption = path.stem
    if words.exists():
        try:
            caption = json.loads(words.read_bytes())["caption"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{words} is no JSON object with a caption ({error}). Make the figure again.") from error
    return html.figure(path, caption)
