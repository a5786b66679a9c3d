"""The file of measurements: torn lines are left out, damaged ones named."""

import json

import pytest

from klover.paper import measurements


def fit(split=1) -> dict:
    return {"table": "blr", "dataset": "wine", "method": "hmc", "split": split, "seed": 0}


def test_lines_are_read(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(fit()) + "\n\n" + json.dumps(fit(split=2)) + "\n")
    assert measurements.read(path) == [fit(), fit(split=2)]


@pytest.mark.parametrize("torn", [b'{"table": "bl', '{"device": "é'.encode()[:-1], b"{"])
def test_torn_last_line_is_ignored(tmp_path, torn):
    path = tmp_path / "results.jsonl"
    path.write_bytes(json.dumps(fit()).encode() + b"\n" + torn)
    assert measurements.read(path) == [fit()]


def test_last_line_may_lack_only_its_end(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(fit()))
    assert measurements.read(path) == [fit()]


@pytest.mark.parametrize("damaged", ['{"table": "bl', "[1, 2]", '{"dataset": "wine"}'])
def test_damaged_line_is_named(tmp_path, damaged):
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(fit()) + "\n" + damaged + "\n" + json.dumps(fit()) + "\n")
    with pytest.raises(ValueError, match=r"results\.jsonl, line 2 "):
        measurements.read(path)


def test_a_full_disk_is_reported_and_nothing_is_lost(tmp_path, monkeypatch):
    results = measurements.Results(tmp_path / "results.jsonl")
    results.add([fit(1)])

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(measurements.os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        results.add([fit(2)])
    assert "--resume" in caught.value.__notes__[0]
    assert len(results.rows) == 1


def test_nothing_half_written_stays(tmp_path):
    def fail(path):
        path.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        measurements.write_whole(tmp_path / "figure.png", fail)
    assert not list(tmp_path.iterdir())
