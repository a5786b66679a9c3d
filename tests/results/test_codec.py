"""Files of records: what goes in comes out, nothing runs, and what cannot be read says so."""

import collections
import dataclasses
import enum
import io
import json
import os
import re
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest

from klover.base.checks import DamagedFile
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
    write(path, 1, kind="fit")
    with pytest.raises(ValueError, match="is a klover fit, but a thing was expected"):
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
        with pytest.raises(DamagedFile, match=r"is damaged.*make it again"):
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
    with pytest.raises(ValueError, match="is damaged.*make it again"):
        read(tmp_path / "a")


def test_pickles_are_refused(tmp_path):
    with open(tmp_path / "a", "wb") as file:
        np.savez(file, description=np.array({"kind": "thing"}, dtype=object))
    with pytest.raises(ValueError, match="is damaged"):
        read(tmp_path / "a")


def archive(path, content, compression=zipfile.ZIP_STORED):
    """Write members as they are, under the names of arrays."""
    with zipfile.ZipFile(path, "w", compression) as made:
        for name, data in content.items():
            made.writestr(f"{name}.npy", data)


def as_bytes(array, shape=None):
    """Return an array as NumPy stores it; the header may promise another shape."""
    buffer = io.BytesIO()
    header = np.lib.format.header_data_from_array_1_0(array)
    np.lib.format.write_array_header_1_0(buffer, header | ({} if shape is None else {"shape": shape}))
    return buffer.getvalue() + array.tobytes()


DESCRIPTION = as_bytes(np.array(json.dumps({"kind": "thing", "version": 1, "value": {"array": "0"}})))


def test_a_file_that_expands_is_refused_before_it_does(tmp_path):
    zeros = as_bytes(np.zeros(100_000))
    archive(tmp_path / "plain", {"description": DESCRIPTION, "0": zeros})
    assert read(tmp_path / "plain").shape == (100_000,)
    archive(tmp_path / "a", {"description": DESCRIPTION, "0": zeros}, zipfile.ZIP_DEFLATED)
    assert os.path.getsize(tmp_path / "a") < len(zeros) / 100
    with pytest.raises(DamagedFile) as caught:
        read(tmp_path / "a")
    assert "compressed" in str(caught.value.__cause__)


def test_members_that_share_their_bytes_are_refused(tmp_path):
    path, zeros = tmp_path / "a", as_bytes(np.zeros(1000))
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("description.npy", DESCRIPTION)
        made.writestr("0.npy", zeros)
        # One piece of the file, again and again in its directory.
        made.filelist += [made.getinfo("0.npy")] * 9
    with pytest.raises(DamagedFile) as caught:
        read(path)
    assert "longer than itself" in str(caught.value.__cause__)


@pytest.mark.parametrize("shape", [(10**14,), (3, 5), (-8,), (7,)])
def test_a_header_that_promises_another_array_is_refused(tmp_path, shape):
    archive(tmp_path / "a", {"description": DESCRIPTION, "0": as_bytes(np.zeros(8), shape)})
    with pytest.raises(DamagedFile) as caught:
        read(tmp_path / "a")
    assert "0.npy is not the array that its header promises" in str(caught.value.__cause__)


@pytest.mark.parametrize("dtype", [object, [("a", "f8")]])
def test_arrays_of_other_kinds_are_refused(tmp_path, dtype):
    archive(tmp_path / "a", {"description": DESCRIPTION, "0": as_bytes(np.zeros(8, dtype))})
    with pytest.raises(DamagedFile):
        read(tmp_path / "a")


@pytest.mark.parametrize("depth", [200, 100_000])
def test_deep_nesting_is_refused(tmp_path, depth):
    text = json.dumps({"kind": "thing", "version": 1, "value": None}).replace("null", "[" * depth + "]" * depth)
    archive(tmp_path / "a", {"description": as_bytes(np.array(text))})
    with pytest.raises(DamagedFile, match="is damaged"):
        read(tmp_path / "a")


def test_brackets_in_names_are_no_nesting(tmp_path):
    names = [f'theta["{number}' for number in range(300)]
    write(tmp_path / "a", names)
    assert read(tmp_path / "a") == names


@pytest.mark.parametrize("version", ["new", None, [1]])
def test_a_version_that_is_no_number_is_damage(tmp_path, version):
    write(tmp_path / "a", 1, version=version)
    with pytest.raises(DamagedFile):
        read(tmp_path / "a")
