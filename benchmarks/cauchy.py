"""Simulation 1 of the paper: KL(p‖q) on a Cauchy target as components are added, by quadrature on [-1000, 1000].

    python -m benchmarks cauchy [--seeds 20]

Prints every seed. "optimum" is EM on a fine grid of the target itself: what the family can reach.
"""

import argparse
import platform
import time

import jax
import jax.numpy as jnp
import numpy as np

import klover
from klover.boosting import rounds
from klover.boosting.settings import Settings
from klover.fitting import em
from klover.paper import simulations

jax.config.update("jax_enable_x64", True)
np.set_printoptions(precision=4, suppress=True, linewidth=160)

LIMIT = simulations.CAUCHY_LIMIT
FORWARD = {"fitter": "em", "newcomer": "gain", "weights": "newton", "update": "all", "draws": "current"}
FORWARD |= {"num_round_draws": 20_000, "num_steps": 30}
REVERSE = {"divergence": "reverse", "newcomer": "gain", "num_round_draws": 5_000}
REVERSE |= {"learning_rate_location": 0.1, "learning_rate_scale": 0.1, "num_steps": 1000}


def curve(seed, target, start, max_components, family, **options):
    settings = Settings(max_components=max_components, family=klover.Family(family), **options)
    key_start, key_rounds = jax.random.split(jax.random.key(seed))
    values = []

    def report(state, _):
        values.append(simulations.forward_kl_by_quadrature(target, state.mixture, -LIMIT, LIMIT))

    rounds.run(key_start, key_rounds, target, settings, start, report)
    return np.array(values)


def optimum(target, num_components):
    """Fit by EM to the density itself on a grid, components begun at scales from 1 to the limit."""
    grid = np.sinh(np.linspace(-np.arcsinh(LIMIT), np.arcsinh(LIMIT), 8001))
    weight = np.exp(np.asarray(target.log_prob(grid[:, None]))) * np.gradient(grid)
    sample = em.WeightedSample(grid[:, None], weight / weight.sum(), np.full(grid.size, -np.inf))
    scales = np.geomspace(0.5, LIMIT / 3, num_components) if num_components > 1 else np.array([25.0])
    components = klover.Family("normal").components(np.zeros((num_components, 1)), scales[:, None] ** 2)
    mixture, sample = jax.tree.map(jnp.asarray, (klover.Mixture.of(components), sample))
    fitted = jax.jit(em.fit, static_argnums=2)(mixture, sample, 5000)
    return simulations.forward_kl_by_quadrature(target, fitted, -LIMIT, LIMIT)


def report(title, curves, seconds):
    rises = np.maximum(np.diff(curves, axis=1), 0)
    print(f"\n## {title} ({seconds:.1f} s for {len(curves)} seeds, compilation included)")
    print("K         ", np.arange(1, curves.shape[1] + 1))
    for seed, values in enumerate(curves):
        print(f"seed {seed:<5}", values)
    print("median    ", np.median(curves, axis=0), "\nworst     ", curves.max(axis=0))
    steps = curves.shape[1] - 1
    print(f"rounds in which KL rose: {(rises > 0).sum()} of {steps * len(curves)}, largest rise {rises.max():.2g}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    num_seeds = parser.parse_args().seeds
    target = simulations.cauchy()
    print(f"# Cauchy, {platform.machine()}, Python {platform.python_version()}, jax {jax.__version__}")
    print("optimum   ", np.array([optimum(target, number) for number in range(1, 11)]))
    curves = {}
    for family, num_components in (("normal", 10), ("student", 3)):
        started = time.perf_counter()
        first = klover.diffuse([-LIMIT], [LIMIT], family)
        runs = [curve(seed, target, first, num_components, family=family, **FORWARD) for seed in range(num_seeds)]
        curves[family] = np.array(runs)
        report(f"forward KL, {family}", curves[family], time.perf_counter() - started)
    started = time.perf_counter()
    runs = [curve(seed, target, "reverse", 10, family="normal", **REVERSE) for seed in range(num_seeds)]
    curves["reverse"] = np.array(runs)
    report("reverse KL, normal", curves["reverse"], time.perf_counter() - started)
    normal, student = curves["normal"], curves["student"]
    print("\n## Goals")
    print(f"normal  K = 3  <= 0.08 : {(normal[:, 2] <= 0.08).sum()} of {num_seeds} (worst {normal[:, 2].max():.4f})")
    print(f"normal  K = 10 <= 0.01 : {(normal[:, 9] <= 0.01).sum()} of {num_seeds} (worst {normal[:, 9].max():.4f})")
    print(
        f"student K <= 3 <= 0.005: {(student.min(1) <= 0.005).sum()} of {num_seeds} (worst {student.min(1).max():.5f})"
    )
    below = (normal < curves["reverse"]).all(axis=1).sum()
    print(f"forward below reverse at every K: {below} of {num_seeds}")


if __name__ == "__main__":
    main()
