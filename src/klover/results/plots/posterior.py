"""Pictures of the posterior and of the proposal that covers it: one coordinate, or two."""

from typing import TYPE_CHECKING, Any

import numpy as np

from klover.base.arrays import comb
from klover.mixtures.algebra import marginal
from klover.mixtures.mixture import Mixture
from klover.results import density
from klover.results.fit import Fit
from klover.results.plots.axes import (
    FORWARD,
    POSTERIOR,
    check_axes,
    check_fit,
    check_style,
    check_window,
    label_of,
    tidy,
    window_of,
)
from klover.warps.warped import WarpedMixture

if TYPE_CHECKING:
    from matplotlib.axes import Axes


LEVELS = (0.5, 0.95)
MOST_POINTS = 2000
SMALLEST_WEIGHT = 0.005
NUM_BARS = 40


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
    components, weights = marginal(mixture, [first, second]).components, np.asarray(mixture.weights, float)
    covariance = components.spread.covariance()
    for slot in np.flatnonzero(weights >= SMALLEST_WEIGHT):
        centre, share = np.asarray(components.location)[slot], weights[slot] / weights.max()
        add_ellipse(axes, centre, np.asarray(covariance[slot]), float(components.df[slot]), share)


def add_ellipse(axes: "Axes", centre: np.ndarray, covariance: np.ndarray, df: float, share: float) -> None:
    """Draw what holds half of a component's mass; the larger its share of the heaviest one's weight, the darker."""
    from matplotlib.patches import Ellipse

    variance, directions = np.linalg.eigh(covariance)
    # In two dimensions P(m < r²) = 1 - (1 + r² / ν)^(-ν/2); the limit for a Normal is 1 - exp(-r² / 2).
    square = 2 * np.log(2) if np.isinf(df) else df * np.expm1(2 / df * np.log(2))
    width, height = 2 * np.sqrt(square * np.maximum(variance, 0.0))
    angle = np.degrees(np.arctan2(directions[1, 0], directions[0, 0]))
    opacity, place = 0.25 + 0.75 * share, (float(centre[0]), float(centre[1]))
    axes.add_patch(Ellipse(place, width, height, angle=angle, fill=False, color=FORWARD, alpha=opacity))


def plot_density_pair(
    axes: "Axes", fit: Fit, first: int, second: int, window: np.ndarray, colour: str, label: str
) -> "Axes":
    """Draw regions of a fit's own marginal density (not corrected by weights) that hold half and 95 % of its mass.

    The coordinates are flat ones; the window has the lower and upper ends of the two axes, shape (2, 2).
    """
    check_axes(axes)
    check_fit(fit, first=first, second=second)
    check_style(colour, label)
    _draw_regions(axes, fit, first, second, check_window(window), colour)
    axes.plot([], [], color=colour, linewidth=2.4, label=label)
    return axes


def _draw_regions(axes: "Axes", fit: Fit, first: int, second: int, window: np.ndarray, colour: str) -> None:
    """Draw lines around what holds half and 95 % of a proposal's mass in a window."""
    across, along, height = density.on_grid(fit.mixture, first, second, window)
    ordered = np.sort(height.ravel())[::-1]
    cumulative = np.cumsum(ordered) / ordered.sum()
    levels = sorted(float(ordered[np.searchsorted(cumulative, level)]) for level in LEVELS)
    axes.contour(across, along, height, levels=levels, colors=colour, linewidths=(1.6, 2.4))
