"""Call every public function with bad arguments; run in a process of its own, where nothing but klover checks types.

``python fuzzing.py FOLDER`` prints what is wrong as JSON: {function: [complaint, ...]}. A call may work. Otherwise it
has to raise ``ValueError`` or ``TypeError`` (or, for paths, ``FileNotFoundError``, ``IsADirectoryError`` or
``PermissionError``) in klover's own code, in words that name the argument. What a function of the user raises is the
user's own error, to which a note is added.
"""

import contextlib
import inspect
import io
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import klover
from klover.boosting.settings import Settings
from klover.targets.model_info import ModelInfo

HERE, SOURCE = str(Path(__file__)), str(Path(klover.__file__).parent)
PROPER = ValueError, TypeError, FileNotFoundError, IsADirectoryError, PermissionError
FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else ".")

ANYTHING = {
    "None": None,
    "True": True,
    "-1": -1,
    "0": 0,
    "2.5": 2.5,
    "nan": np.nan,
    "inf": np.inf,
    "1j": 1j,
    "10**30": 10**30,
    "'text'": "text",
    "''": "",
    "b'bytes'": b"bytes",
    "[]": [],
    "()": (),
    "{}": {},
    "{1: 2}": {1: 2},
    "[None]": [None],
    "['a', 'b']": ["a", "b"],
    "[1, [2]]": [1, [2]],
    "object": object(),
    "int": int,
    "zeros(3)": np.zeros(3),
    "zeros((2, 2, 2))": np.zeros((2, 2, 2)),
    "nan matrix": np.full((4, 2), np.nan),
    "array of words": np.array(["a", "b"]),
    "array of objects": np.array([None, {}], object),
    "jax array": jnp.zeros(5),
    "empty": np.zeros(0),
    "generator": (each for each in ()),
    "stream": io.BytesIO(),
}
"""Values that hardly any argument expects."""


def fail(*_: Any) -> Any:
    raise LookupError("the user's own error")


FUNCTIONS = {
    "no arguments": lambda: 0.0,
    "three arguments": lambda a, b, c: 0.0,
    "words": lambda x: "text",
    "nothing": lambda x: None,
    "fails": fail,
}
"""Functions that are not what is asked for."""

PATHS = {
    "folder": FOLDER,
    "missing folder": FOLDER / "absent" / "file",
    "a file as a folder": FOLDER / "text" / "file",
    "text": FOLDER / "text",
    "zero byte": "a\0b",
}


USERS = (
    "logdensity",
    "log_likelihood",
    "grad",
    "loglike",
    "prior_transform",
    "constrain",
    "model",
    "function",
    "callback",
)
"""Arguments that are functions: what they raise is the user's own error, and a note says where it comes from."""


