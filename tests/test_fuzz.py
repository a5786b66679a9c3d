"""Every public function refuses bad arguments at the door: with the right kind of error, and in words that help."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import klover
from helpers import needs

RECORDS = {"Fit", "Mixture", "Status", "StreamedDraws", "Verdict", "WeightedDraws"}
"""Classes that hold what they are given; JAX makes them out of anything."""
PROTOCOL = {"tree_flatten", "tree_unflatten"}


def public_functions() -> list[str]:
    """Name all functions and methods that take arguments."""
    found = {name: getattr(klover, name) for name in klover.__all__ if name not in {*RECORDS, "plots"}}
    found |= {
        f"plots.{name}": each
        for name, each in inspect.getmembers(klover.plots, inspect.isfunction)
        if each.__module__.startswith(klover.plots.__name__)
    }
    for owner in (klover.Target, klover.Family, klover.Mixture, klover.Fit, klover.WeightedDraws):
        for name, method in inspect.getmembers(owner, callable):
            if not name.startswith("_") and name not in PROTOCOL:
                found[f"{owner.__name__}.{name}"] = method
    return [name for name, each in found.items() if set(inspect.signature(each).parameters) - {"self"}]


@pytest.fixture(scope="module")
def complaints(tmp_path_factory) -> dict[str, list[str]]:
    """Call everything in a process of its own: here types are checked before klover sees them."""
    folder, program = tmp_path_factory.mktemp("fuzz"), Path(__file__).with_name("fuzzing.py")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(program), str(folder)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@needs("matplotlib", "numpyro", "pandas", "arviz", "xarray")
@pytest.mark.parametrize("name", public_functions())
def test_bad_arguments_are_refused_at_the_door(complaints, name):
    assert complaints[name] == []


@needs("matplotlib", "numpyro", "pandas", "arviz", "xarray")
def test_nor_is_there_anything_else_to_complain_of(complaints):
    assert not any(complaints.values())
