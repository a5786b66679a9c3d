import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import gaussian_mixture
from klover.base.checks import as_key
from klover.importance import psis, ratios
from klover.importance import stream as module
from klover.importance.stream import Tasks, keep_largest, stream
from klover.importance.sums import log_evidence, mean_and_error
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.targets.adapters.callback import from_callback

NUM = 5 * 512 + 100
FUNCTIONS = {"far": lambda x: x[0] > 4, "outer": lambda x: jnp.outer(x, x)}


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    """Let a few thousand draws be many tasks, the last of them cut short."""
    monkeypatch.setattr(module, "CHUNK", 64)
    monkeypatch.setattr(module, "HOST_CHUNK", 64)
    monkeypatch.setattr(module, "CHUNKS_PER_TASK", 2)
    monkeypatch.setattr(module, "TASKS_PER_WORKER", 2)


@pytest.fixture(scope="module")
def known():
    return gaussian_mixture()


@pytest.fixture(scope="module")
def proposal(known):
    location = np.array([[-3.0, 0.0], [3.0, 1.0]])
    return Mixture.of(Family("student", df=5.0).components(location, np.stack([np.eye(2)] * 2)))


def run(target, proposal, num_draws=NUM, num_workers=1, functions=FUNCTIONS):
    *_, done = stream(as_key(3), target, proposal, functions, num_draws, num_workers)
    return done


def all_ratios(target, proposal, num_draws=NUM):
    """Return the ratios of all draws, in their order, and the draws."""
    key, size = as_key(3), 64
    draw = module._drawer(key, jax.tree.map(np.asarray, proposal), size, np.dtype(float))
    x = np.concatenate([draw(index) for index in range(-(-num_draws // size))])[:num_draws]
    return np.asarray(target.log_prob(x)) - proposal.log_prob(x), x


def test_a_stream_says_what_its_draws_say(known, proposal):
    log_ratio, x = all_ratios(known.target, proposal)
    done = run(known.target, proposal)
    values = np.column_stack([x, x[:, 0] > 4, (x[:, :, None] * x[:, None, :]).reshape(-1, 4)])
    np.testing.assert_allclose(
        mean_and_error(done.sums), ratios.self_normalised(log_ratio, values), rtol=1e-10, atol=1e-12
    )
    assert int(done.sums.num_draws) == NUM
    largest = keep_largest(done.largest, psis.num_needed(NUM))
    found = psis.pareto_k_of_largest(largest, NUM, int(done.sums.num_finite))
    # The program rounds in another order than NumPy does.
    np.testing.assert_allclose(np.sort(largest), np.sort(log_ratio)[-len(largest) :], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found, psis.pareto_k(log_ratio), rtol=1e-9)
    value, error = log_evidence(done.sums, proposal.weights)
    assert abs(value - known.log_evidence) < 4 * error


@pytest.mark.parametrize("num_workers", [2, 3])
def test_the_number_of_workers_changes_nothing(known, proposal, num_workers):
    alone, together = run(known.target, proposal), run(known.target, proposal, num_workers=num_workers)
    jax.tree.map(np.testing.assert_array_equal, alone.sums, together.sums)
    np.testing.assert_array_equal(np.sort(alone.largest), np.sort(together.largest))


def test_who_ends_first_changes_nothing_and_few_tasks_wait(known, proposal, monkeypatch):
    expected, started, finished = run(known.target, proposal), [], threading.Event()
    run_task = Tasks.run

    def run_backwards(self, index, floor):
        started.append(index)
        if index == 0:
            finished.wait()
        found = run_task(self, index, floor)
        if index == 3:
            # All that may be under way is, and no more, while the first task is late.
            assert set(started) == {0, 1, 2, 3}
            finished.set()
        return found

    monkeypatch.setattr(Tasks, "run", run_backwards)
    found = run(known.target, proposal, num_workers=2)
    assert len(started) == -(-NUM // 128)
    jax.tree.map(np.testing.assert_array_equal, expected.sums, found.sums)


@pytest.mark.parametrize("num_draws", [3, 24, 700])
@pytest.mark.parametrize("num_outside", [0, 5, 650])
def test_the_largest_ratios_are_enough_for_the_tail_index(num_draws, num_outside):
    generator = np.random.default_rng(num_draws)
    log_ratio = generator.normal(size=num_draws) ** 3
    log_ratio[:num_outside] = -np.inf
    num = psis.num_needed(num_draws)
    largest = keep_largest(log_ratio, num)
    known = np.concatenate([np.full(num - len(largest), -np.inf), largest])
    found = psis.pareto_k_of_largest(known, num_draws, int(np.sum(log_ratio > -np.inf)))
    assert found == psis.pareto_k(log_ratio)


def test_a_callback_is_streamed_on_the_host(known, proposal):
    host = from_callback(lambda x: float(known.target.log_prob(x)), 2)
    done, expected = run(host, proposal, 300), run(known.target, proposal, 300)
    found = mean_and_error(done.sums), log_evidence(done.sums, proposal.weights)
    wanted = mean_and_error(expected.sums), log_evidence(expected.sums, proposal.weights)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12), found, wanted)


def test_functions_that_jax_cannot_trace_are_called_draw_by_draw(known, proposal):
    done = run(known.target, proposal, 300, functions={"far": lambda x: float(x[0]) > 4 and 1.0})
    expected = run(known.target, proposal, 300, functions={"far": lambda x: x[0] > 4})
    np.testing.assert_allclose(mean_and_error(done.sums), mean_and_error(expected.sums), rtol=1e-9, atol=1e-12)
