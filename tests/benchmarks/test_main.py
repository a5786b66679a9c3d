"""``python -m benchmarks``."""

import importlib
import inspect
import sys

import pytest

from benchmarks import __main__ as command_line


def test_every_command_is_listed_with_its_first_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks"])
    assert command_line.main() == 0
    out = capsys.readouterr().out
    for name in ("suite", "posteriors", "run", "report", "compare", "cold_start"):
        assert f"  {name} " in out
    assert (inspect.getdoc(importlib.import_module("benchmarks.compare")) or "?").splitlines()[0] in out
    monkeypatch.setattr(sys, "argv", ["benchmarks", "nosuch"])
    assert command_line.main() == 2
    assert "There is no command nosuch" in capsys.readouterr().out


def test_options_are_handed_to_the_command(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "compare", str(tmp_path / "none"), str(tmp_path / "none")])
    with pytest.raises(SystemExit, match="none does not exist"):
        command_line.main()
