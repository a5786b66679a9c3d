"""Labelled results: what ArviZ and files are given is what was drawn, under the model's own names."""

import json
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from helpers import judged
from klover.base import optional
from klover.importance import psis
from klover.results import datatree
from klover.targets.model_info import ModelInfo

az = pytest.importorskip("arviz")
xarray = pytest.importorskip("xarray")

NUM_ROWS, GROUPS = 12, ["a", "b", "c"]
Y = np.random.default_rng(0).permuted(np.tile(np.linspace(-1.5, 1.5, NUM_ROWS), (len(GROUPS), 1)), axis=1).T


def log_likelihood(position):
    return {"y": jax.scipy.stats.norm.logpdf(Y, position["mean"], position["scale"])}


def predict(key, position):
    return {"y": position["mean"] + position["scale"] * jax.random.normal(key, Y.shape)}


def make_target(**known):
    """Observe groups with means of their own and one scale."""

    def constrain(position):
        return {"mean": position["mean"], "scale": jnp.exp(position["log_scale"])}

    def logdensity(position):
        log_prior = -0.5 * jnp.sum(position["mean"] ** 2) - 0.5 * position["log_scale"] ** 2
        return log_prior + log_likelihood(constrain(position))["y"].sum()

    model_info = ModelInfo(
        "language",
        dims={"mean": ("group",), "y": ("row", "group")},
        coords={"group": GROUPS},
        observed={"y": Y},
        **{"log_likelihood": log_likelihood, "predict": predict, **known},
    )
    example = {"mean": np.zeros(3), "log_scale": 0.0}
    return klover.Target(logdensity, example, constrain=constrain, model_info=model_info)


def fit_around(target, scale=(0.15, 0.35, 0.35, 0.35), num_draws=3000):
    """Weight draws of one component around the example."""
    spread = np.square(scale) * np.ones((1, target.dim))
    mixture = klover.Mixture.of(klover.Family("student", "diagonal", df=5.0).components(np.zeros_like(spread), spread))
    x = mixture.draw(np.random.default_rng(1), num_draws)
    log_p, log_q = np.asarray(jax.jit(klover.Target.log_prob)(target, x)), mixture.log_prob(x)
    log_weight, pareto_k = psis.smooth(log_p - log_q)
    none = np.asarray(0)
    draws = klover.WeightedDraws(x, log_p, log_q, log_weight, pareto_k, none, none, target)
    return klover.Fit(target, mixture, draws, {}, judged(draws, mixture), settings={"function": "none", "key": [0, 1]})


@pytest.fixture(scope="module")
def fit():
    return fit_around(make_target())


@pytest.fixture(scope="module")
def tree(fit):
    return fit.to_datatree(500, key=3, predictive=True)


def test_groups_and_names(tree):
    assert set(tree.children) == {
        "posterior",
        "sample_stats",
        "proposal",
        "observed_data",
        "log_likelihood",
        "posterior_predictive",
    }
    assert tree["posterior"]["mean"].dims == ("chain", "draw", "group")
    assert tree["posterior"]["mean"].shape == (1, 500, 3)
    assert tree["posterior"]["scale"].dims == ("chain", "draw")
    assert tree["posterior"]["group"].values.tolist() == GROUPS
    for group in ("log_likelihood", "posterior_predictive"):
        assert tree[group]["y"].dims == ("chain", "draw", "row", "group")
        assert tree[group]["y"].shape == (1, 500, *Y.shape)
    assert tree["observed_data"]["y"].dims == ("row", "group")
    np.testing.assert_array_equal(tree["observed_data"]["y"], Y)


def test_draws_and_their_figures_belong_together(tree, fit):
    posterior = tree["posterior"]
    for place in (0, 17, 499):
        position = {name: posterior[name].values[0, place] for name in ("mean", "scale")}
        x = np.array([np.log(position["scale"]), *position["mean"]])
        np.testing.assert_allclose(tree["sample_stats"]["lp"].values[0, place], fit.target.log_prob(x), rtol=1e-9)
        expected = log_likelihood(position)["y"]
        np.testing.assert_allclose(tree["log_likelihood"]["y"].values[0, place], expected, rtol=1e-9)


def test_proposal_is_the_weighted_pool(tree, fit):
    proposal, draws = tree["proposal"], fit.draws
    np.testing.assert_allclose(proposal["scale"].values[0], np.exp(draws.x[:, 0]))
    np.testing.assert_array_equal(proposal["mean"].values[0], draws.x[:, 1:])
    for name in ("log_p", "log_q", "log_ratio", "log_weight"):
        np.testing.assert_array_equal(proposal[name].values[0], getattr(draws, name))
    weight = np.exp(proposal["log_weight"].values)
    assert weight.sum() == pytest.approx(1)


