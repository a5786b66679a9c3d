"""The four UCI regression data sets of the paper, and its train-test splits.

The values are those of the original files, in the original row order: nothing is scaled, dropped or shuffled before
``split``. Sources and licences are listed in ``data/README.md`` beside this module. Three sets come with the package;
Boston's housing data have no licence that would allow it, and are read from the package mlxtend (extra ``paper``).
"""

import dataclasses
import hashlib
import importlib.resources
import lzma
from collections.abc import Iterable

import numpy as np

from klover.base import optional
from klover.base.checks import check_choice
from klover.base.shapes import Float

CHECKSUMS = {
    "wine": "e0633ad75a12cf66420a74a95dbae5b3c92f5beb87c3a64e88389102faff50f2",
    "boston": "60a993b2819ceb61c010ec12219de6e532d0a598392a930ace02c4ff9c96ee18",
    "concrete": "c63bf223bdfc9d42e13321c9bb2642603dd5281fcb68129bdea4c7647f9b02ca",
    "power": "7e770f87f1856e901c0278da6cb5d4eab7f2e655d53c0164a1eaf39107bdab85",
}
"""SHA-256 of each data set's CSV before compression."""

BOSTON_COLUMNS = "CRIM,ZN,INDUS,CHAS,NOX,RM,AGE,DIS,RAD,TAX,PTRATIO,B,LSTAT,target"

DATASETS = tuple(CHECKSUMS)
"""Names that ``load`` accepts, in the order of the paper's tables."""


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """A regression data set in its original units: inputs, and the target that is to be predicted."""

    name: str
    features: Float[np.ndarray, "row feature"]
    target: Float[np.ndarray, " row"]
    feature_names: tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """A train-test split, both parts standardised by mean and population standard deviation of the training part.

    A log density of a standardised target, less ``log(target_scale)``, is the log density in original units.
    """

    train_features: Float[np.ndarray, "row feature"]
    train_target: Float[np.ndarray, " row"]
    test_features: Float[np.ndarray, "test feature"]
    test_target: Float[np.ndarray, " test"]
    target_mean: float
    target_scale: float


def read_shipped(name: str) -> bytes:
    """Return the content of a file that comes with the package."""
    return (importlib.resources.files("klover.paper") / "data" / name).read_bytes()


def canonical_csv(columns: str, rows: Iterable[Iterable]) -> bytes:
    """Write rows as CSV, every value in the fewest decimals that read back as the same float64."""
    lines = (",".join(np.format_float_positional(float(value), trim="-") for value in row) for row in rows)
    return ("\n".join([columns, *lines]) + "\n").encode("ascii")


def _boston_csv() -> bytes:
    source = importlib.resources.files(optional.mlxtend()) / "data" / "data" / "boston_housing.csv"
    return canonical_csv(BOSTON_COLUMNS, (line.split(",") for line in source.read_text("ascii").splitlines()))


def load(name: str) -> Dataset:
    """Load one of ``DATASETS``: ``"wine"`` are the red wines, ``"boston"`` needs the extra ``paper``."""
    check_choice("name", name, DATASETS)
    content = _boston_csv() if name == "boston" else lzma.decompress(read_shipped(f"{name}.csv.xz"))
    checksum = hashlib.sha256(content).hexdigest()
    if checksum != CHECKSUMS[name]:
        package = "mlxtend" if name == "boston" else "klover"
        raise ValueError(
            f"the data set {name} of {package} must be a CSV with SHA-256 {CHECKSUMS[name]}, got {checksum}. "
            f"Install {package} again."
        )
    header, *lines = content.decode("ascii").splitlines()
    values = np.loadtxt(lines, delimiter=",")
    return Dataset(name, values[:, :-1], values[:, -1], tuple(header.split(",")[:-1]))


def rows(seed: int, num_rows: int) -> list[np.ndarray]:
    """Choose the rows of a split: those for training, and those for testing."""
    # The legacy generator and the rounding are those of the paper's code: any other choice gives other test rows.
    return np.split(np.random.RandomState(seed).permutation(num_rows), [round(0.9 * num_rows)])


def split(dataset: Dataset, seed: int) -> Split:
    """Draw a split: nine tenths of the rows for training, the rest for testing; the paper has the seeds 1 to 20."""
    train, test = rows(seed, len(dataset.target))
    mean, scale = dataset.features[train].mean(axis=0), dataset.features[train].std(axis=0)
    target_mean, target_scale = float(dataset.target[train].mean()), float(dataset.target[train].std())
    features, target = (dataset.features - mean) / scale, (dataset.target - target_mean) / target_scale
    return Split(features[train], target[train], features[test], target[test], target_mean, target_scale)
