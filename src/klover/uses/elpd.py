"""The result of a cross-validation: expected log predictive densities with their errors, and whether to trust them."""

import dataclasses
from typing import Any

import numpy as np

from klover.base import optional
from klover.base.shapes import Float
from klover.results import html
from klover.results.fit import Fit
from klover.results.summary import aligned
from klover.verdict.judge import Verdict

TITLES = {"loo": "Leave-one-out", "logo": "Leave-one-group-out", "kfold": "K-fold"}
UNITS = {"loo": "rows", "logo": "groups", "kfold": "rows"}
MOST_NAMED = 10
"""Refused rows that a message names."""
HEADER = ("", "estimate", "se", "Monte Carlo error")


@dataclasses.dataclass(frozen=True)
class Elpd:
    """Expected log predictive density; ``print`` it, or read its parts. Arrays have one entry a row, or a group.

    Parameters
    ----------
    kind
        ``"loo"``, ``"logo"`` (groups) or ``"kfold"``.
    labels
        Numbers of the rows, or labels of the groups.
    elpd_i, elpd_i_error
        Log predictive densities, and their Monte Carlo errors.
    elpd_error
        Monte Carlo error of their sum, whose parts share draws.
    lppd_i
        The same densities under the posterior of all data.
    pareto_k
        k̂ of the weights of the fit's draws without a row; where it is above ``good_k``, or few draws are
        effective, the row was refitted.
    refits
        The fits without them that the densities of some labels rest on; a row that a fold without it hardly predicts
        has a second one, of all data but the rest of its fold.
    num_draws, good_k
        Draws that were re-weighted, and the largest k̂ to trust with so many.
    whole
        The verdict of the fit of all data.
    """

    kind: str
    labels: np.ndarray
    elpd_i: Float[np.ndarray, " unit"]
    elpd_i_error: Float[np.ndarray, " unit"]
    elpd_error: float
    lppd_i: Float[np.ndarray, " unit"]
    pareto_k: Float[np.ndarray, " unit"]
    refits: dict[Any, tuple[Fit, ...]]
    num_draws: int
    good_k: float
    whole: Verdict

    @property
    def elpd(self) -> float:
        """Sum of the log predictive densities."""
        return float(self.elpd_i.sum())

    @property
    def se(self) -> float:
        """Standard error of the sum, as that of a sample of rows or groups."""
        return float(np.sqrt(len(self.elpd_i) * self.elpd_i.var()))

    @property
    def p_loo(self) -> float:
        """Effective number of parameters."""
        return float((self.lppd_i - self.elpd_i).sum())

    @property
    def refused(self) -> tuple[Any, ...]:
        """Labels whose refits are refused; the verdicts in ``refits[label]`` have the reasons."""
        return tuple(label for label, fits in self.refits.items() if not all(fit.verdict.trusted for fit in fits))

    @property
    def num_evaluations(self) -> int:
        """Evaluations of the refits."""
        return sum({id(fit): fit.num_evaluations or 0 for fits in self.refits.values() for fit in fits}.values())

    @property
    def trusted(self) -> bool:
        """Whether nothing speaks against the sum: the fit and all refits are trusted."""
        return self.whole.trusted and not self.refused

    @property
    def verdict(self) -> str:
        """Whether the sum is trusted, in words; what is refused is named."""
        if self.trusted:
            return "trusted"
        if not self.whole.trusted:
            return f"REFUSED: the fit of all data is refused. {self.whole.reason}"
        names = ", ".join(map(str, self.refused[:MOST_NAMED])) + ", ..." * (len(self.refused) > MOST_NAMED)
        reason = next(fit.verdict.reason for fit in self.refits[self.refused[0]] if not fit.verdict.trusted)
        return f"REFUSED: the refits of {len(self.refused)} {UNITS[self.kind]}, {names}. The first: {reason}"

    def __str__(self) -> str:
        """Return the table as text."""
        return "\n".join([self._title(), "", *aligned([HEADER, *self._rows()], 19), "", *self._lines()])

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return html.table(HEADER, self._rows(), self._title()) + html.bullets(self._lines())

    def _title(self) -> str:
        return f"{TITLES[self.kind]}: {len(self.labels)} {UNITS[self.kind]}, {self.num_draws} draws"

    def _rows(self) -> list[list[str]]:
        return [
            [f"elpd_{self.kind}", f"{self.elpd:.2f}", f"{self.se:.2f}", f"{self.elpd_error:.3f}"],
            [f"p_{self.kind}", f"{self.p_loo:.2f}", "", ""],
        ]

    def _lines(self) -> list[str]:
        refitted = (
            f"refitted (k̂ above {self.good_k:.2f}, or few effective draws): {len(self.refits)} {UNITS[self.kind]}"
        )
        return [f"{refitted}, {self.num_evaluations} evaluations", self.verdict]

    def to_arviz(self) -> Any:
        """Return ArviZ's ``ELPDData``, which ``az.compare`` and its plots take.

        k̂ of a refitted row is that of its refit; ``warning`` says that a row or the fit is refused. ArviZ compares
        what is called LOO with its like: so are groups and folds called here.
        """
        arviz, xarray = optional.arviz(), optional.xarray()
        pareto_k = self.pareto_k.copy()
        for place, label in enumerate(self.labels.tolist()):
            pareto_k[place] = max((fit.pareto_k for fit in self.refits.get(label, ())), default=pareto_k[place])
        axis = {"row" if self.kind != "logo" else "group": self.labels}
        elpd_i, k = (xarray.DataArray(each, axis, tuple(axis)) for each in (self.elpd_i, pareto_k))
        about = {"n_samples": self.num_draws, "n_data_points": len(self.labels), "warning": not self.trusted}
        about |= {"scale": "log", "good_k": self.good_k}
        name = "arviz.stats.stats_utils" if hasattr(arviz, "InferenceData") else "arviz_stats.utils"
        module = optional.load(name, "ELPDData of ArviZ needs", "arviz")
        if hasattr(arviz, "InferenceData"):
            entries = {"elpd_loo": self.elpd, "se": self.se, "p_loo": self.p_loo} | about
            entries |= {"loo_i": elpd_i.rename("loo_i"), "pareto_k": k}
            return module.ELPDData(list(entries.values()), list(entries))
        record = getattr(module, "ELPDDataLOO", module.ELPDData)
        return record(kind="loo", elpd=self.elpd, se=self.se, p=self.p_loo, elpd_i=elpd_i, pareto_k=k, **about)
