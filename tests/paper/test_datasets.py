import hashlib
import lzma
import sys
from pathlib import Path

import numpy as np
import pytest

from helpers import needs
from klover.paper import datasets

REFERENCE = Path(__file__).parents[3] / "shared" / "data" / "uci"
SHAPES = {"wine": (1599, 11), "boston": (506, 13), "concrete": (1030, 8), "power": (9568, 4)}
SHIPPED = ("wine", "concrete", "power")
EACH = pytest.mark.parametrize("name", [*SHIPPED, pytest.param("boston", marks=needs("mlxtend"))])
NUM_TRAIN = {"wine": 1439, "boston": 455, "concrete": 927, "power": 8611}


def data_folder() -> Path:
    assert datasets.__file__ is not None
    return Path(datasets.__file__).parent / "data"


def whole_csv(name: str) -> bytes:
    if name == "boston":
        return datasets._boston_csv()
    return lzma.decompress((data_folder() / f"{name}.csv.xz").read_bytes())


def test_names_are_those_of_the_paper():
    assert datasets.DATASETS == tuple(SHAPES)


@EACH
def test_loaded_data_is_complete(name):
    dataset = datasets.load(name)
    num_rows, num_features = SHAPES[name]
    assert dataset.name == name
    assert dataset.features.shape == (num_rows, num_features)
    assert dataset.target.shape == (num_rows,)
    assert dataset.features.dtype == dataset.target.dtype == np.float64
    assert np.isfinite(dataset.features).all()
    assert np.isfinite(dataset.target).all()
    assert len(set(dataset.feature_names)) == num_features
    assert "target" not in dataset.feature_names


def test_last_column_is_the_target():
    dataset = datasets.load("power")
    assert dataset.feature_names == ("AT", "V", "AP", "RH")
    assert dataset.features[0].tolist() == [14.96, 41.76, 1024.07, 73.17]
    assert dataset.target[0] == 463.26


@EACH
def test_data_have_the_documented_checksum(name):
    checksum = hashlib.sha256(whole_csv(name)).hexdigest()
    assert checksum == datasets.CHECKSUMS[name]
    assert checksum in (data_folder() / "README.md").read_text(encoding="utf-8")


def test_only_data_with_a_licence_come_with_the_package():
    assert {path.name for path in data_folder().glob("*.csv*")} == {f"{name}.csv.xz" for name in SHIPPED}
    table = (data_folder() / "README.md").read_text(encoding="utf-8")
    rows = {line.split("`")[1]: line for line in table.splitlines() if line.startswith("| `") and "10.24432" in line}
    assert set(rows) == set(SHIPPED)
    assert all("CC BY 4.0" in row for row in rows.values())


def test_boston_names_the_extra_that_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlxtend", None)
    with pytest.raises(ImportError) as raised:
        datasets.load("boston")
    assert raised.value.__notes__ == ["The Boston data need mlxtend: pip install 'klover[paper]'."]


@pytest.mark.skipif(
    not REFERENCE.is_dir(), reason="no folder shared/data/uci with the reference CSVs beside the checkout"
)
@EACH
def test_data_equal_the_reference(name):
    assert whole_csv(name) == (REFERENCE / f"{'wine_red' if name == 'wine' else name}.csv").read_bytes()


def test_unknown_name_names_the_choices():
    with pytest.raises(ValueError, match="name must be one of 'wine', 'boston', 'concrete', 'power', got 'yacht'"):
        datasets.load("yacht")


def test_altered_file_is_refused(monkeypatch):
    monkeypatch.setitem(datasets.CHECKSUMS, "wine", "0" * 64)
    with pytest.raises(ValueError, match=r"wine.*SHA-256 0{64}, got e0633ad7.*Install klover again"):
        datasets.load("wine")


@pytest.mark.parametrize("name", datasets.DATASETS)
def test_split_is_a_partition_of_the_rows(name):
    num_rows = SHAPES[name][0]
    rows = np.arange(num_rows, dtype=np.float64)
    dataset = datasets.Dataset(name, np.stack([rows, -rows], axis=1), rows, ("row", "negative_row"))
    split = datasets.split(dataset, seed=3)
    train = np.rint(split.train_target * split.target_scale + split.target_mean)
    test = np.rint(split.test_target * split.target_scale + split.target_mean)
    assert len(train) == NUM_TRAIN[name]
    assert np.array_equal(np.sort(np.concatenate([train, test])), rows)


@needs("mlxtend")  # the Boston data
def test_split_takes_the_rows_of_the_paper():
    dataset = datasets.load("boston")
    first, last = datasets.split(dataset, seed=1), datasets.split(dataset, seed=20)
    first_train = first.train_target[:3] * first.target_scale + first.target_mean
    last_test = last.test_target[-3:] * last.target_scale + last.target_mean
    np.testing.assert_allclose(first_train, dataset.target[[307, 343, 47]], rtol=1e-12)
    np.testing.assert_allclose(last_test, dataset.target[[271, 474, 355]], rtol=1e-12)


@EACH
@pytest.mark.parametrize("seed", [1, 20])
def test_split_standardises_with_the_training_rows(name, seed):
    dataset = datasets.load(name)
    split = datasets.split(dataset, seed)
    order = np.random.RandomState(seed).permutation(len(dataset.target))
    train, test = order[: NUM_TRAIN[name]], order[NUM_TRAIN[name] :]
    mean, scale = np.mean(dataset.features[train], axis=0), np.std(dataset.features[train], axis=0, ddof=0)
    assert np.array_equal(split.train_features, (dataset.features[train] - mean) / scale)
    assert np.array_equal(split.test_features, (dataset.features[test] - mean) / scale)
    assert split.target_mean == np.mean(dataset.target[train])
    assert split.target_scale == np.std(dataset.target[train], ddof=0)
    assert np.array_equal(split.train_target, (dataset.target[train] - split.target_mean) / split.target_scale)
    assert np.array_equal(split.test_target, (dataset.target[test] - split.target_mean) / split.target_scale)
    np.testing.assert_allclose(split.train_features.mean(axis=0), 0, atol=1e-10)
    np.testing.assert_allclose(split.train_features.std(axis=0), 1, rtol=1e-10)
