"""Leave-one-out cross-validation: `fit.loo()` beside PSIS without refits, and beside NUTS with ArviZ, against refits.

    python -m benchmarks leave_one_out [--only poisson hierarchy horseshoe] [--worst 20] [--seed 0]

The reference are fits from nothing (`refine` on the target without a row, another key) of the rows that the proposal's
draws tell worst by k̂, ``--worst`` of them (262 is all of the Poisson regression). *error* is the sum, and the largest,
of absolute errors of these rows' log densities; seconds are those of the processor. Needs the extras numpyro and arviz.
"""

import argparse
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np

import klover
from klover.base import optional
from klover.importance import psis
from klover.uses.left_out import at_draws, pointwise, without


def poisson(rng):
    """Counts with more scatter than Poisson's, as those of roaches in flats: 262 rows, four coefficients."""
    import numpyro
    import numpyro.distributions as dist

    inputs = np.column_stack([np.ones(262), rng.gamma(0.5, 1.0, 262), rng.integers(0, 2, (262, 2))])
    rate = np.exp(inputs @ np.array([2.5, 0.4, -0.5, -0.3]))
    counts = rng.poisson(rate * rng.gamma(0.4, 2.5, 262))

    def model():
        slope = numpyro.sample("slope", dist.Normal(0, 2.5).expand([4]))
        numpyro.sample("y", dist.Poisson(jnp.exp(inputs @ slope)), obs=counts)

    return model


def hierarchy(rng):
    """Twelve groups of three to eight rows, one of them far off, with an unknown scatter: 15 parameters."""
    import numpyro
    import numpyro.distributions as dist

    group = np.repeat(np.arange(12), rng.integers(3, 9, 12))
    effect = 0.5 * rng.normal(size=12)
    effect[3] += 3
    outcomes = effect[group] + rng.normal(size=len(group))
    outcomes[:2] += [5, -4]

    def model():
        mean, between = numpyro.sample("mean", dist.Normal(0, 3)), numpyro.sample("between", dist.HalfNormal(2))
        within, each = numpyro.sample("within", dist.HalfNormal(2)), numpyro.sample("each", dist.Normal().expand([12]))
        numpyro.sample("y", dist.Normal((mean + between * each)[group], within), obs=outcomes)

    return model


def horseshoe(rng):
    """Forty rows, six inputs of which one counts, and a horseshoe: 14 parameters."""
    import numpyro
    import numpyro.distributions as dist

    inputs = rng.normal(size=(40, 6))
    inputs[0] *= 4
    outcomes = 1.5 * inputs[:, 0] + rng.normal(size=40)
    outcomes[:2] += [4, 3]

    def model():
        scale, width = numpyro.sample("scale", dist.HalfNormal(2)), numpyro.sample("width", dist.HalfNormal(0.5))
        local = numpyro.sample("local", dist.HalfCauchy().expand([6]))
        slope = numpyro.sample("slope", dist.Normal().expand([6])) * local * width
        numpyro.sample("y", dist.Normal(inputs @ slope, scale), obs=outcomes)

    return model


MODELS = {"poisson": poisson, "hierarchy": hierarchy, "horseshoe": horseshoe}


def by_arviz(posterior) -> tuple[np.ndarray, int]:
    """Return ArviZ's log densities of rows, and how many have a bad k̂."""
    found = optional.arviz().loo(posterior, pointwise=True)
    values = found["loo_i"] if "loo_i" in dir(found) else found["elpd_i"]
    return np.asarray(values).ravel(), int(np.sum(np.asarray(found["pareto_k"]) > found["good_k"]))


def by_nuts(seed: int, model) -> tuple[np.ndarray, int]:
    """Sample by NUTS, and let ArviZ weigh the draws."""
    from numpyro.infer import MCMC, NUTS

    chains = {"num_warmup": 1000, "num_samples": 1000, "num_chains": 4, "chain_method": "sequential"}
    mcmc = MCMC(NUTS(model), **chains, progress_bar=False)
    mcmc.run(jax.random.key(seed))
    return by_arviz(optional.arviz().from_numpyro(mcmc, log_likelihood=True))


