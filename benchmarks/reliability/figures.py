"""Pictures of a report: outcomes by family, z-scores, ranks, cost."""

import pathlib
from collections.abc import Sequence

import matplotlib
import matplotlib.pyplot as plt
import matplotlib.ticker
import numpy as np
from scipy import stats

from benchmarks.reliability import calibration, report
from benchmarks.reliability.outcome import RAISED, REFUSED, RIGHT, TRUSTED, UNFINISHED, WRONG
from benchmarks.reliability.statistics import NUM_RANKED

COLOURS = {
    RIGHT: "#3b7d4f",
    TRUSTED: "#8fbf9f",
    WRONG: "#c0392b",
    REFUSED: "#d9b44a",
    UNFINISHED: "#9aa0a6",
    RAISED: "#5b4a8a",
}
LARGEST_SCORE = 6.0
LABELS = ["not wrong", "wrong"]
DIMS = [1, 2, 5, 10, 20, 50, 100, 200]

Lines = Sequence[dict]


def write(lines: Lines, folder: pathlib.Path) -> list[pathlib.Path]:
    """Draw what the lines allow for, and return the files."""
    own = [line for line in lines if line.get("peer") is None and line["outcome"] in COLOURS]
    made = []
    with matplotlib.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}):
        for arm in dict.fromkeys(line["arm"] for line in own):
            chosen = [line for line in own if line["arm"] == arm]
            for draw in (outcomes, scores, ranks, cost):
                figure = draw(chosen)
                if figure is not None:
                    made.append(folder / f"{arm}_{draw.__name__}.png")
                    figure.savefig(made[-1], dpi=150, bbox_inches="tight")
                    plt.close(figure)
    return made


def outcomes(lines: Lines):
    """Bars of outcomes by family, the families with the largest share of trusted and wrong answers on top."""
    families = sorted({line["family"] for line in lines}, reverse=True)
    groups = {family: [line for line in lines if line["family"] == family] for family in families}
    order = sorted(families, key=lambda name: len(report.of(groups[name], WRONG)) / len(groups[name]))
    figure, axes = plt.subplots(figsize=(7.5, 0.24 * len(order) + 1.1))
    left = np.zeros(len(order))
    for outcome, colour in COLOURS.items():
        width = np.array([len(report.of(groups[name], outcome)) / len(groups[name]) for name in order])
        if width.any():
            axes.barh(order, width, left=left, color=colour, label=outcome, height=0.8)
        left += width
    for place, name in enumerate(order):
        axes.text(1.01, place, str(len(groups[name])), va="center", color="#555555", fontsize=8)
    axes.set(xlim=(0, 1), xlabel="share of fits (their number on the right)", ylim=(-0.6, len(order) - 0.4))
    axes.xaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
    axes.tick_params(axis="y", length=0)
    axes.legend(ncols=6, loc="lower left", bbox_to_anchor=(0, 1.0), frameon=False, handlelength=1, columnspacing=1.2)
    return figure


def scores(lines: Lines):
    """Histograms of the z-scores of trusted answers, beside the standard normal."""
    groups = [report.z_scores(report.of(lines, *names)) for names in ((RIGHT, TRUSTED), (WRONG,))]
    panels = [(name, [group[at] for group in groups]) for at, name in enumerate(("log Z", "means"))]
    panels = [(name, z) for name, z in panels if z[0] or z[1]]
    if not panels:
        return None
    figure, axes = plt.subplots(1, len(panels), figsize=(3.8 * len(panels), 2.9), squeeze=False, layout="constrained")
    bins, grid = np.linspace(-LARGEST_SCORE, LARGEST_SCORE, 49), np.linspace(-LARGEST_SCORE, LARGEST_SCORE, 200)
    for axis, (name, z) in zip(axes[0], panels, strict=True):
        num = sum(map(len, z))
        weights = [np.full(len(each), 1 / (num * (bins[1] - bins[0]))) for each in z]
        clipped = [np.clip(each, -LARGEST_SCORE, LARGEST_SCORE) for each in z]
        axis.hist(clipped, bins, weights=weights, stacked=True, color=["#8fb3d9", COLOURS[WRONG]], label=LABELS)
        axis.plot(grid, stats.norm.pdf(grid), color="#333333", linewidth=1.2, label="N(0, 1)")
        axis.set(xlabel="error / stated error (ends: all beyond)", title=f"{name}: {num} scores")
        axis.set(yscale="log", ylim=(1e-4, 20))
    axes[0, 0].set_ylabel("density")
    axes[0, 0].legend(frameon=False, loc="upper left", fontsize=8)
    return figure


