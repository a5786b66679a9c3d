"""The table of posterior quantities."""

import csv
import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from klover.importance import psis
from klover.importance.draws import WeightedDraws
from klover.results import html
from klover.verdict.judge import Verdict

INTERVAL = (0.05, 0.95)
LONGEST_TABLE = 40
"""Most quantities that a terminal or a notebook shows."""
COLUMNS = ("mean", "sd", "5%", "95%", "mcse", "ess", "pareto_k")
FORMATS = {"ess": ".0f", "pareto_k": ".2f"}
"""How the numbers of a column are written; ``.4g`` where nothing is said."""


@dataclasses.dataclass(frozen=True)
class Summary:
    """A table of posterior quantities; ``print`` it, or read its columns.

    ``columns`` are arrays by name: mean, sd, lower and upper end of the interval, mcse, ess, pareto_k. ``figures`` are
    numbers of the whole fit: log evidence and its error, ESS, k̂, numbers of draws and components.
    """

    names: tuple[str, ...]
    columns: dict[str, np.ndarray]
    figures: dict[str, Any]
    verdict: Verdict

    @property
    def header(self) -> list[str]:
        """Titles of the columns."""
        return ["quantity", *self.columns]

    def rows(self, longest: int = LONGEST_TABLE) -> list[list[str]]:
        """Write the first rows as words and rounded numbers."""
        columns = [(FORMATS.get(name, ".4g"), values) for name, values in self.columns.items()]
        return [
            [name, *(format(float(values[row]), style) for style, values in columns)]
            for row, name in enumerate(self.names[:longest])
        ]

    def __str__(self) -> str:
        """Return the table as text."""
        lines = aligned([self.header, *self.rows()], 11)
        lines += [*self._more(), "", *(f"{label:<15}{text}" for label, text in self._lines())]
        return "\n".join([*lines, f"{'verdict':<15}{self.verdict}"])

    def _repr_html_(self) -> str:
        """Return the table for a notebook, whose own colours of text and page are left as they are."""
        notes = [*self._more(), *(f"{label}: {text}" for label, text in self._lines())]
        word, _, rest = str(self.verdict).partition(":")
        colour = "#2e7d4f" if self.verdict.trusted else "#c0392b"
        said = f"<b>{html.escape(word)}</b>:{html.escape(rest)}"
        table = html.table(self.header, self.rows(), "Posterior quantities")
        return f'{table}{html.bullets(notes)}<p style="border-left: 4px solid {colour}; padding-left: .6em">{said}</p>'

    def to_csv(self, path: str | os.PathLike) -> None:
        """Write the table, all quantities and digits of it, as comma-separated values."""
        with open(path, "w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(self.header)
            table.writerows(zip(self.names, *(column.tolist() for column in self.columns.values()), strict=True))

    def _more(self) -> list[str]:
        rest = len(self.names) - LONGEST_TABLE
        return [f"... and {rest} more"] if rest > 0 else []

    def _lines(self) -> list[tuple[str, str]]:
        """Return what is said below the table: labels and texts."""
        figures = self.figures
        whose = " (of the importance draws that were refused)" if figures["kind"] == "particles" else ""
        share = f"{figures['ess']:.0f} effective of {figures['num_draws']} draws ({figures['ess_share']:.0%})"
        lines = [
            ("log evidence", f"{figures['log_evidence']:.3f} ± {figures['log_evidence_se']:.3f}"),
            (figures["kind"], share),
            ("Pareto k̂", f"{figures['pareto_k']:.2f}{whose}"),
            ("components", str(figures["num_components"])),
        ]
        return lines if self.verdict.searched is None else [*lines, ("searched", str(self.verdict.searched))]


def aligned(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Write rows of words as lines of text: the first column to the left, all others to the right."""
    first = max(len(row[0]) for row in rows)
    return [f"{row[0]:<{first}}" + "".join(f"{cell:>{width}}" for cell in row[1:]) for row in rows]


def weighted_quantile(values: np.ndarray, weight: np.ndarray, levels: Sequence[float]) -> np.ndarray:
    """Quantiles of weighted values, each column for itself; shape (levels, columns)."""
    order = np.argsort(values, axis=0)
    cumulative = np.cumsum(weight[order], axis=0)
    cumulative /= cumulative[-1]
    result = np.empty((len(levels), values.shape[1]))
    for column in range(values.shape[1]):
        index = np.searchsorted(cumulative[:, column], levels).clip(0, len(weight) - 1)
        result[:, column] = values[order[index, column], column]
    return result


def summarise(draws: WeightedDraws, verdict: Verdict, num_components: int) -> Summary:
    """Summarise weighted draws on the scale that a person reads."""
    values = np.asarray(draws.target.flat_position(draws.x), float)
    weight = np.exp(np.asarray(draws.log_weight, float))
    figures = {
        "kind": draws.kind,
        **{name: float(getattr(draws, name)) for name in ("log_evidence", "log_evidence_se", "ess", "pareto_k")},
        "ess_share": float(draws.ess) / draws.num_draws,
        "num_draws": draws.num_draws,
        "num_components": num_components,
    }
    return Summary(draws.target.names, _columns(draws, values, weight), figures, verdict)


def _columns(draws: WeightedDraws, values: np.ndarray, weight: np.ndarray) -> dict[str, np.ndarray]:
    inside = weight > 0
    if not inside.any():
        return dict.fromkeys(COLUMNS, np.full(values.shape[1], np.nan))
    mean, error = (np.asarray(figure, float) for figure in draws.mean_and_error(values))
    values, weight, log_ratio = values[inside], weight[inside], np.asarray(draws.log_ratio, float)[inside]
    delta = values - mean
    variance = weight @ delta**2
    lower, upper = weighted_quantile(values, weight, INTERVAL)
    # The error of a mean says how many independent draws would have had the same: var / mcse².
    ess = np.divide(variance, error**2, out=np.zeros_like(variance), where=error > 0)
    if draws.kind == "particles":
        tails = np.full(len(mean), np.nan)  # there are no ratios whose tail could be heavy
    else:
        with np.errstate(divide="ignore"):
            tails = np.array([psis.pareto_k(log_ratio + np.log(np.abs(column))) for column in delta.T], float)
    return dict(zip(COLUMNS, (mean, np.sqrt(variance), lower, upper, error, ess, tails), strict=True))
