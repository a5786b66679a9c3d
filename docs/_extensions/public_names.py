"""Every public name has its place in the site: what is missing is a warning, and so an error."""

import types
from collections.abc import Iterator

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

import klover

LOGGER = logging.getLogger(__name__)
CLASSES = ("Fit", "Mixture", "StreamedDraws", "Target", "Verdict", "WeightedDraws")
KINDS = (types.FunctionType, classmethod, property, staticmethod)
"""Fields are parameters of their classes, and documented with these."""


def public_names() -> Iterator[str]:
    """Name what ``klover`` exports, what its pictures are, and the public methods of its classes."""
    yield from (f"klover.{name}" for name in klover.__all__ if name != "plots")
    yield from (f"klover.plots.{name}" for name in klover.plots.__all__ if callable(getattr(klover.plots, name)))
    for name in CLASSES:
        members = vars(getattr(klover, name)).items()
        public = (word for word, member in members if isinstance(member, KINDS) and not word.startswith("_"))
        yield from (f"klover.{name}.{member}" for member in public)


def check(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of each public name that no page documents."""
    documented = set(env.get_domain("py").objects)
    for name in public_names():
        if name not in documented:
            LOGGER.warning("%s is public, and no page documents it: add it to docs/api", name)


def setup(app: Sphinx) -> dict[str, bool]:
    """Ask when all pages were read."""
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
