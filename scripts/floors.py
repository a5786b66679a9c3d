"""Print each dependency of the core, and of the extras that are named, at the lowest version that is allowed."""

import re
import sys
import tomllib
from pathlib import Path

FLOOR = re.compile(r"(?P<name>[\w.-]+)(\[[\w,]+\])?>=(?P<version>[\d.]+)")


def main() -> None:
    """Print lines for pip."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = [*project["dependencies"]]
    for extra in sys.argv[1:]:
        requirements += project["optional-dependencies"][extra]
    for requirement in requirements:
        found = FLOOR.fullmatch(requirement)
        if found is None:
            raise ValueError(f"{requirement!r} in pyproject.toml must be a name and a floor, such as 'numpy>=2.0'.")
        print(f"{found['name']}=={found['version']}")


if __name__ == "__main__":
    main()
