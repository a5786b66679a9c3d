import math

import pytest

from klover.paper import tables
from klover.paper.tables import Grid

WINE = "wine"


def fit(method="fkl-vi", split=1, dataset=WINE, table="blr", **fields) -> dict:
    row = {
        "table": table,
        "dataset": dataset,
        "method": method,
        "split": split,
        "log_of_mean": -1.0,
        "mean_of_logs": -1.1,
        "log_of_mean_is": -0.9,
        "mean_of_logs_is": -0.95,
        "pareto_k": 0.3,
        "ess": 500.0,
        "seconds": 2.0,
        "num_draws": 1000,
        "seed": 0,
        "device": "cpu",
    }
    if method in ("hmc", "hmc3", "nuts") or fields.get("kind") == "particles":
        row |= {"log_of_mean_is": None, "mean_of_logs_is": None, "pareto_k": None}
    return row | fields


def run(method="refine", value: float | None = 0.1, passed=True, **fields) -> dict:
    row = {
        "table": "failure-modes",
        "property": "heavy tails",
        "method": method,
        "target": "Cauchy",
        "measure": "error of the tail",
        "value": value,
        "threshold": 0.5,
        "passed": passed,
        "seed": 0,
        "seconds": 1.0,
    }
    return row | fields


def clock(method="fkl-vi", batch=1, seconds=1.0, device="cpu") -> dict:
    return {
        "table": "wall-clock",
        "dataset": "boston",
        "method": method,
        "batch": batch,
        "num_steps": 200,
        "seconds": seconds,
        "device": device,
    }


def only_grid(table: str, rows: list[dict]) -> Grid:
    (grid,) = tables.build(table, rows).grids
    return grid


def cells(grid: Grid, label: str) -> dict[str, str]:
    (found,) = [row for row in grid.rows if row[0] == label]
    return dict(zip(grid.header, found, strict=True))


def has_note(grid: Grid, start: str, end: str = "") -> bool:
    return any(note.startswith(start) and note.endswith(end) for note in grid.notes)


def test_unknown_table_names_the_choices():
    with pytest.raises(ValueError, match="table must be one of 'blr', 'bnn', .*'wall-clock', got 'iris'"):
        tables.build("iris", [])


@pytest.mark.parametrize("table", tables.TITLES)
def test_table_without_lines_has_no_grids(table):
    assert tables.build(table, []).grids == ()
    assert "No lines of this table yet." in tables.markdown(table, [])


def test_means_have_their_standard_errors():
    grid = only_grid("blr", [fit(split=split, mean_of_logs_is=value) for split, value in enumerate([-1.0, -1.2, -1.4])])
    row = cells(grid, "FKL VI (3 splits)")
    # The standard deviation is 0.2, so the error of the mean is 0.2 / √3.
    assert row["Mean of logs, weighted"] == "-1.2000 ± 0.1155"
    assert row["Log of mean, weighted"] == "-0.9000 ± 0.0000"
    assert row["Mean of logs, plain"] == "-1.1000 ± 0.0000"
    assert row["Log of mean, plain"] == "-1.0000 ± 0.0000"
    assert row["Paper"] == "-0.998 ± 0.012"


def test_diagnostics_are_medians():
    numbers = [(0.1, 10.0, 1.0), (0.2, 30.0, 2.0), (9.0, 20.0, 90.0)]
    rows = [fit(split=i, pareto_k=k, ess=ess, seconds=s) for i, (k, ess, s) in enumerate(numbers)]
    row = cells(only_grid("blr", rows), "FKL VI (3 splits)")
    assert (row["Pareto k"], row["ESS"], row["Seconds"]) == ("0.20", "20.0", "2.00")


def test_twenty_splits_go_without_saying():
    grid = only_grid("heavy", [fit(split=split, table="heavy") for split in range(1, 21)])
    assert grid.rows[0][0] == "FKL VI"


def test_exact_values_stand_in_the_gaussian_regression_only():
    row = cells(only_grid("blr", [fit()]), "Exact posterior")
    assert row["Mean of logs, weighted"] == row["Mean of logs, plain"] == "-1.0026"
    assert row["Log of mean, weighted"] == row["Log of mean, plain"] == "-0.9972"
    assert len(only_grid("heavy", [fit(table="heavy")]).rows) == 1


def test_one_split_has_no_standard_error():
    row = cells(only_grid("blr", [fit()]), "FKL VI (1 split)")
    assert row["Mean of logs, weighted"] == "-0.9500 ± –"


