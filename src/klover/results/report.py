"""What people look at: figures made of the pictures in :mod:`klover.plots`, and a page about a fit."""

import datetime
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from klover.base import optional
from klover.results import html, plots
from klover.results.datatree import versions
from klover.results.explanation import Explanation, explain
from klover.results.fit import Fit
from klover.results.interest import Interest, interests
from klover.results.plots import FORWARD, POSTERIOR, REVERSE, plot_density_pair, plot_weight_shares
from klover.results.plots.planes import has_plane
from klover.results.summary import Summary
from klover.warps.warped import WarpedMixture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_COORDINATES, MOST_MARGINALS = 5, 12
"""Most coordinates in the grid of pairs, and beside it."""
MOST_QUANTITIES = 200
"""Most quantities that a page shows."""
PANEL = (4.8, 3.7)
WEIGHTS = ("tail", "quantities", "weights", "residual")
"""Figures of the weights."""
RULE = (
    "Coordinates are ordered by the most remarkable that can be said of them: skewness, correlation (of ranks), two "
    "peaks, or a heavy tail of the weights (k̂)."
)
WORDS = {
    "posterior": "the distribution of the unknowns given the data, which the model defines up to a constant.",
    "proposal": "the distribution q that klover has fitted to the posterior p, to draw from: a mixture of components.",
    "weight": "the ratio p/q at a draw of the proposal. Weighted by it, draws of q tell about p; equal ones are best.",
    "effective draws (ess)": "as many independent draws of the posterior itself would tell as much.",
    "k̂": "how heavy the tail of the weights is. Above its limit, rare draws that were not seen may change the answer.",
    "mcse": "standard error of the mean that comes from having drawn finitely many times; sd is the posterior's own.",
    "log evidence": "logarithm of the integral of likelihood times prior; models of the same data are compared by it.",
}
"""What a reader of the page may ask."""


def figures(fit: Fit) -> dict[str, tuple["Figure", str]]:
    """Draw all that there is to see of a fit: figures with their captions, by name.

    All but the first, ``"pairs"``, and ``"marginals"`` are small enough for a telephone. Where no draw lies in the
    support there is nothing to draw but the history.
    """
    made: dict[str, tuple[Figure, str]] = {}
    order = interests(fit) if fit.ess > 0 else []
    if order:
        made["pairs"] = _pairs(fit, order[:MOST_COORDINATES])
    if len(order) > MOST_COORDINATES:
        made["marginals"] = _marginals(fit, order[:MOST_MARGINALS])
    for name, (draw, caption) in _panels(fit, [each.coordinate for each in order]).items():
        figure, axes = optional.pyplot().subplots(figsize=PANEL, layout="constrained")
        draw(axes)
        made[name] = figure, caption
    return made


def _panels(fit: Fit, order: list[int]) -> dict[str, tuple[Callable[["Axes"], "Axes"], str]]:
    panels: dict[str, tuple[Callable[[Axes], Axes], str]] = {}
    if order and fit.mixture.dim > 2 and has_plane(fit):
        caption = (
            "Where the components lie furthest apart, in standard deviations of the posterior from its mean: posterior "
            "draws (grey) and the proposal (blue). The axes name the coordinates that they go along most."
        )
        panels["plane"] = lambda axes: plots.plot_main_plane(axes, fit), caption
    if order and fit.kind == "importance":
        caption = "How often a ratio p/q exceeds a value. A tail beyond the red line is too heavy to trust."
        panels["tail"] = lambda axes: plots.plot_tail(axes, fit), caption
        caption = "Tail index of each quantity's mean: those to the right of the red line are not to be trusted."
        panels["quantities"] = lambda axes: plots.plot_quantity_tails(axes, fit), caption
        caption = "Where the heaviest draws lie: in the posterior's tails (left) or near its peak (right)."
        panels["weights"] = lambda axes: plots.plot_weights(axes, fit), caption
        if fit.mixture.dim > 1:
            caption = (
                "The posterior's mass over the proposal's, as a logarithm. White is a perfect fit; red is where the "
                "proposal is too low, which makes heavy weights; blue is where draws are wasted."
            )
            panels["residual"] = lambda axes: plots.plot_residual(axes, fit, order[0], order[1]), caption
    if len(fit.history.get("ess_share", ())) > 1:
        against = "num_evaluations" if "num_evaluations" in fit.history else "round"
        for quantity, title in plots.HISTORY.items():
            draw = functools.partial(plots.plot_history, fit=fit, quantity=quantity, against=against)
            panels[quantity] = draw, f"{title[0].upper()}{title[1:]}, on the fresh draws of each round."
    return panels


