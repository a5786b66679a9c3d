"""Data that lie on several devices, of one process or of two."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from helpers import needs

PROGRAM = """
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

import klover
from klover.targets import cores, evaluator

jax.config.update("jax_enable_x64", True)
rank, address = int(sys.argv[1]), sys.argv[2]
if address:
    jax.distributed.initialize(address, 2, rank)
num_devices = len(jax.devices())
assert num_devices == (2 if address else 4)
# Threads are worth their while for every block, where they are allowed.
cores.WORTH_A_THREAD, cores.num_cores = 0.0, lambda: 4
generator = np.random.default_rng(0)
inputs = generator.normal(size=(400, 3))
outputs = (generator.uniform(size=400) < 1 / (1 + np.exp(-inputs @ [1.0, -0.5, 0.2]))).astype(float)
mesh = jax.make_mesh((num_devices,), ("row",), axis_types=(jax.sharding.AxisType.Auto,))
rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("row"))
points = np.random.default_rng(1).normal(size=(5, 3))


def spread(array):
    own = array[200 * rank : 200 * (rank + 1)] if address else array
    return jax.make_array_from_process_local_data(rows, own)


def run(x, y):
    def logdensity(position):
        logit = x @ position["slope"]
        return jnp.sum(y * logit - jax.nn.softplus(logit)) - 0.5 * jnp.sum(position["slope"] ** 2)

    target = klover.Target(logdensity, {"slope": np.zeros(3)})
    shape = jax.ShapeDtypeStruct((1024, 3), float)
    memory = evaluator._values.lower(target, shape).compile().memory_analysis()
    fit = klover.refine(0, target)
    draws = fit.importance(1, 1000)
    fit.save(f"fit-{rank}.klover")
    return fit, {
        "devices": [target.num_devices, target.is_shared],
        "bytes": max(shard.data.nbytes for shard in x.addressable_shards),
        "argument bytes": memory.argument_size_in_bytes - shape.size * 8,
        "temporary bytes": memory.temp_size_in_bytes,
        "log_p": np.asarray(target.log_prob(points)).tolist(),
        "log_evidence": [fit.log_evidence, float(draws.log_evidence)],
        "mean": np.asarray(fit.draws.expectation(lambda position: position["slope"])[0]).tolist(),
        "problems": str(target.check(0)),
        "is_trusted": fit.verdict.trusted,
    }


def refusal(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""

ONE_PROCESS = """
print(json.dumps([run(jnp.asarray(inputs), jnp.asarray(outputs))[1], run(spread(inputs), spread(outputs))[1]]))
"""

TWO_PROCESSES = """
import datetime

import numpyro
import numpyro.distributions as dist


def model(x, y):
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([3]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ slope), obs=y)


data = spread(inputs), spread(outputs)
fit, found = run(*data)
target = klover.from_numpyro(model, *data)
found["numpyro"] = np.asarray(target.log_prob(points)).tolist()
found["numpyro_evidence"] = klover.refine(0, target).log_evidence
found["refusals"] = [
    refusal(klover.refine, rank, target),
    refusal(fit.importance, rank, 100),
    refusal(klover.refine, 0, target, budget=datetime.timedelta(seconds=5)),
]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return a run with all data on one device, and one with a quarter of the rows on each of four."""
    (output,) = outputs_of(ONE_PROCESS, 1, tmp_path_factory.mktemp("one"), "--xla_force_host_platform_device_count=4")
    return json.loads(output)


def outputs_of(lines, num_processes, folder, flag=""):
    """Run the program in so many processes at once; none outlives the test."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}" if num_processes > 1 else ""
    environment = os.environ | {"XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {flag}", "JAX_PLATFORMS": "cpu"}
    options = {"cwd": folder, "env": environment, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    commands = [[sys.executable, "-c", PROGRAM + lines, str(rank), address] for rank in range(num_processes)]
    processes = [subprocess.Popen(command, **options) for command in commands]
    try:
        done = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * num_processes, [errors for _, errors in done]
    return [output.splitlines()[-1] for output, _ in done]


def assert_same(found, expected):
    assert found["is_trusted"]
    assert found["problems"] == expected["problems"]
    for name in ("log_p", "log_evidence", "mean"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-10)


def test_rows_on_several_devices_change_neither_the_density_nor_the_fit(runs):
    one, four = runs
    assert (one["devices"], four["devices"]) == ([1, False], [4, False])
    assert_same(four, one)


def test_each_of_several_devices_holds_its_share_of_the_data_and_of_what_is_computed_of_them(runs):
    one, four = runs
    assert one["bytes"] == one["argument bytes"] * 3 / 4 == 400 * 3 * 8
    for name in ("bytes", "argument bytes", "temporary bytes"):
        assert four[name] == pytest.approx(one[name] / 4, rel=0.01), name


@pytest.mark.slow
@needs("numpyro")
def test_two_processes_with_half_of_the_rows_each_give_the_answer_of_one(runs, tmp_path):
    first, second = (json.loads(output) for output in outputs_of(TWO_PROCESSES, 2, tmp_path))
    assert first == second
    assert first["devices"] == [2, True]
    assert_same(first, runs[0])
    # The NumPyro model has the Normal's constant besides.
    constant = -1.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(first["numpyro"], np.add(first["log_p"], constant), rtol=1e-10)
    assert abs(first["numpyro_evidence"] - first["log_evidence"][0] - constant) < 0.02
    assert sorted(os.listdir(tmp_path)) == ["fit-0.klover"]
    for words, refusal in zip(("same key", "same calls", "budget must be a number"), first["refusals"], strict=True):
        assert words in refusal
