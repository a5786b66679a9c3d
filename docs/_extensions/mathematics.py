"""Mathematics without JavaScript: LaTeX becomes MathML, which browsers render, in a font that the site brings along."""

import re
from pathlib import Path

import ziamath
from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util.fileutil import copy_asset_file

APPLIED = re.compile(r"\\(log|exp|max|min)(?![a-z])(?!\s*[_(]|\s*\\left)")
FONT = Path(ziamath.__file__).parent / "fonts" / "STIXTwoMath-Regular.ttf"


def mathml(latex: str, display: str = "inline") -> str:
    """Convert a formula; between a function's name and its argument there is a little room, as in LaTeX."""
    return convert(APPLIED.sub(r"\\\1\\,", latex), display=display)


def inline(translator: nodes.NodeVisitor, node: nodes.math) -> None:
    """Write a formula in a line."""
    translator.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def displayed(translator: nodes.NodeVisitor, node: nodes.math_block) -> None:
    """Write a formula of its own; a wide one scrolls."""
    formula = mathml(node.astext(), "block")
    translator.body.append(f'<div class="formula" tabindex="0">{formula}</div>')
    raise nodes.SkipNode


def bring_font(app: Sphinx, exception: Exception | None) -> None:
    """Copy the font (STIX Two Math, SIL Open Font License) into the site."""
    if exception is None and app.builder.format == "html":
        copy_asset_file(FONT, Path(app.outdir) / "_static")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (inline, None), (displayed, None))
    app.config.html_math_renderer = "mathml"
    app.connect("build-finished", bring_font)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
