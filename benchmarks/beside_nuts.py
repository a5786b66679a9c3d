r"""A horseshoe regression and a model of stochastic volatility, d = 100: `klover.refine` beside NumPyro's NUTS.

    python -m benchmarks beside_nuts [--targets horseshoe] [--tools reference,nuts,klover] [--out nuts.jsonl]

All get the same log density (``reach.py``). NUTS has four chains, one after the other, with as many draws as warm-up,
and a target acceptance of 0.9. Nobody knows the answer: means and standard deviations are compared with those of a
longer run of NUTS with another key, the reference, whose own smallest effective sample size is told beside; that of
the volatility samples the noise in place of the states, in which chains mix better. Evaluations of NUTS leave out its
warm-up, its seconds do not. Runs are lines of JSON; what the file has is not made again.
"""

import argparse
import json
import pathlib
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import klover
from benchmarks.reach import problem_of

ACCEPTANCE = 0.9


def states_of(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the point of the volatility model whose states come from independent noise, and the log determinant."""
    persistence, noise = jnp.tanh(x[1]), jnp.exp(x[2]) * x[3:]
    widening = -0.5 * jnp.log1p(-(persistence**2))
    powers = jnp.concatenate([jnp.ones(1), jnp.cumprod(jnp.full(len(noise) - 1, persistence))])
    lag = np.subtract.outer(np.arange(len(noise)), np.arange(len(noise)))
    root = jnp.where(lag >= 0, powers[np.abs(lag)], 0.0)
    noise = noise.at[0].multiply(jnp.exp(widening))
    return jnp.concatenate([x[:3], x[0] + root @ noise]), len(noise) * x[2] + widening


def as_it_is(x: jax.Array) -> tuple[jax.Array, float]:
    """Return the point, and no log determinant."""
    return x, 0.0


def solve_by_nuts(target: klover.Target, seed: int, num_draws: int, mapped: Callable = as_it_is) -> dict:
    """Return what four chains took, how well they mixed, and their moments."""
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
    from numpyro.infer import MCMC, NUTS

    def potential(z):
        x, log_det = mapped(z)
        return -target.log_prob(x) - log_det

    kernel = NUTS(potential_fn=potential, target_accept_prob=ACCEPTANCE)
    chains = MCMC(
        kernel, num_warmup=num_draws, num_samples=num_draws, num_chains=4, chain_method="sequential", progress_bar=False
    )
    starts = 0.1 * jax.random.normal(jax.random.key(seed + 1000), (4, target.dim))
    chains.run(jax.random.key(seed), init_params=starts, extra_fields=("num_steps", "diverging"))
    x = np.asarray(jax.vmap(jax.vmap(lambda z: mapped(z)[0]))(chains.get_samples(group_by_chain=True)))
    extra = chains.get_extra_fields()
    return {
        "draws": 4 * num_draws,
        "evaluations": int(extra["num_steps"].sum()),
        "ess": float(np.min(effective_sample_size(x))),
        "r_hat": float(np.max(split_gelman_rubin(x))),
        "divergences": int(extra["diverging"].sum()),
        "mean": x.mean((0, 1)).tolist(),
        "sd": x.std((0, 1)).tolist(),
    }


def solve_by_klover(target: klover.Target, seed: int) -> dict:
    """Return what a fit with defaults took, its verdict, and its moments."""
    fit = klover.refine(seed, target, progress=False)
    weight, x = np.exp(np.asarray(fit.draws.log_weight)), np.asarray(fit.draws.x)
    mean = weight @ x
    return {
        "verdict": fit.verdict.status.name.lower(),
        "kind": fit.draws.kind,
        "draws": fit.draws.num_draws,
        "evaluations": fit.num_evaluations,
        "ess": float(fit.ess),
        "log_evidence": float(fit.log_evidence),
        "log_evidence_se": float(fit.log_evidence_se),
        "mean": mean.tolist(),
        "sd": np.sqrt(weight @ (x - mean) ** 2).tolist(),
    }


def run(name: str, tool: str, draws: int, long: int) -> dict:
    """Return the row of a tool."""
    target, began = problem_of(name).target, time.process_time()
    if tool == "klover":
        row = solve_by_klover(target, 0)
    elif tool == "nuts":
        row = solve_by_nuts(target, 0, draws)
    else:
        row = solve_by_nuts(target, 1, long, states_of if name == "volatility" else as_it_is)
    return {"target": name, "tool": tool, "cpu_seconds": time.process_time() - began} | row


def compared(row: dict, reference: dict) -> dict:
    """Return the row with its errors in standard deviations of the reference, in place of its moments."""
    mean, sd = np.array(reference["mean"]), np.array(reference["sd"])
    away = np.abs(np.array(row["mean"]) - mean) / sd
    errors = {"worst_mean": float(away.max()), "rms_mean": float(np.sqrt(np.mean(away**2)))}
    errors["worst_sd"] = float(np.max(np.abs(np.array(row["sd"]) / sd - 1)))
    return {key: value for key, value in row.items() if key not in ("mean", "sd")} | errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default="horseshoe,volatility")
    parser.add_argument("--tools", default="reference,nuts,klover")
    parser.add_argument("--draws", type=int, default=1000, help="of each chain, and as many of its warm-up")
    parser.add_argument("--long", type=int, default=5000, help="the same of the reference")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("nuts.jsonl"))
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    lines = options.out.read_text(encoding="utf-8").splitlines() if options.out.exists() else []
    rows = {(row["target"], row["tool"]): row for row in map(json.loads, lines)}
    for name in options.targets.split(","):
        for tool in options.tools.split(","):
            if (name, tool) not in rows:
                rows[name, tool] = run(name, tool, options.draws, options.long)
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[name, tool]) + "\n")
            print(json.dumps(compared(rows[name, tool], rows[name, "reference"])), flush=True)


if __name__ == "__main__":
    main()
