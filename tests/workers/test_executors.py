"""Pools of the user's: executors, a cluster of Dask, and what has only ``map``."""

import concurrent.futures
import functools
import multiprocessing
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import needs
from klover.workers.crew import connect
from klover.workers.errors import PoolGone, Refused, WorkerDied
from klover.workers.parcel import Job
from klover.workers.work import OnItems, OnPoints
from pool_functions import POISON, bell, kind_of, poisoned


def points(num):
    return np.column_stack([np.arange(float(num)), np.ones(num)])


def collect(workers, job, tasks, errors=None):
    """Return values, and how often each of them was handed on; errors go into a dict, if there is one."""
    found, counts = job.work.missing(len(tasks)), np.zeros(len(tasks), int)

    def done(indices, values, raised):
        found[indices] = values
        counts[indices] += 1
        if errors is not None:
            errors.update(raised)

    workers.run(job, tasks, done)
    return found, counts


def test_processes_of_the_user_are_left_open_and_gone_when_one_dies():
    x = points(30)
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as executor:
        workers = connect(executor)
        found, counts = collect(workers, Job("density", OnPoints(bell)), x)
        np.testing.assert_array_equal(found, bell(x))
        assert (counts == 1).all()
        workers.close()
        with pytest.raises(PoolGone, match="pool=ProcessPoolExecutor is gone.* It was at .* tasks of density: "):
            collect(workers, Job("density", OnPoints(poisoned)), x)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "klover 0.0 on Python 2.7"}, "is to run with klover 0.0 on Python 2.7, but the worker has"),
        ({"prints": {"pool_functions.bell": "older"}}, "the worker has another version of pool_functions.bell"),
        ({"packed": b"torn"}, "the worker cannot load it"),
    ],
)
def test_another_version_of_the_function_is_refused(change, words):
    job = Job("density", OnPoints(bell))
    job.__dict__["parcel"] = job.parcel._replace(key=words, **change)
    with concurrent.futures.ThreadPoolExecutor(1) as executor, pytest.raises(Refused, match=words):
        collect(connect(executor), job, points(3))


@pytest.mark.parametrize("is_double", [True, False])
def test_arrays_of_jax_have_the_precision_they_are_sent_in(is_double):
    job = Job("kind", OnItems(kind_of), is_double=is_double)
    found = {}
    with concurrent.futures.ThreadPoolExecutor(1) as executor, jax.enable_x64(True):
        tasks = [jnp.ones(2, "float64"), jnp.ones(2, "float32")]
        connect(executor).run(job, tasks, lambda at, values, _: found.update(zip(at.tolist(), values, strict=True)))
    assert found == {0: "float64" if is_double else "float32", 1: "float32"}


def test_a_point_that_hangs_in_the_only_worker_of_an_executor_ends_the_work(monkeypatch):
    monkeypatch.setattr("klover.workers.executors.SECONDS_TO_LOAD", 0.0)
    job = Job("density", OnPoints(functools.partial(lambda seconds, x: time.sleep(seconds), 1.0)))
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        with pytest.raises(PoolGone, match="are stuck at points that take longer than timeout=0.1"):
            collect(connect(executor, timeout=0.1), job, points(2))


@needs("distributed")
def test_a_cluster_finds_what_this_process_finds_and_is_left_open():
    import distributed

    x = points(50)
    options = {"n_workers": 1, "threads_per_worker": 2, "dashboard_address": None}
    with distributed.LocalCluster(processes=False, **options) as cluster, distributed.Client(cluster) as client:
        workers = connect(client)
        found, counts = collect(workers, Job("density", OnPoints(bell)), x)
        np.testing.assert_array_equal(found, bell(x))
        assert (counts == 1).all()
        workers.close()
        assert client.submit(abs, -1).result() == 1
    with pytest.raises(PoolGone, match="is gone"):
        collect(workers, Job("density", OnPoints(bell)), x)


@pytest.mark.slow
@needs("distributed")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_point_that_ends_the_workers_of_a_cluster_is_found():
    import distributed

    x = points(40)
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "host": "127.0.0.1"}
    with distributed.LocalCluster(processes=True, **options) as cluster, distributed.Client(cluster) as client:
        found, counts = collect(connect(client), Job("density", OnPoints(poisoned)), x)
    np.testing.assert_array_equal(found, np.where(x[:, 0] == POISON, np.nan, bell(x)))
    assert (counts == 1).all()


def test_a_function_that_opens_executors_outlives_what_kills_them_and_names_it():
    x, opened = points(40), []

    def pool():
        opened.append(concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")))
        return opened[-1]

    workers, job, errors = connect(pool), Job("density", OnPoints(poisoned)), {}
    found, counts = collect(workers, job, x, errors)
    np.testing.assert_array_equal(found, np.where(x[:, 0] == POISON, np.nan, bell(x)))
    assert (counts == 1).all()
    assert [(int(index), type(error)) for index, error in errors.items()] == [(int(POISON), WorkerDied)]
    assert len(opened) == 2
    workers.close()
    with pytest.raises(RuntimeError, match="after shutdown"):
        opened[-1].submit(abs, -1)


def test_executors_that_never_work_and_what_is_none_are_refused():
    context = multiprocessing.get_context("spawn")
    broken = functools.partial(concurrent.futures.ProcessPoolExecutor, 1, context, initializer=os.abort)
    with pytest.raises(PoolGone, match="break before they have finished anything.*__main__"):
        collect(connect(broken), Job("density", OnPoints(bell)), points(3))
    for wrong, words in ((lambda: 5, "got 5"), (bell, "but TypeError: bell.. missing 1 required")):
        with pytest.raises(PoolGone, match=f"must return a new concurrent.futures.Executor .* arguments, {words}"):
            collect(connect(wrong), Job("density", OnPoints(bell)), points(3))
