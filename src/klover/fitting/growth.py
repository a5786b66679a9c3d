r"""Growth of a mixture on weighted draws: EM, splits (:mod:`klover.fitting.splits`) and deletions.

Held-out draws decide everything. A component is deleted when they are more likely without it,
:math:`\sum_sw_s\log\frac{1-r_k}{1-\lambda_k}>0`. Deleting for want of draws (fewer than a quarter of the parameters)
instead lost half of ten modes in 20 dimensions: there the covariance of the mode search is right and needs no draws.
For the same reason EM pulls each covariance to where it was, as strongly as the held-out draws like best.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from klover.fitting import em
from klover.fitting.sample import Sample
from klover.fitting.splits import num_parameters, split_all
from klover.mixtures.algebra import take
from klover.mixtures.mixture import Mixture
from klover.tuning import Growth

SMALLEST_WEIGHT = 1e-8
"""A component that EM leaves with less is dropped."""
ANCHORED = 1e300
"""A pull so strong that only weights and degrees of freedom move, in many dimensions."""
CERTAIN_SHARE = 0.1
"""With ten times as many effective draws as parameters, one pull is as good as another."""


@dataclasses.dataclass(frozen=True)
class Rules:
    """How a mixture may grow: to how many components, whether degrees of freedom move, and who looks at the clock.

    ``check`` is called before every fit; what it raises ends the growth.
    """

    max_components: int
    is_df_fitted: bool = True
    tuning: Growth = Growth()
    check: Callable[[], None] = lambda: None


def score(mixture: Mixture, sample: Sample) -> float:
    """Weighted mean log density: the negative forward KL up to a constant."""
    return float(sample.weight @ np.maximum(mixture.log_prob(sample.x), -1e300))


def fit(mixture: Mixture, sample: Sample, rules: Rules, pull: float = 1.0, num_steps: int | None = None) -> Mixture:
    """Take EM steps, covariances pulled to where they are with ``pull * (dim + 1)`` effective draws.

    A pull of :data:`ANCHORED` holds places and covariances.
    """
    rules.check()
    steps, is_anchored = rules.tuning.em_steps if num_steps is None else num_steps, pull == ANCHORED
    strength = 0.0 if is_anchored else pull * (mixture.dim + 1) / sample.ess
    kind = {"is_df_fitted": rules.is_df_fitted, "is_anchored": is_anchored}
    fitted = em.fit(mixture, sample, steps, strength, **kind)
    kept = np.flatnonzero(fitted.log_weights > np.log(SMALLEST_WEIGHT))
    # Where draws are so far from all components that none has any weight, nothing was learnt.
    return take(fitted, kept) if len(kept) else mixture


def fit_best(mixture: Mixture, train: Sample, test: Sample, rules: Rules) -> tuple[float, Mixture]:
    """Fit with the pull that held-out draws like best, and return both; inf leaves all as it is."""
    pulls = (*rules.tuning.pulls, ANCHORED) if mixture.dim > em.MANY else rules.tuning.pulls
    is_certain = len(mixture.log_weights) * num_parameters(mixture.dim) < CERTAIN_SHARE * train.ess
    fits = [(pull, fit(mixture, train, rules, pull)) for pull in (pulls[:1] if is_certain else pulls)]
    return max([*fits, (np.inf, mixture)], key=lambda each: score(each[1], test))


def delete_useless(mixture: Mixture, test: Sample) -> Mixture:
    """Delete, one at a time, components without which held-out draws are more likely."""
    while len(mixture.log_weights) > 1:
        responsibility, _, _ = em.responsibilities(mixture, test)
        rest = np.log(np.maximum(1 - responsibility, 1e-12)) @ test.weight
        gain = rest - np.log(np.maximum(1 - mixture.weights, 1e-12))
        worst = int(np.argmax(gain))
        if not gain[worst] > 0:
            break
        mixture = take(mixture, np.delete(np.arange(len(gain)), worst))
    return mixture


def grow(
    generator: np.random.Generator, mixture: Mixture, sample: Sample, rules: Rules, num_rounds: int | None = None
) -> Mixture:
    """Fit a mixture to weighted draws: EM, deletions, ``num_rounds`` rounds of splits at most, EM on all draws last.

    The draws have the log density of the target; the generator chooses those that are held out.
    """
    return grow_with_pull(generator, mixture, sample, rules, num_rounds)[1]


def grow_with_pull(
    generator: np.random.Generator, mixture: Mixture, sample: Sample, rules: Rules, num_rounds: int | None = None
) -> tuple[float, Mixture]:
    """Do the same, and return the pull that held-out draws like best as well; inf leaves all as it is."""
    tuning = rules.tuning
    train, test = held_out(generator, sample, tuning.held_out)
    pull, mixture = fit_best(mixture, train, test, rules)
    mixture = delete_useless(mixture, test)
    leader, best = (pull, mixture), score(mixture, test)
    for _ in range(tuning.split_rounds if num_rounds is None else num_rounds):
        room = rules.max_components - len(mixture.log_weights)
        if room <= 0:
            break
        proposal = split_all(mixture, train, test, room, lambda now, draws: fit(now, draws, rules))
        if proposal is None:
            break
        mixture = delete_useless(proposal, test)
        new = score(mixture, test)
        if new > best:
            leader, best = (1.0, mixture), new
    pull, mixture = leader
    return pull, mixture if np.isinf(pull) else fit(mixture, sample, rules, pull)


def held_out(generator: np.random.Generator, sample: Sample, share: float) -> tuple[Sample, Sample]:
    """Split draws into those that are fitted to and those that judge."""
    is_held = generator.uniform(size=len(sample)) < share
    # Of very few draws there may be none on one side.
    is_possible = 0 < sample.weight[is_held].sum() and 0 < sample.weight[~is_held].sum()
    return (sample.where(~is_held), sample.where(is_held)) if is_possible else (sample, sample)
