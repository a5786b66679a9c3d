r"""Growth of a mixture on weighted draws: EM, splits and deletions that held-out draws confirm.

A component is split along the direction in which the residual :math:`l=\log p-\log q` has most structure. With
:math:`z=L_k^{-1}(\theta-\mu_k)`, :math:`b=\mathrm E_k[lz]` and :math:`M=\mathrm E_k[lzz^\top]` under the
responsibilities of component k, the direction is :math:`b` where the residual is tilted, and the leading eigenvector of
:math:`M` where it is bent. The halves on both sides of the median along it become the children.

All components are split at once and fitted; then each split is judged by the held-out draws of its parent,
:math:`\sum_sw_sr_k(\theta_s)\log\frac{q_{new}}{q_{old}}(\theta_s)`, and those that do not gain more than the standard
error of that sum are taken back. Judging the round as a whole let one bad split veto nine good ones: eight schools
stopped at 8 components, where 17 are needed. Keeping every gain keeps half of the useless splits, by chance: on twenty
modes one run in ten then had heavy weights, and took up to twice the evaluations.

A component is deleted when held-out draws are more likely without it, :math:`\sum_sw_s\log\frac{1-r_k}{1-\lambda_k}>0`.
Deleting for want of draws (fewer than a quarter of the parameters) instead lost half of ten modes in 20 dimensions:
there the covariance of the mode search is right and needs no draws. For the same reason EM pulls each covariance to
where it was, as strongly as the held-out draws like best.
"""

import jax
import numpy as np

from klover.base.arrays import logsumexp
from klover.base.linalg import cholesky
from klover.base.shapes import AnyArray
from klover.fitting import em
from klover.fitting.sample import Sample, moments
from klover.mixtures.algebra import take
from klover.mixtures.components import Components
from klover.mixtures.mixture import Mixture
from klover.mixtures.scale import Full

HELD_OUT_SHARE = 0.25
NUM_EM_STEPS = 5
SMALLEST_GAIN = 1e-3
SMALLEST_WEIGHT = 1e-8
SMALLEST_RESIDUAL = 0.05
RESIDUAL_LIMIT = 3.0
PATIENCE = 2
PULLS = (1.0, 10.0, 100.0)


def num_parameters(dim: int) -> float:
    """Count the parameters of a location and a full covariance."""
    return dim * (dim + 3) / 2


def score(mixture: Mixture, sample: Sample) -> float:
    """Weighted mean log density: the negative forward KL up to a constant."""
    return float(sample.weight @ np.maximum(mixture.log_prob(sample.x), -1e300))


def fit(mixture: Mixture, sample: Sample, pull: float = 1.0, num_steps: int = NUM_EM_STEPS) -> Mixture:
    """Take EM steps, covariances pulled to where they are with ``pull * (dim + 1)`` effective draws."""
    strength = pull * (mixture.dim + 1) / sample.ess
    fitted = em.fit(mixture, sample.without_target, num_steps, strength)
    return take(fitted, np.flatnonzero(fitted.log_weights > np.log(SMALLEST_WEIGHT)))


def fit_best(mixture: Mixture, train: Sample, test: Sample) -> tuple[float, float, Mixture]:
    """Fit with the pull that held-out draws like best, and return it with the score; inf leaves all as it is."""
    is_certain = len(mixture.log_weights) * num_parameters(mixture.dim) < 0.1 * train.ess
    fits = [(pull, fit(mixture, train, pull)) for pull in (PULLS[:1] if is_certain else PULLS)]
    fits.append((np.inf, mixture))
    scores = [score(fitted, test) for _, fitted in fits]
    best = int(np.argmax(scores))
    return scores[best], *fits[best]


def delete_useless(mixture: Mixture, test: Sample) -> Mixture:
    """Delete, one at a time, components without which held-out draws are more likely."""
    while len(mixture.log_weights) > 1:
        responsibility, _, _ = em.responsibilities(mixture, test.without_target)
        rest = np.log(np.maximum(1 - responsibility, 1e-12)) @ test.weight
        gain = rest - np.log(np.maximum(1 - mixture.weights, 1e-12))
        worst = int(np.argmax(gain))
        if not gain[worst] > 0:
            break
        mixture = take(mixture, np.delete(np.arange(len(gain)), worst))
    return mixture


