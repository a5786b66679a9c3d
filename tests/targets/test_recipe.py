"""Copies for other processes: what can be pickled comes back and works, and what cannot says what to do."""

import copy
import functools
import os
import pickle
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from helpers import gaussian_log_density, needs

MEAN, COVARIANCE = np.array([1.0, -2.0]), np.array([[1.0, 0.3], [0.3, 0.5]])


def named():
    """Make a target of functions that another process can find."""
    return klover.Target(functools.partial(gaussian_log_density, mean=MEAN, covariance=COVARIANCE), np.zeros(2))


def nameless():
    return klover.Target(lambda x: gaussian_log_density(x, MEAN, COVARIANCE), np.zeros(2), box=(-9.0, 9.0))


@pytest.fixture(scope="module")
def fit():
    return klover.refine(0, named())


@pytest.fixture(scope="module")
def hidden_fit():
    return klover.refine(0, nameless())


@pytest.fixture
def _without_cloudpickle(monkeypatch):
    for name in list(sys.modules):
        if name.rpartition(".")[2] == "cloudpickle":
            monkeypatch.delitem(sys.modules, name)


def assert_same(one: klover.Fit, other: klover.Fit):
    assert str(one.summary()) == str(other.summary())
    assert one.verdict == other.verdict
    np.testing.assert_array_equal(one.importance(1, 50).log_weight, other.importance(1, 50).log_weight)
    np.testing.assert_array_equal(one.draws.expectation(jnp.sum), other.draws.expectation(jnp.sum))


@pytest.mark.usefixtures("_without_cloudpickle")
def test_a_fit_is_pickled_with_its_target(fit):
    assert_same(pickle.loads(pickle.dumps(fit)), fit)
    draws = pickle.loads(pickle.dumps(fit.draws))
    np.testing.assert_array_equal(draws.x, fit.draws.x)
    assert draws.target.dim == 2


def test_another_process_reads_a_pickled_fit(fit, tmp_path):
    (tmp_path / "a").write_bytes(pickle.dumps(fit))
    program = (
        "import jax, pickle, sys; jax.config.update('jax_enable_x64', True); "
        "print(pickle.load(open(sys.argv[1], 'rb')).importance(1, 50).log_evidence)"
    )
    command, paths = [sys.executable, "-c", program, str(tmp_path / "a")], os.pathsep.join(filter(None, sys.path))
    environment = os.environ | {"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert float(found.stdout) == pytest.approx(float(fit.importance(1, 50).log_evidence), abs=1e-10)


def test_results_without_functions_are_pickled_as_they_are(hidden_fit):
    for thing in (hidden_fit.verdict, hidden_fit.verdict.status):
        assert pickle.loads(pickle.dumps(thing)) == thing
    again = pickle.loads(pickle.dumps(hidden_fit.mixture))
    for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(hidden_fit.mixture), strict=True):
        np.testing.assert_array_equal(one, other)
    assert str(pickle.loads(pickle.dumps(hidden_fit.summary()))) == str(hidden_fit.summary())


def test_loaded_fits_are_pickled(hidden_fit, tmp_path):
    hidden_fit.save(tmp_path / "a")
    loaded = klover.load(tmp_path / "a")
    assert str(pickle.loads(pickle.dumps(loaded)).summary()) == str(hidden_fit.summary())


@pytest.mark.usefixtures("_without_cloudpickle")
def test_functions_without_a_name_are_refused_with_the_remedy(hidden_fit):
    for thing in (hidden_fit, hidden_fit.draws, hidden_fit.target):
        with pytest.raises(TypeError, match=r"the target cannot be pickled .*lambda.* fit\.save\(path\)"):
            pickle.dumps(thing)


def test_targets_that_jax_has_put_together_are_refused_with_the_remedy():
    moved = jax.tree.map(lambda leaf: leaf + 0, named())
    with pytest.raises(TypeError, match=r"went through jax\.jit, vmap or tree\.map.* fit\.save\(path\)"):
        pickle.dumps(moved)


@pytest.mark.parametrize("which", [copy.copy, copy.deepcopy])
def test_copies_share_the_target(hidden_fit, which):
    again = which(hidden_fit)
    assert again.target is hidden_fit.target
    assert again.draws.target is hidden_fit.target
    assert (again.draws.x is hidden_fit.draws.x) is (which is copy.copy)
    assert_same(again, hidden_fit)
    assert which(hidden_fit.mixture).dim == 2


@needs("cloudpickle")
def test_cloudpickle_takes_functions_without_a_name(hidden_fit):
    import cloudpickle

    again = cloudpickle.loads(cloudpickle.dumps(hidden_fit))
    assert_same(again, hidden_fit)
    np.testing.assert_array_equal(again.target.box[0], [-9.0, -9.0])


@needs("cloudpickle")
def test_what_cloudpickle_cannot_take_is_refused_with_the_remedy():
    import cloudpickle

    lock = threading.Lock()

    def logdensity(x):
        with lock:
            return -jnp.sum(x**2)

    with pytest.raises(TypeError, match=r"even by value .*fit\.save\(path\)"):
        cloudpickle.dumps(klover.Target(logdensity, np.zeros(1)))


def test_callbacks_are_made_again():
    target = klover.from_callback(np.sum, 2, bounds=(0.0, [1.0, 2.0]), names=["a", "b"])
    again = pickle.loads(pickle.dumps(target))
    assert again.names == ("a", "b")
    np.testing.assert_array_equal(again.log_prob(np.ones(2)), target.log_prob(np.ones(2)))


@needs("numpyro", "cloudpickle")
def test_models_of_numpyro_are_made_again():
    import cloudpickle
    import numpyro

    def model(y):
        numpyro.sample("y", numpyro.distributions.Normal(numpyro.sample("mu", numpyro.distributions.Normal())), obs=y)

    target = klover.from_numpyro(model, np.array(0.7))
    again = cloudpickle.loads(cloudpickle.dumps(target))
    np.testing.assert_array_equal(again.log_prob(np.ones(1)), target.log_prob(np.ones(1)))
    assert again.model_info.name == "numpyro"
