import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import compilations
from klover import Target
from klover.targets import cores
from klover.targets import evaluator as evaluator_module
from klover.targets.evaluator import VALUE_BLOCK, Evaluator

POINTS = np.random.default_rng(0).normal(size=(3 * VALUE_BLOCK + 5, 2))


def bent(x):
    return -jnp.sum(jnp.cosh(x) * jnp.arange(1.0, 3.0))


@pytest.fixture
def seen(monkeypatch):
    """Let three threads run blocks, however quick; return their names."""
    monkeypatch.setattr(cores, "WORTH_A_THREAD", 0.0)
    monkeypatch.setattr(cores, "num_cores", lambda: 4)
    names, run = [], cores.Cores.run

    def noted(self, program, blocks, num_threads, done):
        names.append(num_threads)
        return run(self, program, blocks, num_threads, done)

    monkeypatch.setattr(cores.Cores, "run", noted)
    return names


def test_blocks_side_by_side_give_the_numbers_of_one_after_another(seen, monkeypatch):
    target = Target(bent, np.zeros(2))
    evaluator = Evaluator(target)
    found = evaluator.values(POINTS), *evaluator.values_and_gradients(POINTS[:100])
    assert seen == [3, 3]
    monkeypatch.setattr(cores, "WORTH_A_THREAD", np.inf)
    evaluator = Evaluator(target)
    expected = evaluator.values(POINTS), *evaluator.values_and_gradients(POINTS[:100])
    assert seen == [3, 3]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert evaluator.num_evaluations == len(POINTS) + 100


@pytest.mark.parametrize("is_double", [False, True])
def test_threads_compile_nothing_whatever_holds_for_a_block_of_code(seen, is_double):
    with jax.enable_x64(is_double), jax.default_matmul_precision("float32"):
        evaluator = Evaluator(Target(lambda x: bent(x) - x @ jnp.ones((2, 2)) @ x, np.zeros(2)))
        evaluator.values(POINTS[:3])
        with compilations() as compiled:
            evaluator.values(POINTS)
        assert (seen, compiled) == ([3], [])


def test_what_runs_on_the_host_runs_on_one_thread(seen):
    callers = set()

    def logdensity(x):
        def call(v):
            callers.add(threading.get_ident())
            return -0.5 * np.sum(v**2, axis=-1)

        return jax.pure_callback(call, jax.ShapeDtypeStruct((), x.dtype), x, vmap_method="expand_dims")

    value = Evaluator(Target(logdensity, np.zeros(2))).values(POINTS)
    np.testing.assert_allclose(value, -0.5 * np.sum(POINTS**2, axis=1))
    assert seen == []


def test_threads_share_the_memory_that_an_evaluation_may_take(seen, monkeypatch):
    target = Target(lambda x: -jnp.sum((x - jnp.arange(1000.0)[:, None]) ** 2), np.zeros(2))
    for most, expected in ((2 * VALUE_BLOCK * 2000, [2]), (VALUE_BLOCK * 2000, [])):
        seen.clear()
        for module in (cores, evaluator_module):
            monkeypatch.setattr(module, "LARGEST_INTERMEDIATE", most)
        Evaluator(target).values(POINTS)
        assert seen == expected


def test_quick_blocks_stay_on_one_thread(seen, monkeypatch):
    monkeypatch.setattr(cores, "WORTH_A_THREAD", 10.0)
    evaluator = Evaluator(Target(bent, np.zeros(2)))
    for _ in range(2):
        evaluator.values(POINTS)
    assert seen == []


def test_a_process_takes_no_more_cores_than_jax_was_told_to(monkeypatch):
    monkeypatch.delenv("PJRT_NPROC", raising=False)
    there = cores.num_cores()
    for told, expected in {"1": 1, "100000": there, "many": there, "0": there}.items():
        monkeypatch.setenv("PJRT_NPROC", told)
        assert cores.num_cores() == expected


def test_a_core_is_left_to_xla(monkeypatch):
    # As many programs as XLA has threads can wait for each other without end.
    for there, expected in ((1, 1), (2, 1), (16, 15)):
        monkeypatch.setattr(cores, "num_cores", lambda there=there: there)
        assert cores.num_side_by_side() == expected
