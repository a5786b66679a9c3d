"""Files of records: what goes in comes out, nothing runs, and what cannot be read says so."""

import collections
import dataclasses
import enum
import json
import os
import re

import jax.numpy as jnp
import numpy as np
import pytest

from klover.results import codec


class Colour(enum.Enum):
    RED = ("a", "b")


@dataclasses.dataclass(frozen=True)
class Point:
    x: np.ndarray
    label: str
    colour: Colour = Colour.RED


CLASSES = (Colour, Point)


def write(path, value, version=1, kind="thing"):
    arrays = {}
    codec.write(path, {"kind": kind, "version": version, "value": codec.encode(value, arrays)}, arrays)
    return arrays


def read(path, version=1):
    return codec.read(path, "thing", version, CLASSES, "make it again.")["value"]


def test_values_come_back(tmp_path):
    path = tmp_path / "a.file"
    value = {
        "array": np.arange(6.0).reshape(2, 3),
        "record": Point(np.array([1, 2]), "naïve"),
        "tuple": (1, 2.5, None, True, "a", (), [3, (4,)]),
        "dict": collections.OrderedDict(b=1, a=np.float64(2)),
        "infinite": float("inf"),
        "labels": np.array(["x", 3], dtype=object),
        "device": jnp.arange(3),
    }
    write(path, value)
    assert os.listdir(tmp_path) == ["a.file"]
    found = read(path)
    assert list(found) == list(value)
    np.testing.assert_array_equal(found["array"], value["array"])
    np.testing.assert_array_equal(found["record"].x, [1, 2])
    assert (found["record"].label, found["record"].colour) == ("naïve", Colour.RED)
    assert found["tuple"] == value["tuple"]
    assert type(found["dict"]) is collections.OrderedDict
    assert list(found["dict"].items()) == [("b", 1), ("a", 2.0)]
    assert found["infinite"] == np.inf
    assert found["labels"].tolist() == ["x", "3"]
    assert found["device"].tolist() == [0, 1, 2]


def test_an_array_is_stored_once(tmp_path):
    array = np.arange(4.0)
    assert len(write(tmp_path / "a", {"first": array, "again": array, "other": array.copy()})) == 2


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "a"
    write(path, 1)
    with pytest.raises(TypeError, match="JSON"):
        write(path, object())
    assert read(path) == 1
    assert os.listdir(tmp_path) == ["a"]


def test_newer_and_other_files_are_refused(tmp_path):
    path = tmp_path / "a"
    write(path, 1, version=3)
    with pytest.raises(ValueError, match=re.escape(f"thing {path} was written by a newer klover (format 3)")):
        read(path)
    assert read(path, version=3) == 1
    write(path, 1, kind="checkpoint")
    with pytest.raises(ValueError, match="is a klover checkpoint, but a thing was expected"):
        read(path)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "absent")


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "a"
    write(path, Point(np.arange(100.0), "a"))
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[300] ^= 255
    for content in (b"", b"no archive", whole[:200], whole[:-50], bytes(changed)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"is damaged.*make it again"):
            read(path)
    np.save(path.with_suffix(".npy"), np.arange(3))
    with pytest.raises(ValueError, match="is damaged"):
        read(path.with_suffix(".npy"))


@pytest.mark.parametrize(
    "value",
    [
        {"array": "7"},
        {"record": "Absent", "fields": {}},
        {"record": "Point", "fields": {"y": 1}},
        {"member": "BLUE", "of": "Colour"},
    ],
)
def test_descriptions_that_cannot_be_followed_are_refused(tmp_path, value):
    description = json.dumps({"kind": "thing", "version": 1, "value": value})
    with open(tmp_path / "a", "wb") as file:
        np.savez(file, description=np.array(description))
    with pytest.raises(ValueError, match="is damaged: make it again"):
        read(tmp_path / "a")


def test_pickles_are_refused(tmp_path):
    with open(tmp_path / "a", "wb") as file:
        np.savez(file, description=np.array({"kind": "thing"}, dtype=object))
    with pytest.raises(ValueError, match="is damaged"):
        read(tmp_path / "a")


@pytest.mark.parametrize(
    ("dtype", "change", "is_found"),
    [("float64", 1e-5, False), ("float64", 1.0, True), ("float32", 1.0, False), ("float32", 50.0, True)],
)
def test_another_log_density_is_told_from_rounding(dtype, change, is_found):
    x = np.random.default_rng(0).normal(size=(5, 2))
    log_p = np.asarray(-50_000 - x[:, 0] ** 2, dtype).astype(float)
    found = codec.find_change(lambda points: -50_000 - points[:, 0] ** 2 + change, x, log_p)
    assert (found > 0) is is_found
