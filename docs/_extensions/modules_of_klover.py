"""The directive ``modules-of-klover``: every module of the package with the first words of its docstring."""

import ast
import inspect
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

PACKAGE = Path(__file__).parents[2] / "src" / "klover"


class Modules(SphinxDirective):
    """List modules by their rooms; each becomes a place that docstrings can point to."""

    def run(self) -> list[nodes.Node]:
        """Read the files, which nothing imports."""
        lines = []
        for path in sorted(PACKAGE.rglob("*.py"), key=lambda path: (path.parent, path.name)):
            parts = ("klover", *path.relative_to(PACKAGE).with_suffix("").parts)
            name = ".".join(parts).removesuffix(".__init__")
            if name in ("klover", "klover.__main__"):
                continue
            self.env.note_dependency(path)
            docstring = inspect.cleandoc(ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "")
            summary = " ".join(docstring.split("\n\n")[0].split())
            lines += [f".. py:module:: {name}", ""]
            is_room = path.name == "__init__.py"
            lines += [f".. rubric:: {name}", "", summary, ""] if is_room else [f"``{name}``", f"   {summary}", ""]
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("modules-of-klover", Modules)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
