"""Pictures of how a fit went on, round by round."""

from typing import TYPE_CHECKING

import numpy as np

from klover.base.checks import check_choice
from klover.importance import psis
from klover.results.fit import Fit
from klover.results.plots.axes import FORWARD, REVERSE, check_axes, check_fit, set_log_scale, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


HISTORY = {
    "ess_share": "effective share of the draws",
    "pareto_k": "Pareto k̂",
    "num_components": "components",
    "log_evidence": "log evidence",
}
"""What :func:`plot_history` shows, and what its axis is called."""


def plot_history(axes: "Axes", fit: Fit, quantity: str, against: str = "round") -> "Axes":
    """Draw how the ``"ess_share"``, ``"pareto_k"``, ``"num_components"`` or ``"log_evidence"`` went on.

    The horizontal axis is the ``"round"`` or, where they were counted, ``"num_evaluations"``.
    """
    check_axes(axes)
    check_fit(fit)
    from matplotlib.ticker import MaxNLocator

    check_choice("quantity", quantity, [name for name in HISTORY if name in fit.history])
    check_choice("against", against, ["round", *(name for name in ("num_evaluations",) if name in fit.history)])
    value = np.asarray(fit.history[quantity], float)
    place = np.asarray(fit.history["num_evaluations"]) if against == "num_evaluations" else np.arange(len(value))
    error = fit.history["log_evidence_se"] if quantity == "log_evidence" else None
    axes.errorbar(place, value, error, color=FORWARD, marker="o", markersize=4, linewidth=1.6, elinewidth=1, capsize=2)
    if quantity == "pareto_k":
        limit = psis.reliable_k(fit.draws.num_draws)
        axes.axhline(limit, color=REVERSE, linewidth=1, linestyle="--", label=f"largest to trust, {limit:.2f}")
    elif quantity == "ess_share":
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter("{x:.0%}")
    elif quantity == "log_evidence":
        axes.ticklabel_format(axis="y", useOffset=False)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if against == "num_evaluations":
        set_log_scale(axes)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return tidy(axes, HISTORY[quantity], "evaluations" if against == "num_evaluations" else "round")
