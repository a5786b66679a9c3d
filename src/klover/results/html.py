"""Self-contained HTML pages: nothing is loaded from elsewhere, so a page can be sent or kept as one file."""

import base64
import html
import os
import string
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

PAGE = Path(__file__).with_name("page.html")


def escape(text: object) -> str:
    """Write anything as text of a page."""
    return html.escape(str(text))


def code(lines: Iterable[str]) -> str:
    """Show lines as they are, in a box that scrolls where the screen is narrow."""
    return f'<pre tabindex="0"><code>{escape(chr(10).join(lines))}</code></pre>'


def bullets(lines: Iterable[str]) -> str:
    """List lines."""
    return f'<ul class="notes">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'


def definitions(words: Mapping[str, str]) -> str:
    """List words and what they mean."""
    listed = "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in words.items())
    return f"<dl>{listed}</dl>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], label: str, num_text: int = 1) -> str:
    """Show cells in a box of their own, which scrolls where the screen is narrow.

    The label says what the table is to those who hear the page; ``num_text`` columns, from the left, hold words.
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
    page = string.Template(PAGE.read_text("utf-8")).substitute(title=escape(title), body=body)
    temporary.write_text(page, encoding="utf-8")
    # A reader sees the old page or the new one, never half of one.
    os.replace(temporary, path)
    return path