def ranks(lines: Lines):
    """Histograms of the ranks, and their distribution functions less the uniform one with a simultaneous band."""
    chosen = [line for line in report.trusted(lines) if line.get("ranks")]
    if not chosen:
        return None
    figure, axes = plt.subplots(2, len(calibration.KINDS), figsize=(9.6, 4.2), sharey="row", layout="constrained")
    for column, kind in zip(axes.T, calibration.KINDS, strict=True):
        values = calibration.ranks_of(chosen, kind)
        by_bins, by_function = calibration.uniformity(values)
        column[0].set_title(f"{kind.replace('_', ' ')}: χ² p = {by_bins:.2g}", fontsize=9)
        column[1].set_title(f"ECDF p = {by_function:.2g}", fontsize=9)
        _histogram(column[0], values)
        _difference(column[1], values)
    axes[0, 0].set_ylabel(f"fits of {len(chosen)}")
    axes[1, 0].set_ylabel("ECDF less uniform")
    return figure


def _histogram(axis, values: np.ndarray) -> None:
    """Draw counts of ranks in bins, with the limits of 95 % for each."""
    bins = np.linspace(0, NUM_RANKED + 1, calibration.NUM_BINS + 1)
    limits = stats.binom.ppf([0.025, 0.5, 0.975], len(values), 1 / calibration.NUM_BINS)
    axis.axhspan(limits[0], limits[2], color="#dddddd", linewidth=0)
    axis.axhline(limits[1], color="#999999", linewidth=0.6)
    axis.hist(values, bins, color="#8fb3d9", rwidth=0.85)
    axis.set_xticks([])


def _difference(axis, values: np.ndarray) -> None:
    """Draw the empirical distribution function less the uniform one, with its simultaneous band."""
    share = calibration.SHARES
    lower, upper = (limit / len(values) - share for limit in calibration.band(len(values)))
    cumulative = np.cumsum(np.bincount(values, minlength=NUM_RANKED + 1))[:-1] / len(values)
    axis.fill_between(share, lower, upper, color="#dddddd", step="mid", linewidth=0)
    axis.step(share, cumulative - share, where="mid", color="#1f5fa6", linewidth=1.3)
    axis.axhline(0, color="#999999", linewidth=0.6)
    axis.set(xlabel="rank / 100", xticks=[0, 0.5, 1])


def cost(lines: Lines):
    """Evaluations and seconds against the dimension, by outcome."""
    lines = [line for line in lines if line.get("evaluations") and line.get("cpu_seconds")]
    if not lines:
        return None
    figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.1), layout="constrained")
    generator = np.random.default_rng(0)
    titles = {"evaluations": "evaluations", "cpu_seconds": "seconds of one core"}
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        for outcome in (RIGHT, TRUSTED, REFUSED, WRONG):
            own = report.of(lines, outcome)
            # Dimensions are whole numbers: without a jitter points would hide each other.
            dims = np.array([line["dim"] for line in own]) * np.exp(generator.uniform(-0.08, 0.08, size=len(own)))
            if own:
                values = [line[name] for line in own]
                axis.plot(dims, values, ".", color=COLOURS[outcome], label=outcome, alpha=0.6, markersize=4)
        axis.set(xscale="log", yscale="log", xlabel="dimension", title=title)
        shown = [dim for dim in DIMS if dim <= 1.5 * max(line["dim"] for line in lines)]
        axis.set_xticks(shown, [str(dim) for dim in shown], minor=False)
        axis.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes[0].legend(frameon=False, fontsize=8)
    return figure