def split(mixture: Mixture, slot: int, sample: Sample, residual: AnyArray, responsibility: AnyArray) -> Mixture | None:
    """Return the two children of a component, weights relative to the whole; None where its residual is flat."""
    weight = responsibility * sample.weight
    near = weight > 1e-4 * weight.max()
    x, share = sample.x[near], weight[near] / weight[near].sum()
    residual = residual[near] - share @ residual[near]
    size = np.sqrt(share @ residual**2)
    if size < SMALLEST_RESIDUAL:
        return None
    residual = np.clip(residual, -RESIDUAL_LIMIT * size, RESIDUAL_LIMIT * size)
    weighted = share * (residual - share @ residual)
    spread = mixture.components.spread
    assert isinstance(spread, Full)
    factor = np.tril(spread.factor[slot])
    z = np.linalg.solve(factor, (x - mixture.components.location[slot]).T).T
    tilt, bend = weighted @ z, z.T @ (weighted[:, None] * z)
    values, vectors = np.linalg.eigh(bend)
    largest = np.argmax(np.abs(values))
    along = z @ (tilt if tilt @ tilt >= 0.5 * values[largest] ** 2 else vectors[:, largest])
    order = np.argsort(along)
    median = along[order[np.searchsorted(np.cumsum(share[order]), 0.5).clip(0, len(order) - 1)]]
    sides = [along <= median, along > median]
    if not all(share[side].sum() > 0 for side in sides):
        return None
    location, covariance = zip(*(moments(x[side], share[side]) for side in sides), strict=True)
    # A side that has but one draw has no spread.
    if not np.all(np.diagonal(covariance, axis1=1, axis2=2) > 0):
        return None
    children = Components(
        np.stack(location),
        Full(cholesky(np.stack(covariance))),
        mixture.components.df[[slot, slot]],
        mixture.components.tail,
    )
    return Mixture(children, np.log(weight.sum() * np.array([share[side].sum() for side in sides])))


def _with_children(mixture: Mixture, children: dict[int, Mixture]) -> Mixture:
    """Return the mixture with some components replaced by their children."""
    kept = [slot for slot in range(len(mixture.log_weights)) if slot not in children]
    parts = [Mixture(jax.tree.map(lambda leaf: leaf[kept], mixture.components), mixture.log_weights[kept])]
    parts += children.values()
    components = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(part.components for part in parts))
    log_weights = np.concatenate([part.log_weights for part in parts])
    return Mixture(components, log_weights - logsumexp(log_weights))


def split_all(mixture: Mixture, train: Sample, test: Sample, max_components: int) -> Mixture | None:
    """Split every component that has draws enough, and take back the splits that held-out draws do not confirm.

    Where none is confirmed all are kept: two clean modes need a second split before the first one pays.
    """
    if not isinstance(mixture.components.spread, Full):
        return None
    responsibility, _, log_q = em.responsibilities(mixture, train.without_target)
    residual = np.where(np.isfinite(train.log_p), train.log_p - log_q, 0.0)
    weight = responsibility * train.weight
    effective = weight.sum(1) ** 2 / np.maximum((weight**2).sum(1), 1e-300)
    fewest = 0.5 * num_parameters(mixture.dim) + 4
    pairs = {
        slot: split(mixture, slot, train, residual, responsibility[slot])
        for slot in np.flatnonzero(effective >= fewest).tolist()
    }
    children = {slot: pair for slot, pair in pairs.items() if pair is not None}
    if not children:
        return None
    parent, _, log_old = em.responsibilities(mixture, test.without_target)
    proposal = fit(_with_children(mixture, children), train)
    change = parent * test.weight * (proposal.log_prob(test.x) - log_old)
    gain, noise = change.sum(1), np.sqrt((change**2).sum(1))
    room = max_components - len(mixture.log_weights)
    confirmed = sorted((slot for slot in children if gain[slot] > noise[slot]), key=lambda slot: -gain[slot])[:room]
    if confirmed and len(confirmed) < len(children):
        proposal = fit(_with_children(mixture, {slot: children[slot] for slot in confirmed}), train)
    elif len(children) > room:
        return None
    return delete_useless(proposal, test)


def grow(
    generator: np.random.Generator, mixture: Mixture, sample: Sample, max_components: int, num_rounds: int
) -> Mixture:
    """Fit a mixture to weighted draws: EM, deletions, rounds of splits, and EM on all draws last.

    Parameters
    ----------
    generator
        Chooses the draws that are held out.
    mixture
        Where to begin.
    sample
        Weighted draws.
    max_components
        No split makes more than this.
    num_rounds
        Largest number of rounds of splits.
    """
    held_out = generator.uniform(size=len(sample)) < HELD_OUT_SHARE
    # Of very few draws there may be none on one side.
    is_possible = 0 < sample.weight[held_out].sum() and 0 < sample.weight[~held_out].sum()
    train, test = (sample.where(~held_out), sample.where(held_out)) if is_possible else (sample, sample)
    _, pull, mixture = fit_best(mixture, train, test)
    mixture = delete_useless(mixture, test)
    leader, best, patience = (pull, mixture), score(mixture, test), PATIENCE
    for _ in range(num_rounds):
        if patience == 0 or len(mixture.log_weights) >= max_components:
            break
        proposal = split_all(mixture, train, test, max_components)
        if proposal is None:
            break
        mixture, new = proposal, score(proposal, test)
        if new > best + SMALLEST_GAIN:
            leader, best, patience = (1.0, mixture), new, PATIENCE
        else:
            patience -= 1
    pull, mixture = leader
    return mixture if np.isinf(pull) else fit(mixture, sample, pull)
