"""Results as labelled arrays: an ``xarray.DataTree`` in the groups that ArviZ knows."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from klover.base import optional
from klover.base.checks import as_key, check_flag
from klover.base.shapes import AnyArray, KeyLike, PyTree, RandomKey
from klover.base.version import __version__
from klover.importance import resampling
from klover.importance.draws import WeightedDraws, over_draws
from klover.targets.model_info import ModelInfo
from klover.targets.positions import variables

SAMPLE = ("chain", "draw")


def versions() -> dict[str, str]:
    """Return the versions of the libraries that a number depends on."""
    return {"klover": __version__, "jax": jax.__version__}


def to_datatree(draws: WeightedDraws, num_draws: int = 4000, key: KeyLike = 0, predictive: bool = False) -> Any:
    """Return labelled results in ArviZ's groups, as an ``xarray.DataTree``.

    ``posterior`` holds draws of equal weight, because ArviZ knows no weights: one chain, so that r_hat is NaN. Some of
    them come more than once, which ArviZ's ess and mcse do not see: those of ``fit.summary()`` are right.
    ``sample_stats`` has their log density ``lp``. ``proposal`` holds the weighted draws, with ``log_p``, ``log_q``, the
    raw ``log_ratio`` and the smoothed ``log_weight``. ``observed_data``, ``log_likelihood`` and ``log_prior`` are there
    where the model knows them. ``predictive`` adds ``posterior_predictive``, new observations for each of the
    ``num_draws`` draws of equal weight. The key is one of JAX, or a whole number as its seed.
    """
    check_flag("predictive", predictive)
    index = np.asarray(resampling.resample(key, np.asarray(draws.log_weight), num_draws))
    model_info = draws.target.model_info or ModelInfo("")
    positions, names = draws.positions, draws.target.names
    chosen = jax.tree.map(lambda leaf: leaf[index], positions)
    statistics = {name: getattr(draws, name) for name in ("log_p", "log_q", "log_ratio", "log_weight")}
    pool = {name + "_" * (name in statistics): values for name, values in variables(positions, names).items()}
    groups = {
        "posterior": dataset(variables(chosen, names), model_info),
        "sample_stats": dataset({"lp": np.asarray(draws.log_p)[index]}, model_info),
        "proposal": dataset(pool | statistics, model_info),
    }
    if model_info.observed:
        groups["observed_data"] = dataset(model_info.observed, model_info, ())
    for group in ("log_likelihood", "log_prior"):
        function = getattr(model_info, group)
        if function is not None:
            groups[group] = dataset(over_draws(function, chosen), model_info)
    if predictive:
        groups["posterior_predictive"] = dataset(new_observations(model_info.predict, as_key(key), chosen), model_info)
    attributes = attributes_of(draws)
    groups["posterior"].attrs.update(attributes)
    tree = optional.xarray().DataTree.from_dict(groups)
    tree.attrs.update(attributes)
    return tree


def attributes_of(draws: WeightedDraws) -> dict[str, Any]:
    """Return what is true of all draws together; words and numbers only, which every file format takes."""
    return {
        "inference_library": "klover",
        "inference_library_version": versions()["klover"],
        "jax_version": versions()["jax"],
        "kind": draws.kind,
        "num_draws": draws.num_draws,
        **{name: float(getattr(draws, name)) for name in ("pareto_k", "ess", "log_evidence", "log_evidence_se")},
    }


def to_arviz(tree: Any) -> Any:
    """Return what the installed ArviZ works with: the tree itself, or InferenceData before version 1."""
    convert = getattr(optional.arviz(), "from_datatree", None)
    return tree if convert is None else convert(tree)


def new_observations(predict: Callable | None, key: RandomKey, positions: PyTree) -> dict[str, AnyArray]:
    """Draw new observations by name, one at each of the constrained positions."""
    if predict is None:
        raise ValueError(
            "predictive must be False, because the target does not know how to predict: it was not made from a model "
            "of a modelling language that does, or the fit was loaded without it."
        )
    keys = jax.random.split(key, len(jax.tree.leaves(positions)[0]))
    return over_draws(
        lambda data, position: predict(jax.random.wrap_key_data(data, impl=jax.random.key_impl(key)), position),
        np.asarray(jax.random.key_data(keys)),
        positions,
    )


def dataset(arrays: dict[str, Any], model_info: ModelInfo, leading: tuple[str, ...] = SAMPLE) -> Any:
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


def _axis(name: str, axis: int, size: int, model_info: ModelInfo) -> tuple[str, np.ndarray]:
    """Return the name of an axis and the labels along it, as far as the model knows them."""
    dims = model_info.dims.get(name, ())
    if axis >= len(dims) or dims[axis] is None:
        return _unnamed_axis(name, axis, size)
    along = np.asarray(model_info.coords.get(dims[axis], np.arange(size)))
    if along.shape != (size,):
        return _unnamed_axis(name, axis, size)
    # Labels that are Python objects could not be written to files.
    return dims[axis].replace("/", "."), along.astype(str) if along.dtype.hasobject else along


def _unnamed_axis(name: str, axis: int, size: int) -> tuple[str, np.ndarray]:
    return f"{name}_dim_{axis}".replace("/", "."), np.arange(size)
