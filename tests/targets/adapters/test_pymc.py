"""PyMC models as targets: the same density, read on the same scale, and nothing of the user's settings touched."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from scipy import stats

import klover
from klover.importance.draws import over_draws
from klover.targets.adapters import pymc as adapter
from klover.targets.evaluator import Evaluator

pymc = pytest.importorskip("pymc")

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


@pytest.fixture(scope="module")
def schools():
    with pymc.Model(coords={"school": list("abcdefgh")}) as model:
        mu = pymc.Normal("mu", 0, 5)
        tau = pymc.HalfCauchy("tau", 5)
        eta = pymc.Normal("eta", dims="school")
        theta = pymc.Deterministic("theta", mu + tau * eta, dims="school")
        pymc.Normal("y", theta, ERRORS, observed=EFFECTS, dims="school")
    return model


@pytest.fixture(scope="module")
def target(schools):
    return klover.from_pymc(schools)


def test_the_density_is_that_of_pymc(schools, target):
    function = schools.compile_logp()
    for seed in range(3):
        x = np.random.default_rng(seed).normal(size=target.dim)
        position = {name: np.asarray(value) for name, value in target.unravel(x).items()}
        assert float(target.log_prob(x)) == pytest.approx(float(function(position)), rel=1e-12)


def test_people_read_variables_with_their_dims(target):
    assert {name.split("[")[0] for name in target.names} == {"mu", "tau", "eta", "theta"}
    model_info = target.model_info
    assert model_info.dims["theta"] == ("school",)
    assert list(model_info.coords["school"]) == list("abcdefgh")
    np.testing.assert_array_equal(model_info.observed["y"], EFFECTS)
    assert model_info.improper == ()


def test_unconstrain_is_the_inverse_of_constrain(target):
    x = np.random.default_rng(0).normal(size=target.dim)
    back = target.model_info.unconstrain(target.position(x))
    for name, value in target.unravel(x).items():
        np.testing.assert_allclose(back[name], value, rtol=1e-12)


def test_a_transform_may_need_other_variables():
    with pymc.Model() as model:
        upper = pymc.HalfNormal("upper", 1.0)
        pymc.Uniform("inside", 0.0, upper)
    target = klover.from_pymc(model)
    x = np.array([0.3, -0.7])
    back = target.model_info.unconstrain(target.position(x))
    np.testing.assert_allclose(np.concatenate([np.ravel(back[name]) for name in target.unravel(x)]), x, rtol=1e-10)


def test_log_likelihood_of_each_observation(target):
    position = target.position(np.zeros(target.dim))
    found = target.model_info.log_likelihood(position)["y"]
    expected = -0.5 * ((EFFECTS - position["theta"]) / ERRORS) ** 2 - np.log(ERRORS) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_log_prior_of_each_variable_has_no_jacobian(target):
    position = target.position(np.linspace(-1.0, 1.0, target.dim))
    # PyMC takes the logarithms of whole numbers in single precision.
    found = target.model_info.log_prior(position)
    np.testing.assert_allclose(found["mu"], stats.norm(0, 5).logpdf(position["mu"]), rtol=1e-7)
    np.testing.assert_allclose(found["tau"], stats.halfcauchy(scale=5).logpdf(position["tau"]), rtol=1e-7)
    np.testing.assert_allclose(found["eta"], stats.norm.logpdf(position["eta"]), rtol=1e-7)


@pytest.fixture(scope="module")
def fit(target):
    return klover.refine(jax.random.key(0), target)


def test_refine_gives_the_known_evidence(fit):
    assert fit.verdict.trusted
    assert abs(fit.log_evidence + 31.3113) < 5 * fit.log_evidence_se


def test_predictions_are_noise_around_their_draws(fit):
    first, again = (fit.to_datatree(key=jax.random.key(1), num_draws=500, predictive=True) for _ in range(2))
    assert first["posterior_predictive"]["y"].dims == ("chain", "draw", "school")
    noise = (first["posterior_predictive"]["y"] - first["posterior"]["theta"]) / ERRORS
    assert abs(float(noise.mean())) < 5 / np.sqrt(4000)
    assert float(noise.std()) == pytest.approx(1.0, abs=5 / np.sqrt(8000))
    np.testing.assert_array_equal(first["posterior_predictive"]["y"], again["posterior_predictive"]["y"])


def test_predictions_of_mixtures_have_their_weights_and_are_compiled_once(monkeypatch):
    compiled, compile_graph = [], pymc.pytensorf.compile
    monkeypatch.setattr(
        pymc.pytensorf, "compile", lambda *rest, **more: compiled.append(0) or compile_graph(*rest, **more)
    )
    with pymc.Model() as model:
        pymc.Normal("unused")
        pymc.NormalMixture("y", [0.25, 0.75], [-2.0, 2.0], 0.5, observed=np.zeros(20))
    predict = klover.from_pymc(model).model_info.predict
    keys = np.asarray(jax.random.key_data(jax.random.split(jax.random.key(0), 100)))
    y = over_draws(lambda key, x: predict(jax.random.wrap_key_data(key), x), keys, {"unused": np.zeros(100)})["y"]
    assert len(compiled) == 1
    assert len(np.unique(y)) == y.size == 2000
    assert abs(y.mean() - 1.0) < 5 * np.sqrt(3.25 / y.size)


def test_categories_are_drawn_at_once_and_are_those_of_pytensor():
    p = np.random.default_rng(0).dirichlet(np.ones(4), size=(3, 50))
    variables = [
        pymc.Categorical.dist(p=p),
        pymc.Categorical.dist(p=p[0], shape=(2, 50)),
        pymc.Categorical.dist(p=[0.2, 0.8], shape=7),
    ]
    drawn = pymc.draw(variables, mode=adapter._mode(), random_seed=1)
    expected = pymc.draw(variables, mode="FAST_COMPILE", random_seed=1)
    for ours, theirs in zip(drawn, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    function = pymc.pytensorf.compile([], variables, mode=adapter._mode())
    drawing = [type(node.op).__name__ for node in function.maker.fgraph.apply_nodes if "categorical" in str(node.op)]
    assert drawing == ["Categories"] * 3


def test_ordered_variables_begin_somewhere():
    ordered = pymc.distributions.transforms.ordered
    with pymc.Model() as model:
        pymc.Normal("mu", 0, 5, shape=3, transform=ordered)
    target = klover.from_pymc(model)
    np.testing.assert_array_equal(target.position(target.start)["mu"], [0.0, 1.0, 2.0])
    with pymc.Model() as wrong:
        pymc.Normal("nu", 0, 5, shape=3, transform=ordered, initval=np.array([1.0, 0.0, 2.0]))
    with pytest.raises(ValueError, match="variable 'nu' begins outside of its support, or at its edge, by its initval"):
        klover.from_pymc(wrong)


def test_flat_priors_are_named_as_improper():
    with pymc.Model() as model:
        pymc.Flat("level")
        pymc.HalfFlat("scale")
        pymc.Normal("rest")
    assert klover.from_pymc(model).model_info.improper == ("level", "scale")


def test_draws_of_the_prior_are_unconstrained():
    with pymc.Model() as model:
        mu = pymc.Normal("mu", 3.0, 2.0)
        pymc.HalfNormal("scale", 1.0)
        pymc.Uniform("inside", -1.0, 2.0)
        pymc.Normal("slope", mu, 1.0, shape=2)
    target = klover.from_pymc(model)
    draws = Evaluator(target).prior_draws()
    assert draws.shape == (256, 5)
    found = {name: np.asarray(value) for name, value in jax.vmap(target.unravel)(draws).items()}
    inside = 3 / (1 + np.exp(-found["inside_interval__"])) - 1
    for values, law in (
        (found["mu"], stats.norm(3, 2)),
        (np.exp(found["scale_log__"]), stats.halfnorm),
        (inside, stats.uniform(-1, 3)),
        # Slopes scatter around the mean that was drawn with them.
        (found["slope"][:, 1] - found["mu"], stats.norm),
    ):
        assert stats.kstest(values, law.cdf).pvalue > 1e-3


def no_density(x):
    return -(x**2)


def test_a_prior_without_draws_gives_no_starts():
    with pymc.Model() as flat:
        pymc.Flat("level")
    with pymc.Model() as custom:
        pymc.CustomDist("x", logp=no_density)
    assert klover.from_pymc(flat).model_info.prior is None
    for model in (flat, custom):
        assert Evaluator(klover.from_pymc(model)).prior_draws().shape == (0, 1)


def test_what_has_no_density_is_refused():
    with pymc.Model() as discrete:
        pymc.Poisson("count", 3.0)
    with pytest.raises(ValueError, match="discrete variables, count"):
        klover.from_pymc(discrete)
    with pymc.Model() as empty:
        pymc.Normal("y", 0, 1, observed=1.0)
    with pytest.raises(ValueError, match="nothing to infer"):
        klover.from_pymc(empty)
    with pytest.raises(TypeError, match=r"pymc\.Model, got a str"):
        klover.from_pymc("model")


@pytest.mark.parametrize("flags", [None, "--xla_cpu_enable_fast_math=false"])
def test_flags_devices_and_precision_stay_as_they_were(flags):
    program = """
import os, pymc, klover, jax
with pymc.Model() as model:
    pymc.Normal("x")
with jax.enable_x64(True):
    klover.from_pymc(model)
print(os.environ.get("XLA_FLAGS"), len(jax.devices()), jax.config.jax_enable_x64)
"""
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_ENABLE_X64")}
    environment |= {} if flags is None else {"XLA_FLAGS": flags}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(flags), "1", "False"]
