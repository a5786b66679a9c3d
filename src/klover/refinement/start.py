"""Where :func:`klover.refine` begins: from modes of the target and its region, or from what the user has."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from klover.base.shapes import Float
from klover.fitting.growth import grow
from klover.fitting.sample import Sample, moments
from klover.mixtures.algebra import join, mixture_of
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.refinement.pool import Pool
from klover.refinement.state import Context, State
from klover.search.curvature import MOST_FULL_DIM, log_determinant
from klover.search.modes import find_modes
from klover.targets.approximations import weighted_draws

SCALE = 3.0
"""Rough scale of a parameter on the unconstrained line, where the target has no box."""
SCALES = (1.0, 10.0, 100.0)
SCALE_WEIGHTS = (0.4, 0.4, 0.2)
SCALE_DF = 5.0
BOX_DF = 20.0
BROAD_SHARE = 0.25
BOX_SHARE = 0.1
LARGEST_SCALE = 10.0
WEIGHT_RANGE = 20.0
COPIES = ((1.1, None), (4.0, 5.0), (16.0, 5.0))
"""Each mode begins as three components: inflation of its covariance, degrees of freedom (None: the dimension)."""
COPY_WEIGHTS = (6.0, 2.0, 1.0)
GIVEN_SHARE = 0.9
GIVEN_ROUNDS = 6


def _scaled_identity(variance: Float[np.ndarray, "component dim"]) -> Float[np.ndarray, "component dim *dim"]:
    """Return diagonal covariance matrices, or the variances alone where matrices would be too large."""
    dim = variance.shape[1]
    return variance if dim > MOST_FULL_DIM else variance[:, :, None] * np.eye(dim)


def region(
    context: Context,
) -> tuple[Mixture, Callable[[int], Float[np.ndarray, "start dim"]], Float[np.ndarray, " dim"]]:
    """Return a broad mixture, a source of starts for searches, and the largest variances to believe."""
    target, generator, dim = context.evaluator.target, context.generator, context.dim
    if target.box is not None:
        lower, upper = (np.asarray(corner, float) for corner in target.box)
        variance = (1.2 * (upper - lower)) ** 2 / 12
        broad = mixture_of(
            context.family,
            0.5 * (lower + upper)[None],
            _scaled_identity(variance[None]),
            np.array([BOX_DF]),
            np.ones(1),
        )
        return broad, lambda num: generator.uniform(lower, upper, (num, dim)), variance
    start = np.asarray(target.start, float)
    covariance = _scaled_identity(SCALE**2 * np.array(SCALES)[:, None] * np.ones(dim))
    location = np.repeat(start[None], len(SCALES), axis=0)
    broad = mixture_of(context.family, location, covariance, np.full(len(SCALES), SCALE_DF), np.array(SCALE_WEIGHTS))

    def draw_starts(num: int) -> Float[np.ndarray, "start dim"]:
        scale = np.where(np.arange(num) % 2 == 0, SCALE, 1.0)[:, None]
        starts = start + scale * generator.standard_normal((num, dim))
        starts[0] = start
        return starts

    return broad, draw_starts, np.full(dim, (LARGEST_SCALE * SCALE) ** 2)


def from_target(context: Context) -> State:
    """Search for modes, and put components there and over the region; without gradients, over the region alone."""
    broad, draw_starts, ceiling = region(context)
    state = State(broad, broad, Pool.empty(context.dim))
    if not context.evaluator.has_gradient:
        return state
    modes = find_modes(context.evaluator, draw_starts, ceiling)
    state.was_hard = not modes.is_settled
    if len(modes.x) == 0:
        return state
    # Laplace's evidence of each mode; a mode that looks small may be wide, so none begins with next to nothing.
    weight = modes.log_p + 0.5 * np.array([log_determinant(shape) for shape in modes.covariance])
    weight = np.exp(np.maximum(weight - weight.max(), -np.log(WEIGHT_RANGE)))
    copies = [
        (factor, df or max(context.dim, 5.0), share) for (factor, df), share in zip(COPIES, COPY_WEIGHTS, strict=True)
    ]
    found = mixture_of(
        context.family,
        np.concatenate([modes.x for _ in copies]),
        np.concatenate([factor * modes.covariance for factor, _, _ in copies]),
        np.concatenate([np.full(len(weight), df) for _, df, _ in copies]),
        np.concatenate([share * weight for _, _, share in copies]),
    )
    has_box = context.evaluator.target.box is not None
    state.mixture = join(found, broad, BOX_SHARE if has_box else BROAD_SHARE)
    return state


def from_given(context: Context, start: Any) -> State:
    """Begin with what the user has (:mod:`klover.targets.approximations`), beside a search for modes of our own.

    The user's approximation may miss modes, and often does: the search costs little and sees what it misses.
    """
    state = from_target(context)
    start = getattr(start, "mixture", start)
    given = _on_host(context.family, start) if isinstance(start, Mixture) else _from_draws(context, start)
    if given.dim != context.dim:
        raise ValueError(f"start has dimension {given.dim}, but the target has {context.dim}.")
    state.mixture = join(state.mixture, given, GIVEN_SHARE)
    return state


def _on_host(family: Family, mixture: Mixture) -> Mixture:
    """Return the mixture in the given family, on the host; a Normal component becomes a Student-t with 200 degrees."""
    used = np.flatnonzero(np.asarray(mixture.log_weights) > -np.inf)
    components = jax.tree.map(lambda leaf: np.asarray(leaf, float)[used], mixture.components)
    df = np.minimum(components.df, 200.0)
    spread = components.spread
    covariance = spread.variance() if mixture.dim > MOST_FULL_DIM else spread.covariance()
    return mixture_of(family, components.location, covariance, df, np.exp(np.asarray(mixture.log_weights)[used]))


def _from_draws(context: Context, start: Any) -> Mixture:
    """Fit a mixture to weighted draws."""
    x, weight = weighted_draws(context.evaluator.target, start, context.generator)
    log_p = context.evaluator.values(x)
    inside = np.isfinite(log_p) & (weight > 0)
    if inside.sum() < 2:
        raise ValueError(
            f"start must hold draws in the support of the target, but the log density is finite at {inside.sum()} of "
            f"{len(x)}. Pass draws of the unconstrained parameters."
        )
    sample = Sample(x, log_p, weight).where(inside)
    location, covariance = moments(sample.x, sample.weight)
    constant = np.flatnonzero(~(np.diagonal(covariance) > 0))
    if len(constant):
        raise ValueError(
            f"start must hold draws that vary, but {context.evaluator.target.coordinate_name(int(constant[0]))} is the "
            f"same in all {len(sample)} that count. Was a chain stuck? Pass other draws."
        )
    if context.dim > MOST_FULL_DIM:
        covariance = np.diagonal(covariance)
    first = mixture_of(context.family, location[None], covariance[None], np.array([SCALE_DF]), np.ones(1))
    return grow(context.generator, first, sample, context.max_components, GIVEN_ROUNDS)
