"""Results as labelled arrays: an ``xarray.DataTree`` in the groups that ArviZ knows."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from klover.base import optional
from klover.base.shapes import AnyArray, Key, PyTree
from klover.base.version import __version__
from klover.importance import resampling
from klover.importance.draws import WeightedDraws
from klover.targets.model_info import ModelInfo

SAMPLE = ("chain", "draw")
BLOCK = 256
"""Draws whose log likelihoods or predictions are computed at a time."""


def versions() -> dict[str, str]:
    """Return the versions of the libraries that a number depends on."""
    return {"klover": __version__, "jax": jax.__version__}


def to_datatree(
    draws: WeightedDraws, key: Key[jax.Array, ""] | None = None, num_draws: int = 4000, predictive: bool = False
) -> Any:
    """Return labelled results in ArviZ's groups, as an ``xarray.DataTree``.

    ``posterior`` holds draws of equal weight, because ArviZ knows no weights: one chain, so that r_hat is NaN. Some of
    them come more than once, which ArviZ's ess and mcse do not see: those of ``fit.summary()`` are right.
    ``sample_stats`` has their log density ``lp``. ``proposal`` holds the weighted draws, with ``log_p``, ``log_q``, the
    raw ``log_ratio`` and the smoothed ``log_weight``. ``observed_data`` and ``log_likelihood`` are there where the
    model knows them.

    Parameters
    ----------
    draws
        Weighted draws.
    key
        For resampling and predictions; a fixed one if None.
    num_draws
        How many draws of equal weight.
    predictive
        Whether to add ``posterior_predictive``, new observations for each of these draws.
    """
    key_choice, key_order, key = jax.random.split(jax.random.key(0) if key is None else key, 3)
    index = np.asarray(jax.random.permutation(key_order, resampling.resample(key_choice, draws.log_weight, num_draws)))
    model_info: ModelInfo | None = draws.target.model_info
    positions, names = draws.positions, draws.target.names
    chosen = jax.tree.map(lambda leaf: leaf[index], positions)
    statistics = {name: getattr(draws, name) for name in ("log_p", "log_q", "log_ratio", "log_weight")}
    pool = {name + "_" * (name in statistics): values for name, values in variables(positions, names).items()}
    groups = {
        "posterior": _dataset(variables(chosen, names), model_info),
        "sample_stats": _dataset({"lp": np.asarray(draws.log_p)[index]}, model_info),
        "proposal": _dataset(pool | statistics, model_info),
    }
    if model_info is not None and model_info.observed:
        groups["observed_data"] = _dataset(model_info.observed, model_info, ())
    if model_info is not None and model_info.log_likelihood is not None:
        groups["log_likelihood"] = _dataset(over_draws(model_info.log_likelihood, chosen), model_info)
    if predictive:
        groups["posterior_predictive"] = _dataset(_predictions(model_info, key, chosen), model_info)
    attributes = _attributes(draws)
    groups["posterior"].attrs.update(attributes)
    tree = optional.xarray().DataTree.from_dict(groups)
    tree.attrs.update(attributes)
    return tree


def _attributes(draws: WeightedDraws) -> dict[str, Any]:
    """Return what is true of all draws together; words and numbers only, which every file format takes."""
    version = versions()
    return {
        "inference_library": "klover",
        "inference_library_version": version["klover"],
        "jax_version": version["jax"],
        "kind": draws.kind,
        "num_draws": draws.num_draws,
        **{name: float(getattr(draws, name)) for name in ("pareto_k", "ess", "log_evidence", "log_evidence_se")},
    }


def to_arviz(tree: Any) -> Any:
    """Return what the installed ArviZ works with: the tree itself, or InferenceData before version 1."""
    convert = getattr(optional.arviz(), "from_datatree", None)
    return tree if convert is None else convert(tree)


def variables(positions: PyTree, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Name the arrays of stacked positions by their paths; where the user has named single numbers, by these names."""
    found, first = {}, 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(positions):
        values = np.asarray(leaf)
        stem = jax.tree_util.keystr(path, simple=True, separator=".") or "x"
        made = [f"{stem}[{','.join(map(str, place))}]" if place else stem for place in np.ndindex(values.shape[1:])]
        given = list(names[first : first + len(made)])
        first += len(made)
        columns = zip(given, values.reshape(len(values), -1).T, strict=True)
        found |= {stem: values} if given == made else dict(columns)
    return found


def over_draws(function: Callable[..., dict[str, AnyArray]], *arguments: PyTree) -> dict[str, AnyArray]:
    """Call a function of one draw at all draws; one by one where JAX cannot trace it."""
    try:
        return jax.lax.map(lambda each: function(*each), arguments, batch_size=BLOCK)
    except jax.errors.JAXTypeError:
        leaves, structure = jax.tree.flatten(arguments)
        each = [function(*jax.tree.unflatten(structure, draw)) for draw in zip(*leaves, strict=True)]
        return {name: np.stack([np.asarray(entry[name]) for entry in each]) for name in each[0]}


def _predictions(model_info: ModelInfo | None, key: Key[jax.Array, ""], positions: PyTree) -> dict[str, AnyArray]:
    if model_info is None or model_info.predict is None:
        raise ValueError(
            "predictive must be False, because the target does not know how to predict: it was not made from a model "
            "of a modelling language that does, or the fit was loaded without it."
        )
    num = len(jax.tree.leaves(positions)[0])
    return over_draws(model_info.predict, jax.random.split(key, num), positions)


def _dataset(arrays: dict[str, Any], model_info: ModelInfo | None, leading: tuple[str, ...] = SAMPLE) -> Any:
    """Label arrays by the model's own names of axes; leading axes are those of one chain."""
    labelled: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    labels: dict[str, np.ndarray] = {}
    for name, given in arrays.items():
        values = np.asarray(given)[None] if leading else np.asarray(given)
        labels |= {dim: np.arange(size) for dim, size in zip(leading, values.shape, strict=False)}
        dims = list(leading)
        for axis, size in enumerate(values.shape[len(leading) :]):
            dim, along = _axis(name, axis, size, model_info)
            if dim in (*dims, *arrays) or not np.array_equal(labels.get(dim, along), along):
                dim, along = _unnamed_axis(name, axis, size)
            labels[dim] = along
            dims.append(dim)
        # The separator of groups cannot be part of a name; scopes of NumPyro put it there.
        labelled[name.replace("/", ".")] = tuple(dims), values
    return optional.xarray().Dataset(labelled, labels)


def _axis(name: str, axis: int, size: int, model_info: ModelInfo | None) -> tuple[str, np.ndarray]:
    """Return the name of an axis and the labels along it, as far as the model knows them."""
    dims = () if model_info is None else model_info.dims.get(name, ())
    if model_info is None or axis >= len(dims) or dims[axis] is None:
        return _unnamed_axis(name, axis, size)
    along = np.asarray(model_info.coords.get(dims[axis], np.arange(size)))
    if along.shape != (size,):
        return _unnamed_axis(name, axis, size)
    # Labels that are Python objects could not be written to files.
    return dims[axis].replace("/", "."), along.astype(str) if along.dtype.hasobject else along


def _unnamed_axis(name: str, axis: int, size: int) -> tuple[str, np.ndarray]:
    return f"{name}_dim_{axis}".replace("/", "."), np.arange(size)
