"""The map from the paper's equations to code names what there is."""

import pkgutil
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "theory" / "equations.md"


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(klover\.[\w.]+)`", PAGE.read_text("utf-8")))))
def test_a_name_of_the_map_is_there(name):
    assert pkgutil.resolve_name(name) is not None
