"""Worker processes: resumed, replaced, and not lost to a failure."""

import json
import os

import pytest
from benchmarks.reliability import workers

from reliability_job import QuickJob

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be bound to cores here")


def name(number):
    return f"known/dev/made/{number}"


def test_what_a_file_holds_is_not_run_again_and_a_torn_line_is(tmp_path):
    path = tmp_path / "lines.jsonl"
    held = {"id": name(0), "outcome": "refused"}
    path.write_text(json.dumps(held) + "\n" + json.dumps({"id": name(1), "outcome": "refused"})[:-5])
    lines = workers.collect(path, [name(number) for number in range(4)], QuickJob(), 1)
    assert lines[0] == held
    assert [line["outcome"] for line in lines[1:]] == 3 * ["trusted right"]
    assert len({line["process"] for line in lines[1:]} - {os.getpid()}) == 1
    assert len(lines[1]["cores"]) == 1
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == [name(number) for number in range(4)]
    assert workers.collect(path, [name(2), name(0)], QuickJob(), 1) == [lines[2], lines[0]]


def test_workers_that_stop_die_or_hang_are_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "GRACE", 5.0)
    lines = workers.collect(
        tmp_path / "lines.jsonl", [name(number) for number in (50, 1, 100, 2, 200, 3)], QuickJob(), 1
    )
    outcomes = [line["outcome"] for line in lines]
    assert outcomes == ["unfinished", "trusted right", "unfinished", "trusted right", "unfinished", "trusted right"]
    assert lines[2]["reason"] == "the process died"
    assert lines[4]["reason"] == "no answer in time, killed"
    assert len({line["process"] for line in lines if "process" in line}) == 4


def test_a_worker_that_cannot_begin_ends_it_all(tmp_path):
    with pytest.raises(RuntimeError, match="could not begin"):
        workers.collect(tmp_path / "lines.jsonl", [name(0), name(1)], QuickJob(can_begin=False), 1)
    assert (tmp_path / "lines.jsonl").read_text() == ""


def test_more_workers_than_cores_are_refused(tmp_path):
    with pytest.raises(SystemExit, match="do not fit this machine's"):
        workers.collect(tmp_path / "lines.jsonl", [name(0)], QuickJob(), 10_000)
