"""The suite: `klover.refine` with its defaults on every target, each run in a fresh process, every seed reported.

    python -m benchmarks suite [--targets funnel10,ring2] [--seeds 20] [--jobs 16] [--out suite.jsonl]

A run that is in the file already is not repeated, so that an interrupted suite goes on. ``--jobs`` makes as many runs
at a time, each on one core; without it one run has the machine to itself. A run is *wrong* if log Z is off by more than
5 standard errors and 0.05, or a mean by more than 0.2 standard deviations.
"""

import argparse
import json
import pathlib
import time

import numpy as np

from benchmarks import processes

GOALS = {
    "funnel10": {"ess": 0.6, "log_z": 0.01, "seconds": 20},
    "banana10": {"ess": 0.6, "log_z": 0.01},
    "ring2": {"ess": 0.6, "log_z": 0.01},
    "rosenbrock4": {"ess": 0.6, "log_z": 0.01},
    "modes20": {"modes": 20, "log_z": 0.01},
    "gaussians20": {"modes": 10, "log_z": 0.01},
    "modes40": {"modes": 40, "log_z": 0.01},
    "two_modes20": {"modes": 2, "mode_weight": 0.01},
    "stm20": {"negative_elbo": 0.458, "log_z": 0.02},
    "cauchy10": {"pareto_k": 0.5, "log_z": 0.01},
    "student30": {"pareto_k": 0.5, "log_z": 0.01},
    "gaussian100": {"ess": 0.5, "seconds": 10},
    "german_credit": {"pareto_k": 0.7, "log_z": 0.02, "evaluations": 200_000},
    "breast_cancer": {"pareto_k": 0.7, "log_z": 0.02, "evaluations": 200_000},
    "eight_schools_centred": {"pareto_k": 0.7, "log_z": 0.02, "mean": 0.05},
    "eight_schools_noncentred": {"pareto_k": 0.7, "log_z": 0.02, "mean": 0.05},
}
REGRESSION = {"ess": 0.6, "pareto_k": 0.5, "seconds": 5}


def run_one(name: str, seed: int) -> dict:
    """Refine one target with one seed, and compare with what is known about it."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import klover
    from benchmarks import targets

    problem = targets.PROBLEMS[name]()
    fit = klover.refine(jax.random.key(seed), problem.target)
    draws, weight = fit.draws, np.exp(fit.draws.log_weight)
    result = {
        "target": name,
        "seed": seed,
        "trusted": fit.verdict.trusted,
        "status": fit.verdict.status.name,
        "ess": fit.ess / draws.num_draws,
        "pareto_k": fit.pareto_k,
        "log_z_error": fit.log_evidence - problem.log_evidence,
        "log_z_se": fit.log_evidence_se,
        "num_draws": draws.num_draws,
        "evaluations": fit.num_evaluations,
        "rounds": len(fit.history["round"]),
        "components": int(fit.mixture.num_components),
        "negative_elbo": float(np.mean(draws.log_q - draws.log_p)),
    }
    if problem.mean is not None and problem.sd is not None:
        result["mean_error"] = float(np.max(np.abs(weight @ draws.x - problem.mean) / problem.sd))
    if problem.modes is not None:
        nearest = np.argmin(((draws.x[:, None] - problem.modes) ** 2).sum(-1), axis=1)
        found = np.bincount(nearest, weight, len(problem.modes))
        result["modes"] = int(np.sum(found > 0.5 * problem.mode_weights))
        result["mode_weight_error"] = float(np.abs(found - problem.mode_weights).max())
    return result


def is_wrong(run: dict) -> bool:
    """Whether the answer is wrong by the rule above."""
    is_log_z_wrong = abs(run["log_z_error"]) > max(5 * run["log_z_se"], 0.05)
    return is_log_z_wrong or run.get("mean_error", 0.0) > 0.2


def shortfalls(name: str, runs: list[dict]) -> list[str]:
    """Compare medians over the seeds with the goals, and counts where a count is the goal."""
    goal = GOALS.get(name, REGRESSION)

    def median(field):
        return float(np.median([abs(run[field]) for run in runs]))

    checks = {
        "ess": lambda limit: median("ess") >= limit,
        "log_z": lambda limit: median("log_z_error") <= limit,
        "pareto_k": lambda limit: float(np.median([run["pareto_k"] for run in runs])) < limit,
        "seconds": lambda limit: median("seconds") <= limit,
        "mean": lambda limit: median("mean_error") <= limit,
        "evaluations": lambda limit: median("evaluations") <= limit,
        "modes": lambda limit: np.mean([run["modes"] >= limit for run in runs]) >= 0.95,
        "mode_weight": lambda limit: median("mode_weight_error") <= limit,
        "negative_elbo": lambda limit: float(np.median([run["negative_elbo"] for run in runs])) < limit,
    }
    return [name for name, limit in goal.items() if not checks[name](limit)]


def table(runs: list[dict]) -> str:
    """One line a target: medians over the seeds, counts of verdicts, and which goals were missed."""
    columns = ["target", "seeds", "ESS", "k̂", "abs. log Z error", "mean error", "evaluations", "s"]
    columns += ["trusted", "refused", "wrong, trusted", "wrong, refused", "goals missed"]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for name in dict.fromkeys(run["target"] for run in runs):
        own = [run for run in runs if run["target"] == name]

        def median(field, own=own):
            return float(np.median([abs(run[field]) for run in own if field in run] or [np.nan]))

        trusted = [run for run in own if run["trusted"]]
        refused = [run for run in own if not run["trusted"]]
        missed = ", ".join(shortfalls(name, own)) or "–"
        lines.append(
            f"| {name} | {len(own)} | {median('ess'):.0%} | {np.median([run['pareto_k'] for run in own]):.2f} "
            f"| {median('log_z_error'):.4f} | {median('mean_error'):.3f} | {median('evaluations'):.0f} "
            f"| {median('seconds'):.1f} | {len(trusted)} | {len(refused)} | {sum(map(is_wrong, trusted))} "
            f"| {sum(map(is_wrong, refused))} | {missed} |"
        )
    return "\n".join(lines)


def run_alone(part: tuple[str, int]) -> dict | None:
    """Make one run in a process of its own, imports and compilation timed with it."""
    name, seed = part
    began = time.perf_counter()
    run = processes.run_one("suite", "--one", name, str(seed))
    return run and run | {"seconds": time.perf_counter() - began}


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", default="", help="names, separated by commas; all by default")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, help="runs at a time, each on one core (one run, with all cores)")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("suite.jsonl"))
    parser.add_argument("--one", nargs=2, metavar=("TARGET", "SEED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        print(json.dumps(run_one(arguments.one[0], int(arguments.one[1]))))
        return
    from benchmarks import targets

    names = arguments.targets.split(",") if arguments.targets else list(targets.PROBLEMS)
    done = {(run["target"], run["seed"]) for run in processes.read(arguments.out)}
    plan = [(name, seed) for seed in range(arguments.seeds) for name in names if (name, seed) not in done]
    lanes = processes.share_cores(1, arguments.jobs) if arguments.jobs else None
    runs = processes.collect(arguments.out, plan, run_alone, lanes)
    chosen = [run for run in runs if run["target"] in names]
    print(table(sorted(chosen, key=lambda run: names.index(run["target"]))))


if __name__ == "__main__":
    main()
