"""What breaks the promise, and whether the goals are met."""

import json
import sys

import numpy as np
import pytest
from benchmarks.reliability import __main__ as command_line
from benchmarks.reliability import goals, inside
from benchmarks.reliability.densities import Parts
from scipy import stats

SMALLEST = 0.5


def two_parts(weight=0.5, scale=1.0, distance=8.0, known_scale=1.0):
    """A known part, stretched and turned, and another one that is given in its units."""
    factor = known_scale * np.array([[3.0, 0.0], [1.0, 0.2]])
    locations = np.array([[1.0, -1.0], [1.0, -1.0] + distance * factor @ [0.6, 0.8]])
    covariances = np.stack([factor @ factor.T, scale**2 * factor @ factor.T])
    return Parts(np.array([1 - weight, weight]), locations, covariances, lambda x: np.ones((len(x), 2)))


@pytest.mark.parametrize(
    ("changes", "is_inside"),
    [
        ({}, True),
        ({"scale": 0.51}, True),
        ({"scale": 0.49}, False),
        ({"scale": 3.0}, True),
        ({"weight": 0.17}, True),  # 0.205 of the known one's mass
        ({"weight": 0.16}, False),  # 0.19
        ({"distance": 4.1}, True),
        ({"distance": 3.9}, False),
        ({"distance": 19.9}, True),
        ({"distance": 20.1}, False),
        ({"known_scale": 1e-3}, True),  # units do not count
    ],
)
def test_a_missed_part_is_compared_with_the_stated_envelope(changes, is_inside):
    found = inside.judge(two_parts(**changes), False, np.array([1.0, 0.0]), SMALLEST)
    assert found["inside_envelope"] is is_inside
    (missed,) = found["missed"]
    assert missed["inside"] is is_inside
    assert missed["width"] == pytest.approx(changes.get("scale", 1.0))
    assert missed["distance"] == pytest.approx(changes.get("distance", 8.0))


def test_the_narrowest_direction_counts():
    parts = two_parts()
    thin = Parts(parts.weights, parts.locations, np.stack([np.eye(2), np.diag([4.0, 0.01])]), parts.shares)
    assert inside.relative(thin, 1, 0)["width"] == pytest.approx(0.1)


def test_one_known_part_inside_is_enough():
    """The third part is far too narrow for the first, and as wide as the second."""
    locations = np.array([[0.0], [100.0], [110.0]])
    covariances = np.array([100.0, 1.0, 1.0])[:, None, None]
    parts = Parts(np.full(3, 1 / 3), locations, covariances, lambda x: np.ones((len(x), 3)))
    both_known = inside.judge(parts, False, np.array([0.5, 0.5, 0.0]), SMALLEST)
    assert both_known["inside_envelope"] is True
    only_the_wide_one = inside.judge(parts, False, np.array([1.0, 0.0, 0.0]), SMALLEST)
    assert only_the_wide_one["inside_envelope"] is False
    assert len(only_the_wide_one["missed"]) == 2


def test_the_envelope_excuses_a_missed_mode_and_nothing_else():
    hidden, none = two_parts(scale=0.01), np.array([1.0, 0.0])
    assert inside.judge(hidden, False, none, SMALLEST)["inside_envelope"] is False
    assert inside.judge(None, False, None, SMALLEST)["inside_envelope"] is True
    assert inside.judge(hidden, True, none, SMALLEST)["inside_envelope"] is True
    assert inside.judge(hidden, False, none, None)["inside_envelope"] is True
    assert inside.judge(hidden, False, np.array([0.7, 0.3]), SMALLEST)["inside_envelope"] is True


def lines(num=1000, num_wrong=0, **changes):
    """Right answers with true errors, of which the first are wrong."""
    z = np.random.default_rng(0).permutation(stats.norm.ppf((np.arange(num) + 0.5) / num))
    about = {"arm": "known", "unimodal": True, "in_reach": True, "dim": 2, "kind": "importance", "evaluations": 20_000}
    made = [
        about | {"id": f"known/dev/made/{at}", "outcome": "trusted right", "log_z_score": z[at], "mean_scores": [z[at]]}
        for at in range(num)
    ]
    for at in range(num_wrong):
        made[at] |= {"outcome": "trusted wrong"} | changes
    return made


SUITE = [{"trusted": True, "log_z_error": 0.01, "log_z_se": 0.01}]
POSTERIORS = [{"trusted": True, "is_right": True}]
NAMES = [
    "trusted and wrong, all random targets",
    "trusted and wrong, inside the stated envelope",
    "trusted and wrong, unimodal",
    "exceptions",
    "refused or unfinished, in reach",
    "trusted and right, all",
    "z of log Z over the trusted",
    "z of means over the trusted",
    "z of log Z over the trusted, particles",
    "z of means over the trusted, particles",
    "evaluations on easy targets (median)",
    "suite and reference posteriors",
]


def missed_goals(made, suite=SUITE, posteriors=POSTERIORS):
    rows = goals.rows_of(made, suite, posteriors)
    assert [row.name for row in rows] == NAMES
    return [row.name for row in rows if row.is_met is False]


def test_goals_are_met_or_missed():
    assert missed_goals(lines()) == []
    assert missed_goals(lines(1000, 3)) == NAMES[1:3]
    assert missed_goals(lines(1000, 3, inside_envelope=False, unimodal=False)) == []
    assert missed_goals(lines(1000, 4, inside_envelope=False, unimodal=False)) == NAMES[:1]
    raised = lines()[0] | {"arm": "adversarial", "outcome": "raised"}
    assert missed_goals([*lines(), raised]) == NAMES[3:4]
    assert missed_goals(lines(1000, 30, outcome="refused")) == []
    assert missed_goals(lines(1000, 31, outcome="unfinished")) == NAMES[4:5]
    assert missed_goals(lines(1000, 81, outcome="refused", in_reach=False)) == NAMES[5:6]
    assert missed_goals(lines(1000, 501, outcome="trusted right", evaluations=25_001)) == NAMES[10:11]
    timid = {"outcome": "trusted right", "kind": "particles", "log_z_score": 0.0, "mean_scores": [0.0]}
    assert missed_goals(lines(1000, 400, **timid)) == NAMES[6:10]
    assert missed_goals(lines(), [SUITE[0] | {"log_z_error": 0.1}]) == NAMES[11:]
    assert missed_goals(lines(), SUITE, [{"trusted": True, "is_right": False}]) == NAMES[11:]


def test_nothing_measured_is_nothing_met_and_peers_do_not_count():
    rows = goals.rows_of([line | {"peer": "nuts"} for line in lines(10, 10)], [], [])
    assert {row.is_met for row in rows} == {None}


def test_one_command_prints_the_goals(monkeypatch, tmp_path, capsys):
    path = tmp_path / "lines.jsonl"
    made = [line | {"family": "made", "cpu_seconds": 1.0, "wrong_by": []} for line in lines(100)]
    path.write_text("".join(json.dumps(line) + "\n" for line in made))
    monkeypatch.setattr(sys, "argv", ["reliability", "report", str(path), "--totals"])
    command_line.main()
    text = capsys.readouterr().out
    places = [text.index(f"| {name} |") for name in NAMES]
    assert places == sorted(places)
    assert "| trusted and right, all | 100 of 100 (100.00%; 96.38% to 100.00%) | ≥ 92% | met |" in text
