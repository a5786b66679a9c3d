"""Work on one device: large samples re-weighted and refitted, and many small fits at once.

    python -m benchmarks device [--draws 1000000] [--dim 100] [--components 32] [--fits 1000] [--peak 67e12]

*Re-weighting and refitting* is one program: the log density of the mixture at all draws, Pareto-smoothed weights, and
an EM step with free degrees of freedom. Its arithmetic is two products of matrices of 2·S·K·d² operations, distances
and scatter; at the device's peak in single precision (``--peak``; 67·10¹² a second for an H200, without tensor cores)
they take the time that the table calls the limit. Everything is in single precision, with exact products.
"""

import argparse
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np

import klover
from klover.boosting import rounds
from klover.boosting.settings import Settings
from klover.fitting import em
from klover.fitting.sample import Sample
from klover.importance import psis

NUM_TIMINGS = 5


def seconds(program, *arguments) -> float:
    """Time a compiled program, the best of some."""
    jax.block_until_ready(program(*arguments))
    times = []
    for _ in range(NUM_TIMINGS):
        began = time.perf_counter()
        jax.block_until_ready(program(*arguments))
        times.append(time.perf_counter() - began)
    return min(times)


def random_mixture(num_components: int, dim: int) -> klover.Mixture:
    """Return Student-t components at random places."""
    generator = np.random.default_rng(0)
    roots = generator.normal(size=(num_components, dim, dim)) / dim**0.5
    covariance = roots @ roots.swapaxes(1, 2) + 0.5 * np.eye(dim)
    location = generator.normal(size=(num_components, dim))
    family = klover.Family("student", "full")
    return klover.Mixture.of(family.components(jnp.asarray(location, "float32"), jnp.asarray(covariance, "float32")))


def reweigh_and_refit(mixture, x, log_p):
    """Weigh draws of a mixture, and take an EM step on them."""
    log_weight, pareto_k = psis.smooth(log_p - mixture.log_prob(x))
    sample = Sample(x, jnp.exp(log_weight))
    return em.step(mixture, sample, mixture.components.spread, 1e-3), pareto_k


def large_sample(num_draws: int, dim: int, num_components: int, peak: float) -> None:
    """Time the stages of one round on a large sample."""
    mixture = random_mixture(num_components, dim)
    draw = jax.jit(klover.Mixture.sample, static_argnames="num_draws")
    x = draw(mixture, jax.random.key(0), num_draws=num_draws)
    log_p = -0.5 * jnp.sum(x**2, axis=1)
    products = 2 * num_draws * num_components * dim**2
    sample = Sample(x, jnp.full(num_draws, 1 / num_draws))
    stages = {
        "draw": (functools.partial(draw, num_draws=num_draws), (mixture, jax.random.key(0)), products),
        "log density": (jax.jit(klover.Mixture.log_prob), (mixture, x), products),
        "responsibilities": (jax.jit(em.responsibilities), (mixture, sample), products),
        "smooth weights": (jax.jit(psis.smooth), (log_p,), 0),
        "EM step": (jax.jit(em.step), (mixture, sample, mixture.components.spread, 1e-3), 2 * products),
        "re-weight and refit": (jax.jit(reweigh_and_refit), (mixture, x, log_p), 2 * products),
    }
    print("| stage | ms | limit, ms | share of the limit |")
    print("|---|---|---|---|")
    for name, (program, arguments, num_operations) in stages.items():
        measured, limit = seconds(program, *arguments), num_operations / peak
        share = f"{limit / measured:.0%}" if limit else "–"
        print(f"| {name} | {1e3 * measured:.2f} | {1e3 * limit:.2f} | {share} |", flush=True)


def small_fits(num_fits: int) -> None:
    """Fit many two-mode targets in one program, and compare their evidence with what is known."""
    generator = np.random.default_rng(0)
    centres = jnp.asarray(generator.normal(size=(num_fits, 2, 3)) * 2, "float32")

    def log_density(centres, x):
        log_modes = -0.5 * jnp.sum((x - centres) ** 2, axis=1) - 1.5 * jnp.log(2 * jnp.pi)
        return jax.nn.logsumexp(log_modes) - jnp.log(2.0)

    stacked = jax.vmap(lambda centre: klover.Target(functools.partial(log_density, centre), np.zeros(3, "float32")))(
        centres
    )
    settings = Settings(max_components=3, family=klover.Family("student"), fitter="em", newcomer="gain", update="all")

    def fit(key, target):
        key_start, key_rounds = jax.random.split(key)
        state, info = rounds.init(key_start, target, settings, "forward")
        return rounds.grow(key_rounds, state, info, target, settings, 1, settings.max_components)[1]

    keys = jax.random.split(jax.random.key(0), num_fits)
    program = jax.jit(jax.vmap(fit)).lower(keys, stacked).compile()
    info = program(keys, stacked)
    log_z, error = np.asarray(info.log_evidence), np.asarray(info.log_evidence_se)
    print(
        f"\n{num_fits} fits of three components in one program: {seconds(program, keys, stacked):.3f} s; log Z within "
        f"three standard errors in {np.mean(np.abs(log_z) < 3 * error + 1e-6):.1%}, largest {np.abs(log_z).max():.3f}, "
        f"k̂ below 0.7 in {np.mean(np.asarray(info.pareto_k) < 0.7):.1%}, median ESS {np.median(info.ess_share):.0%}",
        flush=True,
    )


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=100)
    parser.add_argument("--components", type=int, default=32)
    parser.add_argument("--fits", type=int, default=1000, help="0 leaves them out")
    parser.add_argument("--peak", type=float, default=67e12)
    arguments = parser.parse_args()
    print(jax.devices()[0].device_kind, jax.__version__)
    large_sample(arguments.draws, arguments.dim, arguments.components, arguments.peak)
    if arguments.fits:
        small_fits(arguments.fits)


if __name__ == "__main__":
    main()
