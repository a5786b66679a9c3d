"""How the time of `refine` grows with draws, dimension, components and data.

    python -m benchmarks scaling [--axes draws,dimension,components,rows] --out DIR

Each point is the second call in a process, in which nothing is compiled; what its first call took is printed too. The
exponent is the slope of log seconds over the upper half of the axis, where fixed costs count least. Writes
``scaling.jsonl`` (what is there is not run again) and ``scaling.png``.
"""

import argparse
import json
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np

import klover
from benchmarks.overhead import logistic_regression

AXES = {
    "draws": (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000),
    "dimension": (2, 5, 10, 20, 50, 100, 128, 200, 500, 1000),
    "components": (1, 2, 4, 8, 16, 32, 64),
    "rows": (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000),
}
LABELS = {
    "draws": "final draws (d = 10)",
    "dimension": "dimension of a Gaussian, correlations 0.5",
    "components": "modes in the plane",
    "rows": "rows of a logistic regression (d = 10)",
}


def gaussian(dim: int) -> klover.Target:
    """Return a Gaussian with all correlations 0.5."""
    precision = jnp.asarray(2 * (np.eye(dim) - np.full((dim, dim), 1 / (dim + 1))))
    return klover.Target(lambda x: -0.5 * x @ precision @ x, np.zeros(dim))


def grid_of_modes(num_modes: int) -> klover.Target:
    """Return unit Gaussians on a grid in the plane, eight standard deviations apart, in a box."""
    side = int(np.ceil(np.sqrt(num_modes)))
    modes = 8.0 * np.array([divmod(number, side) for number in range(num_modes)])
    centres = jnp.asarray(modes)

    def log_density(x):
        return jax.nn.logsumexp(-0.5 * jnp.sum((x - centres) ** 2, axis=1))

    return klover.Target(log_density, np.zeros(2), box=(np.full(2, -8.0), np.full(2, 8.0 * side)))


def run(axis: str, size: int) -> dict:
    """Refine twice, and time both calls."""
    choices = {}
    if axis == "draws":
        target, choices = gaussian(10), {"num_draws": size}
    elif axis == "dimension":
        target = gaussian(size)
    elif axis == "components":
        target, choices = grid_of_modes(size), {"max_components": max(2 * size, 8)}
    else:
        target = logistic_regression(10, size)
    seconds = []
    for seed in (0, 1):
        began = time.perf_counter()
        fit = klover.refine(jax.random.key(seed), target, progress=False, **choices)
        seconds.append(time.perf_counter() - began)
    return {
        "axis": axis,
        "size": size,
        "first": seconds[0],
        "second": seconds[1],
        "in_target": fit.evaluation_seconds,
        "evaluations": fit.num_evaluations,
        "components": int(fit.mixture.num_components),
        "trusted": fit.verdict.trusted,
        "kind": fit.draws.kind,
    }


def exponent(rows: list[dict]) -> float:
    """Slope of log seconds over the upper half of an axis."""
    upper = rows[len(rows) // 2 :]
    return float(np.polyfit(np.log([row["size"] for row in upper]), np.log([row["second"] for row in upper]), 1)[0])


def draw(rows: list[dict], path: pathlib.Path) -> None:
    """Draw seconds, and the seconds inside of the target, against each axis."""
    import matplotlib.pyplot as plt

    from klover.paper.figures import DPI, FORWARD, STYLE, TARGET

    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, len(AXES), figsize=(13, 3.4), sharey=True)
        for panel, (axis, label) in zip(panels, LABELS.items(), strict=True):
            own = [row for row in rows if row["axis"] == axis]
            sizes = [row["size"] for row in own]
            panel.loglog(sizes, [row["second"] for row in own], "o-", color=FORWARD, label="second call")
            panel.loglog(sizes, [row["in_target"] for row in own], "o--", color=TARGET, label="in the target")
            panel.set_xlabel(label)
            panel.set_title(f"exponent {exponent(own):.2f}" if len(own) > 3 else "")
        panels[0].set_ylabel("seconds")
        panels[0].legend()
        figure.savefig(path, dpi=DPI)
        plt.close(figure)


def main() -> None:
    """Run what is missing, print, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--axes", default=",".join(AXES))
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "scaling.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(row["axis"], row["size"]) for row in rows}
    print("| axis | size | first call, s | second call, s | in the target, s | evaluations | components | trusted |")
    print("|---|---|---|---|---|---|---|---|")
    with path.open("a") as file:
        for axis in arguments.axes.split(","):
            for size in AXES[axis]:
                if (axis, size) not in done:
                    rows.append(run(axis, size))
                    file.write(json.dumps(rows[-1]) + "\n")
                    file.flush()
                row = next(each for each in rows if (each["axis"], each["size"]) == (axis, size))
                times = " | ".join(f"{row[name]:.2f}" for name in ("first", "second", "in_target"))
                trusted = "yes" if row["trusted"] else "no"
                print(
                    f"| {axis} | {size} | {times} | {row['evaluations']} | {row['components']} | {trusted} |",
                    flush=True,
                )
    for axis in AXES:
        own = [row for row in rows if row["axis"] == axis]
        if len(own) > 3:
            print(f"{axis}: seconds grow with exponent {exponent(own):.2f}")
    draw(rows, arguments.out / "scaling.png")


if __name__ == "__main__":
    main()
