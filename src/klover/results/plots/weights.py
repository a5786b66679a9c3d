"""Pictures of the weights: their tail, where the heavy ones lie, and where the proposal falls short."""

from typing import TYPE_CHECKING

import numpy as np

from klover.base.arrays import logsumexp
from klover.importance import psis
from klover.results.fit import Fit
from klover.results.plots.axes import (
    FORWARD,
    POSTERIOR,
    REGION,
    REVERSE,
    check_axes,
    check_fit,
    check_style,
    label_of,
    set_log_scale,
    tidy,
    window_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


DIVERGING = "RdBu_r"
MOST_POINTS = 2000
NUM_HEAVIEST = 10
SMALLEST_LOG_RATIO = -6.0
NUM_CELLS = 32
FEWEST_IN_CELL = 5
LARGEST_RESIDUAL = 2.0
LOWEST = -50.0
MOST_QUANTITIES = 15


def plot_tail(axes: "Axes", fit: Fit) -> "Axes":
    """Draw how often a ratio p/q exceeds a value, beyond the threshold of k̂, and the Pareto tail fitted to it."""
    check_axes(axes)
    check_fit(fit)
    log_ratio = np.sort(np.asarray(fit.draws.log_ratio, float))
    log_ratio = log_ratio[log_ratio > -np.inf]
    ratio = np.exp(log_ratio - float(fit.draws.log_evidence))
    num_draws, num_tail = fit.draws.num_draws, psis.tail_length(len(ratio))
    tail, threshold = ratio[-num_tail:], ratio[max(len(ratio) - num_tail - 1, 0)]
    survival = (np.arange(num_tail)[::-1] + 0.5) / num_draws
    axes.scatter(tail, survival, s=10, color=POSTERIOR, linewidths=0, label=f"the {num_tail} largest ratios")
    limit = psis.reliable_k(num_draws)
    shape, scale = (float(figure) for figure in psis.fit_generalised_pareto(tail - threshold))
    if np.isfinite(fit.pareto_k) and scale > 0:
        # Quantiles from the threshold to a tenth of the rarest ratio seen.
        level = np.geomspace(num_tail / num_draws, 0.1 / num_draws, 200)
        for k, colour, line, label in (
            (shape, FORWARD, "-", f"fitted Pareto tail, k̂ = {fit.pareto_k:.2f}"),
            (limit, REVERSE, "--", f"tail of the largest k̂ to trust, {limit:.2f}"),
        ):
            excess = scale * _excess(k, level * num_draws / num_tail)
            axes.plot(threshold + excess, level, line, color=colour, label=label)
    set_log_scale(axes)
    axes.set(yscale="log", ylim=(0.1 / num_draws, 1.5 * num_tail / num_draws))
    return tidy(axes, "Tail of the weights", "ratio p/q (1: equal weights)", "share of draws beyond")


def _excess(shape: float, survival: np.ndarray) -> np.ndarray:
    """Quantile of a generalised Pareto distribution of scale 1 at a probability to be exceeded."""
    return -np.log(survival) if abs(shape) < 1e-8 else np.expm1(-shape * np.log(survival)) / shape


def plot_weights(axes: "Axes", fit: Fit) -> "Axes":
    """Draw each ratio p/q against log p, the heaviest ones marked: whether they sit in the tails or at a peak."""
    check_axes(axes)
    check_fit(fit)
    log_p = np.asarray(fit.draws.log_p, float)
    log_ratio = np.asarray(fit.draws.log_ratio, float) - float(fit.draws.log_evidence)
    inside = np.flatnonzero(np.isfinite(log_ratio))
    heaviest = inside[np.argsort(log_ratio[inside])[-NUM_HEAVIEST:]]
    shown = inside[:: max(len(inside) // MOST_POINTS, 1)]
    height = log_p - log_p.max()
    axes.scatter(height[shown], log_ratio[shown], s=5, color=POSTERIOR, alpha=0.5, linewidths=0, rasterized=True)
    label = f"{len(heaviest)} heaviest"
    axes.scatter(height[heaviest], log_ratio[heaviest], s=16, color=REVERSE, linewidths=0, label=label)
    axes.axhline(0, color="black", linewidth=1, linestyle=":", label="equal weights")
    # Draws that weigh next to nothing would squeeze all others into a corner.
    lowest = min(height[log_ratio > SMALLEST_LOG_RATIO].min(), -1.0)
    axes.set(xlim=(1.05 * lowest, -0.03 * lowest), ylim=(SMALLEST_LOG_RATIO, log_ratio[heaviest].max() + 1))
    return tidy(axes, "Weights against log p", "log p below its largest value", "log of the ratio p/q")


def plot_weight_shares(axes: "Axes", fit: Fit, colour: str, label: str) -> "Axes":
    """Draw the share of all weight that the heaviest draws carry; a perfect proposal follows the diagonal."""
    check_axes(axes)
    check_fit(fit)
    check_style(colour, label)
    weight = np.sort(np.exp(np.asarray(fit.draws.log_ratio - fit.draws.log_ratio.max())))[::-1]
    share = np.cumsum(weight) / weight.sum()
    axes.plot(np.arange(1, len(share) + 1) / len(share), share, color=colour, linewidth=2.4, label=label)
    return axes


def plot_quantity_tails(axes: "Axes", fit: Fit) -> "Axes":
    """Draw the tail index k̂ of every quantity's mean, the worst above: beyond the limit a mean is not to be trusted."""
    check_axes(axes)
    check_fit(fit)
    summary, limit = fit.summary(), psis.reliable_k(fit.draws.num_draws)
    k = np.where(np.isfinite(summary.columns["pareto_k"]), summary.columns["pareto_k"], 0.0)
    worst = np.argsort(-k, kind="stable")[:MOST_QUANTITIES][::-1]
    rows = np.arange(len(worst))
    colours = [REVERSE if k[place] > limit else FORWARD for place in worst]
    axes.hlines(rows, 0, k[worst], color=colours, linewidth=1.2, alpha=0.5)
    axes.scatter(k[worst], rows, color=colours, s=22, linewidths=0, zorder=3)
    axes.axvline(limit, color=REVERSE, linewidth=1, linestyle="--", label=f"largest to trust, {limit:.2f}")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set(yticks=rows, yticklabels=[summary.names[place] for place in worst], ylim=(-0.7, len(worst) - 0.3))
    more = f" (worst {len(worst)} of {len(k)})" if len(k) > len(worst) else ""
    tidy(axes, f"k̂ of each quantity{more}", "k̂ (below 0: a light tail)")
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(0, -0.14))
    return axes


def plot_residual(axes: "Axes", fit: Fit, first: int, second: int) -> "Axes":
    """Draw log p/q of the two coordinates' marginals: red where the proposal is too low, blue where it is too high.

    The mean of the ratios in a cell is the posterior's mass there over the proposal's, in any dimension.
    """
    check_axes(axes)
    check_fit(fit, first=first, second=second)
    x = np.asarray(fit.draws.x, float)[:, [first, second]]
    # Draws outside the support count in their cells, and matplotlib would drop an infinite value.
    log_ratio = np.maximum(np.asarray(fit.draws.log_ratio, float) - float(fit.draws.log_evidence), LOWEST)
    # Where the proposal is poor, most of its draws lie outside the posterior.
    ends = np.concatenate([np.quantile(x, REGION, axis=0).T, [window_of(fit, first), window_of(fit, second)]], axis=1)
    windows = np.stack([ends.min(1), ends.max(1)], axis=1)
    cells = axes.hexbin(
        *x.T,
        C=log_ratio,
        reduce_C_function=lambda values: float(logsumexp(np.asarray(values))) - np.log(len(values)),
        gridsize=NUM_CELLS,
        extent=(*windows[0], *windows[1]),
        mincnt=FEWEST_IN_CELL,
        cmap=DIVERGING,
        vmin=-LARGEST_RESIDUAL,
        vmax=LARGEST_RESIDUAL,
        linewidths=0.2,
    )
    axes.figure.colorbar(cells, ax=axes, label="log p/q", extend="both")
    axes.set(xlim=windows[0], ylim=windows[1])
    return tidy(axes, "Where the proposal falls short", label_of(fit, first), label_of(fit, second))
