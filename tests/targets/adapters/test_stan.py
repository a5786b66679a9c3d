import importlib
import json
import shutil
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import klover
from klover.base import optional
from klover.results.datatree import to_datatree
from klover.targets.adapters import stan, stan_program
from klover.targets.adapters.stan import from_stan
from klover.targets.evaluator import Evaluator

PROGRAM = """
functions {
  real centred_lpdf(real x, real scale) {
    return normal_lupdf(x | 0, scale);
  }
}
data {
  int<lower=0> N;
  vector[N] y;
}
parameters {
  real mu;
  real<lower=0> sigma;
  real<lower=-1, upper=2> share;
  real<lower=0, upper=1> loose;
  real<upper=3> top;
  matrix[2, 2] A;
}
transformed parameters {
  real variance = sigma ^ 2;
}
model {
  mu ~ centred(2);
  share ~ uniform(-1, 2);
  top ~ normal(0, 1) T[, 3];
  to_vector(A) ~ std_normal();
  y ~ normal(mu, sigma);
  if (mu > 1e10) reject("mu is too large");
  if (mu < -1e10) fatal_error("mu is too small");
}
generated quantities {
  real again = normal_rng(mu, sigma);
  vector[N] log_lik;
  vector[N] y_rep;
  for (n in 1:N) {
    log_lik[n] = normal_lpdf(y[n] | mu, sigma);
    y_rep[n] = normal_rng(mu, sigma);
  }
  array[2] vector[2] pair = {[mu, sigma]', [share, top]'};
}
"""
Y = np.array([0.3, 1.9, -0.4, 1.1, 0.8, 1.6])
DATA = {"N": 6, "y": Y}
DIM = 9


# The C++ compiler takes the best part of a minute.
@pytest.fixture(scope="session", params=[pytest.param(PROGRAM, id="compiled", marks=pytest.mark.slow)])
def target(request):
    pytest.importorskip("httpstan", reason="needs klover[stan]")
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler")
    return from_stan(request.param, DATA)


def by_hand(u):
    """Return the log density of the program at an unconstrained point."""
    mu, sigma, top, normal = u[0], jnp.exp(u[1]), 3 - jnp.exp(u[4]), jax.scipy.stats.norm
    log_prior = normal.logpdf(mu, 0, 2) - jnp.log(3) + normal.logpdf(top) - normal.logcdf(3.0)
    log_prior += normal.logpdf(u[5:]).sum()
    log_jacobian = u[1] + jnp.log(3) + u[4] + jnp.sum(jax.nn.log_sigmoid(u[2:4]) + jax.nn.log_sigmoid(-u[2:4]))
    return log_prior + normal.logpdf(Y, mu, sigma).sum() + log_jacobian


def points(num):
    return np.random.default_rng(0).normal(size=(num, DIM))


