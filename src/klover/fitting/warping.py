"""The choice of a warp: held-out draws decide, and "none" is always among the candidates."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from klover.base.arrays import even_comb, logsumexp
from klover.base.linalg import moments
from klover.base.shapes import Float
from klover.fitting.growth import ANCHORED, Rules, fit, grow, grow_with_pull
from klover.fitting.sample import Sample
from klover.fitting.scores import match
from klover.fitting.splits import num_parameters
from klover.mixtures.algebra import mixture_of
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.warps.warp import KINDS, Warp, fit_warp

BASE_DF = 10.0
BASE_STEPS, LAST_STEPS, BASE_PULL = 6, 3, 0.1
"""Steps of EM of the one component behind a new warp, then of it on all draws, and how strongly its covariance is held
to the draws' own."""
FEWEST_PER_ANGLE = 4.0
"""Effective draws for each of the d(d - 1)/2 angles of a rotation that is sought."""
LARGEST_RATIO = np.log(1000.0)

SCORES_PER_DIM, MOST_SCORES = 24, 2048
"""Points at which scores are asked for, for each dimension and in all."""

Points: TypeAlias = Float[np.ndarray, "draw dim"]
Scored: TypeAlias = tuple[Points, Points]
Scores: TypeAlias = Callable[[Points], Points]


@np.errstate(divide="ignore")  # weights may be zero
def mismatch(mixture: Mixture, sample: Sample) -> float:
    r"""Return :math:`\log\mathrm E_p[p/q]`, the logarithm of the draws of q that make an effective one.

    Draws and their log densities are in the coordinates of the mixture; ratios are the same in all. A constant factor
    of p, and a tempering, add the same to all mixtures. Ratios are cut at a factor of a thousand from their middle: a
    draw that q all but excludes is one draw.
    """
    log_ratio = np.asarray(sample.log_p) - np.maximum(mixture.log_prob(sample.x), -1e300)
    middle = np.median(log_ratio)
    excess = np.clip(log_ratio - middle, -LARGEST_RATIO, LARGEST_RATIO)
    return float(middle + logsumexp(np.log(sample.weight) + excess))


def behind(family: Family, inside: Sample, rules: Rules) -> Mixture:
    """Fit one component to draws that a warp has mapped."""
    location, covariance = moments(inside.x, inside.weight)
    first = mixture_of(family, location[None], covariance[None], BASE_DF, np.ones(1))
    return fit(first, inside, rules, BASE_PULL, BASE_STEPS)


def matched(family: Family, inside: Sample, scored: Scored, rules: Rules) -> Mixture | None:
    """Return one component with the moments that scores ask for, its tails fitted to draws; None where there is none.

    In tens of dimensions draws would tell a covariance with an error that costs most of the weights.
    """
    try:
        location, covariance = match(*scored)
        first = mixture_of(family, location[None], covariance[None], BASE_DF, np.ones(1))
        return fit(first, inside, rules, ANCHORED, BASE_STEPS)
    except np.linalg.LinAlgError:
        return None


def choose(
    generator: np.random.Generator,
    family: Family,
    mixture: Mixture,
    warp: Warp | None,
    sample: Sample,
    rules: Rules,
    kinds: Sequence[str] = KINDS,
    num_rounds: int | None = None,
    scores: Scores | None = None,
) -> tuple[Mixture, Warp | None]:
    """Return the mixture and the warp that held-out draws like best.

    A warp is fitted to the draws that are not held out, the mixture behind it to all of them at last: the warp takes
    most of the time, and a quarter more of the draws hardly changes it.

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
    num_rounds
        Of splits of the present mixture at most; as many as the rules say if None.
    scores
        From points to the gradients of the log density there; without, covariances come from draws alone.
    """
    is_held = generator.uniform(size=len(sample)) < rules.tuning.held_out
    train = sample.where(~is_held)
    scored = None if scores is None else _scored(generator, train, scores)
    inside = sample.in_base(warp)
    if scored is not None and num_rounds == 0 and len(mixture.log_weights) == 1:
        pull, now = np.inf, mixture  # scores move one component better than EM, and sooner
    else:
        pull, now = grow_with_pull(generator, mixture, inside.where(~is_held), rules, num_rounds)
    best = _Candidate(mismatch(now, inside.where(is_held)), now, warp, inside, pull, None)
    for kind in (None, *kinds):
        rules.check()
        other = warp if kind is None else _fit(kind, train, warp)
        if kind is not None and other is None:
            continue
        inside = sample.in_base(other)
        part, test = inside.where(~is_held), inside.where(is_held)
        least_gain = rules.tuning.least_gain if other is not best.warp else 0.0
        for found, pull in _singles(family, part, None if scored is None else _in_base(scored, other), rules):
            loss = mismatch(found, test)
            if loss < best.loss - least_gain:
                best = _Candidate(loss, found, other, inside, pull, LAST_STEPS)
    if best.warp is None and best.mixture is now:
        return grow(generator, mixture, sample, rules, num_rounds), None
    return best.fitted(rules), best.warp


def _singles(family: Family, inside: Sample, scored: Scored | None, rules: Rules) -> Iterator[tuple[Mixture, float]]:
    """Give the single components that scores and draws ask for, and the pulls of their last fit.

    Draws tell a covariance where more of them are effective than it has numbers; scores do from far fewer, but of a
    body with a flat top and steep sides they tell one that is too narrow.
    """
    found = None if scored is None else matched(family, inside, scored, rules)
    if found is not None:
        yield found, ANCHORED
    if found is None or inside.ess > num_parameters(inside.x.shape[1]):
        yield behind(family, inside, rules), BASE_PULL


class _Candidate(NamedTuple):
    """A mixture and the warp that it is behind, its loss on held-out draws, and how it is fitted to all draws."""

    loss: float
    mixture: Mixture
    warp: Warp | None
    inside: Sample
    pull: float
    num_steps: int | None

    def fitted(self, rules: Rules) -> Mixture:
        return self.mixture if np.isinf(self.pull) else fit(self.mixture, self.inside, rules, self.pull, self.num_steps)


def _scored(generator: np.random.Generator, sample: Sample, scores: Scores) -> Scored:
    """Return points that stand for the sample, and the scores there."""
    num = min(SCORES_PER_DIM * sample.x.shape[1], MOST_SCORES)
    x = np.asarray(sample.x)[np.unique(even_comb(generator, np.asarray(sample.weight), num))]
    return x, scores(x)


def _in_base(scored: Scored, warp: Warp | None) -> Scored:
    """Return points and scores in the coordinates behind a warp."""
    if warp is None:
        return scored
    z = warp.to_base(scored[0])[0]
    return z, warp.pull_back(z, scored[1])


def _fit(kind: str, sample: Sample, begun: Warp | None) -> Warp | None:
    """Fit a warp; None where there is none, where draws lie in a plane, or are too few to tell of a rotation."""
    dim = sample.x.shape[1]
    if kind == "independent" and sample.ess < FEWEST_PER_ANGLE * dim * (dim - 1) / 2:
        return None
    try:
        return fit_warp(kind, sample.x, sample.weight, begun)
    except np.linalg.LinAlgError:
        return None
