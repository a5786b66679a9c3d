"""Pictures of a fit: each function draws on the Axes that it is given, and returns them.

Coordinates are those of the flat, unconstrained space, in which the mixture and the weights live.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from klover.base.arrays import comb, logsumexp
from klover.base.checks import as_floats, check_choice, check_count, check_instance, in_words
from klover.importance import psis
from klover.mixtures.algebra import marginal
from klover.mixtures.mixture import Mixture
from klover.results import density
from klover.results.fit import Fit
from klover.results.summary import weighted_quantile
from klover.warps.warped import WarpedMixture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POSTERIOR, REVERSE, FORWARD = "#9a9a9a", "#d1495b", "#1f6f9f"
DIVERGING = "RdBu_r"
LEVELS = (0.5, 0.95)
REGION = (0.005, 0.995)
MARGIN = 0.3
MOST_POINTS = 2000
SMALLEST_WEIGHT = 0.005
NUM_HEAVIEST = 10
SMALLEST_LOG_RATIO = -6.0
MANY_DECADES = 1e3
NUM_BARS = 40
NUM_CELLS = 32
FEWEST_IN_CELL = 5
LARGEST_RESIDUAL = 2.0
LOWEST = -50.0
HISTORY = {
    "ess_share": "effective share of the draws",
    "pareto_k": "Pareto k̂",
    "num_components": "components",
    "log_evidence": "log evidence",
}
"""What :func:`plot_history` shows, and what its axis is called."""


def check_axes(axes: Any) -> None:
    """Refuse what cannot be drawn on."""
    if not (hasattr(axes, "errorbar") and hasattr(axes, "spines")):
        raise TypeError(f"axes must be matplotlib's Axes, got {in_words(axes)}. Make them with plt.subplots().")


def check_fit(fit: Any, **coordinates: Any) -> None:
    """Refuse what cannot be drawn: something else than a fit, and numbers that its flat coordinates do not have."""
    check_instance("fit", fit, Fit)
    for name, number in coordinates.items():
        check_count(name, number, 0, f"The fit has {fit.mixture.dim} coordinates.", fit.mixture.dim - 1)


def tidy(axes: "Axes", title: str = "", xlabel: str = "", ylabel: str = "") -> "Axes":
    """Give Axes the look that all pictures share."""
    check_axes(axes)
    for name, text in {"title": title, "xlabel": xlabel, "ylabel": ylabel}.items():
        check_instance(name, text, str)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(xlabel, fontsize=10)
    axes.set_ylabel(ylabel, fontsize=10)
    axes.tick_params(labelsize=9)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=9)
    return axes


def _check_style(colour: Any, label: Any) -> None:
    """Refuse what matplotlib would refuse later, and in other words."""
    from matplotlib.colors import is_color_like

    if not is_color_like(colour):
        raise ValueError(
            f"colour must be a colour of matplotlib's, such as 'red' or '#1f6f9f', got {in_words(colour)}."
        )
    check_instance("label", label, str)


def _check_window(window: Any) -> np.ndarray:
    """Return the ends of two axes, and refuse anything else."""
    ends = np.asarray(as_floats("window", window))
    if ends.shape != (2, 2) or not np.isfinite(ends).all() or not (ends[:, 0] < ends[:, 1]).all():
        raise ValueError(f"window must be [[lower, upper], [lower, upper]] of two axes, got {in_words(window)}.")
    return ends


def _set_log_scale(axes: "Axes") -> None:
    """Make the horizontal axis logarithmic, with labels that can be read where it spans less than a decade, too."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    lower, upper = axes.get_xlim()
    if upper / lower < MANY_DECADES:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=8))
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.xaxis.set_minor_formatter(NullFormatter())


def label_of(fit: Fit, coordinate: int) -> str:
    """Name a flat coordinate, and say so where it is not on the scale that a person reads."""
    check_fit(fit, coordinate=coordinate)
    target, x = fit.target, np.asarray(fit.draws.x[:8])
    name = target.coordinate_name(coordinate)
    if name not in target.names:
        return name
    read = np.asarray(target.flat_position(x), float)[:, target.names.index(name)]
    return name if np.allclose(read, x[:, coordinate]) else f"{name} (unconstrained)"


def window_of(fit: Fit, coordinate: int) -> tuple[float, float]:
    """Return ends of an axis between which nearly all of the posterior lies, or else of the proposal's draws."""
    check_fit(fit, coordinate=coordinate)
    x = np.asarray(fit.draws.x, float)[:, [coordinate]]
    weight = np.exp(np.asarray(fit.draws.log_weight, float))
    lower, upper = weighted_quantile(x, weight, REGION)[:, 0]
    if lower == upper:
        lower, upper = np.quantile(x, REGION)  # one draw has all of the weight
    margin = MARGIN * (upper - lower)
    return float(lower - margin), float(upper + margin)


