import sys

import jax.numpy as jnp
import numpy as np
import pytest

from klover import Target
from klover.refinement import progress
from klover.refinement.progress import Progress
from klover.refinement.state import RoundInfo
from klover.targets.evaluator import Evaluator

INFO = RoundInfo(3, 12, 2048, 0.4567, 0.312, -12.3456, 0.0789, 1.5, 9876, 4.5)


@pytest.fixture(name="evaluator")
def _evaluator():
    evaluator = Evaluator(Target(lambda x: -jnp.sum(x**2), jnp.zeros(1)))
    evaluator.num_evaluations = 9876
    return evaluator


def test_a_line_has_what_a_round_measured(evaluator, capsys):
    Progress(None, True, evaluator).report(INFO)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(
        "round  3   12 components  ESS  45.7%  k̂  0.31  log evidence -12.346 ± 0.079  9876 evaluations  "
    )
    assert shown.err.count("\n") == 1


def test_temperatures_are_told(evaluator, capsys):
    Progress(None, True, evaluator).tell_temperature(np.array([0.125]))
    assert capsys.readouterr().err.startswith("particles at temperature  12.5%  9876 evaluations")


@pytest.mark.parametrize("is_shown", [True, False, None])
def test_the_callback_hears_of_every_round(evaluator, is_shown, capsys):
    seen = []
    shown = Progress(seen.append, is_shown, evaluator)
    shown.report(INFO)
    shown.report(INFO)
    assert seen == [INFO, INFO]
    # Captured output is no terminal.
    assert (capsys.readouterr().err != "") == (is_shown is True)


@pytest.mark.parametrize(
    ("is_shown", "is_terminal", "patience", "expected"),
    [
        (None, True, -1.0, True),
        (None, True, 1e9, False),
        (None, False, -1.0, False),
        (False, True, -1.0, False),
        (True, False, 1e9, True),
    ],
)
def test_a_terminal_is_told_when_the_work_takes_long(
    evaluator, monkeypatch, capsys, is_shown, is_terminal, patience, expected
):
    monkeypatch.setattr(progress, "PATIENCE", patience)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    Progress(None, is_shown, evaluator).report(INFO)
    assert (capsys.readouterr().err != "") is expected
