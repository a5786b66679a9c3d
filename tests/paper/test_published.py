import re
from pathlib import Path

import pytest

from klover.paper import published
from klover.paper.datasets import DATASETS

PAPER = Path(__file__).parents[3] / "shared" / "paper" / "000_b5ef2032e337d789.txt"
LABELS = {
    "blr": "tab:blr_uci",
    "bnn": "tab:bnn_uci",
    "heavy": "tab:heavy_blr_uci",
    "blr-noIS": "tab:blr_uci_app",
    "bnn-noIS": "tab:bnn_uci_app",
    "heavy-noIS": "tab:heavy_blr_uci_app",
}
needs_paper = pytest.mark.skipif(
    not PAPER.is_file(), reason="no folder shared/paper with the paper beside the checkout"
)


def source() -> str:
    lines = PAPER.read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("%"))


def printed_rows(table: str) -> dict[str, list[tuple[float, str, float]]]:
    """Mean, asterisk and standard error of each entry, read from the LaTeX."""
    body = source().split(rf"\label{{{LABELS[table]}}}")[0].split(r"\begin{table")[-1]
    found = {}
    for line in body.split(r"\\"):
        name = re.search(r"\{\\footnotesize ([A-Z][^}]*)\}\s*&", line)
        entries = re.findall(r"(-\d\.\d+)(\*?)\}?\s*\{\\footnotesize \(\$\\pm\$ ([\d.]+)\s*\)\}", line)
        if name and entries:
            found[name[1]] = [(float(mean), star, float(error)) for mean, star, error in entries]
    return found


def printed_name(method: str, table: str) -> str:
    if method == "hmc3":
        return "HMC (3 chains)"
    return published.DISPLAY[method] + (" (no IS)" if table.endswith("noIS") else "")


@needs_paper
@pytest.mark.parametrize("table", LABELS)
def test_numbers_are_those_that_the_paper_prints(table):
    rows = printed_rows(table)
    ours = published.PUBLISHED[table]
    assert [printed_name(method, table) for method in ours] == list(rows)
    for method, entries in ours.items():
        expected = rows[printed_name(method, table)]
        assert [entries[dataset] for dataset in DATASETS] == [(mean, error) for mean, _, error in expected]
        starred = [(table, method, dataset) in published.FIVE_SPLITS for dataset in DATASETS]
        assert starred == [star == "*" for _, star, _ in expected]


@needs_paper
def test_wall_clock_is_what_the_paper_says():
    text = source()
    assert f"FKL VI had a wall clock time of {published.WALL_CLOCK['fkl-vi']:.2f} seconds" in text
    assert f"RKL VI had a wall clock time of {published.WALL_CLOCK['rkl-vi']:.2f} seconds" in text


@needs_paper
def test_failure_modes_are_ticked_as_in_the_paper():
    body = source().split(r"\label{tab:comp}")[0].split(r"\begin{table}")[-1]
    marks = [re.findall(r"\\([cx])mark", line) for line in body.split(r"\\")]
    assert [line for line in marks if line] == [
        ["c" if passed else "x" for passed in row.values()] for row in published.FAILURE_MODES.values()
    ]


def test_some_numbers_by_hand():
    assert published.PUBLISHED["blr"]["fkl-vb2"]["concrete"] == (-3.762, 0.013)
    assert published.PUBLISHED["bnn"]["hmc"]["boston"] == (-2.709, 0.101)
    assert published.PUBLISHED["heavy-noIS"]["hmc3"]["boston"] == (-3.085, 0.056)
    assert published.EXACT["blr"]["mean_of_logs"]["wine"] == -1.0026
    assert published.EXACT["blr"]["log_of_mean"]["boston"] == -2.9034
    assert published.DISPLAY["fkl-vb2"] == "FKL VB 2"


@pytest.mark.parametrize("table", LABELS)
def test_every_method_has_a_name_and_every_data_set(table):
    for method, entries in published.PUBLISHED[table].items():
        assert method in published.DISPLAY
        assert tuple(entries) == DATASETS


def test_exact_sampler_meets_the_published_chains():
    for dataset, (mean, error) in published.PUBLISHED["blr"]["hmc"].items():
        assert abs(published.EXACT["blr"]["mean_of_logs"][dataset] - mean) < min(error, 0.001)
