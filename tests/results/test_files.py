"""Fits in files: with the target all is as before, and without it what was stored can be read."""

import datetime
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from helpers import damage, judged
from klover.base.checks import DamagedFile
from klover.importance.islands import ParticleDraws
from klover.results.files import settings_of
from klover.targets.model_info import ModelInfo

FRONT_END = ModelInfo("language", {"b": ("side",)}, {"side": ["l", "r"]}, {"y": np.arange(3)}, ("b",), lambda p: p)


def make_target(shift=0.0):
    return klover.Target(
        lambda position: -0.5 * (jnp.sum((position["b"] - shift) ** 2) + position["log_a"] ** 2),
        {"log_a": 0.0, "b": np.zeros(2)},
        constrain=lambda position: {"a": jnp.exp(position["log_a"]), "b": position["b"]},
        model_info=FRONT_END,
    )


@pytest.fixture(scope="module")
def refined():
    return klover.refine(jax.random.key(0), make_target())


@pytest.fixture(scope="module")
def boosted():
    choices = {"fitter": "em", "max_components": 1, "num_round_draws": 100, "num_draws": 500}
    mixture = klover.Mixture.of(klover.Family("normal", "diagonal").components(np.zeros((1, 2)), np.ones((1, 2))))
    target = klover.Target(lambda x: -0.5 * jnp.sum((x - 0.5) ** 2), np.zeros(2))
    return klover.boost(jax.random.key(0), target, start=mixture, **choices)


@pytest.fixture(scope="module")
def particles(refined):
    x = np.random.default_rng(0).normal(size=(2000, 3))
    log_p = -0.5 * (x**2).sum(1)
    none, uniform = np.asarray(0), np.full(2000, -np.log(2000))
    islands = np.array([0.0, 0.1, -0.1, 0.05])
    draws = ParticleDraws(
        x, log_p, log_p, uniform, np.asarray(2.0), none, none, make_target(), islands, np.asarray(0.5)
    )
    return klover.Fit(draws.target, refined.mixture, draws, {}, judged(draws, refined.mixture))


