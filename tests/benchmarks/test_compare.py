"""Two files of runs side by side."""

import pytest

from benchmarks import compare

RUN = {"target": "ring", "trusted": True, "log_z_error": 0.0, "log_z_se": 0.01, "evaluations": 100, "seconds": 2.0}


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_runs_are_counted_in_pairs():
    before = [RUN | {"seed": seed} for seed in range(3)]
    after = [
        RUN | {"seed": 0, "log_z_error": 1.0, "evaluations": 120},
        RUN | {"seed": 1, "trusted": False, "evaluations": 120, "seconds": 1.0},
        RUN | {"seed": 7},
    ]
    _, _, ring, everything, _, left_out = compare.table(before, after).splitlines()
    expected = ["2", "2 → 1", "2 → 1", "0 → 1", "100 → 120", "1.20 *", "2.00 → 1.50", "0.75"]
    assert cells(ring) == ["ring", *expected]
    assert cells(everything) == ["all", *expected]
    assert left_out == "Left out: 1 runs that are only before, 1 that are only after."


def test_posteriors_bring_their_own_judgement():
    run = {"posterior": "arK", "seed": 0, "is_right": False, "trusted": True, "evaluations": 10, "seconds": 1.0}
    assert cells(compare.table([run], [run | {"is_right": True}]).splitlines()[2])[2:5] == ["1 → 1", "0 → 1", "1 → 0"]


def test_files_without_a_common_run_are_refused():
    with pytest.raises(SystemExit, match="no target and seed in common"):
        compare.table([RUN | {"seed": 0}], [RUN | {"seed": 1}])
