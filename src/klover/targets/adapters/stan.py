"""Stan programs as targets: code, a file, or a model of BridgeStan."""

import contextlib
import functools
import json
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from klover.base.checks import as_numbers, check_path
from klover.base.shapes import Float, Point
from klover.targets.adapters.host import Failures, HostModelInfo, Points, make_logdensity, on_host
from klover.targets.adapters.stan_program import CompiledModel, compile_program, translate
from klover.targets.model_info import Position
from klover.targets.target import Target

LIKELIHOOD, PRIOR, REPLICATED = "log_lik", "lprior", "_rep"
"""How Stan's users name the log likelihoods, the log prior and the new observations among what a program computes."""
FAR, FARTHER = 40.0, 200.0
"""Where a bounded parameter has reached its bound to the last digit, and an unbounded one goes on."""


def from_stan(program: Any, data: dict[str, Any] | str | os.PathLike | None = None) -> Target:
    """Make a target of a Stan program.

    The density has all constants, also those of ``~`` statements, and the Jacobians of the constraints. A parameter
    without a prior has a density of one. Unbounded, that is improper, and the evidence then means nothing; such
    parameters are in ``target.model_info.improper``, as far as stanc can tell (of a BridgeStan model nothing is known).
    Between bounds it is not normalised, and the evidence misses the logarithm of their distance.

    Parameters
    ----------
    program
        Stan code, a path to a ``.stan`` file (compiled by httpstan's stanc and the system's C++ compiler, about a
        minute at the first time), or a ``bridgestan.StanModel``, which holds its data.
    data
        The data by name, or a path to a JSON file.

    Notes
    -----
    People read parameters, transformed parameters and generated quantities. The random numbers of generated quantities
    are seeded by the point: they differ between draws, and are the same whenever a draw is read again. Indices begin
    with 0. A point that the program rejects is outside the support. By Stan's custom, generated quantities called
    ``log_lik`` are the log likelihoods of the observations, and ``y_rep`` are new observations ``y``; ``lprior`` is the
    log density of the prior, without Jacobians, as brms and priorsense have it.

    Raises
    ------
    ValueError
        If stanc refuses the program (with the line), or the program its data.
    """
    data = _read_data(data)
    if all(hasattr(program, name) for name in ("log_density_gradient", "param_constrain", "param_unc_num")):
        if data:
            raise ValueError("data must not be given with a bridgestan.StanModel, which holds its data already.")
        return _target(_BridgeStan(program), data, ()).remade_by(from_stan, program)
    if not isinstance(program, str | os.PathLike):
        raise TypeError(
            "program must be Stan code, a path to a .stan file or a bridgestan.StanModel, got a "
            f"{type(program).__name__}."
        )
    code, without_prior = translate(program)
    library = compile_program(code)
    model = CompiledModel(library, data)
    renew = functools.partial(_renew, library, model, data)
    return _target(model, data, _improper(model, without_prior), renew).remade_by(from_stan, program, data)


def _read_data(data: Any) -> dict[str, Any]:
    if isinstance(data, str | os.PathLike):
        path = check_path("data", data, is_read=True)
        try:
            data = json.loads(Path(path).read_text())
        except ValueError as error:
            raise ValueError(f"data must be a dict of arrays or a path to a JSON file, got {path}: {error}.") from error
    if not isinstance(data, dict | None):
        raise TypeError(f"data must be a dict of arrays or a path to a JSON file, got a {type(data).__name__}.")
    if not all(isinstance(name, str) for name in data or {}):
        raise TypeError(f"data must be a dict by the names of Stan's variables, got the names {list(data or {})}.")
    return {name: np.asarray(as_numbers(f"data[{name!r}]", value)) for name, value in (data or {}).items()}


class _BridgeStan:
    """A ``bridgestan.StanModel``, point by point. Its one kind of error is taken as a rejection of the point."""

    def __init__(self, model: Any):
        self._model = model
        self.dim: int = model.param_unc_num()
        self.parameters: list[str] = list(model.param_names())
        self.names: list[str] = list(model.param_names(include_tp=True, include_gq=True))
        self.failures = Failures()

    def values(self, points: Points) -> Float[np.ndarray, " draw"]:
        return self.values_and_gradients(points)[0]

    def values_and_gradients(self, points: Points) -> tuple[Float[np.ndarray, " draw"], Points]:
        values, gradients = np.full(len(points), -np.inf), np.zeros(points.shape)
        for row, point in enumerate(points.astype(float)):
            with contextlib.suppress(RuntimeError):
                values[row], gradients[row] = self._model.log_density_gradient(point, propto=False, jacobian=True)
        return values, gradients

    def constrain(self, points: Points) -> Float[np.ndarray, "draw value"]:
        values = np.full((len(points), len(self.names)), np.nan)
        for row, point in enumerate(points.astype(float)):
            generator = self._model.new_rng(zlib.crc32(point.tobytes()))
            with contextlib.suppress(RuntimeError):
                values[row] = self._model.param_constrain(point, include_tp=True, include_gq=True, rng=generator)
        return values

    def unconstrain(self, values: Float[np.ndarray, "draw value"]) -> Points:
        points = np.full((len(values), self.dim), np.nan)
        for row, value in enumerate(values.astype(float)):
            with contextlib.suppress(RuntimeError):
                points[row] = self._model.param_unconstrain(value)
        return points


