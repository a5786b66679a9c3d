"""Processes of klover's own: what they find, and what dies and hangs in them."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from klover.workers import processes
from klover.workers.crew import connect
from klover.workers.errors import PoolGone, TooSlow, WorkerDied
from klover.workers.parcel import Job
from klover.workers.scheduler import Scheduler, _Run
from klover.workers.work import OnItems, OnPoints
from pool_functions import HANGING, HANGING_ONCE, POISON, Hanging, Slow, bell, poisoned, square


def points(num):
    return np.column_stack([np.arange(float(num)), np.ones(num)])


def collect(workers, work, tasks):
    """Return values and errors of all tasks, and how often each of them was handed on."""
    found, errors, counts = work.missing(len(tasks)), {}, np.zeros(len(tasks), int)

    def done(indices, values, raised):
        for index, value in zip(indices, values, strict=True):
            found[index] = value
        counts[indices] += 1
        errors.update(raised)

    workers.run(Job("density", work), tasks, done)
    return found, errors, counts


@pytest.fixture(scope="module")
def pair():
    """Return two processes, which all tests of the module share."""
    workers = connect(2)
    yield workers
    workers.close()


def test_each_point_comes_once_and_each_process_loads_the_function_once(pair, tmp_path):
    slow, x = Slow(tmp_path, 0.002), points(60)
    found, errors, counts = collect(pair, OnPoints(slow), x)
    np.testing.assert_array_equal(found, bell(x))
    assert (counts == 1).all()
    assert errors == {}
    loaded = slow.loaded
    assert len(loaded) == len(set(loaded)) == 2
    assert os.getpid() not in loaded


def test_items_of_any_kind_are_mapped_and_one_that_raises_is_none(pair):
    found, errors, _ = collect(pair, OnItems(square), [2, 1.5, "none", 3])
    assert found == [4, 2.25, None, 9]
    assert list(errors) == [2]
    assert isinstance(errors[2], LookupError)


def test_a_chunk_takes_ten_times_what_is_lost_on_its_way_unless_few_are_left():
    job, sizes = Job("density", OnPoints(bell)), []
    for lost in (0.0, 0.002, 0.01, 1.0):
        scheduler = Scheduler(processes.Processes(2))
        scheduler.note_pace(job, 0.001)
        scheduler.note_loss(lost)
        scheduler.note_loss(lost + 5.0)
        run = _Run(scheduler, job, points(800), lambda *_: None)
        run.num_cut = 720  # of 80 that are left each worker has a quarter of its half: 10
        sizes.append(run.next_size())
    assert sizes == [10, 20, 80, 80]


def test_a_point_that_ends_its_process_is_found_and_nothing_else_is_lost(pair):
    x = points(40)
    collect(pair, OnPoints(poisoned), x[:3])  # so that the pace is known, and chunks are larger than a point
    found, errors, counts = collect(pair, OnPoints(poisoned), x)
    is_poison = x[:, 0] == POISON
    np.testing.assert_array_equal(found, np.where(is_poison, np.nan, bell(x)))
    assert (counts == 1).all()
    assert [int(index) for index in errors] == list(np.flatnonzero(is_poison))
    assert isinstance(errors[int(POISON)], WorkerDied)


def test_a_process_that_is_killed_costs_nothing_but_its_chunk(pair, tmp_path):
    slow, x = Slow(tmp_path, 0.01), points(60)

    def kill():
        while not (busy := list(tmp_path.glob("busy-*"))):
            time.sleep(0.01)
        os.kill(int(busy[0].name.partition("-")[2]), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    found, errors, counts = collect(pair, OnPoints(slow), x)
    killer.join()
    np.testing.assert_array_equal(found, bell(x))
    assert (counts == 1).all()
    assert errors == {}
    assert len(set(slow.loaded)) == 3  # two processes, and the one in place of the dead one


def test_a_point_that_hangs_is_tried_twice_and_given_up_unless_it_comes_back_the_second_time(tmp_path):
    workers, x, function = connect(2, timeout=0.5), points(20), Hanging(tmp_path)
    found, errors, counts = collect(workers, OnPoints(function), x)
    workers.close()
    np.testing.assert_array_equal(found, np.where(x[:, 0] == HANGING, np.nan, bell(x)))
    assert (counts == 1).all()
    assert [int(index) for index in errors] == [int(HANGING)]
    assert isinstance(errors[int(HANGING)], TooSlow)
    assert "timeout=0.5" in str(errors[int(HANGING)])
    assert (function.num_tries(HANGING), function.num_tries(HANGING_ONCE)) == (2, 2)


def test_what_is_interrupted_leaves_no_process_at_work(tmp_path):
    workers = connect(1)
    with pytest.raises(ZeroDivisionError):
        workers.run(Job("density", OnPoints(Slow(tmp_path, 0.0))), points(50), lambda *_: 1 / 0)
    assert all(process.is_idle for process in workers.engine._processes)
    workers.close()


def test_processes_that_never_start_are_no_pool(monkeypatch):
    monkeypatch.setattr(processes.task, "settle", os.abort)
    workers = connect(1)
    with pytest.raises(PoolGone, match="end as soon as they are started.*__main__"):
        collect(workers, OnPoints(bell), points(3))
    workers.close()


SCRIPT = """
import numpy as np
from pool_functions import bell

{guard}
    from klover.workers.crew import Job, connect
    from klover.workers.work import OnPoints

    workers = connect(1)
    workers.run(Job("density", OnPoints(bell)), np.ones((1, 2)), lambda at, values, errors: print(values))
"""


@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_script_needs_its_guard_and_leaves_nothing_behind(tmp_path, is_guarded):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(guard='if __name__ == "__main__":' if is_guarded else "if True:"))
    paths = os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-W", "error", str(path)]
    result = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False, timeout=60
    )
    if is_guarded:
        assert (result.returncode, result.stderr) == (0, "")
        assert result.stdout == "[-1.83787707]\n"
    else:
        assert result.returncode != 0
        assert "__name__ == '__main__'" in result.stderr
        assert result.stdout == ""
