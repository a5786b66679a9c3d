r"""Without some of the data: weights of the draws that are there, and exact refits where these weights fail.

The target without the rows g of the data is :math:`\hat p_{-g}=\hat p/L_g` with their likelihood :math:`L_g`. The
draws of a fit, which come from its proposal q and not from p, have the weights :math:`\hat p/(qL_g)` under it: one
importance sampling, where weights of posterior draws would be a second one upon the first. Where their k̂ is too high,
or few draws are effective (the tails of q are wide: far out in them weights are light, and few), the target without
these rows is fitted, beginning with the old proposal, and has a verdict of its own.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from klover.base.checks import as_key, check_function, note
from klover.base.shapes import AnyArray, Float, Int, KeyLike, PyTree
from klover.importance import psis
from klover.importance.ratios import effective_sample_size
from klover.results.fit import Fit
from klover.targets.cores import threads_each
from klover.targets.loaded import LoadedTarget, TargetLike, as_target
from klover.targets.positions import flatten
from klover.targets.target import Target
from klover.uses.update import go_on
from klover.workers.crew import connect
from klover.workers.parcel import Job
from klover.workers.work import Errors, OnItems

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

    return _Raveled(function)


@dataclasses.dataclass(frozen=True)
class _Raveled:
    """The log likelihoods of rows as one array, whatever the tree of them that a function gives."""

    function: Callable[[PyTree], Any]

    def __call__(self, position: PyTree) -> Float[AnyArray, " row"]:
        with note("log_likelihood failed: make it a function of one constrained position."):
            return jnp.concatenate([jnp.ravel(jnp.asarray(leaf)) for leaf in jax.tree.leaves(self.function(position))])


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


def leave_out(refits: "Refits", values: Float[np.ndarray, "draw row"], sets: Sequence[Rows]) -> list[LeftOut]:
    """Weigh the draws of a fit without each set of rows, and refit where their weights are not reliable."""
    fit = refits.fit
    log_ratio = np.asarray(fit.draws.log_ratio, float)
    inside, limit = log_ratio > -np.inf, psis.reliable_k(len(log_ratio))
    fewest = min(FEWEST_EFFECTIVE, float(fit.ess) / 2)
    found, unreliable = [], []
    for number, rows in enumerate(sets):
        left = values[:, rows].sum(axis=1)
        with np.errstate(invalid="ignore"):
            reweighted = np.where(inside, log_ratio - left, -np.inf)
        log_weight, pareto_k = psis.smooth(reweighted)
        if not (pareto_k <= limit and effective_sample_size(reweighted) >= fewest):
            unreliable.append(number)
        found.append(LeftOut(rows, float(pareto_k), np.asarray(log_weight), None))
    made = refits({number: sets[number] for number in unreliable})
    return [dataclasses.replace(left, refit=made.get(number)) for number, left in enumerate(found)]


@dataclasses.dataclass(frozen=True)
class Refits:
    """Fits of a target without some rows, beginning with the proposal of a fit with them, side by side on a pool.

    Parameters
    ----------
    fit
        The fit with all rows.
    function
        The log likelihood of each row.
    num_rows
        How many rows there are.
    key
        Of all refits: each has its own, by its number.
    min_ess
        Effective draws of a refit, as :func:`klover.uses.update.update` takes them.
    pool
        Who makes them, as ``klover.map_fits`` takes it; None for this process.
    """

    fit: Fit
    function: Pointwise
    num_rows: int
    key: KeyLike
    min_ess: int | None
    pool: Any = None

    def __call__(self, sets: Mapping[int, Rows]) -> dict[int, Fit]:
        """Fit without each of some sets of rows, which have numbers."""
        key = as_key(self.key)
        keys = [np.asarray(jax.random.key_data(jax.random.fold_in(key, number))) for number in sets]
        work = _Refit(self.fit, self.function, self.num_rows, str(jax.random.key_impl(key)), self.min_ess)
        tasks = list(zip(sets.values(), keys, strict=True))
        made = [work.fit_one(*task) for task in tasks] if self.pool is None else _on_pool(self.pool, work, tasks)
        return dict(zip(sets, made, strict=True))


@dataclasses.dataclass(frozen=True)
class _Refit:
    """What a worker does with a set of rows; the target of a fit stays there, since functions do not travel back."""

    fit: Fit
    function: Pointwise
    num_rows: int
    key_impl: str
    min_ess: int | None

    @property
    def users_functions(self) -> tuple[Any, ...]:
        """What another machine may have another version of."""
        return (self.function, *as_target(self.fit.target).made_of)

    def __call__(self, task: tuple[Rows, np.ndarray]) -> Fit:
        made = self.fit_one(*task)
        return _about(made, LoadedTarget.of(as_target(made.target), made.draws.x))

    def fit_one(self, rows: Rows, key_data: np.ndarray) -> Fit:
        """Fit without some rows."""
        key = jax.random.wrap_key_data(jnp.asarray(key_data), impl=self.key_impl)
        return go_on(self.fit, self.target(rows), key, min_ess=self.min_ess, progress=False)

    def target(self, rows: Rows) -> Target:
        """Return the target without some rows."""
        usual = float(np.max(np.asarray(self.fit.draws.log_p)))
        return without(as_target(self.fit.target), self.function, rows, self.num_rows, usual)


def _on_pool(pool: Any, work: _Refit, tasks: list[tuple[Rows, np.ndarray]]) -> list[Fit]:
    """Share refits out; an error in one of them is that of all."""
    found: dict[int, Fit] = {}

    def keep(places: np.ndarray, values: Sequence[Fit | None], errors: Errors) -> None:
        for _, error in errors:
            raise error
        found.update((place, fit) for place, fit in zip(places.tolist(), values, strict=True) if fit is not None)

    is_double = as_target(work.fit.target).start.dtype == np.float64
    job = Job("the fit without some rows", OnItems(work), most_seconds=0.0, is_double=bool(is_double))
    workers = connect(pool, num_threads=threads_each(pool))
    try:
        workers.run(job, tasks, keep)
    finally:
        workers.close()
    return [_about(found[place], work.target(rows)) for place, (rows, _) in enumerate(tasks)]


def _about(fit: Fit, target: TargetLike) -> Fit:
    """Return a fit with its target in another form."""
    return dataclasses.replace(fit, target=target, draws=dataclasses.replace(fit.draws, target=target))
