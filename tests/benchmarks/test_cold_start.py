"""Cold starts: what is timed are README's own lines, and the same ones on other targets."""

from pathlib import Path

import pytest

from benchmarks import cold_start

ROOT = Path(__file__).parents[2]


def test_the_lines_of_the_readme_are_cut_after_refine():
    first, rest = cold_start.readme_lines()
    assert first + rest in (ROOT / "README.md").read_text(encoding="utf-8")
    assert first.rstrip().splitlines()[-1].startswith("fit = klover.refine(")
    assert "draws.resample(" in rest


@pytest.mark.parametrize("target", ["README", "logistic", "schools"])
def test_every_program_is_python_and_ends_with_draws(target):
    runs = cold_start.programs()[target]
    for column, code in runs.items():
        compile(code, column, "exec")
        assert ("posterior" in code) == (column != "refine")
    assert runs["ten lines"].startswith(runs["refine"])