def test_posterior_has_the_means_of_the_weighted_draws(fit):
    posterior = fit.to_datatree(num_draws=20_000)["posterior"]
    values, error = fit.draws.expectation(lambda position: position)
    for name in ("mean", "scale"):
        # Resampling adds the scatter of 20,000 systematic draws, which is below that of independent ones.
        spread = posterior[name].std(("chain", "draw")).values / np.sqrt(20_000)
        difference = posterior[name].mean(("chain", "draw")).values - values[name]
        assert np.all(np.abs(difference) < 5 * spread)
        assert np.all(spread < error[name])


def test_draws_come_in_random_order(fit):
    values = fit.to_datatree(num_draws=4000)["posterior"]["scale"].values[0]
    correlation = np.corrcoef(values[1:], values[:-1])[0, 1]
    assert abs(correlation) < 5 / np.sqrt(4000)


def test_predictions_follow_the_model(tree):
    posterior, new = tree["posterior"], tree["posterior_predictive"]["y"].values
    score = (new - posterior["mean"].values[:, :, None]) / posterior["scale"].values[:, :, None, None]
    assert abs(score.mean()) < 5 / np.sqrt(score.size)
    assert abs(score.var() - 1) < 5 * np.sqrt(2 / score.size)


def test_attributes(tree, fit):
    attributes = tree.attrs
    assert attributes["inference_library"] == tree["posterior"].attrs["inference_library"] == "klover"
    assert attributes["inference_library_version"] == klover.__version__
    assert attributes["jax_version"] == jax.__version__
    for name in ("pareto_k", "ess", "log_evidence", "log_evidence_se"):
        assert attributes[name] == getattr(fit, name)
    assert attributes["verdict"] == "trusted"
    assert attributes["verdict_reason"] == fit.verdict.reason
    assert attributes["verdict_remedy"] == ""
    assert json.loads(attributes["settings"]) == fit.settings
    assert "verdict" not in datatree.to_datatree(fit.draws).attrs


def test_equal_keys_give_equal_trees(fit):
    trees = [fit.to_datatree(50, key, True) for key in (0, jax.random.key(0), 5)]
    assert trees[0].identical(trees[1])
    assert not trees[0].identical(trees[2])


def test_netcdf_keeps_everything(tree, tmp_path):
    pytest.importorskip("h5netcdf")
    tree.to_netcdf(tmp_path / "fit.nc", engine="h5netcdf")
    with xarray.open_datatree(tmp_path / "fit.nc", engine="h5netcdf") as again:
        assert again.attrs == tree.attrs
        xarray.testing.assert_equal(again.load(), tree)
    tree.to_netcdf(tmp_path / "again.nc", engine="h5netcdf")
    with xarray.open_datatree(tmp_path / "again.nc", engine="h5netcdf") as again:
        assert again["posterior"].attrs == tree["posterior"].attrs


def test_arviz_reads_it(fit):
    data = fit.to_arviz()
    is_tree = isinstance(data, xarray.DataTree)
    assert is_tree == (int(az.__version__.split(".")[0]) >= 1)
    table = az.summary(data, round_to="none")
    assert list(table.index) == ["mean[a]", "mean[b]", "mean[c]", "scale"]
    own = fit.summary().columns["mean"]
    np.testing.assert_allclose(table["mean"].to_numpy(float), own, atol=0.05)
    loo = az.loo(data)
    elpd = float(loo.elpd if is_tree else loo.elpd_loo)
    plain = jax.scipy.special.logsumexp(data["log_likelihood"]["y"].values, axis=(0, 1)).sum() - Y.size * np.log(4000)
    assert plain - 8 < elpd < plain


# arviz 0.23 calls matplotlib in a way that matplotlib 3.11 has deprecated.
@pytest.mark.filterwarnings("ignore:Passing a dict or None as alias_mapping")
def test_arviz_draws_it(fit):
    pyplot = optional.pyplot()
    data = fit.to_arviz(num_draws=200)
    if isinstance(data, xarray.DataTree):
        az.plot_dist(data, var_names=["scale"], backend="matplotlib")
        az.plot_trace(data, var_names=["scale"], backend="matplotlib")
    else:
        az.plot_trace(data, var_names=["scale"])
        az.plot_posterior(data, var_names=["mean"])
    pyplot.close("all")


