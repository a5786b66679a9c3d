import numpy as np
import pytest
from scipy import stats

import klover

cobaya = pytest.importorskip("cobaya.run")
getdist = pytest.importorskip("getdist")

PARAMETERS = {
    "a": {"prior": {"min": -1.0, "max": 1.0}},
    "b": {"prior": {"dist": "norm", "loc": 0.0, "scale": 1.0}},
    "sum": {"derived": True},
}
TURN = {"turn": {"prior": {"min": 0.0, "max": 2 * np.pi}, "periodic": True}}


def log_likelihood(a, b):
    """Multiply two Normal densities, and derive a sum."""
    return -0.5 * ((a - 0.2) / 0.1) ** 2 - 0.5 * (b - 0.5) ** 2 - np.log(0.1 * 2 * np.pi), {"sum": a + b}


def information(**options):
    return {
        "likelihood": {"bell": {"external": log_likelihood, "output_params": ["sum"]}},
        "prior": {"more": lambda b: -0.5 * b**2},
        "params": PARAMETERS,
        "sampler": {"klover": {"seed": 3} | options},
    }


def test_a_chain_that_getdist_reads_and_the_evidence(tmp_path):
    count = []

    def counted(a, b):
        count.append(1)
        return log_likelihood(a, b)

    about = information() | {"output": str(tmp_path / "chain")}
    about["likelihood"]["bell"]["external"] = counted
    sampler = cobaya.run(about)[1]
    products = sampler.products()
    assert products["klover"]["trusted"]
    # Three Normals of b multiply: precision 3 and mean 1/6; the external one is not normalised.
    log_b = stats.norm.logpdf(0.5, 0, np.sqrt(1.5)) + 0.5 * np.log(2 * np.pi) - 0.5 * np.log(2 * np.pi * 2)
    truth = np.log(0.5) + log_b
    assert abs(products["logZ"] - truth) < 4 * products["logZstd"] < 0.2
    # What the chain needs was kept when it was evaluated.
    assert len(count) <= sampler.fit.num_evaluations + 10
    chain = getdist.loadMCSamples(str(tmp_path / "chain"))
    assert chain.sampler == "nested"
    assert chain.mean("a") == pytest.approx(0.2, abs=0.02)
    assert chain.std("b") == pytest.approx(1 / np.sqrt(3), rel=0.1)
    assert chain.mean("sum") == pytest.approx(0.2 + 1 / 6, abs=0.1)
    assert sampler.products(to_getdist=True)["sample"].mean("a") == pytest.approx(chain.mean("a"), rel=1e-6)
    assert "trusted: true" in (tmp_path / "chain.logZ").read_text()


def test_a_refused_answer_is_returned_and_said_loudly(caplog):
    about = information(budget=300)
    about["params"] = PARAMETERS | TURN
    about["likelihood"]["turn"] = {"external": lambda turn: 50 * (np.cos(turn) - 1)}
    sampler = cobaya.run(about)[1]
    assert sampler.target.dim == 4  # a circle is the angle of a point in the plane
    assert not sampler.products()["klover"]["trusted"]
    assert len(sampler.samples()) > 0
    assert "klover REFUSES this answer" in caplog.text


def test_the_package_answers_to_its_name():
    from cobaya.component import get_component_class

    assert get_component_class("klover", kind="sampler") is klover.get_cobaya_class()
    assert set(klover.get_cobaya_class().get_defaults()) >= {"budget", "min_ess", "search", "seed"}