@pytest.fixture(params=["refined", "boosted", "particles"])
def fit(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("has_target", [True, False])
def test_fits_come_back(fit, has_target, tmp_path):
    path = tmp_path / "fit.klover"
    fit.save(path)
    assert os.listdir(tmp_path) == ["fit.klover"]
    again = klover.load(path, fit.target if has_target else None)
    assert str(again.summary()) == str(fit.summary())
    assert repr(again) == repr(fit)
    assert again.verdict == fit.verdict
    assert again.settings == fit.settings
    assert (again.num_evaluations, again.evaluation_seconds) == (fit.num_evaluations, fit.evaluation_seconds)
    assert list(again.history) == list(fit.history)
    for name, values in fit.history.items():
        np.testing.assert_array_equal(again.history[name], values)
    assert type(again.draws) is type(fit.draws)
    for leaf, expected in zip(jax.tree.leaves(again.mixture), jax.tree.leaves(fit.mixture), strict=True):
        np.testing.assert_array_equal(leaf, expected)
    for name in ("x", "log_p", "log_q", "log_weight", "log_evidence", "log_evidence_se", "ess", "num_nan"):
        # Sums of JAX arrays and of NumPy arrays may differ in their last digit.
        np.testing.assert_allclose(getattr(again.draws, name), getattr(fit.draws, name), rtol=1e-13)
    squares = lambda position: jax.tree.map(jnp.square, position)  # noqa: E731
    for value, expected in zip(
        jax.tree.leaves(again.draws.expectation(squares)), jax.tree.leaves(fit.draws.expectation(squares)), strict=True
    ):
        np.testing.assert_allclose(value, expected, rtol=1e-12)


def test_stored_fits_can_be_stored_again(refined, tmp_path):
    refined.save(tmp_path / "a")
    klover.load(tmp_path / "a").save(tmp_path / "b")
    assert str(klover.load(tmp_path / "b").summary()) == str(refined.summary())
    full = klover.load(tmp_path / "b", refined.target)
    assert full.target is full.draws.target is refined.target


def test_with_the_target_everything_works(refined, tmp_path):
    refined.save(tmp_path / "a")
    again = klover.load(tmp_path / "a", make_target())
    key = jax.random.key(4)
    np.testing.assert_array_equal(again.importance(key, 100).x, refined.importance(key, 100).x)
    assert again.draws.initial_positions(key, 3)["b"].shape == (3, 2)


def test_refinement_begins_with_a_stored_fit(refined, tmp_path):
    refined.save(tmp_path / "a")
    key = jax.random.key(2)
    starts = [klover.load(tmp_path / "a", target) for target in (None, make_target())]
    fits = [klover.refine(key, make_target(), start=start) for start in starts]
    assert all(fit.verdict.trusted for fit in fits)
    np.testing.assert_array_equal(fits[0].draws.x, fits[1].draws.x)
    assert fits[0].settings["start"] == "Fit"


def test_the_wrong_target_is_refused(refined, tmp_path):
    path = tmp_path / "a"
    refined.save(path)
    with pytest.raises(ValueError, match=r"of dimension 3 with the names a, b\[0\], b\[1\], got one of dimension 2"):
        klover.load(path, klover.Target(lambda x: -jnp.sum(x**2), np.zeros(2)))
    with pytest.raises(ValueError, match=r"its log density differs by .* same model and data"):
        klover.load(path, make_target(0.1))


def test_damaged_newer_and_other_files(refined, tmp_path):
    path = tmp_path / "a"
    refined.save(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="fit .* is damaged or is no klover fit: save the fit again"):
        klover.load(path)
    with open(path, "wb") as file:
        np.savez(file, description=np.array(json.dumps({"kind": "fit", "version": 99})))
    with pytest.raises(ValueError, match=r"written by a newer klover \(format 99\): update klover"):
        klover.load(path)


def change(path, arrays=None, **fields):
    """Write a stored fit again with other arrays (of its draws, by name) or other fields."""
    with np.load(path) as archive:
        stored = dict(archive)
    description = json.loads(str(stored["description"]))
    content = description["fit"]["dict"]
    for name, function in (arrays or {}).items():
        number = content["draws"]["dict"][name]["array"]
        stored[number] = function(stored[number])
    content |= fields
    stored["description"] = np.array(json.dumps(description))
    with open(path, "wb") as file:
        np.savez(file, **stored)


@pytest.mark.parametrize(
    "arrays",
    [
        {"x": np.transpose},
        {"x": lambda x: x[:, :2]},
        {"log_p": lambda values: values[:-1]},
        {"log_q": lambda values: values[:, None]},
        {"log_weight": lambda values: values.reshape(2, -1)},
        {"log_weight": lambda values: np.full_like(values, np.nan)},
        {"log_p": lambda values: values.astype(str)},
        {"control": lambda values: values[:3]},
        {"num_nan": lambda value: value + 0.5},
        {"pareto_k": lambda value: np.repeat(value, 2)},
    ],
)
def test_arrays_that_do_not_fit_together_are_damage(refined, tmp_path, arrays):
    refined.save(tmp_path / "a")
    change(tmp_path / "a")
    assert klover.load(tmp_path / "a").verdict.trusted
    change(tmp_path / "a", arrays)
    with pytest.raises(DamagedFile, match="save the fit again"):
        klover.load(tmp_path / "a")


@pytest.mark.parametrize(
    "fields",
    [
        {"mixture": None},
        {"verdict": {"dict": {}}},
        {"history": {"dict": {"round": 3}}},
        {"settings": []},
        {"unknown": 1},
        {"num_evaluations": "many"},
        {"draws": {"dict": {}}},
    ],
)
def test_fields_that_are_something_else_are_damage(refined, tmp_path, fields):
    refined.save(tmp_path / "a")
    change(tmp_path / "a", **fields)
    with pytest.raises(DamagedFile, match="save the fit again"):
        klover.load(tmp_path / "a")


def test_damaged_files_are_refused_or_read_as_they_were(refined, tmp_path):
    small = klover.Fit(
        refined.target, refined.mixture, refined.importance(0, 20), refined.history, refined.verdict, settings={"a": 1}
    )
    small.save(tmp_path / "a")
    content, num_refused = (tmp_path / "a").read_bytes(), 0
    expected = small.draws
    for changed in damage(content, 200):
        (tmp_path / "a").write_bytes(changed)
        try:
            again = klover.load(tmp_path / "a")
        except DamagedFile:
            num_refused += 1
            continue
        assert again.verdict == small.verdict
        assert again.settings == small.settings
        for name in ("x", "log_p", "log_q", "log_weight"):
            np.testing.assert_array_equal(getattr(again.draws, name), getattr(expected, name))
    assert num_refused > 100


def test_changed_data_are_refused_in_single_precision(tmp_path):
    data = np.random.default_rng(0).normal(size=500)

    def make(data):
        return klover.Target(lambda x: -0.5 * jnp.sum((x - data) ** 2) - 0.5 * x @ x, np.zeros(1))

    with jax.enable_x64(False):
        target = make(np.float32(data))
        klover.refine(0, target).save(tmp_path / "a")
        klover.load(tmp_path / "a", make(np.float32(data)))
        data[3] += 0.3
        with pytest.raises(ValueError, match="its log density differs by"):
            klover.load(tmp_path / "a", make(np.float32(data)))


def test_settings_say_how_a_fit_was_made(refined, boosted):
    assert refined.settings == {
        "function": "refine",
        "start": None,
        "max_components": None,
        "num_draws": None,
        "budget": None,
        "family": "student",
        "search": "auto",
        "integrand": None,
        "min_ess": None,
        "surrogate": None,
        "key": [0, 0],
    }
    expected = {"function": "boost", "start": "Mixture", "max_components": 1, "num_round_draws": 100, "num_draws": 500}
    assert expected == {name: boosted.settings[name] for name in expected}
    assert boosted.settings["family"]["tail"] == "normal"
    json.dumps(boosted.settings)


def test_settings_are_words_and_numbers():
    mixture = klover.Mixture.of(klover.Family().components(np.zeros((1, 1)), np.ones((1, 1))))
    made = settings_of(
        "f", jax.random.key(7), a=datetime.timedelta(minutes=2), b=np.float64(0.5), c=jnp.asarray(3), d=mixture, e=len
    )
    assert made == {
        "function": "f",
        "a": "0:02:00",
        "b": 0.5,
        "c": 3,
        "d": "Mixture",
        "e": "builtin_function_or_method",
        "key": [0, 7],
    }
