"""``klover explain``: what the verdict of a finished fit means, and what to try."""

import sys
from pathlib import Path

from klover.cli.fit import BAD_INPUT, FIT


def run(place: Path) -> int:
    """Explain the fit in a folder of ``klover fit``, or in a file of ``fit.save``."""
    path = place / FIT if place.is_dir() else place
    if not path.is_file():
        print(f"klover explain: {path} does not exist. Make a fit first: klover fit MODEL --out DIR.", file=sys.stderr)
        return BAD_INPUT
    import klover
    from klover.results.explanation import explain

    try:
        fit = klover.load(path)
    except (ValueError, OSError) as error:
        print(f"klover explain: {error}", file=sys.stderr)
        return BAD_INPUT
    print(explain(fit))
    return 0
