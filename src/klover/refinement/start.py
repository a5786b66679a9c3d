"""Where :func:`klover.refine` begins: from modes of the target and its region, or from what the user has."""

import dataclasses
from typing import Any

import jax
import numpy as np

from klover.base.arrays import even_comb
from klover.base.checks import check_finite
from klover.base.linalg import moments
from klover.base.shapes import Float
from klover.fitting.growth import grow
from klover.fitting.sample import Sample
from klover.mixtures.algebra import box_variance, join, mixture_of
from klover.mixtures.mixture import Mixture
from klover.refinement.coordinates import adopt
from klover.refinement.pool import Pool
from klover.refinement.state import Context, Stage, State
from klover.search.climb import ValueAndGradient
from klover.search.curvature import log_determinant
from klover.search.modes import Modes, find_modes
from klover.search.recall import Part
from klover.search.slopes import slopes
from klover.search.values import ByValues
from klover.targets.approximations import weighted_draws
from klover.targets.budget import BudgetExhausted
from klover.targets.target import Target
from klover.warps.warped import Proposal, WarpedMixture, unwarped

BOX_DF = 20.0
REGION_WEIGHTS = (0.4, 0.4, 0.2)
PART = ("x", "covariance", "log_mass")
SEARCH_SHARE = 0.5
"""Of a budget that the search for modes may take: without modes there is still the region, and the rest for it."""
MOST_STARTS = 16
"""Of a thrifty search, at a time, in however many dimensions."""
GIVEN_PART = 0.25
"""Of a budget that the user's draws may take; if there are more of them, some are taken by their weights."""
GIVEN_ROUNDS = 6
"""Rounds of splits on draws that the user gave: they are fitted to once."""


def from_target(context: Context) -> State:
    """Search for modes, and put components there and over the region; over that alone without gradients or a goal."""
    broad = cover(context)
    state = State(broad, broad, Pool.empty(context.dim))
    if not context.evaluator.has_gradient and context.goal is None:
        return state
    state = dataclasses.replace(state, can_chain=context.can_warp and context.dim > context.tuning.rounds.tiled_dim)
    tuning = context.tuning
    search = tuning.search
    if context.goal is not None:
        # A climb in coordinates that another one has whitened costs little, and in more dimensions basins are smaller.
        starts = max(search.num_starts, min(context.dim + 2, MOST_STARTS))
        search = dataclasses.replace(search, num_starts=starts)
    try:
        with context.evaluator.part(SEARCH_SHARE):
            modes = find_modes(context.generator, context.evaluator, context.region, search, _slopes(context))
    except BudgetExhausted:
        return dataclasses.replace(state, was_hard=True)
    state = dataclasses.replace(state, was_hard=not modes.is_settled(search))
    if state.can_chain and modes.is_neck:
        # Its tops are where the posterior is not.
        return dataclasses.replace(state, stage=Stage.CHAIN)
    if len(modes.x) == 0:
        return state
    parts = parts_of(modes)
    share = tuning.start.broad_share if context.region.box is None else tuning.start.box_share
    return dataclasses.replace(state, mixture=join(around(context, parts), broad, share))


def _slopes(context: Context) -> ValueAndGradient | None:
    """Return what a thrifty search climbs on: it evaluates nothing twice, and does without gradients if need be."""
    if context.goal is None:
        return None
    evaluator, dim, box = context.evaluator, context.dim, context.region.box
    if evaluator.has_gradient:
        return slopes(evaluator, np.zeros(dim), np.eye(dim))
    scale = np.ones(dim) if box is None else np.sqrt(np.asarray(box_variance(*box)))
    return ByValues(evaluator, scale)


def cover(context: Context) -> Mixture:
    """Return a mixture over the region: the box, or several scales around the example."""
    region, start = context.region, context.tuning.start
    if region.box is not None:
        variance = np.asarray(box_variance(*region.box))[None]
        df, weight = BOX_DF, np.ones(1)
    else:
        scale = context.tuning.search.start_scale
        variance = scale**2 * np.array(start.region)[:, None] * np.ones(context.dim)
        df, weight = start.wide_df, np.array(REGION_WEIGHTS)
    location = np.repeat(region.centre[None], len(weight), axis=0)
    return mixture_of(context.family, location, _matrices(context, variance), df, weight)


def _matrices(
    context: Context, variance: Float[np.ndarray, "component dim"]
) -> Float[np.ndarray, "component dim *dim"]:
    """Return diagonal covariance matrices, or the variances alone where matrices would be too large."""
    is_large = context.dim > context.tuning.search.full_dim
    return variance if is_large else variance[:, :, None] * np.eye(context.dim)


def parts_of(modes: Modes) -> tuple[Part, ...]:
    """Return modes with their masses by Laplace."""
    volume = [0.5 * (log_determinant(shape) + modes.x.shape[1] * np.log(2 * np.pi)) for shape in modes.covariance]
    return tuple(map(Part, modes.x, modes.covariance, (modes.log_p + np.reshape(volume, -1)).tolist()))