def by_proposal(fit: klover.Fit) -> tuple[np.ndarray, np.ndarray]:
    """Return log densities by PSIS straight from the proposal, and their k̂: what `fit.loo()` begins with."""
    values, log_ratio = at_draws(fit, pointwise(fit.target, None)), np.asarray(fit.draws.log_ratio)
    pairs = [psis.smooth(log_ratio - row) for row in values.T]
    return np.array([np.logaddexp.reduce(pair[0] + row) for pair, row in zip(pairs, values.T, strict=True)]), np.array(
        [float(k) for _, k in pairs]
    )


def reference(fit: klover.Fit, rows: np.ndarray, num_rows: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Fit from nothing without each row; return log densities, their errors, and how many fits are refused."""
    function, fits, usual = pointwise(fit.target, None), [], float(np.max(fit.draws.log_p))
    for row in rows.tolist():
        target = without(fit.target, function, np.array([row]), num_rows, usual)
        fits.append(klover.refine(1000 + row, target, progress=False))
    value = np.array([fit.log_evidence - each.log_evidence for each in fits])
    error = np.array([np.hypot(fit.log_evidence_se, each.log_evidence_se) for each in fits])
    return value, error, sum(not each.verdict.trusted for each in fits)


def timed(function, *arguments):
    """Return what a function gives, and the seconds of the processor that it took."""
    began = time.process_time()
    found = function(*arguments)
    return found, time.process_time() - began


def run(name: str, seed: int, num_worst: int) -> None:
    """Compare all ways on one model, and print a line for each."""
    model = MODELS[name](np.random.default_rng(seed))
    target = klover.from_numpyro(model)
    fit, seconds = timed(lambda: klover.refine(seed, target, progress=False))
    print(
        f"{name}: d = {target.dim}; refine {seconds:.1f} s, {fit.num_evaluations} evaluations, {fit.verdict}",
        flush=True,
    )
    (direct, tails), seconds_direct = timed(by_proposal, fit)
    found, seconds_loo = timed(fit.loo)
    print(found, flush=True)
    nuts, seconds_nuts = timed(by_nuts, seed, model)
    drawn, seconds_drawn = timed(lambda: by_arviz(fit.to_arviz()))
    rows = np.sort(np.argsort(-tails)[:num_worst])
    (truth, error, num_refused), seconds_truth = timed(reference, fit, rows, len(direct))
    print(f"reference: {len(rows)} rows, {seconds_truth:.1f} s, se up to {error.max():.4f}, {num_refused} refused")
    ways = {
        "NUTS + az.loo": (nuts[0], nuts[1], seconds_nuts),
        "refine + az.loo": (drawn[0], drawn[1], seconds + seconds_drawn),
        "refine + PSIS from q": (
            direct,
            int(np.sum(tails > psis.reliable_k(fit.draws.num_draws))),
            seconds + seconds_direct,
        ),
        "refine + fit.loo()": (found.elpd_i, len(found.refused), seconds + seconds_loo),
    }
    for way, (values, num_bad, taken) in ways.items():
        miss = np.abs(values[rows] - truth)
        print(
            f"{way:<22} bad {num_bad:>3}  error {miss.sum():8.3f}  largest {miss.max():7.3f}  {taken:6.1f} s",
            flush=True,
        )
    z = np.abs(found.elpd_i[rows] - truth) / np.hypot(found.elpd_i_error[rows], error)
    print(f"fit.loo(): errors over stated errors: largest {z.max():.1f}, root mean square {np.sqrt(np.mean(z**2)):.2f}")


def main() -> None:
    """Run the models that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--worst", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore", UserWarning)
    for name in arguments.only:
        run(name, arguments.seed, arguments.worst)
