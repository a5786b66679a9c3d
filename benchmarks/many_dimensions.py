r"""Gaussians of low rank with d = 200, 1000 and 5000, and a logistic regression with d = 500: `klover.refine`.

    python -m benchmarks many_dimensions [--targets low_rank200,logistic500] [--seeds 3] [--progress] [--nuts]

A Gaussian has the covariance :math:`\mathrm{diag}(s)(I+FF^\top)\mathrm{diag}(s)` with scales over two decades and ten
directions, up to a thousand times as wide as the rest, and a mean far from the example; its evidence is known. Seconds
are those of one core. With ``--nuts`` NumPyro's sampler runs on the logistic regression (four chains of 1000 draws
after 1000), and its means and standard deviations are compared.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

import klover
from benchmarks.targets import Problem

RANK, LARGEST = 10, 1000.0


def low_rank(dim: int, data: int = 0) -> Problem:
    """Return a Gaussian with a diagonal covariance and ten directions."""
    generator = np.random.default_rng([data, dim])
    scale, mean = 10 ** generator.uniform(-1, 1, dim), 10 * generator.normal(size=dim)
    directions = np.linalg.qr(generator.normal(size=(dim, RANK)))[0]
    lengths = np.geomspace(2.0, LARGEST, RANK)

    def logdensity(x):
        z = (x - mean) / scale
        along = directions.T @ z
        return -0.5 * (z @ z - jnp.sum((1 - 1 / lengths**2) * along**2))

    log_evidence = 0.5 * dim * np.log(2 * np.pi) + np.log(scale).sum() + np.log(lengths).sum()
    sd = scale * np.sqrt(1 + directions**2 @ (lengths**2 - 1))
    return Problem(f"low_rank{dim}", klover.Target(logdensity, np.zeros(dim)), float(log_evidence), mean, sd)


def logistic_data(dim: int, num_rows: int, data: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return correlated inputs, the first column of ones, and events."""
    generator = np.random.default_rng([data, dim, num_rows])
    common = generator.normal(size=(num_rows, 5)) @ generator.normal(size=(5, dim)) / np.sqrt(5)
    inputs = 0.5 * common + generator.normal(size=(num_rows, dim))
    inputs[:, 0] = 1.0
    coefficient = generator.normal(size=dim) / np.sqrt(dim)
    events = generator.uniform(size=num_rows) < 1 / (1 + np.exp(-inputs @ coefficient))
    return inputs, events.astype(float)


def logistic(dim: int, num_rows: int, data: int = 0) -> Problem:
    """Return a logistic regression with a standard Normal prior; nobody knows its answer."""
    inputs, events = logistic_data(dim, num_rows, data)
    signed = jnp.asarray((2 * events - 1)[:, None] * inputs)

    def logdensity(x):
        prior = -0.5 * x @ x - 0.5 * dim * np.log(2 * np.pi)
        return prior + jax.nn.log_sigmoid(signed @ x).sum()

    return Problem(f"logistic{dim}", klover.Target(logdensity, np.zeros(dim)), None, None, None)


PROBLEMS = {
    "low_rank200": lambda: low_rank(200),
    "low_rank1000": lambda: low_rank(1000),
    "low_rank5000": lambda: low_rank(5000),
    "logistic500": lambda: logistic(500, 5000),
}


def run(name: str, seed: int, progress: bool) -> klover.Fit:
    """Refine one target with one key, and print how far it is from the truth."""
    problem = PROBLEMS[name]()
    started, busy = time.perf_counter(), time.process_time()
    fit = klover.refine(seed, problem.target, progress=progress)
    seconds, busy = time.perf_counter() - started, time.process_time() - busy
    words = [f"{name:<13} key {seed}  {fit.verdict.status.name.lower():<20} {fit.draws.kind}"]
    words.append(f"ESS {fit.ess / fit.draws.num_draws:6.1%}  k̂ {fit.pareto_k:5.2f}")
    if problem.log_evidence is None or problem.mean is None or problem.sd is None:
        words.append(f"log Z {fit.log_evidence:.3f} ± {fit.log_evidence_se:.3f}")
    else:
        weight = np.exp(np.asarray(fit.draws.log_weight))
        worst = np.max(np.abs(weight @ np.asarray(fit.draws.x) - problem.mean) / problem.sd)
        error = fit.log_evidence - problem.log_evidence
        words.append(f"log Z {error:+.4f} ± {fit.log_evidence_se:.4f}  worst mean {worst:.2f} sd")
    words.append(f"{fit.num_evaluations:>9,} evaluations  {busy:.0f} s of a core ({seconds:.0f})")
    print("  ".join(words), flush=True)
    return fit


def compare_with_nuts(fit: klover.Fit, dim: int, num_rows: int) -> None:
    """Run NumPyro on the same regression, and print its time and the largest differences."""
    import numpyro
    from numpyro import distributions
    from numpyro.infer import MCMC, NUTS

    inputs, events = logistic_data(dim, num_rows)

    def model():
        beta = numpyro.sample("beta", distributions.Normal(0.0, 1.0).expand([dim]).to_event(1))
        numpyro.sample("y", distributions.Bernoulli(logits=jnp.asarray(inputs) @ beta), obs=jnp.asarray(events))

    chains = MCMC(NUTS(model), num_warmup=1000, num_samples=1000, num_chains=4, chain_method="sequential")
    started, busy = time.perf_counter(), time.process_time()
    chains.run(jax.random.key(0), extra_fields=("num_steps",))
    beta = np.asarray(chains.get_samples()["beta"])
    seconds, busy = time.perf_counter() - started, time.process_time() - busy
    steps = int(chains.get_extra_fields()["num_steps"].sum())
    by_chain = np.asarray(chains.get_samples(group_by_chain=True)["beta"])
    ess = numpyro.diagnostics.effective_sample_size(by_chain).min()
    weight, x = np.exp(np.asarray(fit.draws.log_weight)), np.asarray(fit.draws.x)
    mean = weight @ x
    sd = np.sqrt(weight @ (x - mean) ** 2)
    print(
        f"NUTS: {steps:,} gradients after the warm-up, {busy:.0f} s of a core ({seconds:.0f}), smallest ESS {ess:.0f}; "
        f"means differ by {np.max(np.abs(mean - beta.mean(0)) / sd):.2f} sd at most, log sd by "
        f"{np.max(np.abs(np.log(sd / beta.std(0)))):.3f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--targets", default=",".join(PROBLEMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--progress", action="store_true")
    parser.add_argument("--nuts", action="store_true")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    for name in options.targets.split(","):
        fits = [run(name, seed, options.progress) for seed in range(options.seeds)]
        if options.nuts and name == "logistic500":
            compare_with_nuts(fits[0], 500, 5000)


if __name__ == "__main__":
    main()
