r"""Leave-one-out, leave-one-group-out and K-fold cross-validation: how well a model predicts what it has not seen.

The expected log predictive density (elpd) is the sum over sets g of rows of
:math:`\log p(y_g\mid y_{-g})=\log\mathrm E_{-g}[L_g]=\log Z-\log Z_{-g}`. The middle is what re-weighted draws give,
the difference of log evidences what a refit gives (:mod:`klover.uses.left_out`), with its error. A set is one row
(``loo``), a group, or a fold: of the rows of a fold each one's :math:`\log\mathrm E_{-g}[L_i]` counts by itself.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from klover.base.arrays import logsumexp
from klover.base.checks import as_key, check_count, check_instance, in_words
from klover.base.shapes import Float, KeyLike, PyTree
from klover.importance.psis import pareto_k, reliable_k
from klover.results.doubt import warn_if_refused
from klover.results.fit import Fit
from klover.uses.elpd import Elpd
from klover.uses.left_out import LeftOut, Pointwise, Refits, Rows, at_draws, leave_out, pointwise
from klover.workers.crew import check_pool


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Log predictive densities of units: rows or groups.

    ``influence`` is what each draw of the fit adds to their errors, ``error`` is that of refits, and ``refits`` are
    those that each unit rests on.
    """

    log_mean: Float[np.ndarray, " unit"]
    influence: Float[np.ndarray, "unit draw"]
    error: Float[np.ndarray, " unit"]
    refits: tuple[tuple[Fit, ...], ...]


def loo(
    fit: Fit,
    log_likelihood: Callable[[PyTree], Any] | None = None,
    *,
    groups: Sequence[Any] | np.ndarray | None = None,
    key: KeyLike = 0,
    min_ess: int | None = None,
    pool: Any = None,
) -> Elpd:
    """Leave out each row, or each group of rows; the documentation is that of :meth:`klover.Fit.loo`."""
    check_pool(pool)
    function, values = _read(fit, log_likelihood)
    num_rows = values.shape[1]
    labels = np.arange(num_rows) if groups is None else _labels(groups)
    if labels.shape != (num_rows,) or len(np.unique(labels)) < 2:
        raise ValueError(
            f"groups must be {num_rows} labels, one for each row of the data, and two different ones at the least, got "
            f"{len(np.unique(labels))} in an array of shape {labels.shape}."
        )
    names, member = np.unique(labels, return_inverse=True)
    sets = [np.flatnonzero(member == number) for number in range(len(names))]
    together = np.stack([values[:, rows].sum(axis=1) for rows in sets], axis=1)
    refits = Refits(fit, function, num_rows, key, min_ess, pool)
    found = [
        (left, _together(fit, left, together[:, [number]]))
        for number, left in enumerate(leave_out(refits, values, sets))
    ]
    return _elpd("loo" if groups is None else "logo", fit, names, together, found, np.arange(len(names)))


def _labels(groups: Sequence[Any] | np.ndarray) -> np.ndarray:
    """Return labels as an array, which are numbers or words."""
    try:
        labels = np.asarray(groups)
        np.unique(labels)
    except (TypeError, ValueError):
        raise TypeError(
            f"groups must be numbers or words, one for each row of the data, got {in_words(groups)}."
        ) from None
    return labels


def kfold(
    fit: Fit,
    num_folds: int = 10,
    log_likelihood: Callable[[PyTree], Any] | None = None,
    *,
    key: KeyLike = 0,
    min_ess: int | None = None,
    pool: Any = None,
) -> Elpd:
    """Leave out each of several folds of the rows; the documentation is that of :meth:`klover.Fit.kfold`."""
    check_pool(pool)
    function, values = _read(fit, log_likelihood)
    num_rows = values.shape[1]
    check_count("num_folds", num_folds, 2, "10 is a good number.", num_rows)
    key = as_key(key)
    order = np.random.default_rng(np.asarray(jax.random.key_data(key))).permutation(num_rows)
    sets = [np.sort(rows) for rows in np.array_split(order, num_folds)]
    refits = Refits(fit, function, num_rows, key, min_ess, pool)
    left_out = leave_out(refits, values, sets)
    here = [(values if left.refit is None else at_draws(left.refit, function))[:, left.rows] for left in left_out]
    again = refits({row: rows for left, each in zip(left_out, here, strict=True) for row, rows in _far(left, each)})
    found = [(left, _each(left, each, len(values), again)) for left, each in zip(left_out, here, strict=True)]
    return _elpd("kfold", fit, np.arange(num_rows), values, found, np.concatenate(sets))


