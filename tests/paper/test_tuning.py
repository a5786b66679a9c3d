"""Successive halving on a small ladder."""

import json

from klover.paper import methods, tuning
from klover.paper.tuning import Rung


def test_the_better_rate_is_chosen(getkey, monkeypatch):
    monkeypatch.setattr(methods, "NUM_DRAWS", 500)
    monkeypatch.setattr(tuning, "RATES", (1e-4, 0.1))
    monkeypatch.setattr(tuning, "INITIAL_SCALES", (0.01,))
    monkeypatch.setattr(tuning, "LADDER", (Rung(100, 20, (1,), 2),))
    monkeypatch.setattr(tuning, "LAST", (Rung(150, 20, (1, 2), 2),))
    found = tuning.tune(getkey(), "blr", "power", "rkl-vi")
    # In a hundred steps the small rate has hardly left the start.
    assert found["choices"]["learning_rate_location"] == 0.1
    assert -3.2 < found["validation"] < -2.7


def test_relatives_share_choices_and_the_rest_has_the_defaults(tmp_path):
    tuned = {"bnn boston fkl-vb3": {"choices": {"num_steps": 7}, "validation": -1.0}}
    tuning.save(tmp_path / "tuned.json", tuned)
    read = json.loads((tmp_path / "tuned.json").read_text())
    assert tuning.of(read, "bnn", "boston", "fkl-vb2").num_steps == 7
    assert tuning.of(read, "bnn", "wine", "fkl-vb2") == methods.Choices()


def test_what_comes_with_the_package_can_be_read():
    for name, entry in tuning.shipped().items():
        table, dataset, method = name.split()
        assert tuning.of(tuning.shipped(), table, dataset, method) == methods.Choices(**entry["choices"])
