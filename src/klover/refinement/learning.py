"""What is learnt from draws: the mixture is fitted to the pool, and to particles, behind a warp if that pays."""

import dataclasses

import numpy as np

from klover.fitting.growth import grow
from klover.fitting.sample import Sample, equal
from klover.fitting.warping import choose
from klover.importance.ratios import kish
from klover.refinement.coordinates import adopt
from klover.refinement.state import Context, Stage, State
from klover.refinement.surrogate import fall_back, is_poor, is_used, refit
from klover.sampling.hamiltonian import Particles
from klover.warps.warp import KINDS

EVERY_KIND = 4
"""Rounds after which all kinds of warps are tried again."""


def learn(context: Context, state: State, particles: Particles | None) -> State:
    """Fit the mixture to the pool, and to the particles where there are any; behind a warp where that is worth it."""
    if is_used(state) and particles is None:
        return fall_back(context, state) if is_poor(context, state) else refit(context, state)
    rounds = context.tuning.rounds
    is_tempered = state.stage is Stage.TEMPER
    fewest = rounds.tempered_draws * (context.dim + 1) if is_tempered else 0.0
    is_warped = _is_warped(context, state)
    sample = state.pool.thinned(context.generator, context.num_warped if is_warped else context.num_fitted, fewest)
    if particles is not None:
        ess = float(kish(state.pool.weight(fewest)))
        groups = (particles, *state.archive)
        x, log_p = (np.concatenate([getattr(group, name) for group in groups]) for name in ("x", "log_p"))
        sample = _joined(context, sample, equal(x, log_p).from_base(state.warp), ess)
    elif state.seen is not None:
        sample = _joined(context, sample, state.seen, state.pool.ess)
    if is_warped and sample.ess >= rounds.tempered_draws * (context.dim + 1):
        # Once there is a warp its kind seldom changes, and to fit the others takes most of the time.
        is_settled = state.warp is not None and len(state.history) % EVERY_KIND > 0
        kinds, splits = ((state.warp.kind,), 0) if state.warp is not None and is_settled else (KINDS, None)
        scores = (lambda x: context.evaluator.values_and_gradients(x)[1]) if context.evaluator.has_gradient else None
        given = context.family, state.mixture, state.warp, sample, context.rules
        found = choose(context.generator, *given, kinds, splits, scores)
        return dataclasses.replace(adopt(state, found[1]), mixture=found[0])
    mixture = grow(context.generator, state.mixture, sample.in_base(state.warp), context.rules)
    return dataclasses.replace(state, mixture=mixture)


def _joined(context: Context, sample: Sample, particles: Sample, ess: float) -> Sample:
    """Fit to particles beside the pool, however many effective draws this has: of what it misses it knows nothing."""
    share = len(particles) / (len(particles) + ess)
    return sample.join(particles, max(share, context.tuning.exploration.particle_share))


def _is_warped(context: Context, state: State) -> bool:
    """Whether a warp is worth trying: the mixture has had its chance, or is behind one already."""
    rounds = context.tuning.rounds
    is_poor = len(state.history) >= rounds.patience and state.history[-1].ess_share < rounds.fair_ess
    # In few dimensions many components follow any shape: there, a warp is for what would have to be explored.
    is_poor = is_poor and (context.dim > rounds.tiled_dim or state.stage is Stage.EXPLORE)
    return context.can_warp and (is_poor or state.stage is Stage.CHAIN or state.warp is not None)