def test_chains_have_no_weights():
    grid = only_grid("blr", [fit("hmc", split) for split in (1, 2)])
    row = cells(grid, "HMC (2 splits)")
    assert row["Mean of logs, weighted"] == row["Log of mean, weighted"] == row["Pareto k"] == "–"
    assert not has_note(grid, "Importance-sampled")
    assert not has_note(grid, "Fits with values missing")


def test_rows_follow_the_paper_and_strangers_come_last():
    rows = [fit(method) for method in ("mystery", "refine", "fkl-vb3", "rkl-vi", "hmc")]
    labels = [row[0].removesuffix(" (1 split)") for row in only_grid("blr", rows).rows]
    assert labels == ["Exact posterior", "HMC", "RKL VI", "FKL VB 3", "refine", "mystery"]


def test_data_sets_follow_the_paper():
    rows = [fit(dataset=dataset) for dataset in ("power", "yacht", "wine", "boston")]
    assert [grid.caption for grid in tables.build("blr", rows).grids] == ["wine", "boston", "power", "yacht"]


@pytest.mark.parametrize(("ess", "pareto_k", "marks"), [(9.9, 0.3, "† ess"), (50.0, 0.71, "† k"), (10.0, 0.7, "")])
def test_handful_of_draws_is_named(ess, pareto_k, marks):
    grid = only_grid("blr", [fit(ess=ess, pareto_k=pareto_k)])
    row = cells(grid, "FKL VI (1 split)")
    assert row["ESS"].endswith("†") == (marks == "† ess")
    assert row["Pareto k"].endswith("†") == (marks == "† k")
    assert has_note(grid, "Importance-sampled rows", ": FKL VI (1 split)." if marks else ": none.")


def test_infinite_shape_is_no_number_but_a_warning():
    grid = only_grid("blr", [fit(pareto_k=math.inf)])
    assert cells(grid, "FKL VI (1 split)")["Pareto k"] == "– †"
    assert has_note(grid, "Importance-sampled rows", ": FKL VI (1 split).")


def test_rows_below_the_paper_are_named_in_the_metric_behind_it():
    # The paper has -0.998 for FKL VI, weighted, and -1.002 for HMC, which has no weights.
    rows = [fit("fkl-vi", split, mean_of_logs_is=-1.02 + 0.01 * split, mean_of_logs=-0.5) for split in (-1, 1)]
    rows += [fit("hmc", split, mean_of_logs=-1.002 + 0.01 * split) for split in (-1, 1)]
    rows += [fit("nuts", split, mean_of_logs=-9.0 + 0.01 * split) for split in (-1, 1)]
    grid = only_grid("blr", rows)
    assert has_note(grid, "Rows below the paper's value", ": FKL VI (2 splits) by 0.0220.")


def test_gap_within_the_standard_error_is_not_named():
    rows = [fit("fkl-vi", split, mean_of_logs_is=-1.02 + 0.03 * split) for split in (-1, 1)]
    assert has_note(only_grid("blr", rows), "Rows below the paper's value", ": none.")


@pytest.mark.parametrize("value", [math.nan, -math.inf, None])
def test_broken_fits_are_left_out_and_counted(value):
    rows = [fit(split=1), fit(split=2, mean_of_logs_is=-1.05), fit(split=3, mean_of_logs_is=value)]
    grid = only_grid("blr", rows)
    assert cells(grid, "FKL VI (3 splits)")["Mean of logs, weighted"] == "-1.0000 ± 0.0500"
    assert has_note(grid, "Fits with values missing or not finite", ": FKL VI (3 splits) 1 of 3.")


def test_nothing_but_broken_fits_prints_dashes():
    row = cells(only_grid("blr", [fit(mean_of_logs=math.nan, seconds=None)]), "FKL VI (1 split)")
    assert row["Mean of logs, plain"] == row["Seconds"] == "–"


def test_particles_are_shown_without_weights():
    grid = only_grid("bnn", [fit("refine", table="bnn", kind="particles", mean_of_logs=-2.0)])
    row = cells(grid, "refine (particles, 1 split)")
    assert (row["Mean of logs, plain"], row["Mean of logs, weighted"]) == ("-2.0000 ± –", "–")
    assert not has_note(grid, "Importance-sampled")
    row = cells(only_grid("blr", [fit("refine", kind="importance")]), "refine (importance, 1 split)")
    assert row["Mean of logs, weighted"] == "-0.9500 ± –"


