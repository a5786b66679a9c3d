"""Other tools on the same cases: judged by the same rule, each trusted by its own criterion."""

import types

import numpy as np
import pytest
from benchmarks.reliability import PEERS, TRUST, case, peering

from benchmarks import peers
from helpers import needs

NAME = "known/dev/gaussian/1"


def tool(monkeypatch, answer):
    """Let every peer be a tool that gives this answer."""
    module = types.SimpleNamespace(prepare=lambda task: lambda seed: answer(task))
    monkeypatch.setattr(peers, "load", lambda name: (module, {}))


def exact(task, **changes):
    x = task.sample(np.random.default_rng(0), 4000)
    return peers.Answer(**{"x": x, "log_evidence": task.log_evidence, "num_gradients": 7} | changes)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (exact, "trusted right"),
        (lambda task: exact(task, x=task.sample(np.random.default_rng(0), 4000) + task.sd), "trusted wrong"),
        (lambda task: exact(task, log_evidence=task.log_evidence + 0.3), "trusted wrong"),
        (lambda task: exact(task, complaint="k 0.9"), "refused"),
        # Chains of exact draws have as many effective draws; of 300 there are fewer than 400.
        (lambda task: exact(task, x=task.sample(np.random.default_rng(0), 4000).reshape(4, 1000, -1)), "trusted right"),
        (lambda task: exact(task, x=task.sample(np.random.default_rng(0), 300).reshape(3, 100, -1)), "refused"),
    ],
)
def test_answers_are_judged_by_the_same_rule(monkeypatch, answer, outcome):
    tool(monkeypatch, answer)
    found = peering.solve(case.build(NAME), "nuts", 0)
    assert found["outcome"] == outcome
    assert found["evaluations"] == 7


def test_a_tool_is_asked_only_what_it_can_do(monkeypatch):
    tool(monkeypatch, lambda task: exact(task, num_evaluations=len(task.box())))
    assert peering.solve(case.build(NAME), "dynesty", 0)["outcome"] == "unsuited"
    boxed = case.build("known/dev/mixture/15")
    assert boxed.target.box is not None
    assert peering.solve(boxed, "dynesty", 0)["outcome"] == "trusted right"
    values = peering.solve(case.build("known/dev/values_only/1"), "nuts", 0)
    assert (values["outcome"], values["reason"]) == ("unsuited", "known/dev/values_only/1 has no gradient.")


def test_a_tool_that_is_not_installed_has_no_outcomes(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named '{name}'")

    monkeypatch.setattr(peers, "load", missing)
    with pytest.raises(SystemExit, match="dynesty cannot be run: No module named 'dynesty'. It comes with the extra"):
        peering.solve(case.build(NAME), "dynesty", 0)


def test_every_tool_has_a_criterion():
    assert set(TRUST) == {"klover", *PEERS}


@needs("blackjax")
def test_a_real_tool_goes_all_the_way():
    found = peering.solve(case.build(NAME), "pathfinder", 0)
    assert found["outcome"] == "trusted right"
