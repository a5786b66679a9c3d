"""Links to files of the repository that are no pages: on the site they lead to the project's page."""

import os
import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

ROOT = Path(__file__).parents[2]
PROJECT = "https://github.com/klover-dev/klover/blob/main"
LINK = re.compile(r"(?<=\]\()(\.\./[^)#\s]*)")
LOGGER = logging.getLogger(__name__)


def lead_out(app: Sphinx, page: str, source: list[str]) -> None:
    """Rewrite what leads out of ``docs``, and warn where there is no such file."""
    folder = Path(app.env.doc2path(page)).parent

    def rewritten(match: re.Match[str]) -> str:
        path = Path(os.path.normpath(folder / match[1]))
        if path.is_relative_to(app.srcdir):
            return match[1]
        if not path.exists():
            LOGGER.warning("there is no %s", match[1], location=page)
        return f"{PROJECT}/{path.relative_to(ROOT).as_posix()}"

    source[0] = LINK.sub(rewritten, source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Ask of each page when it is read."""
    app.connect("source-read", lead_out)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
