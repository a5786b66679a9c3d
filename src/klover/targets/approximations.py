"""Approximations that users bring, as weighted draws of the unconstrained parameters.

Objects of other libraries are recognised by what they have, so that nothing is imported that the user has not.
"""

from typing import Any

import jax
import numpy as np

from klover.base.shapes import Float, PyTree
from klover.targets.target import Target

NUM_DRAWS = 2000

Weighted = tuple[Float[np.ndarray, "draw dim"], Float[np.ndarray, " draw"]]


def weighted_draws(target: Target, start: Any, generator: np.random.Generator) -> Weighted:
    """Turn what the user has into flat draws and weights that sum to one.

    Parameters
    ----------
    target
        The target. Where it comes from a modelling language, draws by the model's names are on their natural scale.
    start
        An array (draws, dim), a pytree of arrays (draws, ...), or a pair of one of these and weights; klover's weighted
        draws; an ArviZ object with a posterior; a pair of a NumPyro autoguide and its SVI result (or parameters); a
        PyMC approximation; a state of blackjax's Pathfinder, single- or multi-path.
    generator
        Of the draws that are made from approximations.
    """
    weight = None
    if hasattr(start, "log_weight") and hasattr(start, "x"):
        start, weight = start.x, np.exp(start.log_weight)
    elif _is_weighted(target, start):
        start, weight = start
    x = _flatten(target, _draw(target, start, generator))
    weight = np.ones(len(x)) if weight is None else np.asarray(weight, float)
    if weight.shape != (len(x),) or not (np.isfinite(weight).all() and (weight >= 0).all() and weight.sum() > 0):
        raise ValueError(
            f"the weights of start must be {len(x)} numbers, 0 or more, one for each draw, got an array of shape "
            f"{weight.shape}" + ("." if weight.shape != (len(x),) else " with others, or with zeros only.")
        )
    return x, weight / weight.sum()


def _is_weighted(target: Target, start: Any) -> bool:
    """Whether this is a pair of draws and weights, and not a pair by the example's own structure or a guide's."""
    is_pair = type(start) in (tuple, list) and len(start) == 2 and not hasattr(start[0], "sample_posterior")
    return is_pair and jax.tree.structure(start) != jax.tree.structure(target.unravel(target.start))


def _draw(target: Target, start: Any, generator: np.random.Generator) -> PyTree:
    """Return draws as an array or a pytree of the unconstrained parameters."""
    if hasattr(start, "path_states"):
        # All paths alike: the weights among them are what multi-path Pathfinder gets wrong.
        return jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[2:]), start.samples)
    if all(hasattr(start, name) for name in ("elbo", "position", "alpha", "beta", "gamma")):
        from blackjax.vi import pathfinder

        draws, _ = pathfinder.sample(_key(generator), start, NUM_DRAWS)  # pyright: ignore[reportGeneralTypeIssues]
        return draws
    if type(start) in (tuple, list) and hasattr(start[0], "sample_posterior"):
        guide, result = start
        values = guide.sample_posterior(_key(generator), getattr(result, "params", result), sample_shape=(NUM_DRAWS,))
        return _unconstrained(target, values)
    if type(start).__module__.startswith("pymc.") and hasattr(start, "sample"):
        start = start.sample(NUM_DRAWS, random_seed=int(generator.integers(2**31)))
    if hasattr(start, "posterior"):
        values = {name: np.asarray(start.posterior[name]) for name in start.posterior.data_vars}
        return _unconstrained(target, {name: each.reshape(-1, *each.shape[2:]) for name, each in values.items()})
    return start


def _key(generator: np.random.Generator) -> jax.Array:
    return jax.random.key(int(generator.integers(2**31)))


def _unconstrained(target: Target, values: dict[str, Any]) -> PyTree:
    """Bring draws by name to the unconstrained scale, if the model knows how; else they have to be there."""
    values = {name: np.asarray(each) for name, each in values.items()}
    example = target.unravel(target.start)
    if target.model_info is not None and target.model_info.unconstrain is not None:
        try:
            found = jax.vmap(target.model_info.unconstrain)(values)
        except KeyError as error:
            raise ValueError(f"start has no variable {error}; it has {', '.join(sorted(values))}.") from error
        inside = np.all([np.isfinite(leaf).reshape(len(leaf), -1).all(1) for leaf in jax.tree.leaves(found)], axis=0)
        return jax.tree.map(lambda leaf: np.asarray(leaf)[inside], found)
    if not isinstance(example, dict):
        raise TypeError("start has named variables, so the target's example must be a dict with these names.")
    missing = set(example) - set(values)
    if missing:
        raise ValueError(f"start has no variable {sorted(missing)}; it has {sorted(values)}.")
    return {name: values[name] for name in example}


def _flatten(target: Target, draws: PyTree) -> Float[np.ndarray, "draw dim"]:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(draws)]
    is_numeric = all(leaf.dtype.kind in "fiu" and leaf.ndim > 0 for leaf in leaves)
    is_like_example = jax.tree.structure(draws) == jax.tree.structure(target.unravel(target.start))
    if is_numeric and len(leaves) == 1 and leaves[0].ndim == 2:
        x = leaves[0].astype(float)
    elif is_numeric and is_like_example and len({len(leaf) for leaf in leaves}) == 1:
        x = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1).astype(float)
    else:
        raise ValueError(
            f"start must be a Mixture, a Fit, an array of shape (draws, {target.dim}), a pytree of arrays (draws, ...) "
            "like the example (or a pair of one of these and weights), weighted draws, an ArviZ object, a NumPyro "
            f"guide with its SVI result, a PyMC approximation or a Pathfinder state, got a {type(draws).__name__}."
        )
    if x.shape[1] != target.dim or len(x) < 2 or not np.isfinite(x).all():
        raise ValueError(
            f"start must hold two or more finite draws of {target.dim} numbers, got shape {x.shape}"
            + ("." if np.isfinite(x).all() else " with numbers that are not finite.")
        )
    return x
