"""What needs several devices or processes is in ``tests/targets/test_devices.py``."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import multihost_utils

from klover.base import processes


def test_arrays_of_numpy_lie_on_no_device_and_tracers_are_left_aside():
    assert processes.num_devices({"x": np.ones(2), "y": 3.0}) == 0
    assert processes.num_devices((np.ones(2), jnp.ones(2), jnp.zeros(3))) == 1
    found = []
    jax.eval_shape(lambda x: found.append((processes.num_devices(x), processes.are_shared(x))), jnp.ones(2))
    assert found == [(0, False)]


@pytest.fixture
def agree(monkeypatch):
    """Return whether two processes agree, of which one has these parts and the other those."""
    digests = []

    def gather(digest):
        digests.append(digest)
        return np.stack(digests)

    monkeypatch.setattr(multihost_utils, "process_allgather", gather)

    def agree(these, those):
        digests.clear()
        processes.check_agreement("Do the same.", *these)
        try:
            processes.check_agreement("Do the same.", *those)
        except RuntimeError:
            return False
        return True

    return agree


@pytest.mark.parametrize(
    ("these", "those", "expected"),
    [
        ((np.arange(3.0), 1, None), (np.arange(3.0), 1, None), True),
        ((np.arange(3.0), 1), (jnp.arange(3.0), 1), True),
        (([None, 200],), ([200, None],), False),
        ((np.arange(3.0),), (np.nextafter(np.arange(3.0), 9),), False),
        ((np.zeros((2, 3)),), (np.zeros((3, 2)),), False),
        (("student",), ("normal",), False),
    ],
)
def test_processes_that_share_data_agree_if_they_do_the_same_to_the_last_digit(agree, these, those, expected):
    assert agree(these, those) is expected
