"""A simulated cluster: laws that its efficiency has to obey."""

from types import SimpleNamespace

import pytest
from benchmarks.simulated_cluster import LATENCY, simulate

FREE = SimpleNamespace(send=0.0, send_each=0.0, wait=0.0, wait_each=0.0, dask=0.0, byte=0.0)


def test_one_worker_loses_the_network_alone():
    assert simulate(FREE, 1, 60.0, 50) == pytest.approx(1, abs=2 * LATENCY / 60 * 2)


def test_a_client_that_is_slow_sends_so_many_chunks_a_second():
    slow = SimpleNamespace(**vars(FREE) | {"dask": 1.0})
    # With a hundred workers all chunks are of one point, and the time is that of 100 chunks and of the last one.
    assert simulate(slow, 100, 0.02, 100) == pytest.approx(100 * 0.02 / (100 * 100), rel=0.1)


def test_as_many_points_as_workers_wait_for_the_slowest():
    assert simulate(FREE, 1000, 60.0, 1000) < 0.6
    assert simulate(FREE, 10, 60.0, 1000) > 0.95
