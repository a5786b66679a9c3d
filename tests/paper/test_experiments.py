"""Running and resuming: nothing finished is lost or done twice."""

import json
import subprocess
import sys

import numpy as np
import pytest

from klover.paper import experiments, methods
from klover.paper.measurements import Cell, Results


@pytest.fixture(scope="module", autouse=True)
def _few_draws():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods, "NUM_DRAWS", 200)
        yield


def cells(num_splits=2):
    choices = methods.Choices(num_steps=5, num_draws_per_step=5)
    splits = tuple(range(1, num_splits + 1))
    return [Cell("blr", "power", name, splits, 0, choices) for name in ("rkl-vi", "fkl-vi")]


def run(path, plan):
    told = []
    results = Results(path)
    experiments.run(plan, results, 1, lambda: None, lambda cell, num: told.append((cell.method, num)))
    return results, told


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "results.jsonl"
    results, told = run(path, cells())
    assert told == [("rkl-vi", 2), ("fkl-vi", 2)]
    return results


def values(results):
    return {(row["method"], row["split"]): row["log_of_mean_is"] for row in results.rows}


def test_a_run_that_was_killed_goes_on_where_it_was(tmp_path, whole):
    lines = whole.path.read_text().splitlines()
    # What a kill leaves: a cell with one of its splits, and a torn line.
    (tmp_path / "torn.jsonl").write_text("\n".join(lines[:3]) + "\n" + lines[3][:40])
    resumed, told = run(tmp_path / "torn.jsonl", cells())
    assert told == [("fkl-vi", 1)]
    assert len(resumed.rows) == 4
    assert values(resumed) == pytest.approx(values(whole), rel=1e-6)
    assert [json.loads(line) for line in (tmp_path / "torn.jsonl").read_text().splitlines()] == resumed.rows
    _, told = run(tmp_path / "torn.jsonl", cells())
    assert told == []


def test_lines_have_the_fields_that_readers_expect(whole):
    expected = "table dataset method split log_of_mean mean_of_logs log_of_mean_is mean_of_logs_is pareto_k ess seconds"
    assert set(expected.split()) <= set(whole.rows[0])


def test_numbers_that_are_not_finite_become_null():
    cell = Cell("blr", "power", "rkl-vi", (1,), 0)
    row = experiments._row(cell, {"log_of_mean": np.array([np.nan])}, np.array([1.0]), 0)
    assert row["log_of_mean"] is None
    assert "NaN" not in json.dumps(row)


def test_views_show_the_fits_of_their_table():
    plan = experiments.plan("blr-noIS", None, ("power",), 3, 0)
    assert {cell.table for cell in plan} == {"blr"}
    assert [cell.method for cell in plan] == list(experiments.VIEWED_METHODS)
    assert set(plan) <= set(experiments.plan("blr", None, ("power",), 3, 0))


def test_networks_go_one_split_at_a_time_on_a_cpu():
    cell = Cell("bnn", "boston", "rkl-vi", (1, 2), 0)
    assert [part.splits for part in experiments.batches(cell)] == [(1,), (2,)]


POOL = """
import time
from klover.paper.experiments import pool

if __name__ == "__main__":
    print(list(pool(2, str).map(time.sleep, [0.5, 0.5])), flush=True)
    time.sleep(60)
"""


def test_processes_end_with_the_one_that_began_them(tmp_path):
    (tmp_path / "pool.py").write_text(POOL)
    command = [sys.executable, tmp_path / "pool.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[None, None]\n"
        process.kill()
        # All that hold the other end of the pipe have to go before this returns.
        process.communicate(timeout=30)