def test_density_is_that_of_the_formula_with_all_constants(target):
    x = points(40)
    expected, slope = jax.vmap(jax.value_and_grad(by_hand))(x)
    np.testing.assert_allclose(target.log_prob(x), expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(target.log_prob(x[0]), expected[0], rtol=1e-10)
    value, gradient = Evaluator(target).values_and_gradients(x)
    np.testing.assert_allclose(value, expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(gradient, slope, rtol=1e-8, atol=1e-8)


def test_every_thread_can_evaluate(target):
    found, x = [], points(3)
    thread = threading.Thread(target=lambda: found.append(np.asarray(jax.vmap(jax.grad(target.log_prob))(x))))
    thread.start()
    thread.join()
    np.testing.assert_allclose(found[0], jax.vmap(jax.grad(by_hand))(x), rtol=1e-8, atol=1e-8)


def test_people_read_constrained_and_generated_quantities(target):
    x = points(5)
    position = jax.vmap(target.position)(x)
    np.testing.assert_allclose(position["mu"], x[:, 0])
    np.testing.assert_allclose(position["sigma"], np.exp(x[:, 1]), rtol=1e-12)
    np.testing.assert_allclose(position["variance"], np.exp(2 * x[:, 1]), rtol=1e-12)
    np.testing.assert_allclose(position["share"], 3 * jax.nn.sigmoid(x[:, 2]) - 1, rtol=1e-12)
    np.testing.assert_allclose(position["top"], 3 - np.exp(x[:, 4]), rtol=1e-12)
    # Stan's matrices are stored by columns.
    np.testing.assert_allclose(position["A"], x[:, 5:].reshape(5, 2, 2).transpose(0, 2, 1))
    expected = np.stack([position[name] for name in ("mu", "sigma", "share", "top")], axis=1).reshape(5, 2, 2)
    np.testing.assert_allclose(position["pair"], expected)
    assert {"A[1,1]", "pair[1,0]", "again"} <= set(target.names)


def test_random_quantities_are_seeded_by_the_point(target):
    x = points(2000)
    position = jax.vmap(target.position)(x)
    noise = (position["again"] - position["mu"]) / position["sigma"]
    assert stats.kstest(noise, "norm").pvalue > 0.01
    assert abs(stats.pearsonr(noise[1:], noise[:-1]).statistic) < 5 / np.sqrt(2000)
    np.testing.assert_array_equal(target.position(x[7])["again"], position["again"][7])


def test_generated_quantities_with_customary_names_reach_arviz(target):
    equal, none = np.full(400, -np.log(400.0)), np.asarray(0)
    draws = klover.WeightedDraws(points(400), equal, equal, equal, np.asarray(0.0), none, none, target)
    tree = to_datatree(draws, num_draws=300, predictive=True)
    mu, sigma = (tree["posterior"][name].values[0][:, None] for name in ("mu", "sigma"))
    np.testing.assert_allclose(tree["log_likelihood"]["log_lik"].values[0], stats.norm.logpdf(Y, mu, sigma), rtol=1e-9)
    noise = (tree["posterior_predictive"]["y"].values[0] - mu) / sigma
    assert noise.shape == (300, 6)
    assert abs(noise.mean()) < 5 / np.sqrt(1800)


def test_unconstrain_is_the_way_back(target):
    x = points(5)
    back = jax.vmap(target.model_info.unconstrain)(jax.vmap(target.position)(x))
    np.testing.assert_allclose(back, x, rtol=1e-9, atol=1e-9)
    outside = target.position(x[0]) | {"sigma": -1.0}
    assert np.isnan(target.model_info.unconstrain(outside)).any()


def test_model_info_knows_data_and_flat_priors(target):
    model_info = target.model_info
    assert model_info.name == "stan"
    assert model_info.improper == ("sigma",)
    np.testing.assert_array_equal(model_info.observed["y"], Y)


def test_rejected_points_are_outside_the_support_and_errors_are_reported(target):
    x = points(4)
    x[1, 0], x[2, 0] = 1e11, -1e11
    assert target.log_prob(x[1]) == -np.inf
    with pytest.warns(UserWarning, match=r"RuntimeError: .*mu is too small.*at np.array"):
        value = np.asarray(target.log_prob(x))
    np.testing.assert_allclose(value[[0, 3]], [by_hand(x[0]), by_hand(x[3])], rtol=1e-10)
    assert value[1] == -np.inf
    assert np.isnan(value[2])
    np.testing.assert_array_equal(target.model_info.failures.point, x[2])


def test_refine_finds_the_evidence(target, getkey):
    fit = klover.refine(getkey(), target)
    assert fit.verdict.trusted, fit.verdict
    mu, log_sigma = np.meshgrid(np.linspace(-6, 6, 601), np.linspace(-5, 6, 601), indexing="ij")
    log_joint = stats.norm.logpdf(Y[:, None, None], mu, np.exp(log_sigma)).sum(0)
    log_joint += stats.norm.logpdf(mu, 0, 2) + log_sigma
    log_evidence = np.log(np.exp(log_joint).sum() * (12 / 600) * (11 / 600))
    assert abs(fit.log_evidence - log_evidence) < 5 * fit.log_evidence_se


def test_files_of_program_and_data(target, tmp_path):
    program, data = tmp_path / "program.stan", tmp_path / "data.json"
    program.write_text(PROGRAM)
    data.write_text(json.dumps({"N": 0, "y": []}))
    code, without_prior = stan_program.translate(program)
    assert set(without_prior) == {"sigma", "loose"}
    assert stan_program.translate(str(program))[0] == code
    library = stan_program.compile_program(stan_program.translate(PROGRAM)[0])
    prior = stan._target(stan_program.CompiledModel(library, stan._read_data(data)), {}, ())
    x = points(1)[0]
    likelihood = stats.norm.logpdf(Y, x[0], np.exp(x[1])).sum()
    np.testing.assert_allclose(prior.log_prob(x), by_hand(x) - likelihood, rtol=1e-10)


def test_included_files_are_found_beside_the_program(target, tmp_path):
    (tmp_path / "shared.stan").write_text("real half(real x) { return x / 2; }")
    (tmp_path / "program.stan").write_text(
        "functions {\n#include shared.stan\n}\nparameters { real x; } model { target += -half(x)^2; }"
    )
    assert "half" in stan_program.translate(tmp_path / "program.stan")[0]


def test_data_that_do_not_fit_are_refused(target):
    with pytest.raises(ValueError, match=r"(?s)data do not fit the program: .*variable name=y.*line 9"):
        from_stan(PROGRAM, {"N": 6, "y": Y[:3]})
    with pytest.raises(ValueError, match="data do not fit the program"):
        from_stan(PROGRAM)


def test_a_wrong_program_is_shown_with_its_line():
    pytest.importorskip("httpstan", reason="needs klover[stan]")
    with pytest.raises(ValueError, match=r"(?s)refused by Stan's compiler:.*line 2, column.*2:  parameters"):
        from_stan("data {}\nparameters { real x }\nmodel {}")


def test_a_missing_compiler_is_named(monkeypatch):
    pytest.importorskip("httpstan", reason="needs klover[stan]")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(FileNotFoundError) as caught:
        stan_program.compile_program("not in the cache")
    assert "install g++ or clang++" in caught.value.__notes__[0]


def test_a_missing_httpstan_is_named_with_its_extra(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ModuleNotFoundError) as caught:
        from_stan("model {}")
    assert "httpstan: pip install 'klover[stan]'" in caught.value.__notes__[0]
    with pytest.raises(ModuleNotFoundError):
        optional.httpstan()


class FakeBridgeStan:
    """A Normal and an Exponential parameter behind the interface of BridgeStan."""

    def param_unc_num(self):
        return 3

    def param_names(self, include_tp=False, include_gq=False):
        return ["mu.1", "mu.2", "rate"] + ["twice.1.1", "twice.2.1"] * include_tp + ["noise", "lprior"] * include_gq

    def log_density_gradient(self, theta_unc, propto=True, jacobian=True):
        assert (propto, jacobian, theta_unc.dtype) == (False, True, np.float64)
        if theta_unc[0] > 5:
            raise RuntimeError("rejected")
        value = stats.norm.logpdf(theta_unc[:2]).sum() - np.exp(theta_unc[2]) + theta_unc[2]
        return value, np.append(-theta_unc[:2], 1 - np.exp(theta_unc[2]))

    def param_constrain(self, theta_unc, include_tp=False, include_gq=False, rng=None):
        assert include_tp
        assert include_gq
        return np.concatenate([theta_unc[:2], np.exp(theta_unc[2:]), 2 * theta_unc[:2], [rng.normal(), -theta_unc[1]]])

    def param_unconstrain(self, theta):
        if theta[2] <= 0:
            raise RuntimeError("outside")
        return np.append(theta[:2], np.log(theta[2]))

    def new_rng(self, seed):
        return np.random.default_rng(seed)


def test_models_of_bridgestan(getkey):
    target, x = from_stan(FakeBridgeStan()), points(6)[:, :3]
    expected = [FakeBridgeStan().log_density_gradient(point, False) for point in x]
    value, gradient = Evaluator(target).values_and_gradients(x)
    np.testing.assert_allclose(value, [each for each, _ in expected], rtol=1e-14)
    np.testing.assert_allclose(gradient, [each for _, each in expected], rtol=1e-14)
    assert target.log_prob(np.array([6.0, 0.0, 0.0])) == -np.inf
    position = jax.vmap(target.position)(x)
    assert position["twice"].shape == (6, 2, 1)
    np.testing.assert_array_equal(target.model_info.log_prior(position)["lprior"], -x[:, 1])
    np.testing.assert_allclose(position["rate"], np.exp(x[:, 2]), rtol=1e-14)
    np.testing.assert_allclose(jax.vmap(target.model_info.unconstrain)(position), x, rtol=1e-12)
    assert np.isnan(target.model_info.unconstrain({"mu": np.zeros(2), "rate": -1.0})).all()
    fit = klover.refine(getkey(), target)
    assert fit.verdict.trusted, fit.verdict
    assert abs(fit.log_evidence) < 5 * fit.log_evidence_se


def test_bad_arguments():
    refused = getattr(from_stan, "__wrapped__", from_stan)
    with pytest.raises(TypeError, match="program must be Stan code, .* got a int"):
        refused(3)
    with pytest.raises(ValueError, match="data must not be given with a bridgestan.StanModel"):
        from_stan(FakeBridgeStan(), {"N": 1})
    with pytest.raises(TypeError, match="data must be a dict of arrays or a path to a JSON file, got a list"):
        refused("model {}", [1.0])


@pytest.mark.parametrize(
    ("names", "shapes"),
    [
        (["a"], {"a": ()}),
        (["a.1", "a.2"], {"a": (2,)}),
        (["a.1.1", "a.2.1", "a.1.2", "a.2.2", "b"], {"a": (2, 2), "b": ()}),
        (["c.real", "c.imag", "t:1", "t:2.1", "t:2.2"], {"c.real": (), "c.imag": (), "t:1": (), "t:2": (2,)}),
    ],
)
def test_variables_are_found_in_flat_names(names, shapes):
    places = stan._places(names)
    assert {name: place.shape for name, place in places.items()} == shapes
    assert sorted(np.concatenate([place.ravel() for place in places.values()])) == list(range(len(names)))
    if "a.2.1" in names:
        np.testing.assert_array_equal(places["a"], [[0, 2], [1, 3]])
