"""Boston's neural network (d = 753, split 1 of the paper): refine's particles beside NUTS with as many gradients.

    python benchmarks/neural_network.py [--seed 0]        (needs the extra `numpyro`)

Importance sampling cannot work in 753 dimensions: `refine` says so, and carries particles to the posterior. NumPyro's
NUTS (4 vectorised chains, default settings) then goes on until it has used as many gradients; the first third of them
is its warm-up. Both are judged by the test data: log of the mean density, and mean of the log density.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

import klover
from klover.paper import datasets, models

NUM_CHAINS = 4
WARMUP_SHARE = 1 / 3
CHUNK = 10


def test_log_likelihood(split, target, x):
    """Log of the mean, and mean of the log, of the test data's density in original units."""

    def log_density(point):
        position = target.unravel(point)
        return models.predictive_log_density(position, split.test_features, split.test_target, split.target_scale)

    values = jax.lax.map(log_density, jnp.asarray(x))
    return float(jnp.mean(jax.nn.logsumexp(values, axis=0)) - np.log(len(x))), float(jnp.mean(values))


def run_nuts(target, num_gradients, seed):
    """Sample until the gradients are spent; return draws and the gradients that were used."""
    from numpyro.infer import MCMC, NUTS

    kernel = NUTS(potential_fn=lambda x: -target.log_prob(x))
    mcmc = MCMC(
        kernel,
        num_warmup=CHUNK,
        num_samples=CHUNK,
        num_chains=NUM_CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    # One iteration of a chain takes at most 1023 gradients, and in 753 dimensions nearly always does.
    num_warmup = max(int(WARMUP_SHARE * num_gradients / NUM_CHAINS / 1023), CHUNK)
    mcmc.num_warmup = num_warmup
    start = 0.1 * np.random.default_rng(seed).normal(size=(NUM_CHAINS, target.dim))
    mcmc.warmup(jax.random.key(seed), init_params=start, collect_warmup=True, extra_fields=("num_steps",))
    used, draws = int(mcmc.get_extra_fields()["num_steps"].sum()), []
    while used < num_gradients:
        mcmc.post_warmup_state = mcmc.last_state
        mcmc.run(mcmc.post_warmup_state.rng_key, extra_fields=("num_steps",))
        used += int(mcmc.get_extra_fields()["num_steps"].sum())
        draws.append(np.asarray(mcmc.get_samples()))
    return np.concatenate(draws), used


def _row(name, num_draws, num_gradients, figures, seconds):
    return f"| {name} | {num_draws} | {num_gradients} | {figures[0]:.3f} | {figures[1]:.3f} | {seconds:.0f} |"


def main() -> None:
    """Run both, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    jax.config.update("jax_enable_x64", True)
    split = datasets.split(datasets.load("boston"), 1)
    target = models.neural_network(split)
    print("| | draws | gradients | log of mean | mean of logs | s |")
    print("|---|---|---|---|---|---|")
    began = time.perf_counter()
    fit = klover.refine(jax.random.key(seed), target, progress=True)
    seconds = time.perf_counter() - began
    used = fit.num_evaluations
    figures = test_log_likelihood(split, target, fit.draws.x)
    print(_row(f"refine ({fit.kind})", fit.draws.num_draws, used, figures, seconds), flush=True)
    began = time.perf_counter()
    draws, used = run_nuts(target, used, seed)
    seconds = time.perf_counter() - began
    figures = test_log_likelihood(split, target, draws)
    print(_row("NUTS", len(draws), used, figures, seconds))
    print()
    print(f"log evidence {fit.log_evidence:.2f} ± {fit.log_evidence_se:.2f}; {fit.verdict}")


if __name__ == "__main__":
    main()
