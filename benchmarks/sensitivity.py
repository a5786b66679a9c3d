"""Halve and double every number of the engine, one at a time, on targets that the reported suite does not contain.

    python -m benchmarks sensitivity [--seeds 2] [--jobs 2] [--numbers rounds.good_ess,...] [--out sensitivity.jsonl]

Every fit is a line of the file, and a line that is there is not made again. Then a table: for each number and factor,
how many more of the fits were trusted and right, how many trusted and wrong there were, and the geometric mean of the
ratios of evaluations and of effective draws to those of the defaults with the same key. All targets have a known
evidence; wrong is off by more than 5 standard errors and 0.05.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import math
import multiprocessing
import os
import pathlib
import time

import numpy as np

from klover.tuning import Tuning

FACTORS = (0.5, 2.0)
BUDGET = 3_000_000
DEFAULT = "default"


def build(name):
    """Return a target by its name, and its log evidence."""
    import jax
    import jax.numpy as jnp

    import klover

    def normal(x, location, scale):
        return -0.5 * jnp.sum(((x - location) / scale) ** 2 + 2 * jnp.log(scale) + math.log(2 * math.pi))

    def mixture(modes):
        parts = [(np.asarray(location, float), scale, math.log(mass)) for location, scale, mass in modes]
        return lambda x: jax.nn.logsumexp(jnp.stack([normal(x, a, s * jnp.ones(len(a))) + m for a, s, m in parts]))

    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(6, 6)))[0]
    scale = np.geomspace(0.1, 10.0, 150)
    wide = scale[:, None] * np.random.default_rng(2).normal(size=(150, 3))
    covariance = np.diag(scale**2) + wide @ wide.T
    precision, log_det = np.linalg.inv(covariance), np.linalg.slogdet(2 * np.pi * covariance)[1]

    def neck(x):
        return normal(x[0], 0.0, 2.0 * jnp.ones(())) + normal(x[1:], 0.0, jnp.exp(0.7 * x[0]) * jnp.ones(7))

    def groups(x):
        """A centred hierarchy without data: a mean, a log scale, and groups."""
        scales = jnp.array([3.0, 1.5])
        return normal(x[:2], 0.0, scales) + normal(x[2:], x[0], jnp.exp(x[1]) * jnp.ones(18))

    densities = {
        "skewed6": (lambda x: jnp.sum(3 * (turn @ x) - jnp.exp(turn @ x)) - 6 * math.lgamma(3), 6),
        "student8": (lambda x: -5.5 * jnp.log1p(x @ x / 3), 8),
        "three5": (mixture([(np.zeros(5), 1.0, 0.5), (np.full(5, 4.0), 0.5, 0.3), (np.full(5, -5.0), 1.5, 0.2)]), 5),
        "ridge3": (lambda x: normal(jnp.array([x[0] / 2, x[1] - 0.5 * x[0] ** 2, x[2]]), 0.0, jnp.ones(3)), 3),
        "neck4": (lambda x: normal(x[0], 0.0, 1.5 * jnp.ones(())) + normal(x[1:], 0.0, jnp.exp(x[0]) * jnp.ones(3)), 4),
        "corner3": (lambda x: jnp.where(jnp.all(x > 0), -jnp.sum(x), -jnp.inf), 3),
        "halo4": (mixture([(np.zeros(4), 1.0, 0.5), (np.zeros(4), 6.0, 0.5)]), 4),
        "skewed24": (lambda x: jnp.sum(3 * x - jnp.exp(x)) - 24 * math.lgamma(3), 24),
        "wide25": (lambda x: normal(x, 1.0, jnp.geomspace(0.01, 100.0, 25)), 25),
        "neck8": (neck, 8),
        "groups20": (groups, 20),
        "scales150": (lambda x: -0.5 * (x - 1) @ precision @ (x - 1) - 0.5 * log_det, 150),
    }
    function, dim = densities[name]
    student = 0.5 * 8 * math.log(3 * math.pi) + math.lgamma(1.5) - math.lgamma(5.5)
    log_evidence = {"student8": student, "ridge3": math.log(2.0)}.get(name, 0.0)
    return klover.Target(function, np.full(dim, 0.5)), log_evidence


TARGETS = ("skewed6", "student8", "three5", "ridge3", "neck4", "corner3", "halo4", "skewed24", "wide25")
TARGETS += ("neck8", "groups20", "scales150")
"""The last three need a warp, chains with a lead to follow, and a whitening; the ridge is explored with some keys."""


def numbers() -> dict[str, object]:
    """Return every number of the engine by its path."""
    tuning = Tuning()
    return {
        f"{group.name}.{field.name}": getattr(getattr(tuning, group.name), field.name)
        for group in dataclasses.fields(tuning)
        for field in dataclasses.fields(getattr(tuning, group.name))
    }


def scaled(value, factor: float):
    """Return a number, or all entries of a tuple, times a factor; whole numbers stay whole, and shares below one."""
    if isinstance(value, tuple):
        return tuple(scaled(entry, factor) for entry in value)
    if isinstance(value, int):
        return max(round(value * factor), 1)
    return min(value * factor, (1 + value) / 2) if value < 1 else value * factor


def varied(path: str, factor: float) -> Tuning:
    """Return the numbers with one of them changed."""
    if path == DEFAULT:
        return Tuning()
    group, name = path.split(".")
    part = getattr(Tuning(), group)
    changed = dataclasses.replace(part, **{name: scaled(getattr(part, name), factor)})
    return dataclasses.replace(Tuning(), **{group: changed})


def use_one_core(counter) -> None:
    """Keep a process on one core: threads of many processes would wait for each other."""
    with counter.get_lock():
        number, counter.value = counter.value, counter.value + 1
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})


def run(task: tuple[str, float, str, int]) -> dict:
    """Make one fit, and say how it ended."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import klover

    path, factor, name, seed = task
    target, log_evidence = build(name)
    row = {"number": path, "factor": factor, "target": name, "seed": seed}
    began = time.perf_counter()
    try:
        fit = klover.refine(seed, target, budget=BUDGET, tuning=varied(path, factor))
    except Exception as error:
        return row | {"outcome": "raised", "error": f"{type(error).__name__}: {error}"[:200]}
    error = abs(fit.log_evidence - log_evidence)
    is_wrong = not error <= max(5 * fit.log_evidence_se, 0.05)
    outcome = "refused" if not fit.verdict.trusted else "wrong" if is_wrong else "right"
    figures = {"ess": fit.ess, "evaluations": fit.num_evaluations, "seconds": time.perf_counter() - began}
    return row | {"outcome": outcome, "status": fit.verdict.status.name, **figures}


