"""Tall data: a logistic regression whose rows are spread over all devices, by `refine` and by NumPyro's NUTS.

    python -m benchmarks tall_data [--rows 1e7] [--dim 50] [--seeds 1] [--nuts]

The data are made on the devices, in single precision; only their sum, the log likelihood, is in double precision, since
that of ten million rows has more digits than the other holds. Each solution is timed from the first call, compilation
included, and *ess* is that of the slowest coordinate for NUTS (one chain, 500 steps after 500 of warm-up). ``XLA_FLAGS=
--xla_force_host_platform_device_count=4`` makes four devices of a processor. ``--nuts`` needs the extra `numpyro`.
"""

import argparse
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import klover
from klover.base import optional

NUM_STEPS = 500


def make_data(num_rows: int, dim: int) -> tuple[jax.Array, jax.Array]:
    """Return inputs and outputs, with a share of the rows on each device; nothing passes through the host."""
    mesh = jax.make_mesh((jax.device_count(),), ("row",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("row"))

    def make(key):
        key_inputs, key_slope, key_outputs = jax.random.split(key, 3)
        inputs = jax.random.normal(key_inputs, (num_rows, dim), "float32")
        logits = inputs @ (jax.random.normal(key_slope, (dim,), "float32") / dim**0.5)
        return inputs, jax.random.uniform(key_outputs, (num_rows,), "float32") < jax.nn.sigmoid(logits)

    return jax.jit(make, out_shardings=(rows, rows))(jax.random.key(0))


def log_density(slope: jax.Array, inputs: jax.Array, outputs: jax.Array) -> jax.Array:
    """Log posterior density of the slope."""
    logits = inputs @ slope.astype("float32")
    likelihood = jnp.where(outputs, logits, 0.0) - jax.nn.softplus(logits)
    return jnp.sum(likelihood, dtype="float64") - 0.5 * jnp.sum(slope**2)


def by_refine(seed: int, data: tuple[jax.Array, jax.Array]) -> dict:
    """Solve by klover."""
    target = klover.Target(lambda slope: log_density(slope, *data), np.zeros(data[0].shape[1]))
    fit = klover.refine(seed, target, progress=False)
    mean, _ = fit.draws.expectation(lambda slope: slope)
    about = {"evaluations": fit.num_evaluations, "seconds in the target": fit.evaluation_seconds}
    return about | {
        "ess": fit.draws.ess,
        "says": "trusted" if fit.verdict.trusted else fit.verdict.reason,
        "mean": mean,
    }


def by_nuts(seed: int, data: tuple[jax.Array, jax.Array]) -> dict:
    """Solve by NUTS."""
    infer = optional.load("numpyro.infer", "--nuts needs", "numpyro")
    import numpyro
    import numpyro.distributions as dist

    def model(inputs, outputs):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0).expand([inputs.shape[1]]).to_event(1))
        numpyro.factor("density", log_density(slope, inputs, outputs) + 0.5 * jnp.sum(slope**2))

    mcmc = infer.MCMC(
        infer.NUTS(model), num_warmup=NUM_STEPS, num_samples=NUM_STEPS, jit_model_args=True, progress_bar=False
    )
    mcmc.run(jax.random.key(seed), *data, extra_fields=("num_steps",))
    draws = np.asarray(mcmc.get_samples(group_by_chain=True)["slope"])
    ess = numpyro.diagnostics.effective_sample_size(draws).min()
    # Warm-up is not recorded; it is taken to need as many steps.
    evaluations = 2 * int(mcmc.get_extra_fields()["num_steps"].sum())
    return {"evaluations": evaluations, "ess": ess, "says": "", "mean": draws.mean((0, 1))}


def report(name: str, seed: int, solve: Callable[..., dict], data: tuple[jax.Array, jax.Array]) -> np.ndarray:
    """Print a line about a solution, and return the posterior mean."""
    began = time.perf_counter()
    found = solve(seed, data)
    seconds, inside = time.perf_counter() - began, found.get("seconds in the target")
    target = "–" if inside is None else f"{inside:.1f}"
    words = f"{found['evaluations']} | {found['ess']:.0f} | {found['ess'] / seconds:.1f} | {found['says']}"
    print(f"| {name} | {seed} | {seconds:.1f} | {target} | {words} |", flush=True)
    return np.asarray(found["mean"])


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=float, default=1e7)
    parser.add_argument("--dim", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--nuts", action="store_true", help="run NumPyro's NUTS as well")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    num_rows = int(arguments.rows) // jax.device_count() * jax.device_count()
    data = jax.block_until_ready(make_data(num_rows, arguments.dim))
    largest = max(shard.data.nbytes for shard in data[0].addressable_shards)
    print(
        f"{num_rows:,} rows, d = {arguments.dim}, {jax.device_count()} × {jax.devices()[0].device_kind}, "
        f"{largest / 2**20:.1f} MiB of inputs on each, jax {jax.__version__}"
    )
    print("| method | seed | s | in the target, s | evaluations (gradients count one) | ess | ess/s | verdict |")
    print("|---|---|---|---|---|---|---|---|")
    for seed in range(arguments.seeds):
        mean = report("refine", seed, by_refine, data)
        if arguments.nuts:
            other = report("NUTS", seed, by_nuts, data)
            print(f"largest difference of the posterior means: {np.abs(mean - other).max():.2g}")


if __name__ == "__main__":
    main()