def error_of(call: Callable[[], Any]) -> Exception | None:
    """Make a call, and return what it raises."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            call()
    except Exception as error:
        return error
    return None


def complaint(argument: str, error: Exception | None, expected: Exception | None) -> str | None:
    """Say what is wrong with how a call has failed, if anything is; ``expected`` is raised by the good arguments."""
    if error is None or str(error) == str(expected):
        return None
    notes = " ".join(getattr(error, "__notes__", ()))
    if any(f"{name} failed" in notes for name in USERS):
        return None
    last = traceback.extract_tb(error.__traceback__)[-1]
    words = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {str(error)[:200]}"
    if not isinstance(error, PROPER) or not last.filename.startswith(SOURCE):
        return words
    return None if argument in str(error) else f"does not name {argument}: {words}"


def density(x):
    return -0.5 * jnp.sum(x**2)


def on_host(x):
    return -0.5 * float(np.sum(x**2))


def table(folder: Path) -> dict[str, tuple[Callable, dict[str, Any], dict[str, dict[str, Any]]]]:
    """Return by name each function, good arguments, and further bad values of some of them.

    Where a call would compile for long, the good arguments are all good but one, which is the last to be checked.
    """
    target = klover.Target(density, np.zeros(2))
    fit = klover.refine(0, target, budget=3000, num_draws=100)
    fit.save(folder / "fit")
    (folder / "text").write_text("text")
    draws, mixture = fit.draws, fit.mixture
    parts = {"log_prior": lambda x: {"x": density(x)}, "log_likelihood": lambda x: {"y": density(x)}}
    info = ModelInfo("by hand", **parts)
    parted = klover.refine(0, klover.Target(lambda x: 2 * density(x), np.zeros(2), model_info=info), num_draws=500)
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    axes = plt.figure().add_subplot()
    trusted = klover.Fit(target, mixture, draws, fit.history, klover.Verdict(True, "", "", klover.Status.TRUSTED))
    quick = {"max_components": 1, "num_round_draws": 20, "num_steps": 1, "fitter": "em", "num_draws": 20}
    location, variance = np.zeros((1, 2)), np.ones((1, 2))
    generator, algorithm = np.random.default_rng(0), klover.vi_algorithm(fail)
    first = {"x": np.zeros((3, 2))}
    plots = klover.plots
    return {
        "refine": (
            klover.refine,
            {"key": 0, "target": target, "start": None, "max_components": None, "num_draws": 50, "budget": 3000}
            | {"family": "student", "integrand": None, "callback": None, "progress": False, "journal": None}
            | {"surrogate": None, "pool": None}
            | {"tuning": None, "search": "auto", "min_ess": None},
            {
                "integrand": FUNCTIONS | {"identity": lambda x: x},
                "callback": {"no arguments": lambda: 0.0, "three arguments": lambda a, b, c: 0.0},
                "journal": PATHS,
                "target": FUNCTIONS,
                "start": {"draws": np.ones((5, 3)), "pair": (np.ones((5, 2)), [1, 2]), "named": {"a": np.ones(4)}},
                "family": {"cauchy": "cauchy"},
            },
        ),
        "boost": (
            klover.boost,
            {
                "key": 0,
                "target": target,
                "start": klover.diffuse([0.0], [1.0]),
                "family": "normal-diagonal",
                "divergence": "forward",
            }
            | {"approach": "direct", "draws": "previous", "newcomer": "gain", "weights": "em", "update": "newcomer"}
            | {"num_draws_per_step": 10, "learning_rate_location": 0.1, "learning_rate_scale": 0.1}
            | {"initial_scale": 0.1, "log_epsilon": None, "prior": 1.0, "callback": None}
            | quick,
            {"callback": {"no arguments": lambda: 0.0, "three arguments": lambda a, b, c: 0.0}},
        ),
        "Target": (
            klover.Target,
            {"logdensity": density, "example": np.zeros(2), "constrain": None, "names": None, "box": None}
            | {"model_info": None},
            {"logdensity": FUNCTIONS, "constrain": FUNCTIONS, "box": {"pair": (1, 0), "words": ("a", "b")}},
        ),
        "Target.log_prob": (target.log_prob, {"x": np.zeros(2)}, {}),
        "Target.coordinate_name": (target.coordinate_name, {"index": 0}, {"index": {"7": 7}}),
        "Target.unravel": (target.unravel, {"x": np.zeros(2)}, {}),
        "Target.position": (target.position, {"x": np.zeros(2)}, {}),
        "Target.positions": (target.positions, first, {}),
        "Target.flat_position": (target.flat_position, first, {}),
        "Target.check": (target.check, {"key": 0, "num_points": 3}, {}),
        "Target.remade_by": (target.remade_by, {"maker": klover.Target}, {}),
        "from_callback": (
            klover.from_callback,
            {"logdensity": on_host, "dim": 2, "grad": None, "vectorized": False, "bounds": None, "names": None}
            | {"throw": False, "pool": None, "timeout": None, "start": None},
            {
                "logdensity": FUNCTIONS,
                "grad": FUNCTIONS,
                "bounds": {"pair": (1, 0), "words": ("a", "b"), "nan": (np.nan, 1.0)},
            },
        ),
        "from_prior_transform": (
            klover.from_prior_transform,
            {"loglike": on_host, "prior_transform": lambda u: u, "ndim": 2, "names": None, "periodic": None}
            | {"vectorized": False, "start": None},
            {"loglike": FUNCTIONS, "prior_transform": FUNCTIONS},
        ),
        "from_numpyro": (klover.from_numpyro, {"model": fail}, {"model": FUNCTIONS}),
        "from_pymc": (klover.from_pymc, {"model": None}, {}),
        "from_stan": (klover.from_stan, {"program": None, "data": None}, {"data": PATHS, "program": PATHS}),
        "Family": (klover.Family, {"tail": "student", "covariance": "full", "df": None, "rank": 5}, {}),
        "Family.parse": (klover.Family.parse, {"family": "student"}, {}),
        "Family.components": (klover.Family().components, {"location": location, "covariance": variance}, {}),
        "Family.spread": (klover.Family().spread, {"covariance": variance}, {}),
        "diffuse": (klover.diffuse, {"lower": [0.0], "upper": [1.0], "family": "student"}, {}),
        "Mixture.of": (klover.Mixture.of, {"components": mixture.components}, {}),
        "Mixture.component_log_prob": (mixture.component_log_prob, first, {}),
        "Mixture.log_prob": (mixture.log_prob, first, {}),
        "Mixture.sample": (mixture.sample, {"key": 0, "num_draws": 3}, {}),
        "Mixture.draw": (mixture.draw, {"generator": generator, "num_draws": 3}, {}),
        "Mixture.sample_index": (mixture.sample_index, {"key": 0, "num_draws": 3}, {}),
        "Mixture.sample_and_log_prob": (mixture.sample_and_log_prob, {"key": 0, "num_draws": 3}, {}),
        "Mixture.append": (
            mixture.append,
            {"newcomer": klover.Family().components(location, variance), "log_gamma": -1.0},
            {},
        ),
        "Mixture.with_capacity": (mixture.with_capacity, {"capacity": 10}, {}),
        "Fit.importance": (fit.importance, {"key": 0, "num_draws": 10}, {}),
        "Fit.stream": (
            fit.stream,
            {"key": 0, "num_draws": 10, "functions": None, "progress": False, "pool": None},
            {"functions": {"words": {"a": "b"}}},
        ),
        "Fit.update": (
            fit.update,
            {"target": target, "key": 0, "min_ess": None, "budget": 500, "search": "auto", "progress": False},
            {"target": FUNCTIONS},
        ),
        "Fit.loo": (
            fit.loo,
            {"log_likelihood": lambda x: -0.01 * x**2, "groups": None, "key": 0, "min_ess": None, "pool": None},
            {"log_likelihood": FUNCTIONS},
        ),
        "Fit.kfold": (
            fit.kfold,
            {"num_folds": 2, "log_likelihood": lambda x: -0.01 * x**2, "key": 0, "min_ess": None, "pool": None},
            {"log_likelihood": FUNCTIONS},
        ),
        "Fit.sensitivity": (parted.sensitivity, {"names": None, "powers": (0.8, 1.25), "key": 0}, {}),
        "Fit.nuts_start": (fit.nuts_start, {"key": 0, "num_chains": 2, "dense": False}, {}),
        "Fit.predict": (fit.predict, {"num_draws": 10, "key": 0}, {}),
        "map_fits": (
            klover.map_fits,
            {"function": lambda item: target, "items": [1], "pool": None, "out": None, "key": 0, "labels": None}
            | {"save_to": None, "timeout": None, "progress": False},
            {"function": FUNCTIONS, "out": PATHS, "save_to": PATHS},
        ),
        "Fit.posterior": (fit.posterior, {"num_draws": 10, "key": 0}, {}),
        "Fit.to_pandas": (fit.to_pandas, {"num_draws": 10, "key": 0}, {}),
        "Fit.to_datatree": (fit.to_datatree, {"num_draws": 10, "key": 0, "predictive": False}, {}),
        "Fit.to_arviz": (fit.to_arviz, {"num_draws": 10, "key": 0, "predictive": False}, {}),
        "Fit.save": (fit.save, {"path": folder / "again"}, {"path": PATHS}),
        "load": (klover.load, {"path": folder / "fit", "target": None}, {"path": PATHS, "target": FUNCTIONS}),
        "compare": (
            klover.compare,
            {"fits": {"a": trusted, "b": trusted}, "prior": None, "loo": None},
            {"fits": {"one": {"a": trusted}, "mixed": {"a": trusted, "b": None}, "list": [trusted, trusted]}},
        ),
        "explain": (klover.explain, {"fit": fit}, {}),
        "WeightedDraws.values": (draws.values, {"function": jnp.sum}, {"function": FUNCTIONS}),
        "WeightedDraws.expectation": (draws.expectation, {"function": jnp.sum}, {"function": FUNCTIONS}),
        "WeightedDraws.function_pareto_k": (draws.function_pareto_k, {"function": jnp.sum}, {"function": FUNCTIONS}),
        "WeightedDraws.mean_and_error": (draws.mean_and_error, {"values": np.zeros(100)}, {}),
        "WeightedDraws.resample": (draws.resample, {"key": 0, "num_draws": 3, "method": "systematic"}, {}),
        "WeightedDraws.resample_unconstrained": (
            draws.resample_unconstrained,
            {"key": 0, "num_draws": 3, "method": "systematic"},
            {},
        ),
        "WeightedDraws.initial_positions": (
            draws.initial_positions,
            {"key": 0, "num_chains": 2, "constrained": False},
            {},
        ),
        "vi_algorithm": (
            klover.vi_algorithm,
            {"logdensity": density, "settings": Settings(num_steps=2), "start": "reverse"},
            {"logdensity": FUNCTIONS},
        ),
        "vi_algorithm.init": (algorithm.init, {"position": np.zeros(2), "key": 0}, {}),
        "vi_algorithm.sample": (
            algorithm.sample,
            {"key": 0, "state": None, "num_samples": 2},
            {},
        ),
        "plots.tidy": (plots.tidy, {"axes": axes, "title": "", "xlabel": "", "ylabel": ""}, {}),
        "plots.label_of": (plots.label_of, {"fit": fit, "coordinate": 0}, {"coordinate": {"7": 7}}),
        "plots.window_of": (plots.window_of, {"fit": fit, "coordinate": 0}, {"coordinate": {"7": 7}}),
        "plots.plot_marginal": (plots.plot_marginal, {"axes": axes, "fit": fit, "coordinate": 0}, {}),
        "plots.plot_pair": (plots.plot_pair, {"axes": axes, "fit": fit, "first": 0, "second": 1}, {}),
        "plots.plot_tail": (plots.plot_tail, {"axes": axes, "fit": fit}, {}),
        "plots.plot_quantity_tails": (plots.plot_quantity_tails, {"axes": axes, "fit": fit}, {}),
        "plots.plot_main_plane": (plots.plot_main_plane, {"axes": axes, "fit": fit}, {}),
        "plots.plot_weights": (plots.plot_weights, {"axes": axes, "fit": fit}, {}),
        "plots.plot_weight_shares": (
            plots.plot_weight_shares,
            {"axes": axes, "fit": fit, "colour": "red", "label": "a"},
            {},
        ),
        "plots.plot_history": (
            plots.plot_history,
            {"axes": axes, "fit": fit, "quantity": "ess_share", "against": "round"},
            {},
        ),
        "plots.plot_residual": (plots.plot_residual, {"axes": axes, "fit": fit, "first": 0, "second": 1}, {}),
        "plots.plot_density_pair": (
            plots.plot_density_pair,
            {"axes": axes, "fit": fit, "first": 0, "second": 1, "window": [[-1, 1], [-1, 1]]}
            | {"colour": "red", "label": "a"},
            {},
        ),
    }


def arguments_of(function: Callable) -> set[str]:
    """Return the names of all arguments but those that a function passes on."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}


def run(folder: Path, only: str = "") -> dict[str, list[str]]:
    """Call every function with each of its arguments bad in turn."""
    found = {}
    for name, (function, good, further) in table(folder).items():
        if only and only != name:
            continue
        found[name] = [f"{argument} is never bad" for argument in arguments_of(function) - set(good)]
        expected = error_of(lambda: function(**good))  # noqa: B023
        for argument in good:
            for words, value in (ANYTHING | further.get(argument, {})).items():
                error = error_of(lambda: function(**(good | {argument: value})))  # noqa: B023
                said = complaint(argument, error, expected)
                if said is not None:
                    found[name].append(f"{argument} = {words}: {said}")
    return found


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    # Of an error inside of JAX the last frame has to be seen.
    jax.config.update("jax_traceback_filtering", "off")
    os.chdir(FOLDER)
    print(json.dumps(run(FOLDER, *sys.argv[2:])))