def plot_marginal(axes: "Axes", fit: Fit, coordinate: int) -> "Axes":
    """Draw one coordinate: the posterior as a histogram of weighted draws, the proposal as a line.

    Behind a warp a proposal has no marginal in closed form, and the line is a histogram of many draws of it.
    """
    check_axes(axes)
    window = window_of(fit, coordinate)
    x, weight = np.asarray(fit.draws.x, float)[:, coordinate], np.exp(np.asarray(fit.draws.log_weight, float))
    height, edges = np.histogram(x, NUM_BARS, window, weights=weight)
    axes.stairs(height / np.diff(edges) / weight.sum(), edges, fill=True, color=POSTERIOR, alpha=0.5, label="posterior")
    style: dict[str, Any] = {"color": FORWARD, "linewidth": 1.8, "label": "proposal"}
    if isinstance(fit.mixture, WarpedMixture):
        axes.stairs(density.bars(fit.mixture, coordinate, edges), edges, baseline=None, **style)
    else:
        grid = np.linspace(*window, 300)
        axes.plot(grid, np.exp(marginal(fit.mixture, [coordinate]).log_prob(grid[:, None])), **style)
    axes.set(xlim=window, ylim=(0, None), yticks=[])
    return tidy(axes, xlabel=label_of(fit, coordinate))


def plot_pair(axes: "Axes", fit: Fit, first: int, second: int) -> "Axes":
    """Draw posterior draws in two coordinates, and each component as the ellipse that holds half of its mass.

    The heavier the component, the darker its ellipse; those that weigh less than half a per cent are left out. Behind a
    warp components are no ellipses: lines show regions that hold half and 95 % of the proposal's mass.
    """
    check_axes(axes)
    check_fit(fit, first=first, second=second)
    weight = np.exp(np.asarray(fit.draws.log_weight, float))
    chosen = comb(weight, (np.arange(MOST_POINTS) + 0.5) / MOST_POINTS)
    points = np.asarray(fit.draws.x, float)[chosen][:, [first, second]]
    axes.scatter(*points.T, s=4, color=POSTERIOR, alpha=0.4, linewidths=0, rasterized=True)
    window = np.array([window_of(fit, first), window_of(fit, second)])
    if isinstance(fit.mixture, WarpedMixture):
        _draw_regions(axes, fit, first, second, window, FORWARD)
    else:
        _draw_ellipses(axes, fit.mixture, first, second)
    axes.set(xlim=window[0], ylim=window[1])
    return tidy(axes, xlabel=label_of(fit, first), ylabel=label_of(fit, second))


def _draw_ellipses(axes: "Axes", mixture: Mixture, first: int, second: int) -> None:
    from matplotlib.patches import Ellipse

    components, weights = marginal(mixture, [first, second]).components, np.asarray(mixture.weights, float)
    for slot in np.flatnonzero(weights >= SMALLEST_WEIGHT):
        variance, directions = np.linalg.eigh(components.spread.covariance()[slot])
        # In two dimensions P(m < r²) = 1 - (1 + r² / ν)^(-ν/2); the limit for a Normal is 1 - exp(-r² / 2).
        df = components.df[slot]
        square = 2 * np.log(2) if np.isinf(df) else df * np.expm1(2 / df * np.log(2))
        width, height = 2 * np.sqrt(square * variance)
        angle = np.degrees(np.arctan2(directions[1, 0], directions[0, 0]))
        opacity = 0.25 + 0.75 * weights[slot] / weights.max()
        centre = (float(components.location[slot, 0]), float(components.location[slot, 1]))
        axes.add_patch(Ellipse(centre, width, height, angle=angle, fill=False, color=FORWARD, alpha=opacity))


def _draw_regions(axes: "Axes", fit: Fit, first: int, second: int, window: np.ndarray, colour: str) -> None:
    """Draw lines around what holds half and 95 % of a proposal's mass in a window."""
    across, along, height = density.on_grid(fit.mixture, first, second, window)
    ordered = np.sort(height.ravel())[::-1]
    cumulative = np.cumsum(ordered) / ordered.sum()
    levels = sorted(float(ordered[np.searchsorted(cumulative, level)]) for level in LEVELS)
    axes.contour(across, along, height, levels=levels, colors=colour, linewidths=(1.6, 2.4))


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
    _set_log_scale(axes)
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
    _check_style(colour, label)
    weight = np.sort(np.exp(np.asarray(fit.draws.log_ratio - fit.draws.log_ratio.max())))[::-1]
    share = np.cumsum(weight) / weight.sum()
    axes.plot(np.arange(1, len(share) + 1) / len(share), share, color=colour, linewidth=2.4, label=label)
    return axes


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
        _set_log_scale(axes)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return tidy(axes, HISTORY[quantity], "evaluations" if against == "num_evaluations" else "round")


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


def plot_density_pair(
    axes: "Axes", fit: Fit, first: int, second: int, window: np.ndarray, colour: str, label: str
) -> "Axes":
    """Draw regions of a fit's own marginal density (not corrected by weights) that hold half and 95 % of its mass.

    The coordinates are flat ones; the window has the lower and upper ends of the two axes, shape (2, 2).
    """
    check_axes(axes)
    check_fit(fit, first=first, second=second)
    _check_style(colour, label)
    _draw_regions(axes, fit, first, second, _check_window(window), colour)
    axes.plot([], [], color=colour, linewidth=2.4, label=label)
    return axes
