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

Lines over seeds are medians, and bands reach from the 10 % to the 90 % quantile. Each figure comes with its numbers and
with a caption that states settings, truncation and seeds. KL(p‖q) is infinite for the Cauchy density p and any mixture
q of Gaussians, so Cauchy figures are about the density cut to [-1000, 1000].
"""

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from klover.base import optional
from klover.boosting.settings import Settings
from klover.paper import curves, simulations

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Numbers = dict[str, Any]

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
BAND = (0.1, 0.5, 0.9)

LOGPDF_ROUNDS = (1, 5, 10)
LOGPDF_RANGE = (-22.0, 12.0)
RESIDUAL_ROUNDS = (1, 5, 10, 20)
RESIDUAL_LIMIT = 10.0
RESIDUAL_GRID = 160
NEGLIGIBLE = -15.0
"""Where both log densities are below this the residual compares nothing with nothing: in all, a mass below 1e-4."""


def draw(name: str, out: Path, seed: int = 0, num_seeds: int = 20) -> list[Path]:
    """Compute and draw one figure; write ``NAME.png``, ``NAME.pdf`` and ``NAME.json``, and return their paths.

    Parameters
    ----------
    name
        A key of :data:`FIGURES`.
    out
        Folder for the files; made where it is missing.
    seed
        The first seed. Figures that show single runs show this one.
    num_seeds
        Number of seeds behind medians and bands.
    """
    if name not in FIGURES:
        raise ValueError(f"there is no figure {name!r}; the figures are {', '.join(FIGURES)}.")
    if num_seeds < 1:
        raise ValueError(f"num_seeds must be at least 1, got {num_seeds}. The paper's figures use 20.")
    plt = optional.pyplot()
    with plt.rc_context(STYLE):
        figure, numbers = FIGURES[name](seed, num_seeds)
        try:
            out.mkdir(parents=True, exist_ok=True)
            # Without a date the same numbers give the same file.
            undated = {"pdf": {"CreationDate": None}}
            paths = [
                _write_whole(
                    out / f"{name}.{suffix}",
                    functools.partial(figure.savefig, format=suffix, dpi=DPI, metadata=undated.get(suffix)),
                )
                for suffix in ("png", "pdf")
            ]
        finally:
            plt.close(figure)
    text = json.dumps(numbers, allow_nan=False, ensure_ascii=False)
    return [*paths, _write_whole(out / f"{name}.json", lambda path: path.write_text(f"{text}\n", encoding="utf-8"))]


def _write_whole(path: Path, write: Callable[[Path], Any]) -> Path:
    """Write under another name beside, then rename: a reader finds the whole file or none."""
    part = path.with_name(f".{path.name}.part")
    try:
        write(part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def kl_comparison(seed: int, num_seeds: int) -> "tuple[Figure, Numbers]":
    """Draw one Gaussian on two modes by each divergence (``fig:kl_comp``): one sits on a mode, one covers both."""
    del num_seeds  # one fit of one Gaussian: the seeds differ in the mode that the reverse KL sits on
    target, (lower, upper) = simulations.two_modes(), curves.TARGETS["two modes"][1]
    grid = np.linspace(lower[0], upper[0], 601)
    density = np.exp(np.asarray(target.log_prob(grid[:, None])))
    figure, panels = optional.pyplot().subplots(1, 2, figsize=(9, 3.6), sharey=True)
    numbers: Numbers = {"x": grid.tolist(), "p": density.tolist()}
    cases = (("reverse", curves.ONE_REVERSE, "KL(q‖p)", REVERSE), ("forward", curves.ONE_FORWARD, "KL(p‖q)", FORWARD))
    for axes, (name, settings, symbol, colour) in zip(panels, cases, strict=True):
        mixture = curves.one_of(curves.runs("two modes", settings, range(seed, seed + 1))[0].mixture, 0)
        fitted = np.exp(np.asarray(mixture.log_prob(grid[:, None])))
        forward = simulations.forward_kl_by_quadrature(target, mixture, -20.0, 20.0)
        reverse = curves.reverse_kl_by_quadrature(target, mixture, -20.0, 20.0)
        mean, deviation = float(mixture.mean()[0]), float(mixture.covariance()[0, 0]) ** 0.5
        axes.fill_between(grid, density, color=TARGET, alpha=0.45, linewidth=0, label="target p")
        axes.plot(grid, fitted, color=colour, label=f"q: mean {mean:.2f}, sd {deviation:.2f}")
        axes.set(title=f"minimise the {name} KL, {symbol}", xlabel="θ", xlim=(lower[0], upper[0]))
        axes.text(0.98, 0.80, f"KL(q‖p) = {reverse:.2f}\nKL(p‖q) = {forward:.2f}", ha="right", transform=axes.transAxes)
        axes.legend(loc="upper left")
        numbers[name] = {"q": fitted.tolist(), "mean": mean, "sd": deviation, "KL(q|p)": reverse, "KL(p|q)": forward}
    panels[0].set(ylabel="density", ylim=(0, 1.45 * max(density.max(), max(numbers["reverse"]["q"]))))
    numbers["caption"] = (
        "One Gaussian on two equal Gaussians (at -3 and 3, sd 0.7), by the reverse and by the forward KL; divergences "
        f"by quadrature. Seed {seed}. Forward: moments of {curves.ONE_FORWARD.num_draws} weighted draws, "
        f"{curves.NUM_FIRST_FITS} times; reverse: {curves.ONE_REVERSE.num_steps} steps of Adam."
    )
    return figure, numbers


def cauchy_boosting(seed: int, num_seeds: int) -> "tuple[Figure, Numbers]":
    """Draw KL(p‖q_K) against K on the cut Cauchy density (``fig:boosting_benefit``)."""
    target, limit = simulations.cauchy(), simulations.CAUCHY_LIMIT
    figure, axes = optional.pyplot().subplots(figsize=(7, 4.4))
    numbers: Numbers = {}
    cases = (
        ("reverse, Gaussians", curves.CAUCHY_REVERSE, REVERSE, "s"),
        ("forward, Gaussians", curves.CAUCHY_FORWARD, FORWARD, "o"),
        ("forward, Student-t", curves.CAUCHY_STUDENT, STUDENT, "^"),
    )
    for label, settings, colour, marker in cases:
        states = curves.runs("cauchy", settings, range(seed, seed + num_seeds))
        values = np.array([curves.cut_forward_kl(target, state.mixture, limit) for state in states])
        numbers[label] = _plot_band(axes, values, colour, label, marker=marker)
    # A q that is the whole Cauchy density loses what it puts outside: KL = -log P(|θ| <= limit).
    floor = -np.log(2 / np.pi * np.arctan(limit))
    axes.axhline(floor, color="black", linestyle=":", linewidth=1, label="q = the Cauchy density, not cut")
    axes.set(yscale="log", xlabel="number of components K", ylabel=f"KL(p‖q$_K$) on [-{limit:g}, {limit:g}]")
    axes.set_xticks(range(1, curves.CAUCHY_FORWARD.num_components + 1))
    axes.set_title(f"Cauchy target, cut to ±{limit:g} (with Gaussians KL is infinite without the cut)")
    axes.legend(loc="upper right")
    numbers["floor"] = float(floor)
    numbers["caption"] = (
        f"KL(p‖q_K) by quadrature for the Cauchy density cut to [-{limit:g}, {limit:g}] and normalised there; q_K is "
        "not cut. Without the cut KL is infinite for every mixture of Gaussians. Student-t components (df fitted) are "
        f"shown up to K = {curves.CAUCHY_STUDENT.num_components}; the dotted line, {floor:.2g}, is "
        f"what the cut leaves of a perfect fit. {_seeds_words(seed, num_seeds)} "
        f"{_method_words(curves.CAUCHY_FORWARD, curves.CAUCHY_REVERSE)}"
    )
    return figure, numbers


def cauchy_logpdf(seed: int, num_seeds: int) -> "tuple[Figure, Numbers]":
    """Draw log p, log q_K and the log residual after several rounds of forward boosting (``fig:cauchy_logpdf``)."""
    target, limit = simulations.cauchy(), simulations.CAUCHY_LIMIT
    states = curves.runs("cauchy", curves.CAUCHY_FORWARD, range(seed, seed + num_seeds))
    grid = np.sinh(np.linspace(-np.arcsinh(limit), np.arcsinh(limit), 401))
    log_p = np.asarray(target.log_prob(grid[:, None]))
    figure, panels = optional.pyplot().subplots(1, len(LOGPDF_ROUNDS), figsize=(11, 3.8), sharey=True)
    numbers: Numbers = {"x": grid.tolist(), "log p": log_p.tolist()}
    for axes, number in zip(panels, LOGPDF_ROUNDS, strict=True):
        mixture = curves.one_of(states[number - 1].mixture, 0)
        log_q = np.asarray(mixture.log_prob(grid[:, None]))
        value = simulations.forward_kl_by_quadrature(target, mixture, -limit, limit)
        axes.plot(grid, log_p, color=TARGET, linewidth=3.5, label="log p")
        axes.plot(grid, log_q, color=FORWARD, label="log q$_K$")
        axes.plot(grid, log_p - log_q, color=RESIDUAL, linestyle="--", label="log p/q$_K$")
        axes.axhline(0, color="black", linewidth=0.6)
        axes.set_xscale("asinh", linear_width=1.0)
        axes.set_xticks([-1000, -100, -10, 0, 10, 100, 1000], ["-10³", "-10²", "-10", "0", "10", "10²", "10³"])
        axes.set_xticks([], minor=True)
        axes.set(title=f"K = {number}: KL(p‖q$_K$) = {value:.2g}", xlabel="θ (asinh scale)", ylim=LOGPDF_RANGE)
        numbers[f"K = {number}"] = {"log q": log_q.tolist(), "log p/q": (log_p - log_q).tolist(), "KL(p|q)": value}
    panels[0].set_ylabel("log density, log residual")
    panels[-1].legend(loc="upper right", ncols=3, columnspacing=1.0, handlelength=1.6)
    numbers["caption"] = (
        f"Forward boosting with Gaussians on the Cauchy density cut to [-{limit:g}, {limit:g}]: log p, log q_K and the "
        f"log residual log p/q_K. The vertical axis is cut to [{LOGPDF_RANGE[0]:g}, {LOGPDF_RANGE[1]:g}]; the JSON has "
        f"the whole curves. Seed {seed}. {_method_words(curves.CAUCHY_FORWARD)}"
    )
    return figure, numbers


def gmm20_residual(seed: int, num_seeds: int) -> "tuple[Figure, Numbers]":
    """Draw log p/q_K on the twenty-mode mixture after several rounds of forward boosting (``fig:20mog``)."""
    states = curves.runs("twenty modes", curves.MODES_FORWARD, range(seed, seed + num_seeds))
    axis = np.linspace(0.0, 10.0, RESIDUAL_GRID)
    points = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    log_p = np.asarray(simulations.twenty_modes().log_prob(points))
    figure, panels = optional.pyplot().subplots(1, len(RESIDUAL_ROUNDS), figsize=(13, 3.7), sharey=True)
    numbers: Numbers = {"axis": axis.tolist()}
    for axes, number in zip(panels, RESIDUAL_ROUNDS, strict=True):
        mixture = curves.one_of(states[number - 1].mixture, 0)
        log_q = np.asarray(mixture.log_prob(points))
        clipped = np.clip(log_p - log_q, -RESIDUAL_LIMIT, RESIDUAL_LIMIT).reshape(RESIDUAL_GRID, RESIDUAL_GRID)
        is_empty = (np.maximum(log_p, log_q) < NEGLIGIBLE).reshape(clipped.shape)
        image = axes.imshow(
            np.ma.masked_where(is_empty, clipped),
            origin="lower",
            extent=(0, 10, 0, 10),
            cmap="RdBu_r",
            vmin=-RESIDUAL_LIMIT,
            vmax=RESIDUAL_LIMIT,
        )
        axes.set_facecolor("0.85")
        axes.scatter(
            *np.transpose(simulations.TWENTY_MODE_LOCATIONS), s=26, facecolors="none", edgecolors="0.25", lw=0.6
        )
        value = float(curves.twenty_mode_forward_kl(mixture))
        axes.set(title=f"K = {number}: KL(p‖q$_K$) = {value:.2g}", xlabel="θ$_1$", xlim=(0, 10), ylim=(0, 10))
        numbers[f"K = {number}"] = {"log p/q": np.round(clipped, 2).tolist(), "KL(p|q)": value}
    panels[0].set_ylabel("θ$_2$")
    figure.colorbar(image, ax=panels, label="log p/q$_K$, clipped", extend="both", pad=0.01, shrink=0.8)  # pyright: ignore
    numbers["caption"] = (
        f"Log residual log p/q_K of forward boosting on the twenty-mode mixture, clipped to ±{RESIDUAL_LIMIT:g}: red "
        f"where q_K has too little, blue where it has too much, grey where both densities are below "
        f"exp({NEGLIGIBLE:g}). Circles: the modes (sd {simulations.TWENTY_MODE_SCALE}). Seed {seed}. "
        f"{_method_words(curves.MODES_FORWARD)}"
    )
    return figure, numbers


def gmm20_moments(seed: int, num_seeds: int) -> "tuple[Figure, Numbers]":
    """Draw KL(p‖q_K) and squared errors of the first two moments against K, twenty-mode mixture (``fig:20mog_res``)."""
    figure, (left, *moments) = optional.pyplot().subplots(1, 3, figsize=(13, 4.0))
    numbers: Numbers = {}
    cases = (("reverse", curves.MODES_REVERSE, REVERSE), ("forward", curves.MODES_FORWARD, FORWARD))
    forward_kl = jax.jit(jax.vmap(curves.twenty_mode_forward_kl))
    own_errors, weighted_errors = (
        jax.jit(jax.vmap(errors)) for errors in (curves.own_moment_errors, curves.weighted_moment_errors)
    )
    for name, settings, colour in cases:
        states = curves.runs("twenty modes", settings, range(seed, seed + num_seeds))
        divergence = np.array([forward_kl(state.mixture) for state in states])
        numbers[name] = {"KL(p|q)": _plot_band(left, divergence, colour, f"{name} KL", marker="o")}
        for errors, key, words, line in (
            (weighted_errors, "importance sampling", f"{settings.num_draws} weighted draws", "-"),
            (own_errors, "moments of q", "q$_K$ itself", ":"),
        ):
            values = np.array([errors(state) for state in states])
            numbers[name][key] = {
                title: _plot_band(
                    axes, values[..., which], colour, f"{name}: {words}", linestyle=line, has_band=line == "-"
                )
                for which, (axes, title) in enumerate(zip(moments, ("first moment", "second moment"), strict=True))
            }
    left.set(title="forward KL, by quadrature", ylabel="KL(p‖q$_K$)")
    for axes, title in zip(moments, ("first moment", "second moment"), strict=True):
        axes.set(title=f"{title}, mean squared error", ylabel="squared error")
    for axes in (left, *moments):
        axes.set(yscale="log", xlabel="number of components K")
        axes.set_xticks([1, *range(5, curves.MODES_FORWARD.num_components + 1, 5)])
    left.legend(loc="lower left")
    moments[0].legend(loc="lower left", fontsize=8)
    numbers["caption"] = (
        "Twenty-mode mixture: KL(p‖q_K) by Gauss-Hermite quadrature around each mode, and squared errors (mean over "
        "the two coordinates) of the first and second moments: by importance sampling with draws of q_K, and of q_K "
        "itself (dotted, no band). "
        f"{_seeds_words(seed, num_seeds)} {_method_words(curves.MODES_FORWARD, curves.MODES_REVERSE)}"
    )
    return figure, numbers


def _plot_band(
    axes: "Axes",
    values: np.ndarray,
    colour: str,
    label: str,
    *,
    marker: str = "",
    linestyle: str = "-",
    has_band: bool = True,
) -> Numbers:
    """Draw the median over seeds against K with its band, ``values`` of shape (round, seed); return what was drawn."""
    rounds = np.arange(1, len(values) + 1)
    low, median, high = np.quantile(values, BAND, axis=1)
    if has_band:
        axes.fill_between(rounds, low, high, color=colour, alpha=0.18, linewidth=0)
    axes.plot(rounds, median, color=colour, label=label, marker=marker, markersize=4.5, linestyle=linestyle)
    return {"K": rounds.tolist(), "median": median.tolist(), "low": low.tolist(), "high": high.tolist()}


def _seeds_words(seed: int, num_seeds: int) -> str:
    return f"Median and 10-90 % band over {num_seeds} seeds ({seed} to {seed + num_seeds - 1})."


def _method_words(forward: Settings, reverse: Settings | None = None) -> str:
    words = (
        f"Forward: EM on {forward.num_draws} draws made anew in each of {forward.num_steps} steps, newcomers by gain, "
        "then Newton weights and EM over all components; the first component is fitted from a cover of the box."
    )
    if reverse is None:
        return words
    return (
        f"{words} Reverse: {reverse.num_steps} steps of Adam (rate {reverse.learning_rate_location:g}, "
        f"{reverse.num_draws_per_step} draws) for the newcomer and its weight, the rest and its weights held "
        f"fixed as in Miller et al. (2017); newcomers by gain, found on {reverse.num_draws} draws."
    )


FIGURES: "dict[str, Callable[[int, int], tuple[Figure, Numbers]]]" = {
    "kl-comparison": kl_comparison,
    "cauchy-boosting": cauchy_boosting,
    "cauchy-logpdf": cauchy_logpdf,
    "gmm20-residual": gmm20_residual,
    "gmm20-moments": gmm20_moments,
}
