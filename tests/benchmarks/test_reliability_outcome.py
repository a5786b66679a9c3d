"""What counts as wrong, and what is kept of a fit."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.reliability import case, outcome, report, work
from benchmarks.reliability.outcome import Answer
from benchmarks.reliability.truth import Truth

import klover

TRUTH = Truth(1.0, np.array([0.0, 10.0]), np.array([1.0, 2.0]))
RIGHT = Answer(np.array([0.0, 10.0]), np.array([1.0, 2.0]), np.array([0.01, 0.02]), 1.0, 0.01)


@pytest.mark.parametrize(
    ("change", "wrong_by"),
    [
        ({}, []),
        ({"log_evidence": 1.049}, []),  # more than 5 errors, but less than 0.05
        ({"log_evidence": 1.051}, ["log_z"]),
        ({"log_evidence": 1.2, "log_evidence_se": 0.041}, []),  # less than 5 errors
        ({"log_evidence": 1.2, "log_evidence_se": 0.039}, ["log_z"]),
        ({"log_evidence": 1.19, "log_evidence_se": None}, []),
        ({"log_evidence": 1.21, "log_evidence_se": None}, ["log_z"]),
        ({"log_evidence": None}, []),
        ({"log_evidence": np.nan}, ["log_z"]),
        ({"mean": np.array([0.0, 10.39])}, []),
        ({"mean": np.array([0.0, 10.41])}, ["mean"]),
        ({"mean": np.array([np.nan, 10.0])}, ["mean"]),
        ({"sd": np.array([1.19, 2.0])}, []),
        ({"sd": np.array([0.79, 2.0])}, ["sd"]),
        ({"sd": np.array([1.0, 2.41])}, ["sd"]),
        ({"log_evidence": 0.0, "mean": np.ones(2), "sd": np.zeros(2)}, ["log_z", "mean", "sd"]),
    ],
)
def test_what_is_wrong(change, wrong_by):
    assert outcome.compare(TRUTH, dataclasses.replace(RIGHT, **change))["wrong_by"] == wrong_by


def test_only_what_exists_counts_and_the_errors_of_the_truth_are_added():
    far = dataclasses.replace(RIGHT, mean=np.array([0.3, 10.0]), sd=np.array([1.3, 2.0]))
    assert outcome.compare(TRUTH, far)["wrong_by"] == ["mean", "sd"]
    assert outcome.compare(Truth(1.0), far)["wrong_by"] == []
    heavy = dataclasses.replace(TRUTH, has_sd=np.array([False, True]))
    assert outcome.compare(heavy, far)["wrong_by"] == ["mean"]
    unsure = dataclasses.replace(TRUTH, mean_se=np.full(2, 0.021), sd_se=np.full(2, 0.021))
    assert outcome.compare(unsure, far)["wrong_by"] == []
    assert outcome.compare(dataclasses.replace(TRUTH, log_evidence_se=0.1), RIGHT)["wrong_by"] == []


def test_scores_are_errors_in_units_of_what_was_stated():
    answer = dataclasses.replace(RIGHT, log_evidence=1.02, mean=np.array([0.03, 9.9]))
    found = outcome.compare(dataclasses.replace(TRUTH, mean_se=np.array([0.0, 0.015])), answer)
    assert found["log_z_score"] == pytest.approx(2.0)
    assert found["mean_scores"] == pytest.approx([3.0, -4.0])
    assert found["mean_error"] == pytest.approx(0.05)
    assert outcome.compare(TRUTH, dataclasses.replace(RIGHT, log_evidence_se=0.0))["log_z_score"] is None


@pytest.mark.parametrize(
    ("truth", "is_trusted", "wrong_by", "name"),
    [
        (TRUTH, True, [], "trusted right"),
        (TRUTH, True, ["sd"], "trusted wrong"),
        (TRUTH, False, ["sd"], "refused"),
        (TRUTH, False, [], "refused"),
        (Truth(None), True, [], "trusted"),
        (Truth(None, is_proper=False), True, ["improper"], "trusted wrong"),
        (Truth(None, is_proper=False), False, ["improper"], "refused"),
    ],
)
def test_outcomes(truth, is_trusted, wrong_by, name):
    assert outcome.outcome_of(truth, is_trusted, wrong_by) == name


def test_no_posterior_is_wrong_whatever_the_answer():
    assert outcome.compare(Truth(None, is_proper=False), RIGHT)["wrong_by"] == ["improper"]


def make_case(logdensity, dim=2, **known):
    target = klover.Target(logdensity, np.zeros(dim))
    return case.Case("known/dev/made/0", target, Truth(np.log(2 * np.pi), np.zeros(dim), np.ones(dim)), **known)


def normal(x):
    return -0.5 * jnp.sum(x**2)


def test_a_line_holds_what_became_of_a_fit(monkeypatch):
    parts = case.Parts(
        np.array([0.5, 0.5]),
        np.zeros((2, 2)),
        np.zeros((2, 2, 2)),
        lambda x: np.stack([x[:, 0] < 0, x[:, 0] >= 0], axis=1),
    )
    monkeypatch.setattr(case, "build", lambda name: make_case(normal, parts=parts, measure=lambda fit: {"more": 1}))
    line = json.loads(json.dumps(work.run("known/dev/made/0")))
    assert (line["id"], line["outcome"], line["status"]) == ("known/dev/made/0", "trusted right", "TRUSTED")
    assert (line["dim"], line["kind"], line["more"], line["has_box"]) == (2, "importance", 1, False)
    assert line["masses"] == pytest.approx([0.5, 0.5], abs=0.05)
    assert abs(line["log_z_error"]) < 5 * line["log_z_se"]
    assert max(map(abs, line["mean_scores"])) < 5
    assert line["evaluations"] > 1000


def test_warnings_about_arithmetic_are_counted(monkeypatch):
    def refine(*_, **__):
        np.log(np.zeros(1))
        raise ValueError("nothing follows.")

    monkeypatch.setattr(case, "build", lambda name: make_case(normal))
    assert "warned" not in work.run("known/dev/made/0")
    monkeypatch.setattr(klover, "refine", refine)
    line = work.run("known/dev/made/0")
    assert [each.partition(" ")[2] for each in line["warned"]] == ["divide by zero encountered in log"]
    assert "with a RuntimeWarning 1: test_reliability_outcome.py" in report.text([line])


def test_an_exception_and_an_endless_fit_are_outcomes(monkeypatch):
    monkeypatch.setattr(case, "build", lambda name: make_case(lambda x: jnp.where(x[0] > 1e9, 0.0, -jnp.inf)))
    line = work.run("known/dev/made/0")
    assert (line["outcome"], line["status"]) == ("raised", "ValueError")
    assert "refine.py" in line["where"]

    def endless(*_, **__):
        while True:
            pass

    monkeypatch.setattr(klover, "refine", endless)
    assert work.run("known/dev/made/0", limit=0.05)["outcome"] == "unfinished"


def test_a_case_that_cannot_be_made_counts_for_nothing(monkeypatch):
    def build(name):
        raise ArithmeticError("the grid is too coarse.")

    monkeypatch.setattr(case, "build", build)
    line = work.run("known/dev/rounded/0")
    assert (line["outcome"], line["reason"]) == ("not made", "the grid is too coarse.")
    text = report.text(
        [line, {"id": "known/dev/rounded/1", "arm": "known", "family": "rounded", "outcome": "unfinished"}]
    )
    assert "1 cases could not be made" in text
    assert "all: 1 fits" in text


def test_everything_becomes_json():
    value = {"a": np.array([1.0, np.nan]), "b": np.float32(0.5), "c": (np.inf, True, None), 3: object}
    assert outcome.jsonable(value) == {"a": [1.0, None], "b": 0.5, "c": [None, True, None], "3": repr(object)}