def _read(fit: Fit, log_likelihood: Callable[[PyTree], Any] | None) -> tuple[Pointwise, Float[np.ndarray, "draw row"]]:
    """Return the pointwise log likelihood, and its values at the draws."""
    check_instance("fit", fit, Fit)
    if fit.kind != "importance":
        raise ValueError(
            f"the fit must have importance weights, got {fit.kind}: there is no proposal to weigh its draws by. Pass "
            "fit.to_arviz() to ArviZ's loo, which treats them as posterior draws."
        )
    warn_if_refused(fit, "What is left out is compared with it, and refits begin with it: the elpd is refused, too.")
    function = pointwise(fit.target, log_likelihood)
    return function, at_draws(fit, function)


def _log_mean(log_weight: Float[np.ndarray, " draw"], values: Float[np.ndarray, "draw unit"]) -> tuple[Any, Any]:
    """Return the log of weighted means of exponentials, and what each draw adds to their errors."""
    log_mean = logsumexp(log_weight[:, None] + values, axis=0)
    return log_mean, (np.exp(log_weight)[:, None] * np.expm1(values - log_mean)).T


def _together(fit: Fit, left: LeftOut, values: Float[np.ndarray, "draw one"]) -> Estimate:
    """Estimate the log predictive density of all rows of a set together."""
    if left.refit is None:
        return Estimate(*_log_mean(left.log_weight, values), np.zeros(1), ((),))
    difference = fit.log_evidence - left.refit.log_evidence
    weight = np.exp(np.asarray(fit.draws.log_weight, float))
    # The evidence of the fit is that of all refits: its error is one of the draws, of the size that is stated.
    influence = weight - weight.mean()
    influence *= fit.log_evidence_se / max(np.linalg.norm(influence), np.finfo(float).tiny)
    error = np.array([left.refit.log_evidence_se])
    return Estimate(np.array([difference]), influence[None], error, ((left.refit,),))


def _far(left: LeftOut, here: Float[np.ndarray, "draw row"]) -> Iterator[tuple[int, Rows]]:
    """Find rows where draws without their fold hardly are, with the rest of the fold: refits with them have draws."""
    if left.refit is None:
        return
    draws = left.refit.draws
    for place, row in enumerate(left.rows.tolist()):
        if pareto_k(np.asarray(draws.log_ratio, float) + here[:, place]) > reliable_k(draws.num_draws):
            yield row, np.setdiff1d(left.rows, row)


def _each(left: LeftOut, here: Float[np.ndarray, "draw row"], num_draws: int, again: Mapping[int, Fit]) -> Estimate:
    """Estimate the log predictive density of each row of a set by itself; ``again`` are the refits with far rows."""
    if left.refit is None:
        return Estimate(*_log_mean(left.log_weight, here), np.zeros(len(left.rows)), ((),) * len(left.rows))
    log_mean, influence = _log_mean(np.asarray(left.refit.draws.log_weight, float), here)
    error = np.linalg.norm(influence, axis=1)
    refits: list[tuple[Fit, ...]] = [(left.refit,)] * len(left.rows)
    for place, row in enumerate(left.rows.tolist()):
        if row in again:
            log_mean[place] = again[row].log_evidence - left.refit.log_evidence
            error[place] = np.hypot(again[row].log_evidence_se, left.refit.log_evidence_se)
            refits[place] = (left.refit, again[row])
    return Estimate(log_mean, np.zeros((len(left.rows), num_draws)), error, tuple(refits))


def _elpd(
    kind: str,
    fit: Fit,
    labels: np.ndarray,
    values: Float[np.ndarray, "draw unit"],
    found: Sequence[tuple[LeftOut, Estimate]],
    order: Rows,
) -> Elpd:
    """Put together what was found of all sets; ``order`` says which units these are."""
    elpd, error, tails = (np.empty(len(order)) for _ in range(3))
    refits, first = {}, 0
    total, shared = 0.0, np.zeros(len(values))
    for left, estimate in found:
        units = order[first : first + len(estimate.log_mean)]
        first += len(units)
        elpd[units], tails[units] = estimate.log_mean, left.pareto_k
        error[units] = np.hypot(np.linalg.norm(estimate.influence, axis=1), estimate.error)
        shared += estimate.influence.sum(axis=0)
        # The rows of a refitted fold share its draws: their errors add up.
        total += estimate.error.sum() ** 2
        refits |= {label: fits for label, fits in zip(labels[units].tolist(), estimate.refits, strict=True) if fits}
    lppd = np.asarray(logsumexp(np.asarray(fit.draws.log_weight, float)[:, None] + values, axis=0))
    return Elpd(
        kind,
        labels,
        elpd,
        error,
        float(np.sqrt(shared @ shared + total)),
        lppd,
        tails,
        refits,
        len(values),
        reliable_k(len(values)),
        fit.verdict,
    )
