"""Fits in files: how they were made, and everything about them but the functions of their targets."""

import dataclasses
import datetime
import os
from typing import Any

import jax
import numpy as np

from klover.base.shapes import Key
from klover.importance.draws import WeightedDraws
from klover.importance.islands import ParticleDraws
from klover.mixtures.components import Components
from klover.mixtures.mixture import Mixture
from klover.mixtures.scale import Diagonal, Full, LowRank
from klover.results import codec
from klover.results.datatree import versions
from klover.results.integrity import check_fit
from klover.search.missed import Searched
from klover.targets.change import find_change
from klover.targets.evaluator import Evaluator
from klover.targets.loaded import LoadedTarget, as_target
from klover.targets.model_info import ModelInfo
from klover.targets.target import Target
from klover.verdict.judge import Verdict
from klover.verdict.status import Status
from klover.warps import warped

VERSION = 1
REMEDY = "save the fit again."
DRAWS = {"importance": WeightedDraws, "particles": ParticleDraws}
RECORDS = (Components, Diagonal, Full, LoadedTarget, LowRank, Mixture, ModelInfo, Searched, Status, Verdict)
RECORDS += warped.RECORDS


def settings_of(function: str, key: Key[jax.Array, ""], **choices: Any) -> dict[str, Any]:
    """Describe how a fit is made, in words and numbers."""
    return {"function": function, **_plain(choices), "key": np.asarray(jax.random.key_data(key)).tolist()}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, datetime.timedelta):
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    return value.item() if isinstance(value, np.generic | jax.Array) and value.ndim == 0 else type(value).__name__


def save(path: str | os.PathLike, fit: Any) -> None:
    """Write a :class:`klover.Fit`; of processes that share its data, one writes."""
    if isinstance(fit.target, Target) and fit.target.is_shared and jax.process_index() > 0:
        return
    content = {field.name: getattr(fit, field.name) for field in dataclasses.fields(fit)}
    draws, target = content.pop("draws"), content.pop("target")
    fields = [field.name for field in dataclasses.fields(draws) if field.name != "target"]
    content["draws"] = {name: np.asarray(getattr(draws, name)) for name in fields}
    arrays: dict[str, np.ndarray] = {}
    description = {
        "kind": "fit",
        "version": VERSION,
        "versions": versions(),
        "draws_kind": draws.kind,
        "target": codec.encode(LoadedTarget.of(target, content["draws"]["x"]), arrays),
        "fit": codec.encode(content, arrays),
    }
    codec.write(path, description, arrays)


def load(path: str | os.PathLike, target: Target | None = None) -> dict[str, Any]:
    """Read the fields of a :class:`klover.Fit`."""
    target = target if target is None else as_target(target)
    description = codec.read(path, "fit", VERSION, RECORDS, REMEDY)
    with codec.refuse_damage(path, "fit", REMEDY):
        about, content, kind = description["target"], description["fit"], DRAWS[description["draws_kind"]]
        draws = content.pop("draws")
        check_fit(content, about, draws, description["draws_kind"])
        stored = kind(**draws, target=about)
    if target is not None:
        _check_target(path, target, about, draws["log_p"])
    content["target"] = about if target is None else target
    content["draws"] = dataclasses.replace(stored, target=content["target"])
    return content


def _check_target(path: str | os.PathLike, target: Target, about: LoadedTarget, log_p: np.ndarray) -> None:
    """Refuse a target that is not the one of the file: its weights would be wrong."""
    if (target.dim, target.names) != (about.dim, about.names):
        raise ValueError(
            f"target must be that of the fit {path}, of dimension {about.dim} with the names "
            f"{', '.join(about.names[:8])}, got one of dimension {target.dim} with {', '.join(target.names[:8])}."
        )
    change = find_change(Evaluator(target).values, about.x, log_p)
    if change:
        raise ValueError(
            f"target must be that of the fit {path}, but its log density differs by {change:.3g} at a stored "
            "draw. Build the target from the same model and data, or fit this one: klover.refine(key, target, "
            "start=klover.load(path))."
        )
