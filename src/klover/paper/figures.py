r"""The paper's figures: what forward-KL boosting gives beside reverse-KL boosting, drawn in one style.

======================  ==========================  =====================================================
name                    label in the paper          content
======================  ==========================  =====================================================
``kl-comparison``       ``fig:kl_comp``             one Gaussian on two modes, by each divergence
``cauchy-boosting``     ``fig:boosting_benefit``    KL(p‖q_K) against K on a Cauchy target
``cauchy-logpdf``       ``fig:cauchy_logpdf``       log p, log q_K and log p/q_K for three K
``gmm20-residual``      ``fig:20mog``               log p/q_K on the twenty-mode mixture for four K
``gmm20-moments``       ``fig:20mog_res``           KL(p‖q_K) and errors of the moments against K
======================  ==========================  =====================================================

Each figure is drawn from its numbers (:mod:`klover.paper.figure_data`), which are written beside it. Lines over seeds
are medians, and bands reach from the 10 % to the 90 % quantile.
"""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from klover.base import optional
from klover.base.checks import check_choice, check_count
from klover.paper import figure_data, simulations
from klover.paper.figure_data import Numbers
from klover.paper.measurements import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TARGET, REVERSE, FORWARD, STUDENT, RESIDUAL = "#9a9a9a", "#d1495b", "#1f6f9f", "#e08e1b", "#2e7d4f"
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 2.0,
    "figure.constrained_layout.use": True,
}
DPI = 150


def draw(name: str, out: Path, seed: int = 0, num_seeds: int = 20) -> list[Path]:
    """Compute and draw one of :data:`FIGURES`; write ``NAME.png``, ``NAME.pdf`` and ``NAME.json``, return their paths.

    Figures that show single runs show that of ``seed``, the first of the seeds behind medians and bands.
    """
    check_choice("name", name, FIGURES)
    check_count("num_seeds", num_seeds, 1, "The paper's figures use 20.")
    compute, show = FIGURES[name]
    plt, numbers = optional.pyplot(), compute(seed, num_seeds)
    out.mkdir(parents=True, exist_ok=True)
    with plt.rc_context(STYLE):
        figure = show(numbers)
        # Without a date the same numbers give the same file.
        kinds = {"png": {}, "pdf": {"metadata": {"CreationDate": None}}}
        try:
            paths = [
                write_whole(out / f"{name}.{kind}", functools.partial(figure.savefig, format=kind, dpi=DPI, **more))
                for kind, more in kinds.items()
            ]
        finally:
            plt.close(figure)
    text = json.dumps(numbers, allow_nan=False, ensure_ascii=False, default=lambda array: array.tolist())
    return [*paths, write_whole(out / f"{name}.json", lambda path: path.write_text(f"{text}\n", encoding="utf-8"))]


def kl_comparison(numbers: Numbers) -> "Figure":
    """Draw one Gaussian on two modes by each divergence (``fig:kl_comp``): one sits on a mode, one covers both."""
    figure, panels = optional.pyplot().subplots(1, 2, figsize=(9, 3.6), sharey=True)
    grid, density = numbers["x"], numbers["p"]
    cases = (("reverse", "KL(q‖p)", REVERSE), ("forward", "KL(p‖q)", FORWARD))
    for axes, (name, symbol, colour) in zip(panels, cases, strict=True):
        found = numbers[name]
        divergences = f"KL(q‖p) = {found['KL(q|p)']:.2f}\nKL(p‖q) = {found['KL(p|q)']:.2f}"
        axes.fill_between(grid, density, color=TARGET, alpha=0.45, linewidth=0, label="target p")
        axes.plot(grid, found["q"], color=colour, label=f"q: mean {found['mean']:.2f}, sd {found['sd']:.2f}")
        axes.set(title=f"minimise the {name} KL, {symbol}", xlabel="θ", xlim=(grid[0], grid[-1]))
        axes.text(0.98, 0.80, divergences, ha="right", transform=axes.transAxes)
        axes.legend(loc="upper left")
    panels[0].set(ylabel="density", ylim=(0, 1.45 * max(density.max(), numbers["reverse"]["q"].max())))
    return figure


def cauchy_boosting(numbers: Numbers) -> "Figure":
    """Draw KL(p‖q_K) against K on the cut Cauchy density (``fig:boosting_benefit``)."""
    limit = simulations.CAUCHY_LIMIT
    figure, axes = optional.pyplot().subplots(figsize=(7, 4.4))
    _plot_band(axes, numbers["reverse, Gaussians"], REVERSE, "reverse, Gaussians", marker="s")
    _plot_band(axes, numbers["forward, Gaussians"], FORWARD, "forward, Gaussians", marker="o")
    _plot_band(axes, numbers["forward, Student-t"], STUDENT, "forward, Student-t", marker="^")
    axes.axhline(numbers["floor"], color="black", linestyle=":", linewidth=1, label="q = the Cauchy density, not cut")
    axes.set(yscale="log", xlabel="number of components K", ylabel=f"KL(p‖q$_K$) on [-{limit:g}, {limit:g}]")
    axes.set_xticks(numbers["forward, Gaussians"]["K"])
    axes.set_title(f"Cauchy target, cut to ±{limit:g} (with Gaussians KL is infinite without the cut)")
    axes.legend(loc="upper right")
    return figure


