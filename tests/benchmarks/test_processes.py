"""Runs in fresh processes: resumed, on cores of their own, and not lost to a failure."""

import json
import os
import threading

import pytest

from benchmarks import processes


def test_what_a_file_holds_is_kept_and_a_torn_line_is_not(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text('{"number": 1}\n{"numb')
    assert processes.collect(path, [(2,), (3,)], lambda part: {"number": part[0]}) == [
        {"number": 1},
        {"number": 2},
        {"number": 3},
    ]
    assert [json.loads(line)["number"] for line in path.read_text().splitlines()] == [1, 2, 3]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be bound to cores here")
def test_every_lane_stays_on_its_own_cores(tmp_path):
    lanes = processes.share_cores(1)
    together = threading.Barrier(len(lanes))

    def run(part):
        together.wait(timeout=60)
        return {"cores": sorted(os.sched_getaffinity(0))}

    found = processes.collect(tmp_path / "runs.jsonl", [(number,) for number in range(len(lanes))], run, lanes)
    assert sorted(run["cores"] for run in found) == sorted(map(sorted, lanes))
    assert os.sched_getaffinity(0) == set().union(*lanes)


def test_cores_are_shared_out(monkeypatch):
    monkeypatch.setattr(processes.os, "sched_getaffinity", lambda process: {4, 5, 6, 7, 8}, raising=False)
    assert processes.share_cores(2) == [{4, 5}, {6, 7}]
    assert processes.share_cores(1, 3) == [{4}, {5}, {6}]
    for num_each, num_lanes in ((6, None), (1, 6), (0, None)):
        with pytest.raises(SystemExit, match="do not fit this machine's 5 cores"):
            processes.share_cores(num_each, num_lanes)


def test_a_run_that_fails_is_told_and_left_to_be_run_again(tmp_path, capsys):
    path = tmp_path / "runs.jsonl"
    plan = [("nosuch", 0)]
    assert processes.collect(path, plan, lambda part: processes.run_one("suite", "--one", part[0], "0")) == []
    assert "suite --one nosuch 0 failed: KeyError: 'nosuch'" in capsys.readouterr().err
    assert path.read_text() == ""
