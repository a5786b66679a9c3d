import sys
import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover import Target
from klover.refinement import progress
from klover.refinement.progress import Progress
from klover.refinement.rounds import WORDS
from klover.refinement.state import RoundInfo, Stage
from klover.targets.evaluator import Evaluator

INFO = RoundInfo(3, 12, 2048, 0.4567, 0.312, -12.3456, 0.0789, 1.5, 9876, 4.5)
FAR = "tempering", "ESS 45.7% of 80% wanted"


@pytest.fixture(name="evaluator")
def _evaluator():
    evaluator = Evaluator(Target(lambda x: -jnp.sum(x**2), jnp.zeros(1)))
    evaluator.num_evaluations = 9876
    return evaluator


def test_a_line_has_what_a_round_measured(evaluator, capsys):
    Progress(None, True, evaluator).report(INFO, *FAR)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("round 3: tempering  ESS 45.7% of 80% wanted  9,876 evaluations  ")
    assert shown.err.endswith(" s  k̂ 0.31  log evidence -12.346 ± 0.079  12 components\n")
    assert shown.err.count("\n") == 1
    assert shown.err.replace("\n", "").isprintable()


def test_temperatures_are_told(evaluator, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    Progress(None, True, evaluator).tell_temperature(np.array([0.125]))
    assert capsys.readouterr().err.startswith(
        "\r\x1b[Kparticles at temperature 12.5% of the way to the posterior  9,876"
    )


@pytest.mark.parametrize("is_shown", [True, False, None])
def test_the_callback_hears_of_every_round(evaluator, is_shown, capsys):
    seen = []
    shown = Progress(seen.append, is_shown, evaluator)
    shown.report(INFO, *FAR)
    shown.report(INFO, *FAR)
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
    Progress(None, is_shown, evaluator).report(INFO, *FAR)
    assert (capsys.readouterr().err != "") is expected


def test_a_terminal_has_one_line_that_is_erased_at_the_end(evaluator, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    with Progress(None, True, evaluator) as shown:
        shown.say("searching for modes")
        shown.report(INFO, *FAR)
    written = capsys.readouterr().err
    assert "\n" not in written
    first, second, last = written.split(progress.REWRITE)[1:]
    assert first.startswith("searching for modes")
    assert second == "round 3: tempering  ESS 45.7% of 80% wanted  9,876 evaluations"[:39]
    assert last == ""


def test_long_steps_are_told_again(evaluator, monkeypatch, capsys):
    monkeypatch.setattr(progress, "FILE_SECONDS", 0.02)
    with Progress(None, True, evaluator) as shown:
        shown.say("searching for modes")
        time.sleep(0.3)
        evaluator.num_evaluations = 10_000
        time.sleep(0.3)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 4
    assert all(line.startswith("searching for modes  ") for line in lines)
    assert "9,876 evaluations" in lines[0]
    assert "10,000 evaluations" in lines[-1]


def test_who_is_not_shown_anything_has_no_thread(evaluator, capsys):
    num = threading.active_count()
    with Progress(None, False, evaluator):
        assert threading.active_count() == num


def test_every_stage_has_words():
    assert set(WORDS) == set(Stage)


def test_a_fit_tells_what_it_does(capsys):
    fit = klover.refine(0, Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2)), progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if line.startswith("round ")]) == len(fit.history["round"])
    assert all(" of 80% wanted  " in line for line in lines)


def test_many_dimensions_are_told_of_from_the_beginning(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    target = Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(60))
    klover.refine(0, target, progress=True, budget=3000, num_draws=100)
    lines = capsys.readouterr().err.split(progress.REWRITE)[1:]
    assert lines[0].startswith("searching for modes  0 evaluations")
    told = [line.split("  ")[0] for line in lines]
    assert any(line.startswith("round 0") for line in told)
    assert told[-1] == ""