class Pair(NamedTuple):
    left: np.ndarray
    right: np.ndarray


@pytest.mark.parametrize(
    ("example", "names", "expected"),
    [
        (np.zeros(2), None, {"x": (2,)}),
        (0.0, None, {"x": ()}),
        (np.zeros((2, 3)), None, {"x": (2, 3)}),
        ((0.0, np.zeros(1)), None, {"0": (), "1": (1,)}),
        ({"a": {"b": np.zeros((1, 2)), "c": 0.0}}, None, {"a.b": (1, 2), "a.c": ()}),
        (Pair(np.zeros(2), 0.0), None, {"left": (2,), "right": ()}),
        (np.zeros(2), ["alpha", "beta"], {"alpha": (), "beta": ()}),
        ({"a/b": np.zeros(2), "log_p": 0.0}, None, {"a.b": (2,), "log_p": ()}),
    ],
)
def test_positions_of_any_structure(example, names, expected):
    target = klover.Target(lambda p: sum(-0.5 * jnp.sum(leaf**2) for leaf in jax.tree.leaves(p)), example, names=names)
    fit = fit_around(target, 1.1, 300)
    tree = fit.to_datatree(num_draws=20)
    posterior = tree["posterior"]
    assert {name: values.shape[2:] for name, values in posterior.data_vars.items()} == expected
    # Flat draws are the leaves one after another.
    flat = np.concatenate([posterior[name].values.reshape(20, -1) for name in expected], axis=1)
    np.testing.assert_allclose(tree["sample_stats"]["lp"].values[0], fit.target.log_prob(flat), rtol=1e-9)
    np.testing.assert_array_equal(tree["proposal"]["log_p"].values[0], fit.draws.log_p)
    assert len(az.summary(fit.to_arviz(num_draws=20))) == target.dim


def test_names_of_axes_that_cannot_be_used():
    model_info = ModelInfo(
        "language",
        dims={"a": ("side", "side"), "b": ("long",), "c": ("draw",), "d": ("a",), "e": ("side",), "f": ("u", "v")},
        coords={"side": [1, 2], "long": [1, 2, 3]},
    )
    shapes = {"a": (2, 2), "b": (2,), "c": (2,), "d": (2,), "e": (2,), "f": (2,)}
    arrays = {name: np.zeros((5, *shape)) for name, shape in shapes.items()}
    dims = {name: values.dims[2:] for name, values in datatree.dataset(arrays, model_info).data_vars.items()}
    assert dims == {
        "a": ("side", "a_dim_1"),
        "b": ("b_dim_0",),
        "c": ("c_dim_0",),
        "d": ("d_dim_0",),
        "e": ("side",),
        "f": ("u",),
    }


def test_labels_that_are_objects_become_words(tmp_path):
    model_info = ModelInfo("language", dims={"a": ("side",)}, coords={"side": np.array(["left", 2], dtype=object)})
    data = datatree.dataset({"a": np.zeros((5, 2))}, model_info)
    assert data["side"].values.tolist() == ["left", "2"]


def test_functions_that_jax_cannot_trace():
    def by_hand(position):
        return {"y": np.asarray(float(position["scale"]) * np.ones(2))}

    fit = fit_around(
        make_target(log_likelihood=by_hand, predict=lambda key, position: by_hand(position)), num_draws=300
    )
    tree = fit.to_datatree(num_draws=10, predictive=True)
    for group in ("log_likelihood", "posterior_predictive"):
        values = tree[group]["y"].values[0]
        np.testing.assert_allclose(values, tree["posterior"]["scale"].values[0][:, None] * np.ones(2))


def test_models_that_know_less():
    fit = fit_around(make_target(log_likelihood=None, predict=None), num_draws=300)
    assert set(fit.to_datatree().children) == {"posterior", "sample_stats", "proposal", "observed_data"}
    with pytest.raises(ValueError, match="predictive must be False, because the target does not know how to predict"):
        fit.to_datatree(predictive=True)


def test_no_weight_at_all():
    fit = fit_around(klover.Target(lambda x: jnp.where(x > 1e6, 0.0, -jnp.inf), 2e6), 1.0, 100)
    with pytest.raises(ValueError, match="must have a positive weight"):
        fit.to_datatree()


def test_missing_library_names_its_extra(fit, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "xarray", None)
    with pytest.raises(ImportError) as error:
        fit.to_datatree()
    assert re.search(r"pip install 'klover\[arviz\]'", error.value.__notes__[0])