def around(context: Context, parts: tuple[Part, ...]) -> Mixture:
    """Return the mixture of several copies of each part, weighted by the masses of the parts.

    A part that looks small may be wide, so none begins with next to nothing. The narrowest copies have lighter tails
    the more dimensions there are: heavy ones would draw nearly everything far out.
    """
    start = context.tuning.start
    x, covariance, log_mass = (np.stack([getattr(part, name) for part in parts]) for name in PART)
    weight = np.exp(np.maximum(log_mass - log_mass.max(), -np.log(start.weight_range)))
    dfs = [max(context.dim, start.wide_df), *[start.wide_df] * (len(start.copies) - 1)]
    return mixture_of(
        context.family,
        np.concatenate([x for _ in start.copies]),
        np.concatenate([factor * covariance for factor in start.copies]),
        np.repeat(dfs, len(weight)),
        np.concatenate([share * weight for share in start.copy_weights]),
    )


@dataclasses.dataclass(frozen=True)
class GivenDraws:
    """Draws that the user has, in the form in which :mod:`klover.targets.approximations` knows klover's own."""

    x: Float[np.ndarray, "draw dim"]
    log_weight: Float[np.ndarray, " draw"]


def read_given(target: Target, start: Any, generator: np.random.Generator) -> Proposal | GivenDraws:
    """Read what the user has before any work begins, so that what is wrong with it shows at once."""
    start = start if isinstance(start, WarpedMixture) else getattr(start, "mixture", start)
    if not isinstance(start, Mixture | WarpedMixture):
        x, weight = weighted_draws(target, start, generator)
        with np.errstate(divide="ignore"):
            return GivenDraws(x, np.log(weight))
    if start.dim != target.dim:
        raise ValueError(f"start must have the target's dimension, {target.dim}, got {start.dim}.")
    components = unwarped(start).components
    check_finite("start", (components.location, components.spread), "Pass a mixture with finite parameters.")
    return start


def from_given(context: Context, start: Any) -> State:
    """Begin with what the user has (:mod:`klover.targets.approximations`), beside a search for modes of our own.

    The user's approximation may miss modes, and often does: the search costs little and sees what it misses.
    """
    given = read_given(context.evaluator.target, start, context.generator)
    state = from_target(context)
    warp = jax.tree.map(np.asarray, given.warp) if isinstance(given, WarpedMixture) else None
    if isinstance(given, GivenDraws):
        mixture = _from_draws(context, given)
    else:
        mixture = _on_host(context, unwarped(given))
    state = adopt(state, warp)
    return dataclasses.replace(state, mixture=join(state.mixture, mixture, context.tuning.start.given_share))


def _on_host(context: Context, mixture: Mixture) -> Mixture:
    """Return the mixture in the given family, on the host; a Normal component becomes a Student-t with 200 degrees."""
    used = np.flatnonzero(np.asarray(mixture.log_weights) > -np.inf)
    components = jax.tree.map(lambda leaf: np.asarray(leaf, float)[used], mixture.components)
    is_large = mixture.dim > context.tuning.search.full_dim
    covariance = components.spread.variance() if is_large else components.spread.covariance()
    weight = np.exp(np.asarray(mixture.log_weights, float)[used])
    return mixture_of(context.family, components.location, covariance, np.minimum(components.df, 200.0), weight)


def _from_draws(context: Context, given: GivenDraws) -> Mixture:
    """Fit a mixture to weighted draws."""
    x, weight, affordable = given.x, np.exp(given.log_weight), context.evaluator.num_affordable
    if affordable is not None and len(x) > GIVEN_PART * affordable:
        chosen = np.unique(even_comb(context.generator, weight, max(int(GIVEN_PART * affordable), 2)))
        x, weight = x[chosen], weight[chosen] / weight[chosen].sum()
    log_p = context.evaluator.values(x)
    inside = np.isfinite(log_p) & (weight > 0)
    if inside.sum() < 2:
        raise ValueError(
            "start must hold two or more draws in the support of the target, got a log density that is finite at "
            f"{inside.sum()} of {len(x)}. Pass draws of the unconstrained parameters."
        )
    sample = Sample(x, weight, log_p=log_p).where(inside)
    location, covariance = moments(sample.x, sample.weight)
    constant = np.flatnonzero(np.ptp(np.asarray(sample.x), axis=0) == 0)
    if len(constant):
        raise ValueError(
            f"start must hold draws that vary, got {context.evaluator.target.coordinate_name(int(constant[0]))} the "
            f"same in all {len(sample)} that count. Was a chain stuck? Pass other draws."
        )
    if context.dim > context.tuning.search.full_dim:
        covariance = np.diagonal(covariance)
    first = mixture_of(context.family, location[None], covariance[None], context.tuning.start.wide_df, np.ones(1))
    return grow(context.generator, first, sample, context.rules, GIVEN_ROUNDS)
