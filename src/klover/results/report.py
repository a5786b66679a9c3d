"""What people look at: figures made of the pictures in :mod:`klover.plots`, and a page about a fit."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from klover.base import optional
from klover.results import html, plots
from klover.results.explanation import explain
from klover.results.fit import Fit
from klover.results.plots import FORWARD, POSTERIOR, REVERSE, plot_density_pair, plot_weight_shares
from klover.results.summary import Summary
from klover.warps.warped import WarpedMixture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_COORDINATES = 5
MOST_QUANTITIES = 200
"""Most quantities that a page shows."""
PANEL = (4.8, 3.7)


def figures(fit: Fit) -> dict[str, tuple["Figure", str]]:
    """Draw all that there is to see of a fit: figures with their captions, by name.

    All but the first, ``"pairs"``, are small enough for a telephone. Where no draw lies in the support there is nothing
    to draw but the history.
    """
    made = {"pairs": _pairs(fit)} if fit.ess > 0 else {}
    for name, (draw, caption) in _panels(fit).items():
        figure, axes = optional.pyplot().subplots(figsize=PANEL, layout="constrained")
        draw(axes)
        made[name] = figure, caption
    return made


def _panels(fit: Fit) -> dict[str, tuple[Callable[["Axes"], "Axes"], str]]:
    panels: dict[str, tuple[Callable[[Axes], Axes], str]] = {}
    if fit.ess > 0 and fit.kind == "importance":
        caption = "How often a ratio p/q exceeds a value. A tail beyond the red line is too heavy to trust."
        panels["tail"] = lambda axes: plots.plot_tail(axes, fit), caption
        caption = "Where the heaviest draws lie: in the posterior's tails (left) or near its peak (right)."
        panels["weights"] = lambda axes: plots.plot_weights(axes, fit), caption
        if fit.mixture.dim > 1:
            caption = (
                "The posterior's mass over the proposal's, as a logarithm. White is a perfect fit; red is where the "
                "proposal is too low, which makes heavy weights; blue is where draws are wasted."
            )
            panels["residual"] = lambda axes: plots.plot_residual(axes, fit, 0, 1), caption
    if len(fit.history.get("ess_share", ())) > 1:
        against = "num_evaluations" if "num_evaluations" in fit.history else "round"
        for quantity, title in plots.HISTORY.items():
            draw = functools.partial(plots.plot_history, fit=fit, quantity=quantity, against=against)
            panels[quantity] = draw, f"{title[0].upper()}{title[1:]}, on the fresh draws of each round."
    return panels


def _pairs(fit: Fit) -> tuple["Figure", str]:
    num = min(fit.mixture.dim, MOST_COORDINATES)
    size = PANEL if num == 1 else (2.3 * num, 2.3 * num)
    figure, grid = optional.pyplot().subplots(num, num, figsize=size, squeeze=False, layout="constrained")
    for (row, column), axes in np.ndenumerate(grid):
        if column > row:
            axes.set_visible(False)
        elif column == row:
            plots.plot_marginal(axes, fit, row)
            axes.get_legend().set_visible(num == 1)
        else:
            plots.plot_pair(axes, fit, column, row)
        if row < num - 1:
            axes.set(xlabel="", xticklabels=[])
        if column > 0:
            axes.set(ylabel="", yticklabels=[])
    if num > 1:
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper right", frameon=False, fontsize=10)
    caption = "Marginals of the posterior (grey, weighted draws) and of the proposal (blue); " + (
        "its lines hold half and 95 % of its mass: it is a mixture behind a warp, seen by many of its draws."
        if isinstance(fit.mixture, WarpedMixture)
        else "each ellipse holds half of a component's mass, and the darker it is, the heavier the component."
    )
    if fit.mixture.dim > num:
        caption += f" The first {num} of {fit.mixture.dim} coordinates."
    return figure, caption


def write_report(path: Path, fit: Fit, title: str, command: str) -> Path:
    """Write a page about a fit, and the figures that it shows into a folder ``figures`` beside it.

    The title says what was fitted, and the command what made the fit.
    """
    plt = optional.pyplot()
    folder = path.parent / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    shown = {}
    for name, (figure, caption) in figures(fit).items():
        figure.savefig(folder / f"{name}.png", dpi=130)
        plt.close(figure)
        shown[name] = html.figure(folder / f"{name}.png", caption, is_wide=name == "pairs" and fit.mixture.dim > 2)
    pairs = shown.pop("pairs", "")
    words, summary = explain(fit), fit.summary()
    style = "verdict" if fit.verdict.trusted else "verdict refused"
    parts = {
        "posterior": ("Posterior", _table(summary)),
        "meaning": (
            "What the verdict means",
            f"<p>{html.escape(words.meaning)}</p><h3>The numbers of this fit</h3>{html.bullets(words.numbers)}"
            f"<h3>What to do</h3>{html.bullets(words.advice)}",
        ),
        "figures": ("Figures", f'{pairs}<div class="panels">{"".join(shown.values())}</div>'),
        "command": ("Command", html.code([command])),
    }
    body = f'<p class="{style}"><strong>{html.escape(words.verdict)}</strong></p>{html.sections(parts)}'
    return html.write(path, title, body)


def _table(summary: Summary) -> str:
    rest = len(summary.names) - MOST_QUANTITIES
    more = f'<p class="soft">And {rest} more, in summary.csv.</p>' if rest > 0 else ""
    return html.table(summary.header, summary.rows(MOST_QUANTITIES), "Posterior quantities") + more


def comparison_figure(
    posterior: np.ndarray, reverse: Fit, forward: Fit, coordinates: tuple[int, int], names: tuple[str, str]
) -> "Figure":
    """Draw reverse KL against forward KL against the posterior: what each covers, and what that does to the weights.

    ``posterior`` has draws of an exact sampler in the two flat coordinates, shape (draw, 2).
    """
    plt = optional.pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.8), gridspec_kw={"width_ratios": [1.25, 1]})
    centre, reach = posterior.mean(0), 4.0 * posterior.std(0)
    window = np.stack([centre - reach, centre + reach], axis=1)
    left.scatter(*posterior.T, s=5, color=POSTERIOR, alpha=0.35, linewidths=0, rasterized=True)
    left.scatter([], [], s=25, color=POSTERIOR, label="posterior (exact sampler)")
    plot_density_pair(left, reverse, *coordinates, window, REVERSE, "reverse KL: one Gaussian, diagonal")
    plot_density_pair(left, forward, *coordinates, window, FORWARD, "forward KL: klover")
    left.set(xlim=window[0], ylim=window[1])
    title = "What each approximation covers (50 % and 95 % regions)"
    plots.tidy(left, title, f"weight of {names[0]}", f"weight of {names[1]}")
    for fit, colour, name in ((reverse, REVERSE, "reverse KL"), (forward, FORWARD, "forward KL")):
        share, word = fit.ess / fit.draws.num_draws, "trusted" if fit.verdict.trusted else "refused"
        plot_weight_shares(right, fit, colour, f"{name}: k̂ = {fit.pareto_k:.2f}, {share:.1%} effective, {word}")
    right.plot([0, 1], [0, 1], color="black", linewidth=1, linestyle=":", label="equal weights")
    right.set(xlim=(0, 1), ylim=(0, 1.02))
    title = "What the importance weights make of it"
    plots.tidy(right, title, "heaviest share of the draws", "share of all importance weight")
    figure.tight_layout()
    return figure
