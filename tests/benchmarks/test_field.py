"""The comparison with other tools: what it calls wrong, silent and slow."""

import json
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

import klover
from benchmarks import field, peers, processes, run, tasks
from helpers import needs

RIGHT = {"cold": 3.0, "warm": 1.0, "num_evaluations": 10, "num_gradients": 0, "num_draws": 100, "ess": 50.0}
RIGHT |= {"complaint": "", "mean_error": 0.05, "sd_error": 0.05, "log_z_error": 0.01, "log_z_se": 0.01, "progress": []}


def two_modes():
    target = klover.Target(lambda x: -0.5 * x @ x, np.zeros(2))
    modes = np.array([[0.0, 0.0], [10.0, 0.0]])
    return tasks.Task("two", target, np.asarray, np.array([1.0, 0.0]), np.ones(2), 0.0, modes, np.array([0.9, 0.1]))


def test_errors_are_those_of_weighted_draws():
    x = np.array([[0.0, 1.0], [0.0, -1.0], [10.0, 0.0]])
    found = field.errors(two_modes(), x, np.log([0.4, 0.4, 0.2]))
    assert found["mean_error"] == pytest.approx(1.0)
    assert found["mode_error"] == pytest.approx(0.1)
    assert found["num_modes"] == 2


@pytest.mark.parametrize(
    ("change", "is_wrong"),
    [
        ({}, False),
        ({"mean_error": 0.3}, True),
        ({"sd_error": float("nan")}, True),
        ({"mode_error": 0.06}, True),
        ({"log_z_error": 0.2}, True),
        ({"log_z_error": 0.2, "log_z_se": 0.1}, False),
        ({"log_z_error": 0.19, "log_z_se": None}, False),
        ({"log_z_error": 0.21, "log_z_se": None}, True),
    ],
)
def test_what_is_wrong(change, is_wrong):
    assert field.is_wrong(RIGHT | change) is is_wrong


def test_a_box_that_is_a_bound_holds_the_target():
    target = klover.Target(lambda x: -0.5 * x @ x, np.zeros(2), box=(np.full(2, -1.0), np.full(2, 1.0)))
    draw = lambda generator, num: generator.normal(size=(num, 2))  # noqa: E731
    task = tasks.Task("one", target, np.asarray, np.zeros(2), np.ones(2), 0.0, sample=draw)
    lower, upper = task.box()
    x = draw(np.random.default_rng(1), 10_000)
    assert np.mean(np.all((x > lower) & (x < upper), axis=1)) > 0.998


def test_a_task_without_a_box_is_not_for_tools_that_need_one():
    task = tasks.Task("no moments", two_modes().target, np.asarray, None, None, 0.0)
    with pytest.raises(tasks.Unsuited, match="no moments has no box"):
        task.box()


@needs("matplotlib")
def test_time_to_an_error_is_when_it_stays_below():
    from benchmarks import report

    progress = [(0.5, 0.4), (0.6, 0.05), (0.7, 0.2), (0.8, 0.09), (1.0, 0.05)]
    assert report.seconds_to(RIGHT | {"progress": progress}) == 0.8
    assert report.seconds_to(RIGHT) == RIGHT["warm"]
    assert report.seconds_to(RIGHT | {"mean_error": 0.15}) == np.inf
    assert report.seconds_to({"failure": "not done after 600 s"}) == np.inf


@needs("matplotlib")
def test_a_report_counts_what_came_of_the_runs(tmp_path, capsys):
    from benchmarks import report

    about = {"task": "two", "seed": 0}
    runs = [
        about | RIGHT | {"peer": "klover"},
        about | RIGHT | {"peer": "other", "cold": 12.0, "mean_error": 0.9},
        about | {"peer": "slow", "failure": "not done after 600 s"},
        about | RIGHT | {"peer": "also", "cold": 12.0},
        about | {"peer": "never asked", "unsuited": "There is no box."},
    ]
    # What a kill leaves at the end does not count.
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(run) + "\n" for run in runs) + '{"peer": ')
    assert processes.read(tmp_path / "runs.jsonl") == runs
    report.write(tmp_path)
    lines = {line.split("|")[1].strip(): line for line in capsys.readouterr().out.splitlines() if "|" in line}
    assert [cell.strip() for cell in lines["other"].split("|")[2:8]] == ["1", "0", "0", "0", "0", "1"]
    assert "4 ×" in lines["also"]
    assert "never asked" not in lines
    assert {path.name for path in tmp_path.iterdir()} >= {"report.md", "report.html", "outcomes.png", "times.png"}


def test_every_peer_has_its_module_and_settings():
    folder = pathlib.Path(peers.__file__).parent
    assert {path.stem for path in folder.glob("*_*.py")} - {"__init__"} == set(peers.MODULES.values())


def test_klover_is_measured_as_its_peers(monkeypatch):
    monkeypatch.setattr(tasks, "load", lambda name: two_modes())
    first, again = run.solve("klover", "two", 0, time.time(), 100.0)
    assert first | {"warm": again["warm"]} == again
    assert first["complaint"] == ""
    assert first["ess"] > 1000
    assert abs(first["log_z_error"] - np.log(2 * np.pi)) < 5 * first["log_z_se"]


@pytest.mark.parametrize(("answers", "ends"), [(0, False), (1, False), (1, True)])
def test_a_first_answer_outlives_a_second_call_that_does_not_end(monkeypatch, answers, ends):
    code = f"print({json.dumps(RIGHT)!r}, flush=True)\n" * answers + ("" if ends else "import time\ntime.sleep(60)\n")

    def command(*arguments, timeout):
        return subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=timeout, check=False)

    monkeypatch.setattr(processes, "run_command", command)
    expected = RIGHT if answers else {"failure": "not done after 2 s"}
    about = {"peer": "klover", "task": "two", "seed": 3}
    assert run.run_alone("klover", "two", 3, 20.0 if ends else 2.0) == about | expected


def test_a_peer_that_is_not_known_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(tasks, "names", lambda: ["two"])
    monkeypatch.setattr(sys, "argv", ["run", "--peers", "nosuch", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="There is no peer nosuch. There are: klover, "):
        run.main()
