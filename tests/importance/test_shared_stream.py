import concurrent.futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from klover.base.checks import as_key
from klover.importance import shared_stream
from klover.importance.shared_stream import stream_on_pool
from klover.importance.stream import stream
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.targets.target import Target
from pool_functions import far

NUM = 3 * 2**18 + 100  # three tasks, and one of a hundred draws


class Backwards:
    """A pool that begins with the last task."""

    def map(self, function, tasks):
        return [function(task) for task in tasks[::-1]][::-1]


@pytest.fixture(scope="module")
def arguments():
    # In single precision the last digits of large sums may depend on the number of threads, which differs in workers.
    components = Family("student", df=5.0).components(np.zeros((8, 10)), np.stack([np.eye(10)] * 8))
    target = Target(lambda x: -0.5 * jnp.sum(x**2), np.zeros(10, np.float32))
    return as_key(3), target, Mixture.of(components), {"far": far}, NUM


@pytest.fixture(scope="module")
def alone(arguments):
    *_, done = stream(*arguments)
    return done


def check(found, expected):
    for part, other in zip(jax.tree.leaves(found.sums), jax.tree.leaves(expected.sums), strict=True):
        np.testing.assert_array_equal(part, other)
    np.testing.assert_array_equal(np.sort(found.largest), np.sort(expected.largest))


def test_two_processes_find_what_this_one_finds(arguments, alone):
    told = []
    *_, done = stream_on_pool(2, *arguments, tell=told.append)
    check(done, alone)
    assert told == [*range(2**18, NUM, 2**18), NUM]


def test_three_workers_and_any_order_change_nothing(arguments, alone, monkeypatch):
    monkeypatch.setattr(shared_stream, "WAVE", 3)
    with concurrent.futures.ThreadPoolExecutor(3) as executor:
        for pool in (executor, Backwards()):
            *_, done = stream_on_pool(pool, *arguments)
            check(done, alone)


def test_an_interruption_keeps_what_has_been_added(arguments):
    def interrupt(num_done):
        if num_done >= 2 * 2**18:
            raise KeyboardInterrupt

    found = stream_on_pool(Backwards(), *arguments, tell=interrupt)
    assert int(next(found).sums.num_draws) == 2 * 2**18
    with pytest.raises(KeyboardInterrupt):
        next(found)


def test_workers_with_other_devices_are_refused(arguments):
    work = shared_stream.OneTask(np.zeros(2, np.uint32), "threefry2x32", *arguments[1:], kind=("gpu", 2**20))
    with pytest.raises(
        RuntimeError, match="the worker draws 16384 at a time on its cpu, but klover was called on a gpu"
    ):
        work((0, -np.inf))
