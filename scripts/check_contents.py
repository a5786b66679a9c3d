"""Compare what the wheel and the sdist hold with what they should: nothing leaks, nothing is lacking.

The two files are the arguments. The package has to be in both as it is in ``src/klover``.
"""

import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = {"README.md", "concrete.csv.xz", "power.csv.xz", "published.json", "tuned.json", "wine.csv.xz"}
ABOUT = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
SDIST = {
    *("benchmarks", "docs", "scripts", "src", "tests"),
    *("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "SECURITY.md"),
    *(".gitignore", "PKG-INFO", "constraints.txt", "pyproject.toml"),
}
LARGEST = {".whl": 2_000_000, ".gz": 4_000_000}


def compare(where: str, found: set[str], expected: set[str]) -> None:
    """Stop where the names differ."""
    if found != expected:
        raise SystemExit(f"{where}: leaks {sorted(found - expected)}, lacks {sorted(expected - found)}")


def below(names: set[str], folder: str) -> set[str]:
    """Return the names in a folder, without it."""
    return {name.removeprefix(folder) for name in names if name.startswith(folder)}


def main() -> None:
    """Check both files, and print a line for each."""
    wheel, sdist = map(Path, sys.argv[1:])
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
    with tarfile.open(sdist) as archive:
        in_sdist = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    paths = [
        path for path in (ROOT / "src" / "klover").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    package = {path.relative_to(ROOT / "src").as_posix() for path in paths}
    about = wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info/"
    compare("data", below(package, "klover/paper/data/"), DATA)
    compare(wheel.name, in_wheel, package | {about + name for name in ABOUT})
    compare(sdist.name, {name.partition("/")[0] for name in in_sdist}, SDIST)
    compare(f"src in {sdist.name}", below(in_sdist, "src/"), package)
    for path in (wheel, sdist):
        if path.stat().st_size > LARGEST[path.suffix]:
            raise SystemExit(f"{path.name} has {path.stat().st_size:,} bytes, more than {LARGEST[path.suffix]:,}.")
    print(f"{wheel.name} holds {len(in_wheel)} files, {sdist.name} {len(in_sdist)}, and no others.")


if __name__ == "__main__":
    main()
