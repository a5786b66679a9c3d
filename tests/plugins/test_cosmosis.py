"""CosmoSIS needs a Fortran compiler, so what stands here for it is what its sampler classes are documented to have."""

import importlib
import logging
import sys
import types

import numpy as np
import pytest


class ParallelSampler:
    def __init__(self, options, pipeline, output):
        self.ini, self.pipeline, self.output = options, pipeline, output

    def read_ini(self, name, kind, default=None):
        return kind(self.ini.get(name, default))


class Pipeline:
    """Two parameters on (-3, 3) with a Normal likelihood, and their sum."""

    nvaried, varied_params = 2, ("p--a", "p--b")

    def denormalize_vector_from_prior(self, u):
        return 6 * u - 3

    def run_results(self, p):
        prior, like = -2 * np.log(6), -0.5 * np.sum(p**2)
        return types.SimpleNamespace(prior=prior, like=like, post=prior + like, extra=[p.sum()], block={})


class Output:
    def __init__(self):
        self.rows, self.last = [], {}

    def parameters(self, point, extra, *numbers):
        self.rows.append([*point, *extra, *numbers])

    def final(self, name, value):
        self.last[name] = value


@pytest.fixture
def make(monkeypatch):
    samplers, runtime, logs = (types.ModuleType(name) for name in ("samplers", "runtime", "logs"))
    samplers.ParallelSampler, logs.error = ParallelSampler, logging.getLogger("cosmosis").error
    modules = {"": types.ModuleType("cosmosis"), ".samplers": samplers, ".runtime": runtime, ".runtime.logs": logs}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, "cosmosis" + name, module)
    monkeypatch.delitem(sys.modules, "klover.plugins.cosmosis", raising=False)
    plugin = importlib.import_module("klover.plugins.cosmosis")
    yield lambda options: plugin.KloverSampler(options, Pipeline(), Output())
    sys.modules.pop("klover.plugins.cosmosis")


def execute(sampler):
    sampler.config()
    assert not sampler.is_converged()
    sampler.execute()
    assert sampler.is_converged()
    return np.array(sampler.output.rows), sampler.output.last


def test_weighted_samples_and_the_evidence(make):
    rows, last = execute(make({"seed": 1, "min_ess": 1000}))
    assert last["trusted"]
    truth = np.log(2 * np.pi) + 2 * np.log(0.9973 / 6)
    assert abs(last["log_z"] - truth) < 4 * last["log_z_error"] < 0.2
    a, b, total, log_weight, prior, post = rows.T
    np.testing.assert_allclose(total, a + b)
    np.testing.assert_allclose(post, prior - 0.5 * (a**2 + b**2))
    assert np.exp(log_weight) @ a**2 == pytest.approx(0.973, abs=0.15)


def test_a_refused_answer_is_written_and_said_loudly(make, caplog):
    _, last = execute(make({"budget": 60}))
    assert not last["trusted"]
    assert "klover REFUSES this answer" in caplog.text
