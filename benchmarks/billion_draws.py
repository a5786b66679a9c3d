"""A billion draws in constant memory: the evidence, a rare set, the peak of memory, and the rate beside the machine's.

    python -m benchmarks billion_draws [--draws 1000000000] [--rate-draws 10000000] [--skip-rates]

The target is a mixture of two correlated Normals whose evidence is known, and the rare set a half-space whose
probability, 1e-7, the Normal distribution function gives. Rates are nanoseconds of processor time a draw (one core), on
targets of this kind in 2 and 10 dimensions, beside those of NumPy's random numbers with one pass over the same memory,
and of one compiled program of JAX that draws, and evaluates both densities.
"""

import argparse
import math
import resource
import time

import jax
import jax.numpy as jnp
import numpy as np

import klover

LOG_EVIDENCE = 2.5
PROBABILITY = 1e-7
WEIGHTS = np.array([0.3, 0.7])
BLOCK = 2**14


def two_normals(dim: int):
    """Return a target with evidence exp(2.5), and the threshold of x₀ + x₁ that is exceeded with probability 1e-7."""
    generator = np.random.default_rng(dim)
    roots = generator.normal(size=(2, dim, dim)) / dim**0.5
    covariance = roots @ roots.swapaxes(1, 2) + 0.3 * np.eye(dim)
    mean = np.zeros((2, dim))
    mean[:, 0] = -3, 3
    inverse, log_volume = np.linalg.inv(covariance), np.linalg.slogdet(2 * math.pi * covariance)[1]

    def log_density(x):
        delta = x - mean
        squares = jnp.einsum("ki,kij,kj->k", delta, inverse, delta)
        return jax.nn.logsumexp(jnp.log(WEIGHTS) - 0.5 * (squares + log_volume)) + LOG_EVIDENCE

    centre, sd = mean[:, :2].sum(1), np.sqrt(covariance[:, :2, :2].sum((1, 2)))
    low, high = 0.0, 100.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        exceeds = sum(0.5 * math.erfc(z / 2**0.5) * w for z, w in zip((middle - centre) / sd, WEIGHTS, strict=True))
        low, high = (middle, high) if exceeds > PROBABILITY else (low, middle)
    return klover.Target(log_density, np.zeros(dim)), low


def nanoseconds(work, num_draws: int) -> float:
    """Return the processor time of some work for each draw; the first time, which compiles, does not count."""
    work()
    began = time.process_time()
    work()
    return 1e9 * (time.process_time() - began) / num_draws


def rates(num_draws: int) -> None:
    """Print what a draw takes, and what it would take at the least."""
    print("\n| d | components | stream, ns | NumPy's numbers and a pass, ns | one program of JAX, ns |")
    print("|---|---|---|---|---|")
    num_blocks = num_draws // BLOCK
    for dim in (2, 10):
        target, _ = two_normals(dim)
        fit = klover.refine(0, target)
        mixture, generator = jax.tree.map(jnp.asarray, fit.mixture), np.random.default_rng(0)

        @jax.jit
        def program(target, mixture, key):
            x, log_q = mixture.sample_and_log_prob(key, BLOCK)
            return jnp.sum(jnp.exp(target.log_prob(x) - log_q))

        def in_jax(dim=dim, target=target, mixture=mixture, program=program):
            for index in range(num_blocks // 4):
                program(target, mixture, jax.random.key(index)).block_until_ready()

        def in_numpy(dim=dim, generator=generator):
            for _ in range(num_blocks):
                generator.standard_normal((BLOCK, dim)).sum()

        found = nanoseconds(lambda fit=fit: fit.stream(1, num_blocks * BLOCK), num_blocks * BLOCK)
        numbers, least = nanoseconds(in_numpy, num_blocks * BLOCK), nanoseconds(in_jax, num_blocks // 4 * BLOCK)
        print(f"| {dim} | {int(mixture.num_components)} | {found:.0f} | {numbers:.0f} | {least:.0f} |", flush=True)


def answer(num_draws: int) -> None:
    """Draw, and compare with what is known."""
    target, threshold = two_normals(2)
    fit = klover.refine(0, target)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    wall, cpu = time.perf_counter(), time.process_time()
    draws = fit.stream(1, num_draws, {"rare": lambda x: x[0] + x[1] > threshold}, progress=True)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(jax.devices()[0].device_kind, jax.__version__, f"{num_draws:,} draws, {len(draws.largest):,} ratios kept")
    print(f"{wall:.0f} s, {cpu:.0f} s of one core; memory at its peak {before:.0f} MiB before, {after:.0f} MiB after")
    error = draws.log_evidence - LOG_EVIDENCE
    z = error / draws.log_evidence_se
    print(f"log evidence {draws.log_evidence:.8f} ± {draws.log_evidence_se:.1e}, error {error:.1e}, z = {z:.2f}")
    value, error = draws.expectation("rare")
    print(f"rare set {value:.4e} ± {error:.1e}, known {PROBABILITY:.4e}, z = {(value - PROBABILITY) / error:.2f}")
    print(f"k̂ {draws.pareto_k:.3f}, ESS {draws.ess / num_draws:.1%}; {draws.verdict}")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=10**9)
    parser.add_argument("--rate-draws", type=int, default=10**7)
    parser.add_argument("--skip-rates", action="store_true")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    answer(arguments.draws)
    if not arguments.skip_rates:
        rates(arguments.rate_draws)


if __name__ == "__main__":
    main()
