import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CORE = {"jax", "jaxlib", "jaxtyping", "numpy", "optax"}

LATE = [
    "arviz",
    "blackjax",
    "equinox",
    "matplotlib",
    "numpyro",
    "pandas",
    "scipy.optimize",
    "sklearn",
    "tqdm",
    "xarray",
]

# Only packages that are installed are refused: a library that asks whether another is there must still hear "no".
REFUSE = """
import json
import sys

refused = set(json.loads(sys.argv[1]))


class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in refused:
            raise ModuleNotFoundError(f"{name} is no dependency of the core", name=name)


sys.meta_path.insert(0, Refuse())
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter that finds the klover under test."""
    spec = importlib.util.find_spec("klover")
    assert spec is not None
    assert spec.origin is not None
    paths = [str(Path(spec.origin).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def closure(names: set[str]) -> set[str]:
    """Distributions that the named ones need, themselves included, extras left out."""
    needed, waiting = set(), set(names)
    while waiting:
        name = waiting.pop()
        needed.add(name)
        for line in importlib.metadata.requires(name) or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting |= {canonicalize_name(requirement.name)} - needed
    return needed


@pytest.fixture(scope="module")
def refused() -> list[str]:
    """Top-level packages of every installed distribution that the core does not need."""
    allowed = closure(CORE) | {"klover"}
    packages = importlib.metadata.packages_distributions()
    return sorted(
        name
        for name, distributions in packages.items()
        if name not in sys.stdlib_module_names and not allowed & {canonicalize_name(d) for d in distributions}
    )


def test_import_leaves_heavy_libraries_alone():
    result = run("import json, sys, klover; print(json.dumps(sorted(sys.modules)))")
    assert result.returncode == 0, result.stderr
    assert set(json.loads(result.stdout)) & set(LATE) == set()


def test_core_imports_with_its_dependencies_alone(refused: list[str]):
    result = run(REFUSE + "import klover", json.dumps(refused))
    assert result.returncode == 0, result.stderr


def test_refusal_reaches_what_is_installed(refused: list[str]):
    assert {"beartype", "hypothesis", "pytest"} <= set(refused)
    result = run(REFUSE + "import pytest", json.dumps(refused))
    assert result.returncode != 0
    assert "no dependency of the core" in result.stderr


def test_every_public_name_is_there_whenever_it_is_imported():
    program = "import klover, sys; missing = [n for n in klover.__all__ if not hasattr(klover, n)]; print(missing)"
    assert run(program).stdout.strip() == "[]"
    assert "klover.boosting" not in run("import klover, sys; print(sorted(sys.modules))").stdout
    assert "no attribute 'bost'" in run("import klover; klover.bost").stderr
