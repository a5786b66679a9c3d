"""What a release says of itself is true: one version everywhere, pictures that PyPI can show, the floors of pip."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import klover

ROOT = Path(__file__).parents[1]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_is_the_newest_of_the_changelog_and_that_of_the_citation():
    newest, date = re.findall(r"^## (\d+\.\d+\.\d+) - (\d{4}-\d\d-\d\d)$", text("CHANGELOG.md"), re.MULTILINE)[0]
    assert klover.__version__ == newest
    assert f"\nversion: {newest}\n" in text("CITATION.cff")
    assert f"\ndate-released: {date}\n" in text("CITATION.cff")


def test_pictures_of_the_readme_have_addresses_below_the_project_and_are_there():
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text("README.md"))
    repository = tomllib.loads(text("pyproject.toml"))["project"]["urls"]["Repository"]
    raw = repository.replace("github.com", "raw.githubusercontent.com") + "/main/"
    assert pictures
    for address in pictures:
        assert address.startswith(raw)
        assert (ROOT / address.removeprefix(raw)).is_file()


def test_floors_are_those_of_the_project():
    command = [sys.executable, ROOT / "scripts" / "floors.py", "numpyro", "plots"]
    lines = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    assert {line.partition("==")[0] for line in lines} == {
        *("jax", "jaxtyping", "numpy", "optax"),
        *("funsor", "matplotlib", "numpyro"),
    }
    declared = text("pyproject.toml")
    assert all(f'"{line.replace("==", ">=")}"' in declared for line in lines)


def test_oldest_and_newest_python_are_named_once():
    project = tomllib.loads(text("pyproject.toml"))["project"]
    assert project["requires-python"] == ">=3.11"
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if "Python :: 3." in line]
    assert named == ["3.11", "3.12", "3.13", "3.14"]
    in_ci = set(re.findall(r'"(3\.\d+)"', text(".github/workflows/ci.yml")))
    assert in_ci == set(named)