def _target(
    model: CompiledModel | _BridgeStan,
    data: dict[str, np.ndarray],
    improper: tuple[str, ...],
    renew: Callable[..., HostModelInfo] | None = None,
) -> Target:
    if model.dim == 0:
        raise ValueError("program has no parameters, so there is nothing to infer.")
    places, replicated = _places(model.names), _replicated(model)
    constrain, unconstrain = _constrain(model), _unconstrain(model)
    return Target(
        make_logdensity(model.dim, model.values, model.values_and_gradients),
        np.zeros(model.dim),
        constrain=constrain,
        model_info=HostModelInfo(
            "stan",
            observed=data,
            improper=improper,
            unconstrain=unconstrain,
            log_likelihood=(lambda position: {LIKELIHOOD: position[LIKELIHOOD]}) if LIKELIHOOD in places else None,
            log_prior=(lambda position: {PRIOR: position[PRIOR]}) if PRIOR in places else None,
            predict=(lambda key, position: {new: position[name] for name, new in replicated.items()})
            if replicated
            else None,
            renew=renew,
            failures=model.failures,
        ),
    )


def _constrain(model: CompiledModel | _BridgeStan) -> Callable[[Point], Position]:
    read, places = on_host(model.constrain, (len(model.names),)), _places(model.names)

    def constrain(x: Point) -> Position:
        flat = read(x)
        return {name: flat[place] for name, place in places.items()}

    return constrain


def _unconstrain(model: CompiledModel | _BridgeStan) -> Callable[[Position], Point]:
    write, parameters = on_host(model.unconstrain, (model.dim,)), _places(model.parameters)

    def unconstrain(position: Position) -> Point:
        flat = jnp.zeros(len(model.parameters))
        for name, place in parameters.items():
            flat = flat.at[place].set(jnp.asarray(position[name], float))
        return write(flat)

    return unconstrain


def _replicated(model: CompiledModel | _BridgeStan) -> dict[str, str]:
    """Return the generated quantities that are new observations, with the names of these."""
    return {name: name.removesuffix(REPLICATED) for name in _places(model.names) if name.endswith(REPLICATED)}


def _renew(library: Path, model: CompiledModel, data: dict[str, np.ndarray], new_data: Any) -> HostModelInfo:
    """Return predictions of the program with other data: its generated quantities at the fitted parameters."""
    given = data | _read_data(new_data)
    new = CompiledModel(library, given)
    if new.parameters != model.parameters:
        raise ValueError(
            f"fit.predict needs the parameters of the fit, {len(model.parameters)} numbers; with the new data the "
            f"program has {len(new.parameters)}. Give the data for predictions a size of their own in the program."
        )
    names = _replicated(new)
    if not names:
        raise ValueError(
            f"fit.predict needs generated quantities that are new observations, such as y{REPLICATED} of y, and the "
            "program has none. Draw them there, for example with normal_rng."
        )
    constrain, unconstrain = _constrain(new), _unconstrain(model)

    def predict(key, position):
        found = constrain(unconstrain(position))
        return {observed: found[name] for name, observed in names.items()}

    return HostModelInfo("stan", observed=given, predict=predict, failures=new.failures)


def _places(names: list[str]) -> dict[str, np.ndarray]:
    """Find the variables in Stan's flat names (``theta.2.1``, 1-based), and for each entry its place among them."""
    found: dict[str, dict[tuple[int, ...], int]] = {}
    for place, name in enumerate(names):
        stem, index = re.fullmatch(r"(.+?)((?:\.\d+)*)", name).groups()  # pyright: ignore[reportOptionalMemberAccess]
        found.setdefault(stem, {})[tuple(int(each) - 1 for each in index.split(".")[1:])] = place
    return {
        stem: np.array([entries[index] for index in sorted(entries)]).reshape([last + 1 for last in max(entries)])
        for stem, entries in found.items()
    }


def _improper(model: CompiledModel, without_prior: list[str]) -> tuple[str, ...]:
    """Name the parameters without a prior that are not bounded on both sides."""
    points = np.multiply.outer([FAR, FARTHER, -FAR, -FARTHER], np.ones(model.dim))
    high, higher, low, lower = model.constrain(points, is_complete=False)
    is_bounded = np.isclose(high, higher) & np.isclose(low, lower)
    places = _places(model.parameters)
    return tuple(name for name, place in places.items() if name in without_prior and not is_bounded[place].all())