def table(rows: list[dict]) -> str:
    """Compare every changed number with the defaults on the same targets and keys."""
    default = {(row["target"], row["seed"]): row for row in rows if row["number"] == DEFAULT}
    columns = ("number", "factor", "fits", "right", "wrong", "raised", "evaluations", "effective draws")
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    changed: dict[tuple[str, float], list[dict]] = {}
    for row in rows:
        changed.setdefault((row["number"], row["factor"]), []).append(row)
    for (path, factor), own in sorted(changed.items()):
        pairs = [(row, default[row["target"], row["seed"]]) for row in own if (row["target"], row["seed"]) in default]
        count = {kind: sum(row["outcome"] == kind for row, _ in pairs) for kind in ("right", "wrong", "raised")}
        usual = sum(base["outcome"] == "right" for _, base in pairs)
        ratios = [
            np.exp(np.mean([np.log(row[name] / base[name]) for row, base in pairs if row.get(name) and base.get(name)]))
            for name in ("evaluations", "ess")
        ]
        lines.append(
            f"| {path} | {factor:g} | {len(pairs)} | {count['right']} ({count['right'] - usual:+d}) | {count['wrong']} "
            f"| {count['raised']} | {ratios[0]:.2f} | {ratios[1]:.2f} |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks sensitivity", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--numbers", default="", help="paths, separated by commas; all by default")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("sensitivity.jsonl"))
    options = parser.parse_args(arguments)
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {(row["number"], row["factor"], row["target"], row["seed"]) for row in rows}
    paths = options.numbers.split(",") if options.numbers else list(numbers())
    changes = [(DEFAULT, 1.0), *((path, factor) for path in paths for factor in FACTORS)]
    targets = options.targets.split(",")
    tasks = [(*change, target, seed) for target in targets for seed in range(options.seeds) for change in changes]
    # A process that is done with a target does not need its programs again.
    tasks = [task for task in tasks if task not in done]
    context = multiprocessing.get_context("spawn")
    executor = concurrent.futures.ProcessPoolExecutor(options.jobs, context, use_one_core, (context.Value("i", 0),))
    with executor as pool, options.out.open("a") as file:
        for row in pool.map(run, tasks, chunksize=4):
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
    print(table(rows))


if __name__ == "__main__":
    main()
