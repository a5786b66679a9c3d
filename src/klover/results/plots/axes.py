"""What all pictures share: how Axes look, which colours they have, where they end, what coordinates are called."""

from typing import TYPE_CHECKING, Any

import numpy as np

from klover.base.checks import as_floats, check_count, check_instance, in_words
from klover.results.fit import Fit
from klover.results.summary import weighted_quantile

if TYPE_CHECKING:
    from matplotlib.axes import Axes


POSTERIOR, REVERSE, FORWARD = "#9a9a9a", "#d1495b", "#1f6f9f"
REGION = (0.005, 0.995)
MARGIN = 0.3
MANY_DECADES = 1e3


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


def check_style(colour: Any, label: Any) -> None:
    """Refuse what matplotlib would refuse later, and in other words."""
    from matplotlib.colors import is_color_like

    if not is_color_like(colour):
        raise ValueError(
            f"colour must be a colour of matplotlib's, such as 'red' or '#1f6f9f', got {in_words(colour)}."
        )
    check_instance("label", label, str)


def check_window(window: Any) -> np.ndarray:
    """Return the ends of two axes, and refuse anything else."""
    ends = np.asarray(as_floats("window", window))
    if ends.shape != (2, 2) or not np.isfinite(ends).all() or not (ends[:, 0] < ends[:, 1]).all():
        raise ValueError(f"window must be [[lower, upper], [lower, upper]] of two axes, got {in_words(window)}.")
    return ends


def set_log_scale(axes: "Axes") -> None:
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
    return _with_margin(lower, upper)


def window_around(values: np.ndarray) -> tuple[float, float]:
    """Return ends of an axis between which nearly all of the values lie."""
    return _with_margin(*np.quantile(values, REGION))


def _with_margin(lower: float, upper: float) -> tuple[float, float]:
    margin = MARGIN * (upper - lower)
    return float(lower - margin), float(upper + margin)
