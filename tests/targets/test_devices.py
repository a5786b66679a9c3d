"""Data that lie on several devices."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

PROGRAM = """
import json

import jax
import jax.numpy as jnp
import numpy as np

import klover

jax.config.update("jax_enable_x64", True)
assert len(jax.devices()) == 4
generator = np.random.default_rng(0)
inputs = generator.normal(size=(400, 3))
outputs = (generator.uniform(size=400) < 1 / (1 + np.exp(-inputs @ [1.0, -0.5, 0.2]))).astype(float)
mesh = jax.make_mesh((4,), ("row",), axis_types=(jax.sharding.AxisType.Auto,))
rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("row"))
found = []
for place in (jnp.asarray, lambda array: jax.device_put(array, rows)):
    x, y = place(inputs), place(outputs)
    num_devices = len(x.sharding.device_set)

    def logdensity(position):
        logit = x @ position["slope"]
        return jnp.sum(y * logit - jax.nn.softplus(logit)) - 0.5 * jnp.sum(position["slope"] ** 2)

    target = klover.Target(logdensity, {"slope": np.zeros(3)})
    points = np.random.default_rng(1).normal(size=(5, 3))
    fit = klover.refine(0, target)
    mean, _ = fit.draws.expectation(lambda position: position["slope"])
    log_p = np.asarray(target.log_prob(points))
    found.append([num_devices, log_p.tolist(), fit.log_evidence, np.asarray(mean).tolist(), fit.verdict.trusted])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def runs():
    """Return a run with all data on one device, and one with a quarter of the rows on each of four."""
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_rows_on_several_devices_change_neither_the_density_nor_the_fit(runs):
    (one, *alone), (four, *shared) = runs
    assert (one, four) == (1, 4)
    assert alone[-1]
    assert shared[-1]
    np.testing.assert_allclose(shared[0], alone[0], rtol=1e-13)
    # Sums in another order differ in their last digits, and the climbs to the mode stop at a slightly other point.
    for found, expected in zip(shared[1:-1], alone[1:-1], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-8)
