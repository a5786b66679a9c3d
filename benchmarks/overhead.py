"""Work other than evaluating the target, on targets where 10,000 vectorised evaluations take about a second.

    python -m benchmarks overhead [--repeats 3]

The target is a logistic regression in d dimensions with as many rows as make it that slow. Each is refined twice in one
process, and the second run, in which nothing is compiled, is reported: seconds inside the target, seconds in all other
work (fitting, weights, particles, host time), and their ratio.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

import klover

NUM_TIMED = 10_240


def logistic_regression(dim, num_rows):
    """Return the target."""
    generator = np.random.default_rng(dim)
    features = generator.normal(size=(num_rows, dim))
    labels = generator.uniform(size=num_rows) < 1 / (1 + np.exp(-features @ generator.normal(size=dim)))
    features, labels = jnp.asarray(features), jnp.asarray(labels, float)

    def log_density(weights):
        logits = features @ weights
        return jnp.sum(labels * logits - jnp.logaddexp(0.0, logits)) - 0.5 * jnp.sum(weights**2)

    return klover.Target(log_density, np.zeros(dim))


def seconds_of_ten_thousand(target):
    """Time vectorised evaluations in blocks of 1024."""
    program = jax.jit(target.log_prob)
    x = np.random.default_rng(0).normal(size=(1024, target.dim))
    program(x).block_until_ready()
    began = time.perf_counter()
    for _ in range(NUM_TIMED // len(x)):
        program(x).block_until_ready()
    return time.perf_counter() - began


def main() -> None:
    """Refine each target, and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    print("| d | rows | 10,000 evaluations, s | evaluations | in the target, s | other work, s | ratio |")
    print("|---|---|---|---|---|---|---|")
    for dim in (5, 10, 25):
        num_rows = 2000
        num_rows = int(num_rows / seconds_of_ten_thousand(logistic_regression(dim, num_rows)))
        target = logistic_regression(dim, num_rows)
        unit = seconds_of_ten_thousand(target)
        klover.refine(jax.random.key(0), target)
        for seed in range(repeats):
            began = time.perf_counter()
            fit = klover.refine(jax.random.key(seed), target)
            total, inside = time.perf_counter() - began, fit.evaluation_seconds
            print(
                f"| {dim} | {num_rows} | {unit:.2f} | {fit.num_evaluations} | {inside:.2f} | {total - inside:.2f} "
                f"| {(total - inside) / inside:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
