"""Models against each other: evidences, Bayes factors and posterior probabilities with their errors; stacking."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from klover.base.arrays import logsumexp
from klover.base.checks import as_numbers, check_instance, check_positive, in_words
from klover.base.shapes import Float
from klover.fitting.simplex import forward_weights
from klover.results import html
from klover.results.fit import Fit
from klover.results.summary import aligned

HEADER = ("model", "log evidence", "±", "difference", "±", "Bayes factor", "±", "probability", "±")
POINTWISE = ("elpd_i", "loo_i")
"""What ArviZ calls the expected log predictive densities of the observations: since version 1, and before."""
CLEAR = 2.0
"""Standard errors that two log evidences lie apart where their order is no chance."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Models in the order of their evidences, the best first; ``print`` it, or read its columns.

    Differences are log evidences less the best one; their standard errors are those of two independent fits. The best
    has no difference from itself and no error of it. ``prior`` are the prior probabilities of the models. ``stacking``
    are the weights with which the models together predict best, if their LOO results were given, and None otherwise.
    """

    names: tuple[str, ...]
    log_evidence: Float[np.ndarray, " model"]
    log_evidence_se: Float[np.ndarray, " model"]
    difference: Float[np.ndarray, " model"]
    difference_se: Float[np.ndarray, " model"]
    prior: Float[np.ndarray, " model"]
    stacking: Float[np.ndarray, " model"] | None = None

    @property
    def bayes_factor(self) -> Float[np.ndarray, " model"]:
        r"""Bayes factors :math:`Z/Z_\text{best}`, between 0 and 1."""
        return np.exp(self.difference)

    @property
    def bayes_factor_se(self) -> Float[np.ndarray, " model"]:
        """Standard errors of the Bayes factors, by the delta method."""
        return self.bayes_factor * self.difference_se

    @property
    def probability(self) -> Float[np.ndarray, " model"]:
        r"""Posterior probabilities of the models, :math:`\pi_kZ_k/\sum_j\pi_jZ_j`, if one of them is true."""
        log_joint = self.log_evidence + np.log(self.prior)
        return np.exp(log_joint - logsumexp(log_joint))

    @property
    def probability_se(self) -> Float[np.ndarray, " model"]:
        """Standard errors of the probabilities, by the delta method."""
        probability = self.probability
        slopes = np.diag(probability) - np.outer(probability, probability)
        return np.sqrt(slopes**2 @ self.log_evidence_se**2)

    @property
    def notes(self) -> tuple[str, ...]:
        """Which neighbours in the table have evidences that overlap within their errors, in words."""
        gap, error = -np.diff(self.log_evidence), np.hypot(self.log_evidence_se[1:], self.log_evidence_se[:-1])
        return tuple(
            f"The evidences of {self.names[place]} and {self.names[place + 1]} overlap within their errors (their logs "
            f"are {gap[place]:.3f} ± {error[place]:.3f} apart), so that their order is not known. Fit with more draws."
            for place in np.flatnonzero(gap < CLEAR * error)
        )

    def __str__(self) -> str:
        """Return the table as text."""
        return "\n".join([*aligned([self._header, *self._rows()], 14), *self.notes])

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return html.table(self._header, self._rows(), "Evidences of models") + html.bullets(self.notes)

    @property
    def _header(self) -> tuple[str, ...]:
        return HEADER if self.stacking is None else (*HEADER, "stacking")

    def _rows(self) -> list[list[str]]:
        columns = (self.log_evidence, self.log_evidence_se, self.difference, self.difference_se)
        shares = (self.bayes_factor, self.bayes_factor_se, self.probability, self.probability_se)
        shares = shares if self.stacking is None else (*shares, self.stacking)
        rows = zip(self.names, zip(*columns, strict=True), zip(*shares, strict=True), strict=True)
        return [
            [name, *(f"{value:.3f}" for value in row), *(f"{value:.3g}" for value in share)]
            for name, row, share in rows
        ]


def compare(
    fits: Mapping[str, Fit], *, prior: Mapping[str, float] | None = None, loo: Mapping[str, Any] | None = None
) -> Comparison:
    """Compare models of the same data by their evidences, and by what they predict.

    Parameters
    ----------
    fits
        Two fits or more, by the names of their models. An evidence means something only where all constants of prior
        and likelihood are in the log density.
    prior
        Prior probabilities of the models by name, up to a common factor; all the same by default.
    loo
        Leave-one-out results of the models by name, as :func:`~klover.results.comparison.stacking_weights` takes them:
        for stacking weights.

    Raises
    ------
    ValueError
        If a fit is refused, or its model has an improper prior: there is nothing to compare then.

    Examples
    --------
    >>> import jax.numpy as jnp, klover
    >>> narrow = klover.refine(0, klover.Target(lambda x: -0.5 * x**2, 0.0))
    >>> wide = klover.refine(0, klover.Target(lambda x: -0.125 * x**2, 0.0))
    >>> comparison = klover.compare({"narrow": narrow, "wide": wide}, prior={"narrow": 0.8, "wide": 0.2})
    >>> comparison.names, comparison.probability.round(2).tolist()  # the evidences are as 1 to 2
    (('wide', 'narrow'), [0.33, 0.67])
    """
    if not isinstance(fits, Mapping):
        raise TypeError(f"fits must be a dict of fits by the names of their models, got {in_words(fits)}.")
    if len(fits) < 2:
        raise ValueError(f"fits must hold two fits or more, got {len(fits)}. Pass a dict of fits by name.")
    for name, fit in fits.items():
        check_instance(f"fits[{name!r}]", fit, Fit)
        _check(name, fit)
    share = _prior(fits, prior)
    names = sorted(fits, key=lambda name: -fits[name].log_evidence)
    value = np.array([fits[name].log_evidence for name in names])
    error = np.array([fits[name].log_evidence_se for name in names])
    difference_se = np.hypot(error, error[0]) * (np.arange(len(names)) > 0)
    stacking = None if loo is None else stacking_weights(_of_all("loo", loo, fits))
    return Comparison(
        tuple(names),
        value,
        error,
        value - value[0],
        difference_se,
        np.array([share[name] for name in names]),
        None if stacking is None else np.array([stacking[name] for name in names]),
    )


def stacking_weights(loo: Mapping[str, Any]) -> dict[str, float]:
    r"""Weights with which models together predict best: those that maximise the score of their mixture.

    With the log predictive densities :math:`e_{ik}` of the observations i under the models k, each left out in turn,
    they maximise :math:`\sum_i\log\sum_kw_ke^{e_{ik}}` on the simplex (Yao, Vehtari, Simpson and Gelman 2018): the
    problem of :mod:`klover.fitting.simplex`. ``loo`` has by the names of the models arrays of such densities, or what
    ArviZ's ``loo`` returns with ``pointwise=True``.

    Examples
    --------
    >>> import numpy as np
    >>> stacking_weights({"a": np.log([0.9, 0.9, 0.1]), "b": np.log([0.1, 0.1, 0.9])})["a"].__round__(3)
    0.708
    """
    if not isinstance(loo, Mapping) or len(loo) < 2:
        raise ValueError(f"loo must be a dict of two LOO results or more, by model, got {in_words(loo)}.")
    pointwise = {name: _pointwise(name, each) for name, each in loo.items()}
    sizes = {name: len(each) for name, each in pointwise.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"loo must be of the same observations for every model, got these numbers of them: {sizes}.")
    densities = np.stack(list(pointwise.values()))
    num_models, num = densities.shape
    equal = np.full(num_models, -np.log(num_models))
    log_weights, _ = forward_weights(equal, densities, np.full(num, 1 / num))
    return dict(zip(pointwise, np.exp(log_weights).tolist(), strict=True))


def _pointwise(name: str, result: Any) -> Float[np.ndarray, " row"]:
    """Read the pointwise values of one model."""
    found = next((getattr(result, each) for each in POINTWISE if hasattr(result, each)), result)
    remedy = "Pass pointwise values: az.loo(..., pointwise=True), or an array of them."
    values = np.asarray(as_numbers(f"loo[{name!r}]", getattr(found, "values", found), remedy), float).ravel()
    if len(values) < 2 or not np.isfinite(values).all():
        raise ValueError(
            f"loo[{name!r}] must hold a finite number for each observation, got {in_words(found)}. {remedy}"
        )
    return values


def _of_all(argument: str, given: Mapping[str, Any], fits: Mapping[str, Fit]) -> Mapping[str, Any]:
    """Refuse a dict that has other names than the fits."""
    if not isinstance(given, Mapping) or set(given) != set(fits):
        found = list(given) if isinstance(given, Mapping) else in_words(given)
        raise ValueError(f"{argument} must be a dict by the names of the fits, {list(fits)}, got {found}.")
    return given


def _prior(fits: Mapping[str, Fit], prior: Mapping[str, float] | None) -> dict[str, float]:
    """Return the prior probabilities of the models, which add up to one."""
    if prior is None:
        return dict.fromkeys(fits, 1 / len(fits))
    for name, value in _of_all("prior", prior, fits).items():
        check_positive(f"prior[{name!r}]", value, "Leave a model out that is impossible.")
    total = sum(prior.values())
    return {name: value / total for name, value in prior.items()}


def _check(name: str, fit: Fit) -> None:
    """Refuse a fit whose evidence cannot be believed, or means nothing."""
    improper = () if fit.target.model_info is None else fit.target.model_info.improper
    if improper:
        raise ValueError(
            f"fits[{name!r}] has an improper prior of {', '.join(improper)}, so that its evidence is known up to an "
            "arbitrary factor only. Give a proper prior, and fit again; or leave this model out."
        )
    if not fit.verdict.trusted:
        raise ValueError(
            f"fits[{name!r}] is refused, so that its evidence cannot be compared: {fit.verdict.reason} "
            f"{fit.verdict.remedy} Or leave this model out."
        )
