"""Boosting by the forward KL against boosting by the reverse KL: the same family, as many components, five seeds.

    python benchmarks/directions.py [--targets funnel10,ring2] [--seeds 5] [--components 8] [--out directions.jsonl]

Gaussian components of full covariance. The forward KL is fitted by EM, every component in every round; the reverse KL
by Adam, with the weights corrected in every round (Miller et al. 2017). Each gets the same number of draws for a
component. Judged are the mixtures themselves: KL(p‖q) on draws of p (exact ones, or those of a trusted `refine`), k̂ of
10,000 draws, and the largest error of a mean or a standard deviation of q, in standard deviations of p. One direction
*wins* if it is better with every seed; else the difference is called noise. What is in the file is not run again.
"""

import argparse
import json
import pathlib

import jax
import numpy as np
import targets

import klover

NUM_STEPS, NUM_DRAWS_PER_STEP = 1000, 100
CHOICES = {
    "forward": {"fitter": "em", "newcomer": "gain", "update": "all", "num_draws": 5000, "num_steps": 20},
    "reverse": {
        "divergence": "reverse",
        "num_steps": NUM_STEPS,
        "num_draws_per_step": NUM_DRAWS_PER_STEP,
        "learning_rate_location": 0.03,
        "learning_rate_scale": 0.03,
        "log_epsilon": -10.0,
    },
}
NUM_REFERENCE = 20_000
MEASURES = {"forward_kl": "KL(p‖q)", "pareto_k": "k̂", "moment_error": "error of moments"}


def reference(problem: targets.Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return draws of the target and their weights."""
    if problem.sample is not None:
        x = problem.sample(np.random.default_rng(0), NUM_REFERENCE)
        return x, np.full(len(x), 1 / len(x))
    fit = klover.refine(jax.random.key(0), problem.target, progress=False)
    if not fit.verdict.trusted:
        raise SystemExit(f"{problem.name}: no trusted draws to judge by: {fit.verdict}")
    return np.asarray(fit.draws.x), np.exp(np.asarray(fit.draws.log_weight))


def moment_error(mixture: klover.Mixture, problem: targets.Problem) -> float | None:
    """Largest error of a mean or a standard deviation, in standard deviations of the target."""
    if problem.mean is None or problem.sd is None:
        return None
    mean, sd = np.asarray(mixture.mean()), np.sqrt(np.diagonal(np.asarray(mixture.covariance())))
    return float(max(np.max(np.abs(mean - problem.mean) / problem.sd), np.max(np.abs(sd / problem.sd - 1))))


def judge(problem: targets.Problem, known: tuple, direction: str, seed: int, num_components: int) -> dict:
    """Boost in one direction, and measure the mixture."""
    choices = CHOICES[direction] | {"family": "normal", "num_components": num_components}
    fit = klover.boost(jax.random.key(seed), problem.target, first=direction, **choices)
    x, weight = known
    difference = np.asarray(problem.target.log_prob(x)) - np.asarray(fit.mixture.log_prob(x))
    return {
        "target": problem.name,
        "seed": seed,
        "direction": direction,
        "forward_kl": float(weight @ difference - problem.log_evidence),
        "pareto_k": float(fit.draws.pareto_k),
        "moment_error": moment_error(fit.mixture, problem),
    }


def verdict(pairs: list[tuple[float, float]]) -> str:
    """Name the direction that is better with every seed."""
    if all(forward < reverse for forward, reverse in pairs):
        return "forward"
    return "reverse" if all(forward > reverse for forward, reverse in pairs) else "noise"


def report(rows: list[dict]) -> None:
    """Print one line a target: medians in both directions, and who wins."""
    print("| target | seeds | " + " | ".join(f"{name}, forward | reverse | wins" for name in MEASURES.values()) + " |")
    print("|---|---|" + "---|---|---|" * len(MEASURES))
    for name in dict.fromkeys(row["target"] for row in rows):
        both = [
            {row["seed"]: row for row in rows if (row["target"], row["direction"]) == (name, direction)}
            for direction in CHOICES
        ]
        seeds = sorted(both[0].keys() & both[1].keys())
        cells = []
        for measure in MEASURES:
            pairs = [tuple(own[seed][measure] for own in both) for seed in seeds]
            if any(value is None for pair in pairs for value in pair):
                cells += ["–", "–", "–"]
                continue
            cells += [f"{value:.3g}" for value in np.median(pairs, axis=0)] + [verdict(pairs)]
        print(f"| {name} | {len(seeds)} | {' | '.join(cells)} |")


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
    done = {(row["target"], row["seed"], row["direction"]) for row in rows}
    with arguments.out.open("a") as file:
        for name in arguments.targets.split(","):
            plan = [(seed, direction) for seed in range(arguments.seeds) for direction in CHOICES]
            plan = [each for each in plan if (name, *each) not in done]
            if not plan:
                continue
            problem = targets.PROBLEMS[name]()
            known = reference(problem)
            for seed, direction in plan:
                row = judge(problem, known, direction, seed, arguments.components)
                rows.append(row)
                file.write(json.dumps(row) + "\n")
                file.flush()
            jax.clear_caches()
    report(rows)


if __name__ == "__main__":
    main()
