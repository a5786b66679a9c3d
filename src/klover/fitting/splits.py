r"""Splits of components, confirmed by held-out draws.

A component is split along the direction in which the residual :math:`l=\log p-\log q` has most structure. With
:math:`z=L_k^{-1}(\theta-\mu_k)`, :math:`b=\mathrm E_k[lz]` and :math:`M=\mathrm E_k[lzz^\top]` under the
responsibilities of component k, the direction is :math:`b` where the residual is tilted, and the leading eigenvector of
:math:`M` where it is bent. The halves on both sides of the median along it become the children.

All components are split at once and fitted; then each split is judged by the held-out draws of its parent,
:math:`\sum_sw_sr_k(\theta_s)\log\frac{q_{new}}{q_{old}}(\theta_s)`, and those that do not gain more than the standard
error of that sum are taken back. Judging the round as a whole let one bad split veto nine good ones: eight schools
stopped at 8 components, where 17 are needed. Keeping every gain keeps half of the useless splits, by chance: on twenty
modes one run in ten then had heavy weights, and took up to twice the evaluations.
"""

from collections.abc import Callable

import jax
import numpy as np

from klover.base.arrays import logsumexp
from klover.base.linalg import cholesky, moments
from klover.base.shapes import AnyArray, PerDraw, Points
from klover.fitting import em
from klover.fitting.sample import Sample
from klover.importance.ratios import kish
from klover.mixtures.components import Components
from klover.mixtures.mixture import Mixture
from klover.mixtures.scale import Full

NEAR = 1e-4
"""Draws with less of a component's largest weight do not say where to split it."""
RESIDUAL_LIMIT = 3.0
"""Standard deviations at which residuals are cut: one draw must not choose the direction."""

Fit = Callable[[Mixture, Sample], Mixture]


def num_parameters(dim: int) -> float:
    """Count the parameters of a location and a full covariance."""
    return dim * (dim + 3) / 2


def split_all(mixture: Mixture, train: Sample, test: Sample, room: int, fit: Fit) -> Mixture | None:
    """Split every component that has draws enough, and take back the splits that held-out draws do not confirm.

    Where none is confirmed all are kept: two clean modes need a second split before the first one pays. There may be
    ``room`` components more; where nothing can be split, None is returned. ``fit`` fits what has been split.
    """
    children = _children(mixture, train)
    if not children:
        return None
    parent, _, log_old = em.responsibilities(mixture, test)
    proposal = fit(_with_children(mixture, children), train)
    change = parent * test.weight * (proposal.log_prob(test.x) - log_old)
    gain, noise = change.sum(1), np.sqrt((change**2).sum(1))
    confirmed = sorted((slot for slot in children if gain[slot] > noise[slot]), key=lambda slot: -gain[slot])[:room]
    if confirmed and len(confirmed) < len(children):
        return fit(_with_children(mixture, {slot: children[slot] for slot in confirmed}), train)
    return None if len(children) > room else proposal


def _children(mixture: Mixture, sample: Sample) -> dict[int, Mixture]:
    """Return the two children of every component that can be split, by its slot."""
    if not isinstance(mixture.components.spread, Full):
        return {}
    responsibility, _, log_q = em.responsibilities(mixture, sample)
    log_p = np.asarray(sample.log_p)
    residual = np.where(np.isfinite(log_p), log_p - log_q, 0.0)
    # Half as many draws as parameters: the pull to the parent's covariance supplies the rest.
    fewest = 0.5 * num_parameters(mixture.dim) + 4
    slots = np.flatnonzero(kish(responsibility * sample.weight) >= fewest).tolist()
    pairs = {slot: split(mixture, slot, sample, residual, responsibility[slot]) for slot in slots}
    return {slot: pair for slot, pair in pairs.items() if pair is not None}


def split(mixture: Mixture, slot: int, sample: Sample, residual: AnyArray, responsibility: AnyArray) -> Mixture | None:
    """Return the two children of a component, weights relative to the whole; None where its draws have but one side."""
    weight = responsibility * sample.weight
    near = weight > NEAR * weight.max()
    x, share = sample.x[near], weight[near] / weight[near].sum()
    residual = residual[near] - share @ residual[near]
    size = np.sqrt(share @ residual**2)
    residual = np.clip(residual, -RESIDUAL_LIMIT * size, RESIDUAL_LIMIT * size)
    along = _projection(mixture, slot, x, share * (residual - share @ residual))
    order = np.argsort(along)
    median = along[order[np.searchsorted(np.cumsum(share[order]), 0.5).clip(0, len(order) - 1)]]
    sides = [along <= median, along > median]
    if not all(share[side].sum() > 0 for side in sides):
        return None
    location, covariance = (np.stack(each) for each in zip(*(moments(x[s], share[s]) for s in sides), strict=True))
    # A side that has but one draw has no spread.
    if not np.all(np.diagonal(covariance, axis1=1, axis2=2) > 0):
        return None
    components = mixture.components
    children = Components(location, Full(cholesky(covariance)), components.df[[slot, slot]], components.tail)
    return Mixture(children, np.log(weight.sum() * np.array([share[side].sum() for side in sides])))


def _projection(mixture: Mixture, slot: int, x: Points, weighted: PerDraw) -> PerDraw:
    """Project whitened draws on the direction in which the (weighted, centred) residual is tilted, or else bent."""
    spread = mixture.components.spread
    assert isinstance(spread, Full)
    z = np.linalg.solve(np.tril(spread.factor[slot]), (x - mixture.components.location[slot]).T).T
    tilt, bend = weighted @ z, z.T @ (weighted[:, None] * z)
    values, vectors = np.linalg.eigh(bend)
    largest = np.argmax(np.abs(values))
    return z @ (tilt if tilt @ tilt >= 0.5 * values[largest] ** 2 else vectors[:, largest])


def _with_children(mixture: Mixture, children: dict[int, Mixture]) -> Mixture:
    """Return the mixture with some components replaced by their children."""
    kept = [slot for slot in range(len(mixture.log_weights)) if slot not in children]
    parts = [Mixture(jax.tree.map(lambda leaf: leaf[kept], mixture.components), mixture.log_weights[kept])]
    parts += children.values()
    components = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(part.components for part in parts))
    log_weights = np.concatenate([part.log_weights for part in parts])
    return Mixture(components, log_weights - logsumexp(log_weights))
