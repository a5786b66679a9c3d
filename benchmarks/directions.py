"""Boosting by the forward KL against boosting by the reverse KL, with Gaussian components of full covariance.

    python -m benchmarks directions [--targets funnel10,ring2] [--seeds 5] [--components 8] [--out directions.jsonl]

Three ways: `refine`, which is forward boosting as klover does it, with as many components as it takes; the plain
forward `boost`, by EM, every component in every round; and the reverse `boost`, by Adam, with the weights corrected in
every round (Miller et al. 2017). The two `boost` have the same number of components (8). Judged are the mixtures
themselves, as proposals: KL(p‖q) on draws of p (exact ones, or those of a trusted `refine`), k̂ of 10,000 draws, and the
largest error of a mean or a standard deviation, in standard deviations of p, of q itself and by its weighted draws. A
way *wins* against the reverse KL if it is better with every seed, and *loses* if it is worse with every seed; else the
difference is noise. What is in the file is not run again.
"""

import argparse
import json
import pathlib

import jax
import numpy as np

import klover
from benchmarks import targets
from klover.importance import psis
from klover.importance.ratios import normalise
from klover.warps.warped import Proposal

NUM_STEPS, NUM_DRAWS_PER_STEP = 1000, 100
CHOICES = {
    "refine": {},
    "forward": {"fitter": "em", "newcomer": "gain", "update": "all", "num_round_draws": 5000, "num_steps": 20},
    "reverse": {
        "divergence": "reverse",
        "num_steps": NUM_STEPS,
        "num_draws_per_step": NUM_DRAWS_PER_STEP,
        "learning_rate_location": 0.03,
        "learning_rate_scale": 0.03,
        "log_epsilon": -10.0,
    },
}
NUM_REFERENCE, NUM_DRAWS = 20_000, 10_000
MEASURES = {
    "forward_kl": "KL(p‖q)",
    "pareto_k": "k̂",
    "moment_error": "moments of q",
    "weighted_error": "weighted moments",
}


def reference(problem: targets.Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return draws of the target and their weights."""
    if problem.sample is not None:
        x = problem.sample(np.random.default_rng(0), NUM_REFERENCE)
        return x, np.full(len(x), 1 / len(x))
    fit = klover.refine(jax.random.key(0), problem.target, progress=False)
    if not fit.verdict.trusted:
        raise SystemExit(f"{problem.name}: no trusted draws to judge by: {fit.verdict}")
    return np.asarray(fit.draws.x), np.exp(np.asarray(fit.draws.log_weight))


def error(problem: targets.Problem, mean: np.ndarray, variance: np.ndarray) -> float | None:
    """Largest error of a mean or a standard deviation, in standard deviations of the target."""
    if problem.mean is None or problem.sd is None:
        return None
    return float(
        max(np.max(np.abs(mean - problem.mean) / problem.sd), np.max(np.abs(np.sqrt(variance) / problem.sd - 1)))
    )


def boost(way: str, seed: int, target: klover.Target, max_components: int) -> Proposal:
    """Fit a mixture in one of the three ways."""
    key = jax.random.key(seed)
    if way == "refine":
        return klover.refine(key, target, family="normal", progress=False).mixture
    return klover.boost(key, target, start=way, family="normal", max_components=max_components, **CHOICES[way]).mixture


def moments(mixture: Proposal, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means and variances of a mixture; behind a warp they are known from draws alone."""
    if isinstance(mixture, klover.Mixture):
        return np.asarray(mixture.mean()), np.diagonal(np.asarray(mixture.covariance()))
    return draws.mean(0), draws.var(0)


def judge(problem: targets.Problem, known: tuple, way: str, seed: int, num_components: int) -> dict:
    """Boost in one way, and measure the mixture."""
    mixture = boost(way, seed, problem.target, num_components)
    x, weight = known
    difference = np.asarray(problem.target.log_prob(x)) - np.asarray(mixture.log_prob(x))
    own = mixture.sample(jax.random.key(1000 + seed), NUM_DRAWS)
    log_ratio = np.asarray(problem.target.log_prob(own) - mixture.log_prob(own))
    share, own = np.exp(normalise(log_ratio)), np.asarray(own)
    mean = share @ own
    return {
        "target": problem.name,
        "seed": seed,
        "way": way,
        "num_components": int(mixture.num_components),
        "forward_kl": float(weight @ difference - problem.log_evidence),
        "pareto_k": float(psis.pareto_k(log_ratio)),
        "moment_error": error(problem, *moments(mixture, np.asarray(own))),
        "weighted_error": error(problem, mean, share @ (own - mean) ** 2),
    }


def verdict(pairs: list[tuple[float, float]]) -> str:
    """Say whether the first is better with every seed."""
    if all(one < other for one, other in pairs):
        return "wins"
    return "loses" if all(one > other for one, other in pairs) else "noise"


def report(rows: list[dict]) -> None:
    """Print a table for each measure: one line a target, medians, and who wins against the reverse KL."""
    values = {(row["target"], row["way"], row["seed"]): row for row in rows}
    for measure, title in MEASURES.items():
        print(
            f"\n| {title} | seeds | `refine` | | forward `boost` | | reverse `boost` |\n|---|---|---|---|---|---|---|"
        )
        for name in dict.fromkeys(row["target"] for row in rows):
            seeds = [seed for target, way, seed in values if (target, way) == (name, "reverse")]
            found = np.array([[values[name, way, seed][measure] for seed in seeds] for way in CHOICES], dtype=float)
            if np.isnan(found).all():
                continue
            refined, forward, _ = cells = [f"{median:.3g}" for median in np.median(found, axis=1)]
            wins = [verdict(list(zip(each, found[2], strict=True))) for each in found[:2]]
            print(f"| {name} | {len(seeds)} | {refined} | {wins[0]} | {forward} | {wins[1]} | {cells[2]} |")


def main() -> None:
    """Run what is missing, and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--targets", default=",".join(targets.PROBLEMS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--components", type=int, default=8)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("directions.jsonl"))
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rows = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    done = {(row["target"], row["seed"], row["way"]) for row in rows}
    with arguments.out.open("a") as file:
        for name in arguments.targets.split(","):
            plan = [(seed, way) for seed in range(arguments.seeds) for way in CHOICES]
            plan = [each for each in plan if (name, *each) not in done]
            if not plan:
                continue
            problem = targets.PROBLEMS[name]()
            known = reference(problem)
            for seed, way in plan:
                row = judge(problem, known, way, seed, arguments.components)
                rows.append(row)
                file.write(json.dumps(row) + "\n")
                file.flush()
            jax.clear_caches()
    report(rows)


if __name__ == "__main__":
    main()
