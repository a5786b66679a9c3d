r"""Without some of the data: weights of the draws that are there, and exact refits where these weights fail.

The target without the rows g of the data is :math:`\hat p_{-g}=\hat p/L_g` with their likelihood :math:`L_g`. The
draws of a fit, which come from its proposal q and not from p, have the weights :math:`\hat p/(qL_g)` under it: one
importance sampling, where weights of posterior draws would be a second one upon the first. Where their k̂ is too high,
or few draws are effective (the tails of q are wide: far out in them weights are light, and few), the target without
these rows is fitted, beginning with the old proposal, and has a verdict of its own.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from klover.base.checks import as_key, check_function, note
from klover.base.shapes import AnyArray, Float, Int, KeyLike, PyTree
from klover.importance import psis
from klover.importance.ratios import effective_sample_size
from klover.results.fit import Fit
from klover.targets.loaded import TargetLike, as_target
from klover.targets.positions import flatten
from klover.targets.target import Target
from klover.uses.update import go_on

FEWEST_EFFECTIVE = 400
"""Draws without some rows; or half as many as the fit has, if that is less."""

Rows = Int[np.ndarray, " _"]
Pointwise = Callable[[PyTree], Float[AnyArray, " row"]]
"""From one constrained position to the log likelihood of each row of the data."""


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """What is known without some rows: k̂ and smoothed log-weights of the old draws, and a refit where they fail."""

    rows: Rows
    pareto_k: float
    log_weight: Float[np.ndarray, " draw"]
    refit: Fit | None


def pointwise(target: TargetLike, given: Callable[[PyTree], Any] | None) -> Pointwise:
    """Return the log likelihoods of rows as one function: the user's, or that of the model."""
    known = None if target.model_info is None else target.model_info.log_likelihood
    function = known if given is None else given
    if function is None:
        raise ValueError(
            "log_likelihood is needed, because the target does not know that of each row of its data: it was not made "
            "from a model of a modelling language that does (Stan's has to generate log_lik), or the fit was loaded "
            "without its target. Pass a function from one constrained position, as fit.target.position(x) gives it, "
            "to an array with one log likelihood a row."
        )
    check_function("log_likelihood", function, "one constrained position")

    def rows(position: PyTree) -> Float[AnyArray, " row"]:
        with note("log_likelihood failed: make it a function of one constrained position."):
            return jnp.concatenate([jnp.ravel(jnp.asarray(leaf)) for leaf in jax.tree.leaves(function(position))])

    return rows


def at_draws(fit: Fit, function: Pointwise) -> Float[np.ndarray, "draw row"]:
    """Return the log likelihood of every row at every draw of a fit."""
    values = np.asarray(fit.draws.values(function), float)
    if values.shape[1] < 2:
        raise ValueError(
            f"log_likelihood must have one number for each row of the data, got {values.shape[1]} in all. Do not sum "
            "over the rows."
        )
    inside = np.asarray(fit.draws.log_ratio) > -np.inf
    if np.isnan(values[inside]).any() or (values[inside] == np.inf).any():
        row = int(np.argmax((np.isnan(values) | (values == np.inf))[inside].any(axis=0)))
        raise ValueError(f"log_likelihood must be below infinity at all draws, got NaN or +inf in row {row}.")
    return values


def without(target: Target, function: Pointwise, rows: Rows, num_rows: int, usual: float) -> Target:
    """Return the target less the log likelihood of some rows.

    Which rows is data of it, so that what was compiled for some serves for all others. Where the log density is so much
    larger than where the posterior is (``usual``) that the difference has no digits, there is no support.
    """
    is_left_out = jnp.asarray(np.isin(np.arange(num_rows), rows))
    largest = jnp.asarray(max(abs(usual), 1.0) / np.finfo(target.start.dtype).eps ** 0.5)

    def flat(position: PyTree) -> Float[AnyArray, " dim"]:
        return flatten(position)[0]

    def logdensity(position: PyTree) -> Float[AnyArray, ""]:
        x = flat(position)
        log_p = target.log_prob(x)
        left = jnp.sum(jnp.where(is_left_out, function(target.position(x)), 0.0))
        return jnp.where(jnp.abs(log_p) > largest, -jnp.inf, log_p - left)

    box = None if target.box is None else tuple(target.unravel(corner) for corner in target.box)
    return Target(
        logdensity,
        target.unravel(target.start),
        constrain=lambda position: target.position(flat(position)),
        names=target.names,
        box=box,
        model_info=target.model_info,
    )


def leave_out(
    fit: Fit,
    function: Pointwise,
    values: Float[np.ndarray, "draw row"],
    sets: Sequence[Rows],
    key: KeyLike,
    min_ess: int | None,
) -> Iterator[LeftOut]:
    """Weigh the draws of a fit without each set of rows, and refit where their weights are not reliable."""
    key, log_ratio = as_key(key), np.asarray(fit.draws.log_ratio, float)
    inside, limit = log_ratio > -np.inf, psis.reliable_k(len(log_ratio))
    fewest = min(FEWEST_EFFECTIVE, float(fit.ess) / 2)
    for number, rows in enumerate(sets):
        left = values[:, rows].sum(axis=1)
        with np.errstate(invalid="ignore"):
            reweighted = np.where(inside, log_ratio - left, -np.inf)
        log_weight, pareto_k = psis.smooth(reweighted)
        refit = None
        if not (pareto_k <= limit and effective_sample_size(reweighted) >= fewest):
            refit = refit_without(fit, function, rows, values.shape[1], jax.random.fold_in(key, number), min_ess)
        yield LeftOut(rows, float(pareto_k), np.asarray(log_weight), refit)


def refit_without(fit: Fit, function: Pointwise, rows: Rows, num_rows: int, key: KeyLike, min_ess: int | None) -> Fit:
    """Fit the target without some rows, beginning with the proposal of a fit with them."""
    usual = float(np.max(np.asarray(fit.draws.log_p)))
    target = without(as_target(fit.target), function, rows, num_rows, usual)
    return go_on(fit, target, key, min_ess=min_ess, progress=False)
