"""Marginal densities of a proposal: a mixture has them in closed form; behind a warp, many draws stand for them."""

import numpy as np

from klover.base.shapes import Float
from klover.mixtures.algebra import marginal
from klover.warps.warped import Proposal, WarpedMixture

NUM_DRAWS = 20_000
NUM_POINTS = 160
WIDTHS = (0.7, 1.4, 2.8, 5.6)
"""Points of a grid by which draws are smeared, the fewer there are around them the further: sds of Normal kernels."""
PILOT = 2
"""Of these widths, the one that first says how many there are."""
ENOUGH = 5.0
"""Draws in a cell around which the width is one point: a kernel then holds sixty of them."""

Grid = Float[np.ndarray, "point point"]


def drawn(proposal: WarpedMixture) -> Float[np.ndarray, "draw dim"]:
    """Return draws of a proposal, the same ones at every call."""
    return proposal.draw(np.random.default_rng(0), NUM_DRAWS)


def bars(proposal: WarpedMixture, coordinate: int, edges: Float[np.ndarray, " edge"]) -> Float[np.ndarray, " bar"]:
    """Return the density of a coordinate, on average over each bar of a histogram."""
    return np.histogram(drawn(proposal)[:, coordinate], edges)[0] / np.diff(edges) / NUM_DRAWS


def on_grid(
    proposal: Proposal, first: int, second: int, window: Float[np.ndarray, "2 2"]
) -> tuple[Float[np.ndarray, " point"], Float[np.ndarray, " point"], Grid]:
    """Return the points of two axes of a window, and the two coordinates' density there, but for a factor.

    Rows are those of the second axis, as matplotlib has them.
    """
    across, along = (np.linspace(low, high, NUM_POINTS) for low, high in window)
    if isinstance(proposal, WarpedMixture):
        pair = drawn(proposal)[:, [first, second]]
        count = np.histogram2d(pair[:, 0], pair[:, 1], [_edges(across), _edges(along)])[0].T
        return across, along, _smeared(count)
    grid = np.stack(np.meshgrid(across, along), axis=-1)
    log_density = marginal(proposal, [first, second]).log_prob(grid.reshape(-1, 2)).reshape(grid.shape[:2])
    return across, along, np.exp(log_density - log_density.max())


def _edges(points: Float[np.ndarray, " point"]) -> Float[np.ndarray, " edge"]:
    """Return the edges of cells around evenly spaced points."""
    step = points[1] - points[0]
    return np.append(points - 0.5 * step, points[-1] + 0.5 * step)


def _smeared(count: Grid) -> Grid:
    """Smear the draws of every cell by a width that follows their density (Abramson 1982)."""
    pilot = _convolved(count, WIDTHS[PILOT])
    wanted = np.sqrt(ENOUGH / np.maximum(pilot, 1e-3))
    nearest = np.abs(np.log(wanted[..., None] / np.array(WIDTHS))).argmin(-1)
    return sum((_convolved(count * (nearest == place), width) for place, width in enumerate(WIDTHS)), np.zeros(()))


def _convolved(count: Grid, width: float) -> Grid:
    """Convolve both axes with a Normal kernel."""
    reach = np.arange(-round(4 * width), round(4 * width) + 1)
    kernel = np.exp(-0.5 * (reach / width) ** 2)
    for _ in range(2):
        count = np.stack([np.convolve(row, kernel / kernel.sum(), "same") for row in count]).T
    return count
