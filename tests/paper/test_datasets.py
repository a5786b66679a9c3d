import hashlib
import lzma
from pathlib import Path

import numpy as np
import pytest

from klover.paper import datasets

REFERENCE = Path(__file__).parents[3] / "shared" / "data" / "uci"
SHAPES = {"wine": (1599, 11), "boston": (506, 13), "concrete": (1030, 8), "power": (9568, 4)}
NUM_TRAIN = {"wine": 1439, "boston": 455, "concrete": 927, "power": 8611}


def shipped_csv(name: str) -> bytes:
    assert datasets.__file__ is not None
    return lzma.decompress((Path(datasets.__file__).parent / "data" / f"{name}.csv.xz").read_bytes())


def test_names_are_those_of_the_paper():
    assert datasets.DATASETS == tuple(SHAPES)


@pytest.mark.parametrize("name", datasets.DATASETS)
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


@pytest.mark.parametrize("name", datasets.DATASETS)
def test_shipped_file_has_the_documented_checksum(name):
    checksum = hashlib.sha256(shipped_csv(name)).hexdigest()
    assert checksum == datasets.CHECKSUMS[name]
    assert datasets.__file__ is not None
    assert checksum in (Path(datasets.__file__).parent / "data" / "README.md").read_text(encoding="utf-8")


@pytest.mark.skipif(
    not REFERENCE.is_dir(), reason="no folder shared/data/uci with the reference CSVs beside the checkout"
)
@pytest.mark.parametrize("name", datasets.DATASETS)
def test_shipped_file_equals_the_reference(name):
    assert shipped_csv(name) == (REFERENCE / f"{'wine_red' if name == 'wine' else name}.csv").read_bytes()


def test_unknown_name_names_the_choices():
    with pytest.raises(ValueError, match="name must be one of 'wine', 'boston', 'concrete', 'power', got 'yacht'"):
        datasets.load("yacht")


def test_altered_file_is_refused(monkeypatch):
    monkeypatch.setitem(datasets.CHECKSUMS, "boston", "0" * 64)
    with pytest.raises(ValueError, match=r"boston.*SHA-256 0{64}, got 60a993b2.*Install the package again"):
        datasets.load("boston")


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


def test_split_takes_the_rows_of_the_paper():
    dataset = datasets.load("boston")
    first, last = datasets.split(dataset, seed=1), datasets.split(dataset, seed=20)
    first_train = first.train_target[:3] * first.target_scale + first.target_mean
    last_test = last.test_target[-3:] * last.target_scale + last.target_mean
    np.testing.assert_allclose(first_train, dataset.target[[307, 343, 47]], rtol=1e-12)
    np.testing.assert_allclose(last_test, dataset.target[[271, 474, 355]], rtol=1e-12)


@pytest.mark.parametrize("name", datasets.DATASETS)
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
