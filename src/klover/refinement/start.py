"""Where :func:`klover.refine` begins: from modes of the target and its region, or from what the user has."""

import dataclasses
from typing import Any

import jax
import numpy as np

from klover.base.arrays import even_comb
from klover.base.checks import check_finite
from klover.base.linalg import moments
from klover.base.shapes import Float
from klover.fitting.em import largest_df
from klover.fitting.growth import grow
from klover.fitting.sample import Sample
from klover.mixtures.algebra import box_variance, defensive_inflation, join, mixture_of
from klover.mixtures.mixture import Mixture
from klover.mixtures.scale import Diagonal
from klover.refinement.coordinates import adopt
from klover.refinement.pool import Pool
from klover.refinement.state import Context, Stage, State
from klover.refinement.whitening import whiten
from klover.search.climb import ValueAndGradient
from klover.search.curvature import log_determinant
from klover.search.modes import Modes, climb_target, end_in_neck, find_modes
from klover.search.recall import Part
from klover.search.slopes import slopes
from klover.search.values import ByValues
from klover.targets.approximations import weighted_draws
from klover.targets.budget import BudgetExhausted
from klover.targets.target import Target
from klover.warps.linear import Linear
from klover.warps.low_rank import LowRankLinear
from klover.warps.warp import Warp
from klover.warps.warped import Proposal, WarpedMixture, unwarped

BOX_DF = 20.0
REGION_WEIGHTS = (0.4, 0.4, 0.2)
PART = ("x", "covariance", "log_mass")
SEARCH_SHARE, THRIFTY_SHARE = 0.5, 0.75
"""Of a budget that the search for modes may take: without modes there is still the region, and the rest for it. A small
budget has too few draws to find anything in a region: there, a mode is worth most of what is not kept back.
"""
MOST_STARTS = 16
"""Of a thrifty search, at a time, in however many dimensions."""
GIVEN_PART = 0.25
"""Of a budget that the user's draws may take; if there are more of them, some are taken by their weights."""
GIVEN_ROUNDS = 6
"""Rounds of splits on draws that the user gave: they are fitted to once."""


def from_target(context: Context, warp: Warp | None = None) -> State:
    """Search for modes, and put components there and over the region; over that alone without gradients or a goal.

    In many dimensions a warp may be given, in place of the one that scores would give.
    """
    broad = cover(context)
    state = State(broad, broad, Pool.empty(context.dim))
    if not context.evaluator.has_gradient and context.goal is None:
        return state
    state = dataclasses.replace(state, can_chain=context.can_warp and context.dim > context.tuning.rounds.tiled_dim)
    tuning = context.tuning
    search = tuning.search
    if context.can_whiten:
        return _whitened(context, state, warp)
    if context.goal is not None:
        # A climb in coordinates that another one has whitened costs little, and in more dimensions basins are smaller.
        starts = max(search.num_starts, min(context.dim + 2, MOST_STARTS))
        search = dataclasses.replace(search, num_starts=starts)
    try:
        # Without gradients one climb may take all that is not kept back, and without it nothing else is worth anything.
        thrifty = THRIFTY_SHARE if context.evaluator.has_gradient else 1.0
        with context.evaluator.part(SEARCH_SHARE if context.goal is None else thrifty):
            modes = find_modes(context.generator, context.evaluator, context.region, search, _slopes(context))
    except BudgetExhausted:
        return dataclasses.replace(state, was_hard=True)
    if context.goal is not None and context.evaluator.num_allowed is not None:
        # Of starts that a budget has cut, all must have ended on tops that others have found.
        search = dataclasses.replace(search, num_starts=min(search.num_starts, int(modes.count.sum())))
    state = dataclasses.replace(state, was_hard=not modes.is_settled(search))
    if state.can_chain and modes.is_neck:
        # Its tops are where the posterior is not.
        return dataclasses.replace(state, stage=Stage.CHAIN)
    if len(modes.x) == 0:
        return state
    parts = parts_of(modes)
    share = tuning.start.broad_share if context.region.box is None else tuning.defence.share
    return dataclasses.replace(state, mixture=join(around(context, parts), broad, share))


