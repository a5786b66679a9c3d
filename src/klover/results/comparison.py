"""Models against each other: differences of log evidences, and Bayes factors, with their errors."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from klover.base.checks import check_instance, in_words
from klover.base.shapes import Float
from klover.results import html
from klover.results.fit import Fit
from klover.results.summary import aligned

HEADER = ("model", "log evidence", "±", "difference", "±", "Bayes factor", "±")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Models in the order of their evidences, the best first; ``print`` it, or read its columns.

    Differences are log evidences less the best one; their standard errors are those of two independent fits. The best
    has no difference from itself and no error of it.
    """

    names: tuple[str, ...]
    log_evidence: Float[np.ndarray, " model"]
    log_evidence_se: Float[np.ndarray, " model"]
    difference: Float[np.ndarray, " model"]
    difference_se: Float[np.ndarray, " model"]

    @property
    def bayes_factor(self) -> Float[np.ndarray, " model"]:
        r"""Bayes factors :math:`Z/Z_\text{best}`, between 0 and 1."""
        return np.exp(self.difference)

    @property
    def bayes_factor_se(self) -> Float[np.ndarray, " model"]:
        """Standard errors of the Bayes factors, by the delta method."""
        return self.bayes_factor * self.difference_se

    def __str__(self) -> str:
        """Return the table as text."""
        return "\n".join(aligned([HEADER, *self._rows()], 14))

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return html.table(HEADER, self._rows(), "Evidences of models")

    def _rows(self) -> list[list[str]]:
        columns = (self.log_evidence, self.log_evidence_se, self.difference, self.difference_se)
        factors = zip(self.bayes_factor, self.bayes_factor_se, strict=True)
        return [
            [name, *(f"{value:.3f}" for value in row), *(f"{value:.3g}" for value in factor)]
            for name, row, factor in zip(self.names, zip(*columns, strict=True), factors, strict=True)
        ]


def compare(fits: Mapping[str, Fit]) -> Comparison:
    """Compare models of the same data by their evidences.

    ``fits`` are two or more, by the names of their models. An evidence means something only where all constants of
    prior and likelihood are in the log density. Where a fit is refused, or its model has an improper prior, there is
    nothing to compare, and this raises a ``ValueError`` that names the fit and the reason.
    """
    if not isinstance(fits, Mapping):
        raise TypeError(f"fits must be a dict of fits by the names of their models, got {in_words(fits)}.")
    if len(fits) < 2:
        raise ValueError(f"fits must hold two fits or more, got {len(fits)}. Pass a dict of fits by name.")
    for name, fit in fits.items():
        check_instance(f"fits[{name!r}]", fit, Fit)
        _check(name, fit)
    names = sorted(fits, key=lambda name: -fits[name].log_evidence)
    value = np.array([fits[name].log_evidence for name in names])
    error = np.array([fits[name].log_evidence_se for name in names])
    difference_se = np.hypot(error, error[0]) * (np.arange(len(names)) > 0)
    return Comparison(tuple(names), value, error, value - value[0], difference_se)


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
