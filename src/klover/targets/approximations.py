"""Approximations that users bring, as weighted draws of the unconstrained parameters.

Each kind has a converter, tried in the order of this file. Objects of other libraries are recognised by what they have,
so that nothing is imported that the user has not.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from klover.base.checks import as_numbers
from klover.base.shapes import Float, PyTree
from klover.targets.positions import ravel_rows
from klover.targets.target import Target

NUM_DRAWS = 2000
"""Draws that are made of an approximation that can be sampled."""

Generator = np.random.Generator
Weighted = tuple[Float[np.ndarray, "draw dim"], Float[np.ndarray, " draw"]]
Converted = tuple[PyTree, Any]
"""Draws, as an array (draws, dim) or a pytree like the example, and their weights; None if all weigh the same."""
Predicate = Callable[[Target, Any], bool]

CONVERTERS: dict[str, tuple[Predicate, Callable[[Target, Any, Generator], Converted]]] = {}
"""What each kind is called, how it is recognised, and how it is converted."""


def weighted_draws(target: Target, start: Any, generator: Generator) -> Weighted:
    """Turn what the user has, and one of the :data:`CONVERTERS` recognises, into flat draws and normalised weights.

    Where the target comes from a modelling language, draws by the model's names are on their natural scale.
    """
    draws, weight = _convert(target, start, generator)
    x = _flatten(target, draws)
    weight = np.ones(len(x)) if weight is None else np.asarray(as_numbers("the weights of start", weight), float)
    if weight.shape != (len(x),) or not (np.isfinite(weight).all() and (weight >= 0).all() and weight.sum() > 0):
        raise ValueError(
            f"the weights of start must be {len(x)} numbers, 0 or more, one for each draw, got an array of shape "
            f"{weight.shape}" + ("." if weight.shape != (len(x),) else " with others, or with zeros only.")
        )
    return x, weight / weight.sum()


def _convert(target: Target, start: Any, generator: Generator) -> Converted:
    for recognises, convert in CONVERTERS.values():
        if recognises(target, start):
            return convert(target, start, generator)
    raise ValueError(
        f"start must be one of: a Mixture, a Fit, {', '.join(CONVERTERS)}; got a {type(start).__name__}. The target "
        f"has {target.dim} unconstrained parameters."
    )


def _converts(name: str, recognises: Predicate) -> Callable:
    def register(convert):
        CONVERTERS[name] = recognises, convert
        return convert

    return register


def _has(*names: str) -> Predicate:
    return lambda _, start: all(hasattr(start, name) for name in names)


def _is_like_example(target: Target, start: Any) -> bool:
    try:
        return jax.tree.structure(start) == jax.tree.structure(target.unravel(target.start))
    except ValueError:
        return False  # JAX cannot sort the names of some dictionaries


def _is_pytree_of_arrays(target: Target, start: Any) -> bool:
    return _is_like_example(target, start) and all(np.ndim(leaf) for leaf in jax.tree.leaves(start))


def _is_pair(target: Target, start: Any) -> bool:
    """Whether this is a pair of two things, and not one position that happens to be a pair."""
    return type(start) in (tuple, list) and len(start) == 2 and not _is_like_example(target, start)


@_converts("klover's weighted draws", _has("log_weight", "x"))
def _from_weighted_draws(target: Target, start: Any, generator: Generator) -> Converted:
    return start.x, np.exp(np.asarray(start.log_weight, float))


@_converts("a multi-path Pathfinder state of blackjax", _has("path_states", "samples"))
def _from_multi_path_pathfinder(target: Target, start: Any, generator: Generator) -> Converted:
    # All paths alike: the weights among them are what multi-path Pathfinder gets wrong.
    return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[2:]), start.samples), None


@_converts("a Pathfinder state of blackjax", _has("elbo", "position", "alpha", "beta", "gamma"))
def _from_pathfinder(target: Target, start: Any, generator: Generator) -> Converted:
    from blackjax.vi import pathfinder

    draws, _ = pathfinder.sample(_key(generator), start, NUM_DRAWS)  # pyright: ignore[reportGeneralTypeIssues]
    return draws, None


@_converts(
    "a pair of a NumPyro autoguide and its SVI result",
    lambda target, start: _is_pair(target, start) and hasattr(start[0], "sample_posterior"),
)
def _from_numpyro_guide(target: Target, start: Any, generator: Generator) -> Converted:
    guide, result = start
    parameters = getattr(result, "params", result)
    return _unconstrained(target, guide.sample_posterior(_key(generator), parameters, sample_shape=(NUM_DRAWS,))), None


@_converts(
    "a PyMC approximation", lambda _, start: type(start).__module__.startswith("pymc.") and hasattr(start, "sample")
)
def _from_pymc_approximation(target: Target, start: Any, generator: Generator) -> Converted:
    trace = start.sample(NUM_DRAWS, random_seed=int(generator.integers(2**31)))
    return _from_arviz(target, trace, generator)


@_converts("an ArviZ object with a posterior", _has("posterior"))
def _from_arviz(target: Target, start: Any, generator: Generator) -> Converted:
    values = {name: np.asarray(start.posterior[name]) for name in start.posterior.data_vars}
    return _unconstrained(target, {name: each.reshape(-1, *each.shape[2:]) for name, each in values.items()}), None


@_converts("a pair of draws and weights", _is_pair)
def _from_pair(target: Target, start: Any, generator: Generator) -> Converted:
    draws, weight = start
    return _convert(target, draws, generator)[0], weight


@_converts("a pytree of arrays (draws, ...) like the example", _is_pytree_of_arrays)
@_converts("an array (draws, dimension)", lambda _, start: getattr(start, "ndim", 0) == 2)
def _from_draws(target: Target, start: Any, generator: Generator) -> Converted:
    return start, None


def _key(generator: Generator) -> jax.Array:
    return jax.random.key(int(generator.integers(2**31)))


def _unconstrained(target: Target, values: dict[str, Any]) -> PyTree:
    """Bring draws by name to the unconstrained scale, if the model knows how; else they have to be there."""
    unconstrain = target.model_info and target.model_info.unconstrain
    example = target.unravel(target.start)
    if unconstrain is None and not isinstance(example, dict):
        raise TypeError("start has named variables, so the target's example must be a dict with these names.")
    try:
        if unconstrain is None:
            return {name: values[name] for name in example}
        found = jax.tree.map(np.asarray, jax.jit(jax.vmap(unconstrain))(values))
    except KeyError as error:
        raise ValueError(f"start has no variable {error}; it has {', '.join(sorted(values))}.") from error
    is_inside = np.isfinite(ravel_rows(found)).all(axis=1)
    return jax.tree.map(lambda leaf: leaf[is_inside], found)


def _flatten(target: Target, draws: PyTree) -> Float[np.ndarray, "draw dim"]:
    """Return draws as a matrix, and refuse what is not two or more finite points of the target."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(draws)]
    lengths = {leaf.shape[:1] for leaf in leaves}
    if any(leaf.dtype.kind not in "fiu" for leaf in leaves) or len(lengths) != 1 or lengths <= {(), (0,)}:
        shapes = ", ".join(f"{leaf.dtype} of shape {leaf.shape}" for leaf in leaves)
        raise ValueError(f"start must hold arrays of numbers with one leading axis of draws, got {shapes}.")
    x = np.asarray(ravel_rows(leaves), float)
    if x.shape[1] != target.dim or len(x) < 2 or not np.isfinite(x).all():
        raise ValueError(
            f"start must hold two or more finite draws of {target.dim} numbers, got shape {x.shape}"
            + ("." if np.isfinite(x).all() else " with numbers that are not finite.")
        )
    return x
