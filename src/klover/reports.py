"""What people look at: figures. Each function draws on the Axes that it is given and returns them."""

from typing import TYPE_CHECKING

import numpy as np

from klover import extras
from klover.fit import Fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POSTERIOR, REVERSE, FORWARD = "#9a9a9a", "#d1495b", "#1f6f9f"
LEVELS = (0.5, 0.95)


def plot_density_pair(
    axes: "Axes", fit: Fit, first: int, second: int, window: np.ndarray, colour: str, label: str
) -> "Axes":
    """Draw regions of a fit's own marginal density (not corrected by weights) that hold half and 95 % of its mass.

    Parameters
    ----------
    first, second
        Numbers of the two flat coordinates; the marginal of a component is a component.
    window
        Lower and upper ends of the two axes, shape (2, 2).
    """
    grid = np.stack(np.meshgrid(*[np.linspace(low, high, 160) for low, high in window]), axis=-1)
    log_density = _marginal_log_prob(fit, [first, second], grid.reshape(-1, 2)).reshape(grid.shape[:2])
    density = np.exp(log_density - log_density.max())
    ordered = np.sort(density.ravel())[::-1]
    cumulative = np.cumsum(ordered) / ordered.sum()
    heights = sorted(float(ordered[np.searchsorted(cumulative, level)]) for level in LEVELS)
    axes.contour(grid[..., 0], grid[..., 1], density, levels=heights, colors=colour, linewidths=(1.6, 2.4))
    axes.plot([], [], color=colour, linewidth=2.4, label=label)
    return axes


def _marginal_log_prob(fit: Fit, coordinates: list[int], x: np.ndarray) -> np.ndarray:
    """Log density of two coordinates under the mixture; a Student-t's marginal has the same degrees of freedom."""
    import jax.numpy as jnp

    from klover.families import Family
    from klover.mixture import Mixture

    components = fit.mixture.components
    covariance = components.spread.covariance()[:, coordinates][:, :, coordinates]
    marginal = Family(components.tail, "full").components(components.location[:, coordinates], covariance)
    marginal = type(marginal)(marginal.location, marginal.spread, components.df, components.tail)
    return np.asarray(Mixture(marginal, fit.mixture.log_weights).log_prob(jnp.asarray(x)))


def plot_weight_shares(axes: "Axes", fit: Fit, colour: str, label: str) -> "Axes":
    """Draw the share of all weight that the heaviest draws carry; a perfect proposal follows the diagonal."""
    weight = np.sort(np.exp(np.asarray(fit.draws.log_ratio - fit.draws.log_ratio.max())))[::-1]
    share = np.cumsum(weight) / weight.sum()
    axes.plot(np.arange(1, len(share) + 1) / len(share), share, color=colour, linewidth=2.4, label=label)
    return axes


def comparison_figure(
    posterior: np.ndarray, reverse: Fit, forward: Fit, coordinates: tuple[int, int], names: tuple[str, str]
) -> "Figure":
    """Draw reverse KL against forward KL against the posterior: what each covers, and what that does to the weights.

    Parameters
    ----------
    posterior
        Draws of an exact sampler in the two coordinates, shape (draw, 2).
    reverse, forward
        The two fits.
    coordinates, names
        Numbers and names of the two flat coordinates.
    """
    plt = extras.pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.8), gridspec_kw={"width_ratios": [1.25, 1]})
    centre, reach = posterior.mean(0), 4.0 * posterior.std(0)
    window = np.stack([centre - reach, centre + reach], axis=1)
    left.scatter(*posterior.T, s=5, color=POSTERIOR, alpha=0.35, linewidths=0, rasterized=True)
    left.scatter([], [], s=25, color=POSTERIOR, label="posterior (exact sampler)")
    plot_density_pair(left, reverse, *coordinates, window, REVERSE, "reverse KL: one Gaussian, diagonal")
    plot_density_pair(left, forward, *coordinates, window, FORWARD, "forward KL: klover")
    left.set(xlim=window[0], ylim=window[1], xlabel=f"weight of {names[0]}", ylabel=f"weight of {names[1]}")
    left.set_title("What each approximation covers (50 % and 95 % regions)", fontsize=11)
    left.legend(frameon=False, loc="upper right", fontsize=9)
    for fit, colour, name in ((reverse, REVERSE, "reverse KL"), (forward, FORWARD, "forward KL")):
        share = fit.ess / fit.draws.num_draws
        word = "trusted" if fit.verdict.trusted else "refused"
        label = f"{name}: k̂ = {fit.pareto_k:.2f}, {share:.1%} effective, {word}"
        plot_weight_shares(right, fit, colour, label)
    right.plot([0, 1], [0, 1], color="black", linewidth=1, linestyle=":", label="equal weights")
    right.set(
        xlim=(0, 1), ylim=(0, 1.02), xlabel="heaviest share of the draws", ylabel="share of all importance weight"
    )
    right.set_title("What the importance weights make of it", fontsize=11)
    right.legend(frameon=False, loc="lower right", fontsize=9)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    return figure
