"""The choice of a warp: held-out draws decide, and "none" is always among the candidates."""

from collections.abc import Sequence

import numpy as np

from klover.base.arrays import logsumexp
from klover.base.linalg import moments
from klover.fitting.growth import Rules, fit, grow, held_out
from klover.fitting.sample import Sample
from klover.mixtures.algebra import mixture_of
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.warps.warp import KINDS, Warp, fit_warp

BASE_DF = 10.0
BASE_STEPS, BASE_PULL = 10, 0.1
"""Steps of EM of the one component behind a new warp, and how strongly its covariance is held to the draws' own."""
LARGEST_RATIO = np.log(1000.0)
LEAST_GAIN = 0.05
"""Nats by which a warp must be better on held-out draws to take the place of another, or of none."""


def mismatch(mixture: Mixture, warp: Warp | None, sample: Sample) -> float:
    r"""Return :math:`\log\mathrm E_p[p/q]+\log\mathrm E_p[q/p]`, which no constant changes: zero where q is p.

    The first term is the loss of effective draws, the second forbids to put q's mass where p has none. Ratios are cut
    at a factor of a thousand from their middle: a draw that q all but excludes is one draw.
    """
    z, log_det = (sample.x, 0.0) if warp is None else warp.to_base(sample.x)
    log_ratio = np.asarray(sample.log_p) - np.maximum(mixture.log_prob(z) + log_det, -1e300)
    log_ratio = np.clip(log_ratio - np.median(log_ratio), -LARGEST_RATIO, LARGEST_RATIO)
    log_weight = np.log(sample.weight)
    return float(logsumexp(log_weight + log_ratio) + logsumexp(log_weight - log_ratio))


def behind(family: Family, warp: Warp, sample: Sample, rules: Rules) -> Mixture:
    """Fit one component to draws behind a warp."""
    inside = sample.in_base(warp)
    location, covariance = moments(inside.x, inside.weight)
    first = mixture_of(family, location[None], covariance[None], BASE_DF, np.ones(1))
    return fit(first, inside, rules, BASE_PULL, BASE_STEPS)


def choose(
    generator: np.random.Generator,
    family: Family,
    mixture: Mixture,
    warp: Warp | None,
    sample: Sample,
    rules: Rules,
    kinds: Sequence[str] = KINDS,
) -> tuple[Mixture, Warp | None]:
    """Return the mixture and the warp that held-out draws like best, fitted to all draws.

    Parameters
    ----------
    generator
        Chooses the draws that are held out.
    family
        Of the one component that a new warp begins with.
    mixture, warp
        What there is: it stays unless draws that nothing was fitted to are clearly likelier under another.
    sample
        Weighted draws in the user's coordinates.
    rules
        How the present mixture may grow.
    kinds
        Of warps to try.
    """
    train, test = held_out(generator, sample, rules.tuning.held_out)
    now = grow(generator, mixture, train.in_base(warp), rules)
    best, leader = mismatch(now, warp, test), warp
    for kind in kinds:
        other = _fit(kind, train, warp)
        if other is None:
            continue
        found = mismatch(behind(family, other, train, rules), other, test)
        if found < best - LEAST_GAIN:
            best, leader = found, other
    if leader is None:
        return grow(generator, mixture, sample, rules), None
    if leader is warp:
        return fit(now, sample.in_base(warp), rules), warp
    # On all draws it may turn out that nothing leads.
    new = _fit(leader.kind, sample, leader) or leader
    return behind(family, new, sample, rules), new


def _fit(kind: str, sample: Sample, begun: Warp | None) -> Warp | None:
    """Fit a warp; None where there is none, or draws lie in a plane."""
    try:
        return fit_warp(kind, sample.x, sample.weight, begun)
    except np.linalg.LinAlgError:
        return None