def test_repeated_fit_replaces_the_earlier_one():
    grid = only_grid("blr", [fit(mean_of_logs=-5.0), fit(mean_of_logs=-1.0)])
    assert cells(grid, "FKL VI (1 split)")["Mean of logs, plain"] == "-1.0000 ± –"
    assert has_note(grid, "Lines left out", ": 1.")


def test_view_without_weights():
    rows = [fit(method, split, dataset="power") for method in ("hmc", "hmc3", "rkl-vb2", "fkl-vi") for split in (1, 2)]
    grid = only_grid("blr-noIS", [row | {"ess": 1.0} for row in rows])
    assert [row[0] for row in grid.rows] == ["Exact posterior", "HMC 3 chains (2 splits)", "RKL VB 2 (2 splits)"]
    assert grid.header[1:4] == ("Paper", "Mean of logs, plain", "Log of mean, plain")
    assert cells(grid, "HMC 3 chains (2 splits)")["Paper"] == "-2.942 ± 0.017*"
    assert cells(grid, "RKL VB 2 (2 splits)")["Paper"] == "-2.994 ± 0.004"
    assert cells(grid, "RKL VB 2 (2 splits)")["ESS"] == "1.0"
    assert not has_note(grid, "Importance-sampled")


def test_failure_modes_tick_the_median():
    rows = [run(value=value, passed=value <= 0.5) for value in (0.1, 0.3, 0.9)]
    rows += [run("rkl-vi", value=value, passed=value <= 0.5) for value in (0.1, 0.8, 0.9)]
    measured, paper = tables.build("failure-modes", rows).grids
    assert measured.header == ("Method", "heavy tails")
    assert measured.rows == (("RKL VI", "✗ 0.800 (1/3)"), ("refine", "✓ 0.300 (2/3)"))
    assert measured.notes == ("heavy tails passes at ≤ 0.5: error of the tail, on Cauchy.",)
    assert paper.header == ("Method", "multimodality", "heavy tails", "covariance estimation", "high dimension")
    assert paper.rows[1] == ("IS", "✗", "✓", "✓", "✗")


@pytest.mark.parametrize(
    ("values", "expected"), [((0.1, 0.1, None), "✓ 0.100 (2/3)"), ((0.1, None, None), "✗ – (1/3)")]
)
def test_run_without_a_value_has_failed(values, expected):
    rows = [run(value=value, passed=value is not None) for value in values]
    measured, _ = tables.build("failure-modes", rows).grids
    assert measured.rows[0][-1] == expected
    assert has_note(measured, "Runs without a finite value", f": {values.count(None)} of 3.")


def test_failure_modes_leave_a_gap_where_nothing_was_run():
    rows = [run(), run("hmc", property="multimodality", target="20 modes")]
    measured, _ = tables.build("failure-modes", rows).grids
    assert measured.header == ("Method", "multimodality", "heavy tails")
    assert measured.rows == (("HMC", "✓ 0.100 (1/1)", "–"), ("refine", "–", "✓ 0.100 (1/1)"))


def test_wall_clock_shares_a_batch_among_its_fits():
    rows = [clock(batch=20, seconds=10.0), clock("rkl-vi", batch=20, seconds=20.0), clock(batch=20, seconds=12.0)]
    grid = only_grid("wall-clock", rows)
    assert grid.rows == (
        ("cpu", "FKL VI", "20", "10.000", "0.5000", "783.10", "1566"),
        ("cpu", "RKL VI", "20", "20.000", "1.0000", "862.93", "863"),
    )
    assert "FKL VI takes 0.50 times as long as RKL VI in batches of 20 on cpu." in grid.notes
    assert has_note(grid, "In the paper it takes 0.91 times as long")


def test_markdown_is_well_formed():
    text = tables.markdown("failure-modes", [run("a|b"), run(value=None, passed=False)])
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert text.startswith("## Failure modes, measured\n\n")
    assert r"| a\|b " in text
    assert "\n- Runs without a finite value, which count as failures: 1 of 2.\n" in text
    assert len({len(line) for line in lines[:4]}) == 1
    assert lines[1].startswith("| :-----")
    assert lines[1].endswith("-: |")


def test_markdown_has_a_heading_for_each_data_set():
    text = tables.markdown("blr", [fit(), fit(dataset="power")])
    assert text.index("### wine") < text.index("### power")
    assert text.count("| Exact posterior") == 2


def test_huge_losses_stay_short():
    row = cells(only_grid("blr", [fit(mean_of_logs=-1.23456e8)]), "FKL VI (1 split)")
    assert row["Mean of logs, plain"] == "-1.23e+08 ± –"
