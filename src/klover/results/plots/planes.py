"""The mixture in its main plane: where its components lie furthest apart, seen along two directions."""

from typing import TYPE_CHECKING

import jax
import numpy as np

from klover.base.arrays import comb
from klover.base.shapes import Float, Point
from klover.mixtures.mixture import Mixture
from klover.results.fit import Fit
from klover.results.plots.axes import FORWARD, POSTERIOR, check_axes, check_fit, tidy, window_around
from klover.results.plots.posterior import MOST_POINTS, SMALLEST_WEIGHT, add_ellipse

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_DIMENSIONS = 500
"""Beyond them a plane is two of very many directions, and its computation takes long."""
CORRELATIONS = 0.01
"""Weight of the draws' correlations beside the distances of the components: they decide where these leave a choice."""
NUM_TERMS = 2
SMALLEST_TERM = 0.15


def has_plane(fit: Fit) -> bool:
    """Whether components have places in the space of the coordinates, and there are not too many of these."""
    return isinstance(fit.mixture, Mixture) and 2 <= fit.mixture.dim <= MOST_DIMENSIONS


def plot_main_plane(axes: "Axes", fit: Fit) -> "Axes":
    """Draw posterior draws and the proposal in the plane in which the components lie furthest apart.

    Distances are in standard deviations of the posterior, from its mean. Each ellipse holds half of a component's mass.
    """
    check_axes(axes)
    check_fit(fit)
    mixture = fit.mixture
    if not (isinstance(mixture, Mixture) and has_plane(fit)):
        raise ValueError(
            f"fit must have a mixture without a warp in 2 to {MOST_DIMENSIONS} dimensions, got a "
            f"{type(mixture).__name__} in {mixture.dim}. Use plot_pair for two of its coordinates."
        )
    weight = np.exp(np.asarray(fit.draws.log_weight, float))
    points = np.asarray(fit.draws.x, float)[comb(weight, (np.arange(MOST_POINTS) + 0.5) / MOST_POINTS)]
    mean, sd = points.mean(axis=0), np.where(points.std(axis=0) > 0, points.std(axis=0), 1.0)
    z = (points - mean) / sd
    plane = _plane(mixture, z, mean, sd)
    seen = z @ plane.T
    axes.scatter(*seen.T, s=4, color=POSTERIOR, alpha=0.4, linewidths=0, rasterized=True, label="posterior")
    _draw_components(axes, mixture, mean, plane / sd)
    axes.set(xlim=window_around(seen[:, 0]), ylim=window_around(seen[:, 1]))
    names = [fit.target.coordinate_name(place) for place in range(mixture.dim)]
    return tidy(axes, "The mixture in its main plane", *(_direction(names, along) for along in plane))


def _plane(mixture: Mixture, z: Float[np.ndarray, "draw dim"], mean: Point, sd: Point) -> Float[np.ndarray, "2 dim"]:
    """Return two orthogonal directions in standardised coordinates."""
    weight = np.asarray(mixture.weights, float)
    # A component that covers the tails has its centre where it likes.
    weight = np.where(weight >= SMALLEST_WEIGHT, weight, 0.0)
    centre = (np.asarray(mixture.components.location, float) - mean) / sd
    scatter = (weight[:, None] * centre).T @ centre + CORRELATIONS * z.T @ z / len(z)
    directions = np.linalg.eigh(scatter)[1][:, ::-1].T[:2]
    largest = np.abs(directions).argmax(axis=1)
    return directions * np.sign(directions[np.arange(2), largest])[:, None]


def _draw_components(axes: "Axes", mixture: Mixture, mean: Point, projection: Float[np.ndarray, "2 dim"]) -> None:
    components, weights = mixture.components, np.asarray(mixture.weights, float)
    for slot in np.flatnonzero(weights >= SMALLEST_WEIGHT):
        # One by one: the covariances of all components may not fit into the memory.
        spread = jax.tree.map(lambda leaf, slot=slot: np.asarray(leaf, float)[slot], components.spread)
        centre = projection @ (np.asarray(components.location, float)[slot] - mean)
        covariance = projection @ spread.covariance() @ projection.T
        add_ellipse(axes, centre, covariance, float(components.df[slot]), weights[slot] / weights.max())
    axes.plot([], [], color=FORWARD, label="proposal")


def _direction(names: list[str], along: Float[np.ndarray, " dim"]) -> str:
    """Name a direction by the coordinates that it goes along most."""
    order = np.argsort(-np.abs(along))
    shown = [place for place in order[:NUM_TERMS] if abs(along[place]) >= SMALLEST_TERM] or [order[0]]
    terms = [f"{'−' if along[place] < 0 else '+'} {abs(along[place]):.2f} {names[place]}" for place in shown]
    more = " + …" if np.sum(np.abs(along) >= SMALLEST_TERM) > len(shown) else ""
    return " ".join(terms).removeprefix("+ ") + more