def cauchy_logpdf(numbers: Numbers) -> "Figure":
    """Draw log p, log q_K and the log residual after several rounds of forward boosting (``fig:cauchy_logpdf``)."""
    found = _by_round(numbers)
    figure, panels = optional.pyplot().subplots(1, len(found), figsize=(11, 3.8), sharey=True)
    for axes, (name, curves) in zip(panels, found.items(), strict=True):
        axes.plot(numbers["x"], numbers["log p"], color=TARGET, linewidth=3.5, label="log p")
        axes.plot(numbers["x"], curves["log q"], color=FORWARD, label="log q$_K$")
        axes.plot(numbers["x"], curves["log p/q"], color=RESIDUAL, linestyle="--", label="log p/q$_K$")
        axes.axhline(0, color="black", linewidth=0.6)
        axes.set_xscale("asinh", linear_width=1.0)
        axes.set_xticks([-1000, -100, -10, 0, 10, 100, 1000], ["-10³", "-10²", "-10", "0", "10", "10²", "10³"])
        axes.set_xticks([], minor=True)
        axes.set(title=_title(name, curves), xlabel="θ (asinh scale)", ylim=figure_data.LOGPDF_RANGE)
    panels[0].set_ylabel("log density, log residual")
    panels[-1].legend(loc="upper right", ncols=3, columnspacing=1.0, handlelength=1.6)
    return figure


def gmm20_residual(numbers: Numbers) -> "Figure":
    """Draw log p/q_K on the twenty-mode mixture after several rounds of forward boosting (``fig:20mog``)."""
    found, limit = _by_round(numbers), figure_data.RESIDUAL_LIMIT
    look = {"origin": "lower", "extent": (0, 10, 0, 10), "cmap": "RdBu_r", "vmin": -limit, "vmax": limit}
    circles = {"s": 26, "facecolors": "none", "edgecolors": "0.25", "lw": 0.6}
    figure, panels = optional.pyplot().subplots(1, len(found), figsize=(13, 3.7), sharey=True)
    for axes, (name, residual) in zip(panels, found.items(), strict=True):
        axes.imshow(residual["log p/q"], **look)
        axes.set_facecolor("0.85")
        axes.scatter(*np.transpose(simulations.TWENTY_MODE_LOCATIONS), **circles)
        axes.set(title=_title(name, residual), xlabel="θ$_1$", xlim=(0, 10), ylim=(0, 10))
    panels[0].set_ylabel("θ$_2$")
    words = "log p/q$_K$, clipped"
    figure.colorbar(panels[0].images[0], ax=panels, label=words, extend="both", pad=0.01, shrink=0.8)
    return figure


def gmm20_moments(numbers: Numbers) -> "Figure":
    """Draw KL(p‖q_K) and squared errors of the first two moments against K, twenty-mode mixture (``fig:20mog_res``)."""
    figure, (left, *moments) = optional.pyplot().subplots(1, 3, figsize=(13, 4.0))
    draws = f"{figure_data.MODES_FORWARD.num_round_draws} weighted draws"
    for name, colour in (("reverse", REVERSE), ("forward", FORWARD)):
        found = numbers[name]
        _plot_band(left, found["KL(p|q)"], colour, f"{name} KL", marker="o")
        for axes, moment in zip(moments, figure_data.MOMENTS, strict=True):
            _plot_band(axes, found["importance sampling"][moment], colour, f"{name}: {draws}")
            own = found["moments of q"][moment]
            axes.plot(own["K"], own["median"], color=colour, linestyle=":", label=f"{name}: q$_K$ itself")
            axes.set(title=f"{moment}, mean squared error", ylabel="squared error")
    left.set(title="forward KL, by quadrature", ylabel="KL(p‖q$_K$)")
    for axes in (left, *moments):
        axes.set(yscale="log", xlabel="number of components K")
        axes.set_xticks([1, *range(5, len(numbers["forward"]["KL(p|q)"]["K"]) + 1, 5)])
    left.legend(loc="lower left")
    moments[0].legend(loc="lower left", fontsize=8)
    return figure


def _plot_band(axes: "Axes", band: Numbers, colour: str, label: str, marker: str = "") -> None:
    """Draw a median over seeds against K with its band."""
    axes.fill_between(band["K"], band["low"], band["high"], color=colour, alpha=0.18, linewidth=0)
    axes.plot(band["K"], band["median"], color=colour, label=label, marker=marker, markersize=4.5)


def _by_round(numbers: Numbers) -> Numbers:
    return {name: found for name, found in numbers.items() if name.startswith("K = ")}


def _title(name: str, found: Numbers) -> str:
    return f"{name}: KL(p‖q$_K$) = {found['KL(p|q)']:.2g}"


FIGURES: "dict[str, tuple[Callable[[int, int], Numbers], Callable[[Numbers], Figure]]]" = {
    "kl-comparison": (figure_data.kl_comparison, kl_comparison),
    "cauchy-boosting": (figure_data.cauchy_boosting, cauchy_boosting),
    "cauchy-logpdf": (figure_data.cauchy_logpdf, cauchy_logpdf),
    "gmm20-residual": (figure_data.gmm20_residual, gmm20_residual),
    "gmm20-moments": (figure_data.gmm20_moments, gmm20_moments),
}
