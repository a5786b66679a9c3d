"""The tables and figures of the paper as one page, which asks nothing of the network and so can be sent or kept."""

import base64
import html
import json
import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from klover.paper.grids import Grid, Table
from klover.paper.tables import TITLES, build, read

COMMANDS = {
    "tables": "klover paper all --out {folder}",
    "figures": "klover paper figure NAME --out {folder}",
    "page": "klover paper report --out {folder}",
}
"""What makes the lines of measurements, the figures and the page; ``{folder}`` stands for where they go."""

STYLE = """
:root { color-scheme: light dark; --text: #1c2126; --soft: #5c6670; --page: #ffffff; --box: #f5f7f9; --line: #d7dde2;
  --link: #1f5f9f; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e8ec; --soft: #9aa5b0; --page: #14181c; --box: #1d2329; --line: #38424b; --link: #7fb8ee; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1rem 4rem; background: var(--page); color: var(--text);
  font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; line-height: 1.3; margin: 3rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
p, li, figcaption { max-width: 46rem; }
a { color: var(--link); }
.soft, figcaption { color: var(--soft); }
nav ul, .notes { padding-left: 1.2rem; }
.notes { margin: .6rem 0 0; font-size: .9rem; }
.notes li { margin: .2rem 0; }
.scroll { width: fit-content; max-width: 100%; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .55rem; text-align: right; white-space: nowrap; border-top: 1px solid var(--line); }
thead th { background: var(--box); border-top: 0; vertical-align: bottom; white-space: normal; min-width: 4rem; }
th { font-weight: 600; }
.word { text-align: left; }
tbody th { font-weight: 500; }
tr > :first-child { position: sticky; left: 0; background: var(--page); border-right: 1px solid var(--line); }
thead tr > :first-child { background: var(--box); }
@media (max-width: 40rem) { tr > :first-child { white-space: normal; min-width: 7rem; } }
pre, .scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
pre { padding: .8rem 1rem; background: var(--box); }
code { font: .875rem/1.5 ui-monospace, monospace; }
figure { margin: 1.5rem 0; }
img { display: block; max-width: 100%; height: auto; padding: .5rem; background: #ffffff; border-radius: 6px;
  border: 1px solid var(--line); }
figcaption { margin-top: .5rem; font-size: .9rem; }
"""

# The policy makes the browser itself refuse what the page promises never to ask for.
PAGE = """<!DOCTYPE html>
<html lang="en-GB">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def report(folder: Path) -> Path:
    """Write ``report.html`` in a folder, from its ``results.jsonl`` and its ``figures``, and return where it is.

    Each figure is a file ``figures/NAME.png``; ``figures/NAME.json`` holds its ``caption``.

    Parameters
    ----------
    folder
        Where the experiments were written to.
    """
    if not folder.is_dir():
        raise ValueError(f"folder is {str(folder)!r}, which is no folder: run the experiments first.")
    results = folder / "results.jsonl"
    rows = read(results) if results.exists() else []
    tables = [table for name in TITLES if (table := build(name, rows)).grids]
    commands = {name: command.format(folder=shlex.quote(str(folder))) for name, command in COMMANDS.items()}
    figures = sorted((folder / "figures").glob("*.png"))
    sections = {table.name: (TITLES[table.name], _table(table)) for table in tables}
    if not tables:
        sections["tables"] = ("Tables", f"<p>No measurements yet. This makes them:</p>{_code([commands['tables']])}")
    sections["figures"] = ("Figures", _figures(figures, commands["figures"]))
    sections["commands"] = ("Commands", f"<p>This page is made by:</p>{_code(commands.values())}")
    contents = "".join(f'<li><a href="#{name}">{_escape(title)}</a></li>' for name, (title, _) in sections.items())
    body = [
        f'<p class="soft">{_escape(_provenance(rows))}</p>',
        f'<nav aria-label="Contents"><ul>{contents}</ul></nav>',
    ]
    body += [
        f'<section id="{name}"><h2>{_escape(title)}</h2>{text}</section>' for name, (title, text) in sections.items()
    ]
    page = PAGE.format(title="The paper's experiments, measured with klover", style=STYLE, body="\n".join(body))
    path = folder / "report.html"
    temporary = path.with_suffix(".html.tmp")
    temporary.write_text(page, encoding="utf-8")
    # A reader sees the old page or the new one, never half of one.
    os.replace(temporary, path)
    return path


def _escape(text: object) -> str:
    return html.escape(str(text))


def _code(lines: Iterable[str]) -> str:
    return f'<pre tabindex="0"><code>{_escape(chr(10).join(lines))}</code></pre>'


def _provenance(rows: list[dict]) -> str:
    devices = sorted({str(row["device"]) for row in rows if row.get("device")})
    measured = f"Made from {len(rows)} measurements"
    return f"{measured} on {', '.join(devices)}." if devices else f"{measured}."


def _table(table: Table) -> str:
    grids = "".join(_grid(grid, TITLES[table.name]) for grid in table.grids)
    return f"<p>{_escape(table.lead)}</p>{grids}"


def _grid(grid: Grid, title: str) -> str:
    """Render cells in a box of their own, which scrolls where the screen is narrow."""

    def cell(tag: str, number: int, text: str) -> str:
        align = ' class="word"' if number < grid.num_text else ""
        return f"<{tag}{align}>{_escape(text)}</{tag.split()[0]}>"

    header = "".join(cell('th scope="col"', number, text) for number, text in enumerate(grid.header))
    rows = "".join(
        "<tr>" + "".join(cell("td" if i else 'th scope="row"', i, text) for i, text in enumerate(row)) + "</tr>"
        for row in grid.rows
    )
    label = _escape(f"{title}: {grid.caption}")
    notes = "".join(f"<li>{_escape(note)}</li>" for note in grid.notes)
    return (
        f'<h3>{_escape(grid.caption)}</h3><div class="scroll" role="region" tabindex="0" aria-label="{label}">'
        f"<table><thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table></div>"
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
    )


def _figures(paths: list[Path], command: str) -> str:
    if not paths:
        return f"<p>No figures yet. This makes them:</p>{_code([command])}"
    return "".join(_figure(path) for path in paths)


def _figure(path: Path) -> str:
    """Embed a figure; one without a caption is shown under its file's name."""
    words = path.with_suffix(".json")
    caption = path.stem
    if words.exists():
        try:
            caption = json.loads(words.read_bytes())["caption"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{words} is no JSON object with a caption ({error}): make the figure again.") from error
    image = base64.b64encode(path.read_bytes()).decode("ascii")
    source = f"data:image/png;base64,{image}"
    return (
        f'<figure><img alt="{_escape(path.stem)}" src="{source}"><figcaption>{_escape(caption)}</figcaption></figure>'
    )