def _whitened(context: Context, state: State, warp: Warp | None) -> State:
    """Begin behind the warp that scores give, if there is one, and search for further modes there."""
    search, dim = context.tuning.search, context.dim
    modes = None
    try:
        with context.evaluator.part(SEARCH_SHARE):
            if warp is None:
                tops, values = _few_tops(context)
                if state.can_chain and end_in_neck(context.evaluator, tops, values):
                    return dataclasses.replace(state, stage=Stage.CHAIN)
                warp = whiten(context, tops[int(np.argmax(values))]) if np.isfinite(values).any() else None
            if warp is not None:
                broad = _behind(warp, state.broad)
                state = dataclasses.replace(state, mixture=broad, broad=broad, warp=warp)
            with context.evaluator.within(warp):
                if warp is not None:
                    centre = np.zeros((1, dim))
                    modes = Modes(centre, context.evaluator.values(centre), np.ones((1, dim)), np.ones(1, int))
                modes = find_modes(context.generator, context.evaluator, context.region, search, known=modes)
    except BudgetExhausted:
        state = dataclasses.replace(state, was_hard=True)
    if modes is None or len(modes.x) == 0:
        return state
    state = dataclasses.replace(state, was_hard=state.was_hard or not modes.is_settled(search))
    parts = around(context, parts_of(modes))
    return dataclasses.replace(state, mixture=join(parts, state.broad, context.tuning.start.broad_share))


def _few_tops(context: Context) -> tuple[Float[np.ndarray, "start dim"], Float[np.ndarray, " start"]]:
    """Climb from a few starts, as many as scores need."""
    starts = context.region.draw_starts(context.generator, context.tuning.whitening.num_starts)
    return climb_target(context.evaluator, starts)


def _behind(warp: Warp, broad: Mixture) -> Mixture:
    """Return what covers the region in the coordinates behind a linear warp, correlations left out."""
    (layer,) = warp.layers
    assert isinstance(layer, Linear | LowRankLinear)
    components = broad.components
    variance = np.stack([layer.base_variance(each) for each in components.spread.variance()])
    moved = dataclasses.replace(
        components, location=warp.to_base(components.location)[0], spread=Diagonal(variance**0.5)
    )
    return Mixture(moved, broad.log_weights)


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
        search = context.tuning.search
        scale = search.start_scale * np.geomspace(1.0, search.widest, len(REGION_WEIGHTS))
        variance = (scale**2)[:, None] * np.ones(context.dim)
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
    copies, shares = start.copies, start.copy_weights
    dfs = [max(context.dim, start.wide_df), *[start.wide_df] * (len(copies) - 1)]
    if context.can_whiten:
        # A Normal of d dimensions is a shell of relative width 1/√(2d): what is wider by more meets nothing of it.
        factors = 1.0, 1 + context.tuning.defence.widening / context.dim**0.5, defensive_inflation(context.dim)
        copies, shares, dfs = [factor**2 for factor in factors], shares[:3], [largest_df(context.dim)] * 3
    return mixture_of(
        context.family,
        np.concatenate([x for _ in copies]),
        np.concatenate([factor * covariance for factor in copies]),
        np.repeat(dfs, len(weight)),
        np.concatenate([share * weight for share in shares]),
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
    warp = jax.tree.map(np.asarray, given.warp) if isinstance(given, WarpedMixture) else None
    is_bent = warp is not None and warp.is_bent
    state = from_target(context, None if is_bent else warp)
    whitened = state.warp if context.can_whiten and not is_bent else None
    if isinstance(given, GivenDraws):
        mixture = _from_draws(context, given, whitened)
    else:
        mixture = on_host(context, unwarped(given))
        mixture = mixture if whitened is None or warp is not None else _behind(whitened, mixture)
    state = state if whitened is not None else adopt(state, warp)
    return dataclasses.replace(state, mixture=join(state.mixture, mixture, 1 - context.tuning.defence.share))


def on_host(context: Context, mixture: Mixture) -> Mixture:
    """Return the mixture in the given family, on the host; a Normal component becomes a Student-t with 200 degrees."""
    used = np.flatnonzero(np.asarray(mixture.log_weights) > -np.inf)
    components = jax.tree.map(lambda leaf: np.asarray(leaf, float)[used], mixture.components)
    is_large = mixture.dim > context.tuning.search.full_dim
    covariance = components.spread.variance() if is_large else components.spread.covariance()
    weight = np.exp(np.asarray(mixture.log_weights, float)[used])
    return mixture_of(
        context.family, components.location, covariance, np.minimum(components.df, largest_df(mixture.dim)), weight
    )


def _from_draws(context: Context, given: GivenDraws, warp: Warp | None) -> Mixture:
    """Fit a mixture to weighted draws, in the coordinates behind a warp."""
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
    sample = Sample(x, weight, log_p=log_p).where(inside).in_base(warp)
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