def _pairs(fit: Fit, chosen: list[Interest]) -> tuple["Figure", str]:
    num, places = len(chosen), [each.coordinate for each in chosen]
    size = PANEL if num == 1 else (2.3 * num, 2.3 * num)
    figure, grid = optional.pyplot().subplots(num, num, figsize=size, squeeze=False, layout="constrained")
    for (row, column), axes in np.ndenumerate(grid):
        if column > row:
            axes.set_visible(False)
        elif column == row:
            plots.plot_marginal(axes, fit, places[row])
            axes.get_legend().set_visible(num == 1)
        else:
            plots.plot_pair(axes, fit, places[column], places[row])
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
    if fit.mixture.dim > 1:
        whole = f" {num} of {fit.mixture.dim} coordinates" if fit.mixture.dim > num else " The coordinates"
        caption += f"{whole}: {', '.join(each.words for each in chosen)}. {RULE}"
    return figure, caption


def _marginals(fit: Fit, chosen: list[Interest]) -> tuple["Figure", str]:
    columns = 4
    rows = -(-len(chosen) // columns)
    figure, grid = optional.pyplot().subplots(
        rows, columns, figsize=(11.5, 2.5 * rows), squeeze=False, layout="constrained"
    )
    for axes, each in zip(grid.flat, chosen, strict=False):
        plots.plot_marginal(axes, fit, each.coordinate)
        axes.get_legend().set_visible(False)
    for axes in grid.flat[len(chosen) :]:
        axes.set_visible(False)
    which = "all" if len(chosen) == fit.mixture.dim else f"{len(chosen)} of"
    return (
        figure,
        f"Marginals of {which} {fit.mixture.dim} coordinates, most remarkable first: posterior grey, proposal blue.",
    )


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
        is_wide = name == "marginals" or (name == "pairs" and fit.mixture.dim > 2)
        shown[name] = html.figure(folder / f"{name}.png", caption, is_wide=is_wide)
    words = explain(fit)
    style = "verdict" if fit.verdict.trusted else "verdict refused"
    parts = {
        "verdict": ("What the verdict rests on", _verdict(words)),
        "posterior": ("Posterior", _table(fit.summary())),
        "coordinates": ("Pictures of the posterior", _taken(shown, "pairs", "marginals") + _panelled(shown, "plane")),
        "weights": ("How well the proposal covers it", _panelled(shown, *WEIGHTS)),
        "rounds": ("How the fit went on", _panelled(shown, *plots.HISTORY)),
        "words": ("Words", html.definitions(WORDS)),
        "command": (
            "How it was made",
            html.code([command]) + f'<p class="soft">{html.escape(_circumstances(fit))}</p>',
        ),
    }
    body = f'<p class="{style}"><strong>{html.escape(words.verdict)}</strong></p>'
    body += f"<p>{html.escape(_in_short(fit))}</p>"
    return html.write(path, title, body + html.sections({name: part for name, part in parts.items() if part[1]}))


def _taken(shown: dict[str, str], *names: str) -> str:
    return "".join(shown[name] for name in names if name in shown)


def _panelled(shown: dict[str, str], *names: str) -> str:
    panels = _taken(shown, *names)
    return panels and f'<div class="panels">{panels}</div>'


def _verdict(words: Explanation) -> str:
    code = f"<h3>NUTS from these starts</h3>{html.code(words.code)}" if words.code else ""
    return (
        f"<p>{html.escape(words.meaning)}</p><h3>The numbers of this fit</h3>{html.bullets(words.numbers)}"
        f"<h3>What to do</h3>{html.bullets(words.advice)}{code}"
    )


def _in_short(fit: Fit) -> str:
    """Say what was done, to a reader who was not there."""
    sentence = f"The posterior of {fit.mixture.dim:,} unknown number{'s' if fit.mixture.dim > 1 else ''}"
    model_info = fit.target.model_info
    if model_info is not None and model_info.observed:
        observed = ", ".join(f"{name} ({np.size(values):,})" for name, values in model_info.observed.items())
        sentence += f", given the observed {observed},"
    ways = {
        "importance": "was covered by a mixture of simple distributions; draws of the mixture, weighted by how much "
        "more probable the posterior makes them, stand for it.",
        "particles": "was reached by particles that began in a broad distribution, because no mixture was found that "
        "covers it; they stand for it.",
    }
    closing = (
        "" if fit.verdict.trusted else " The checks refuse the answer: no number below is to be reported as it stands."
    )
    return f"{sentence} {ways[fit.kind]}{closing}"


def _circumstances(fit: Fit) -> str:
    libraries = ", ".join(f"{name} {version}" for name, version in versions().items())
    made = f"{datetime.date.today():%d %B %Y}, {libraries}"
    if fit.num_evaluations is None:
        return f"{made}."
    seconds = "" if fit.evaluation_seconds is None else f" in {fit.evaluation_seconds:.1f} s"
    return f"{made}; {fit.num_evaluations:,} evaluations of the log density{seconds}, compilation included."


def _table(summary: Summary) -> str:
    num = len(summary.names)
    kept = (
        f"The first {MOST_QUANTITIES} of {num} quantities; summary.csv has all."
        if num > MOST_QUANTITIES
        else f"{num} quantities."
    )
    table = html.table(summary.header, summary.rows(MOST_QUANTITIES), "Posterior quantities")
    ends = "Between the columns 5% and 95% lies 90 % of the posterior; of the others see <a href='#words'>Words</a>."
    return f'{table}<p class="soft">{kept} {ends}</p>'


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
