"""Pictures of a fit: each function draws on the Axes that it is given, and returns them.

Coordinates are those of the flat, unconstrained space, in which the mixture and the weights live.
"""

from klover.results.plots.axes import FORWARD, POSTERIOR, REVERSE, label_of, tidy, window_of
from klover.results.plots.planes import plot_main_plane
from klover.results.plots.posterior import plot_density_pair, plot_marginal, plot_pair
from klover.results.plots.rounds import HISTORY, plot_history
from klover.results.plots.weights import (
    plot_quantity_tails,
    plot_residual,
    plot_tail,
    plot_weight_shares,
    plot_weights,
)

__all__ = [
    "FORWARD",
    "HISTORY",
    "POSTERIOR",
    "REVERSE",
    "label_of",
    "plot_density_pair",
    "plot_history",
    "plot_main_plane",
    "plot_marginal",
    "plot_pair",
    "plot_quantity_tails",
    "plot_residual",
    "plot_tail",
    "plot_weight_shares",
    "plot_weights",
    "tidy",
    "window_of",
]
