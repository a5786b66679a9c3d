"""Self-contained HTML pages: nothing is loaded from elsewhere, so a page can be sent or kept as one file."""

import base64
import html
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

STYLE = """
:root { color-scheme: light dark; --text: #1c2126; --soft: #5c6670; --page: #ffffff; --box: #f5f7f9; --line: #d7dde2;
  --link: #1f5f9f; --good: #2e7d4f; --bad: #c0392b; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e8ec; --soft: #9aa5b0; --page: #14181c; --box: #1d2329; --line: #38424b; --link: #7fb8ee;
    --good: #57b884; --bad: #f0705f; }
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
.wide { padding: .5rem; background: #ffffff; }
.wide img { min-width: min(40rem, 150%); padding: 0; border: 0; border-radius: 0; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr)); gap: 0 1.5rem; }
.panels img { width: 100%; }
.verdict { padding: .8rem 1rem; background: var(--box); border-left: .4rem solid var(--good); border-radius: 6px; }
.refused { border-color: var(--bad); }
"""

# With this policy the browser itself loads nothing from elsewhere.
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


def escape(text: object) -> str:
    """Write anything as text of a page."""
    return html.escape(str(text))


def code(lines: Iterable[str]) -> str:
    """Show lines as they are, in a box that scrolls where the screen is narrow."""
    return f'<pre tabindex="0"><code>{escape(chr(10).join(lines))}</code></pre>'


def bullets(lines: Iterable[str], style: str = "notes") -> str:
    """List lines."""
    return f'<ul class="{style}">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'


def table(header: Sequence[str], rows: Iterable[Sequence[str]], label: str, num_text: int = 1) -> str:
    """Show cells in a box of their own, which scrolls where the screen is narrow.

    Parameters
    ----------
    label
        What the table is, for those who hear the page.
    num_text
        How many columns, from the left, hold words.
    """

    def cell(tag: str, number: int, text: str) -> str:
        align = ' class="word"' if number < num_text else ""
        return f"<{tag}{align}>{escape(text)}</{tag.split()[0]}>"

    head = "".join(cell('th scope="col"', number, text) for number, text in enumerate(header))
    body = "".join(
        "<tr>" + "".join(cell("td" if i else 'th scope="row"', i, text) for i, text in enumerate(row)) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def figure(path: Path, caption: str, is_wide: bool = False) -> str:
    """Embed a PNG file; a wide one keeps its size on a narrow screen, in a box that scrolls."""
    source = f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"
    image = f'<img alt="{escape(path.stem)}" src="{source}">'
    if is_wide:
        image = f'<div class="scroll wide" role="region" tabindex="0" aria-label="{escape(path.stem)}">{image}</div>'
    return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"


def sections(parts: Mapping[str, tuple[str, str]]) -> str:
    """Put parts one below the other, under a list of contents; each is a title and a body by its identifier."""
    contents = "".join(f'<li><a href="#{name}">{escape(title)}</a></li>' for name, (title, _) in parts.items())
    return "\n".join(
        [f'<nav aria-label="Contents"><ul>{contents}</ul></nav>']
        + [f'<section id="{name}"><h2>{escape(title)}</h2>{body}</section>' for name, (title, body) in parts.items()]
    )


def write(path: Path, title: str, body: str) -> Path:
    """Write a page, and return where it is."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(PAGE.format(title=escape(title), style=STYLE, body=body), encoding="utf-8")
    # A reader sees the old page or the new one, never half of one.
    os.replace(temporary, path)
    return path
