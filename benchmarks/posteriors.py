"""Fifteen reference posteriors: `klover.refine` with its defaults on NumPyro models, every seed reported.

    python -m benchmarks posteriors [--data DIR] [--names arK-arK,nes2000-nes] [--seeds 5] [--jobs 16] [--out FILE]

(needs the extra `numpyro`). Everything runs in one process, seed by seed; ``--jobs`` makes as many runs at a time, each
in a process of its own on one core. A run that is in the file already is not repeated. An answer is right when each
mean is within 0.1 sd of the reference and each sd within 10 %; the goal is a right answer with k̂ < 0.7 and a trusted
verdict every time, half of the draws effective in the median, and all posteriors with one seed in less than three
minutes.
"""

import argparse
import json
import pathlib
import re
import time

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

import klover  # noqa: E402
from benchmarks import posterior_models, processes  # noqa: E402

DATA = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data" / "posteriordb"
MEAN_LIMIT, SD_LIMIT, PARETO_K_LIMIT, ESS_GOAL = 0.1, 0.1, 0.7, 0.5


def load(path: pathlib.Path) -> tuple[dict, dict]:
    """Read the data, and the reference means and sds by klover's names (which count from zero)."""
    content = json.loads(path.read_text())
    data = {name: np.asarray(value) if isinstance(value, list) else value for name, value in content["data"].items()}
    reference = content["reference"]
    names = [re.sub(r"\d+(?=\])", lambda number: str(int(number[0]) - 1), name) for name in reference["names"]]
    return data, dict(zip(names, zip(reference["mean"], reference["sd"], strict=True), strict=True))


def run_one(name: str, path: pathlib.Path, seed: int) -> dict:
    """Refine one posterior with one seed, and compare with the reference."""
    data, reference = load(path)
    began = time.perf_counter()
    target = klover.from_numpyro(*posterior_models.MODELS[name](data))
    fit = klover.refine(jax.random.key(seed), target)
    summary = fit.summary()
    seconds = time.perf_counter() - began
    row = {quantity: index for index, quantity in enumerate(summary.names)}
    own = np.array([[summary.columns[column][row[quantity]] for column in ("mean", "sd")] for quantity in reference])
    known = np.array(list(reference.values()))
    mean_error = float(np.max(np.abs(own[:, 0] - known[:, 0]) / known[:, 1]))
    sd_error = float(np.max(np.abs(own[:, 1] / known[:, 1] - 1)))
    return {
        "posterior": name,
        "seed": seed,
        "is_right": mean_error <= MEAN_LIMIT and sd_error <= SD_LIMIT,
        "trusted": fit.verdict.trusted,
        "status": fit.verdict.status.name,
        "mean_error": mean_error,
        "sd_error": sd_error,
        "pareto_k": fit.pareto_k,
        "ess": fit.ess / fit.draws.num_draws,
        "num_draws": fit.draws.num_draws,
        "evaluations": fit.num_evaluations,
        "rounds": len(fit.history["round"]),
        "components": int(fit.mixture.num_components),
        "seconds": seconds,
    }


def table(runs: list[dict]) -> str:
    """One line a posterior: worst errors and k̂ over the seeds, median ESS and seconds, counts of verdicts."""
    columns = ["posterior", "seeds", "worst mean error, sd", "worst sd error", "worst k̂", "median ESS"]
    columns += ["median evaluations", "median s", "trusted", "right", "wrong, trusted", "goal"]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for name in dict.fromkeys(run["posterior"] for run in runs):
        own = {key: np.array([run[key] for run in runs if run["posterior"] == name]) for key in runs[0]}
        is_met = (own["is_right"] & own["trusted"] & (own["pareto_k"] < PARETO_K_LIMIT)).all()
        is_met &= np.median(own["ess"]) >= ESS_GOAL
        lines.append(
            f"| {name} | {len(own['seed'])} | {own['mean_error'].max():.3f} | {own['sd_error'].max():.1%} "
            f"| {own['pareto_k'].max():.2f} | {np.median(own['ess']):.0%} | {np.median(own['evaluations']):.0f} "
            f"| {np.median(own['seconds']):.1f} | {own['trusted'].sum()} | {own['is_right'].sum()} "
            f"| {(own['trusted'] & ~own['is_right']).sum()} | {'met' if is_met else 'missed'} |"
        )
    seeds = sorted({run["seed"] for run in runs})
    totals = [sum(run["seconds"] for run in runs if run["seed"] == seed) for seed in seeds]
    lines.append("\nSeconds for all posteriors, seed by seed: " + ", ".join(f"{total:.0f}" for total in totals))
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, default=DATA, help="folder with one JSON file a posterior")
    parser.add_argument("--names", default="", help="names, separated by commas; all by default")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, help="runs at a time, each a process on one core (all runs in one process)")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("posteriors.jsonl"))
    parser.add_argument("--one", nargs=2, metavar=("NAME", "SEED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = arguments.data.resolve()
    if arguments.one is not None:
        name, seed = arguments.one
        print(json.dumps(run_one(name, folder / f"{name}.json", int(seed))))
        return
    names = arguments.names.split(",") if arguments.names else list(posterior_models.MODELS)
    done = {(run["posterior"], run["seed"]) for run in processes.read(arguments.out)}
    plan = [(name, seed) for seed in range(arguments.seeds) for name in names if (name, seed) not in done]

    def run_here(part):
        return run_one(part[0], folder / f"{part[0]}.json", part[1])

    def run_alone(part):
        return processes.run_one("posteriors", "--data", str(folder), "--one", part[0], str(part[1]))

    lanes = processes.share_cores(1, arguments.jobs) if arguments.jobs else None
    runs = processes.collect(arguments.out, plan, run_alone if lanes else run_here, lanes)
    chosen = [run for run in runs if run["posterior"] in names]
    print(table(sorted(chosen, key=lambda run: names.index(run["posterior"]))))


if __name__ == "__main__":
    main()
