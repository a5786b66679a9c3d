"""The result of a fit: the mixture, how it grew, fresh weighted draws, the verdict, and a table for people."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from klover import psis
from klover.diagnostics import Verdict
from klover.importance import WeightedDraws, sample_importance
from klover.mixture import Mixture
from klover.target import Target
from klover.typing import Key

INTERVAL = (0.05, 0.95)
LONGEST_TABLE = 40


@dataclasses.dataclass(frozen=True)
class Fit:
    """A fitted proposal and what it says about the target.

    Parameters
    ----------
    target
        The target.
    mixture
        The final proposal q.
    draws
        Fresh draws of the final proposal with their weights (or particles, see :attr:`kind`); the verdict and the
        summary rest on them.
    history
        What was measured after each round, by name: arrays with one entry a round.
    verdict
        Whether the answer is trusted, why, and what to do if not.
    num_evaluations, evaluation_seconds
        Evaluations of the target in all, and the seconds inside it (compilation included); None where they were not
        counted.
    """

    target: Target
    mixture: Mixture
    draws: WeightedDraws
    history: dict[str, np.ndarray]
    verdict: Verdict
    num_evaluations: int | None = None
    evaluation_seconds: float | None = None

    @property
    def kind(self) -> str:
        """What the draws are: ``"importance"``, or ``"particles"`` where importance sampling cannot work."""
        return self.draws.kind

    @property
    def log_evidence(self) -> float:
        """Log of the evidence."""
        return float(self.draws.log_evidence)

    @property
    def log_evidence_se(self) -> float:
        """Standard error of the log evidence."""
        return float(self.draws.log_evidence_se)

    @property
    def pareto_k(self) -> float:
        """Tail index k̂ of the weights."""
        return float(self.draws.pareto_k)

    @property
    def ess(self) -> float:
        """Effective number of the fresh draws."""
        return float(self.draws.ess)

    def importance(self, key: Key[jax.Array, ""], num_draws: int) -> WeightedDraws:
        """Draw more from the proposal, weighted by the target."""
        return sample_importance(key, self.target, self.mixture, num_draws)

    def summary(self) -> "Summary":
        """Weighted mean, sd, interval, Monte Carlo error, ESS and k̂ of every quantity."""
        return summarise(self.draws, self.verdict, int(self.mixture.num_components))

    def __repr__(self) -> str:
        """Return a one-line description."""
        state = "trusted" if self.verdict.trusted else "refused"
        return f"Fit(dim={self.target.dim}, num_components={int(self.mixture.num_components)}, {state})"


@dataclasses.dataclass(frozen=True)
class Summary:
    """A table of posterior quantities; ``print`` it, or read its columns.

    Parameters
    ----------
    names
        Names of the quantities.
    columns
        Arrays by name: mean, sd, lower and upper end of the interval, mcse, ess, pareto_k.
    figures
        Numbers of the whole fit: log evidence and its error, ESS, k̂, numbers of draws and components.
    verdict
        The verdict.
    """

    names: tuple[str, ...]
    columns: dict[str, np.ndarray]
    figures: dict[str, Any]
    verdict: Verdict

    def __str__(self) -> str:
        """Return the table as text."""
        shown = self.names[:LONGEST_TABLE]
        width = max(len(name) for name in (*shown, "quantity"))
        lines = [f"{'quantity':<{width}}" + "".join(f"{name:>11}" for name in self.columns)]
        for row, name in enumerate(shown):
            cells = "".join(f"{_cell(column, values[row]):>11}" for column, values in self.columns.items())
            lines.append(f"{name:<{width}}{cells}")
        if len(self.names) > LONGEST_TABLE:
            lines.append(f"... and {len(self.names) - LONGEST_TABLE} more")
        figures = self.figures
        lines += [
            "",
            f"log evidence   {figures['log_evidence']:.3f} ± {figures['log_evidence_se']:.3f}",
            f"{figures['kind']:<15}{figures['ess']:.0f} effective of {figures['num_draws']} draws "
            f"({figures['ess_share']:.0%})",
            f"Pareto k̂       {figures['pareto_k']:.2f}"
            + (" (of the importance draws that were refused)" if figures["kind"] == "particles" else ""),
            f"components     {figures['num_components']}",
            f"verdict        {self.verdict}",
        ]
        return "\n".join(lines)


def _cell(column: str, value: float) -> str:
    if column == "ess":
        return f"{value:.0f}"
    return f"{value:.2f}" if column == "pareto_k" else f"{value:.4g}"


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
    columns = _columns(draws, values, weight)
    figures = {
        "kind": draws.kind,
        "log_evidence": float(draws.log_evidence),
        "log_evidence_se": float(draws.log_evidence_se),
        "ess": float(draws.ess),
        "ess_share": float(draws.ess) / draws.num_draws,
        "num_draws": draws.num_draws,
        "pareto_k": float(draws.pareto_k),
        "num_components": num_components,
    }
    return Summary(draws.target.names, columns, figures, verdict)


def _columns(draws: WeightedDraws, values: np.ndarray, weight: np.ndarray) -> dict[str, np.ndarray]:
    inside = weight > 0
    if not inside.any():
        nothing = np.full(values.shape[1], np.nan)
        return dict.fromkeys(("mean", "sd", "5%", "95%", "mcse", "ess", "pareto_k"), nothing)
    mean, error = (np.asarray(figure, float) for figure in draws.mean_and_error(values))
    values, weight, log_ratio = values[inside], weight[inside], np.asarray(draws.log_ratio, float)[inside]
    delta = values - mean
    variance = weight @ delta**2
    lower, upper = weighted_quantile(values, weight, INTERVAL)
    # The error of a mean says how many independent draws would have had the same: var / mcse².
    ess = np.divide(variance, error**2, out=np.zeros_like(variance), where=error > 0)
    with np.errstate(divide="ignore"):
        # Particles have no ratios whose tail could be heavy.
        tails = [
            np.nan if draws.kind == "particles" else psis.pareto_k(log_ratio + np.log(np.abs(column)))
            for column in delta.T
        ]
    return {
        "mean": mean,
        "sd": np.sqrt(variance),
        "5%": lower,
        "95%": upper,
        "mcse": error,
        "ess": ess,
        "pareto_k": np.asarray(tails, float),
    }
