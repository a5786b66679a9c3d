"""A fit that was cut off, and is made again from its journal, is the fit that was not cut off, to the last bit."""

import datetime
import resource
import shutil
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import klover
import pool_functions
import resumed_job
from klover.refinement import surrogate
from klover.refinement.preparation import sharing
from klover.targets.evaluator import Evaluator
from klover.targets.journal import Journal, Unwritable
from klover.verdict.status import Status
from klover.warps.warped import WarpedMixture


def assert_same(one, other):
    for field in ("x", "log_p", "log_q", "log_weight"):
        np.testing.assert_array_equal(getattr(one.draws, field), getattr(other.draws, field))
    for leaf, same in zip(jax.tree.leaves(one.mixture), jax.tree.leaves(other.mixture), strict=True):
        np.testing.assert_array_equal(leaf, same)
    for name in set(one.history) - {"seconds"}:
        np.testing.assert_array_equal(one.history[name], other.history[name])
    assert (one.log_evidence, one.verdict, one.num_evaluations) == (
        other.log_evidence,
        other.verdict,
        other.num_evaluations,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a small fit of a Normal, and its journal."""
    path = tmp_path_factory.mktemp("whole") / "journal"
    return resumed_job.fit("jax", str(path), []), path


@settings(max_examples=6)
@given(st.floats(0.0, 1.0))
def test_a_journal_cut_anywhere_gives_the_same_fit(whole, share):
    fit, path = whole
    content, cut = path.read_bytes(), path.with_name("cut")
    cut.write_bytes(content[: int(share * len(content))])
    resumed = resumed_job.fit("jax", str(cut), [])
    assert_same(resumed, fit)
    assert resumed.settings["num_replayed"] <= fit.num_evaluations
    again = resumed_job.fit("jax", str(cut), [])
    assert_same(again, fit)
    assert again.settings["num_replayed"] == fit.num_evaluations


@pytest.mark.parametrize("kind", ["jax", "host"])
def test_a_killed_process_loses_what_was_in_flight_alone(tmp_path, kind):
    path, calls, plain_calls = str(tmp_path / "journal"), [], []
    done = subprocess.run([sys.executable, resumed_job.__file__, kind, path], timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    plain, resumed = resumed_job.fit(kind, None, plain_calls), resumed_job.fit(kind, path, calls)
    assert_same(resumed, plain)
    assert 100 < resumed.settings["num_replayed"] < plain.num_evaluations
    if kind == "host":
        # Of the calls before the kill those of one block at most are made again; three points check the journal.
        assert len(plain_calls) - resumed_job.MOST_CALLS - 10 < len(calls) < len(plain_calls) - 200


@pytest.mark.slow
def test_a_fit_behind_a_warp_is_replayed(tmp_path):
    def log_density(x):
        return -0.5 * (x[0] / 3) ** 2 - 0.5 * jnp.sum(x[1:] ** 2) / jnp.exp(x[0]) - 2 * x[0]

    target, path = klover.Target(log_density, jnp.zeros(5)), tmp_path / "journal"
    fit = klover.refine(0, target, journal=path)
    assert isinstance(fit.mixture, WarpedMixture)
    content = path.read_bytes()
    path.write_bytes(content[: 2 * len(content) // 3])
    resumed = klover.refine(0, target, journal=path)
    assert_same(resumed, fit)
    assert 0.5 < resumed.settings["num_replayed"] / fit.num_evaluations < 0.8


def test_a_larger_budget_and_another_key_find_what_they_share(whole, tmp_path):
    path, target = tmp_path / "journal", resumed_job.make_target("jax", [])
    short = klover.refine(0, target, budget=300, journal=path)
    longer = klover.refine(0, target, budget=3000, journal=path)
    assert_same(longer, klover.refine(0, target, budget=3000))
    assert 0 < longer.settings["num_replayed"] <= short.num_evaluations
    shutil.copy(whole[1], path)
    other = klover.refine(4, target, min_ess=200, surrogate=False, journal=path)
    assert_same(other, klover.refine(4, target, min_ess=200, surrogate=False))


def test_a_budget_of_time_is_that_of_each_call(tmp_path):
    path, target = tmp_path / "journal", resumed_job.make_target("jax", [])
    fits = [klover.refine(0, target, budget=datetime.timedelta(hours=1), journal=path) for _ in range(2)]
    assert all(fit.verdict.trusted for fit in fits)
    assert fits[1].settings["num_replayed"] > 0.9 * fits[1].num_evaluations


def test_a_noisy_density_is_seen_and_not_gone_on_with(tmp_path):
    generator, path = np.random.default_rng(0), str(tmp_path / "journal")
    target = klover.from_callback(lambda x: -0.5 * np.sum(x**2) + 1e-6 * generator.normal(), 2)
    fit = klover.refine(0, target, min_ess=200, surrogate=False, journal=path)
    assert fit.verdict.status is Status.NOISY
    with pytest.raises(ValueError, match="or is the density noisy"):
        klover.refine(0, target, min_ess=200, surrogate=False, journal=path)


def test_what_a_clock_has_decided_is_written_down(tmp_path):
    target = resumed_job.make_target("jax", [])
    with Journal(str(tmp_path / "journal"), 2, np.float64) as journal:
        assert not surrogate.is_wanted(None, target, 200, None, False, journal)[0]
    with Journal(str(tmp_path / "slow"), 2, np.float64) as journal:
        journal.fact("seconds", lambda: 5.0)
    calls = []
    with Journal(str(tmp_path / "slow"), 2, np.float64) as journal:
        target = resumed_job.make_target("host", calls)
        num_before = len(calls)
        assert surrogate.is_wanted(None, target, 200, None, False, journal) == (True, surrogate.NUM_TIMED)
        assert len(calls) == num_before


def test_errors_and_gradients_of_the_host_are_replayed_without_a_call(tmp_path):
    calls, fits = [], []

    def log_density(x):
        calls.append(x)
        if x[0] > 2:
            raise ArithmeticError("too large")
        return -0.5 * np.sum(x**2)

    for _ in range(2):
        target = klover.from_callback(log_density, 2, grad=lambda x: -x, bounds=(-3, 3))
        calls.clear()
        with pytest.warns(UserWarning, match=r"raised ArithmeticError: too large, at np.array\("):
            fits.append(klover.refine(0, target, budget=400, journal=tmp_path / "journal"))
    assert_same(*fits)
    assert len(calls) <= 3  # the first, the last and the highest point, to know the density by
    assert 0.9 * fits[1].num_evaluations < fits[1].settings["num_replayed"] <= fits[1].num_evaluations


def test_a_point_that_ended_its_process_is_not_tried_again(tmp_path):
    points = np.array([[0.0, 1.0], [pool_functions.POISON, 1.0], [2.0, 1.0]])
    expected = np.where(points[:, 0] == pool_functions.POISON, -np.inf, pool_functions.bell(points))
    # The second time it would end this process.
    for pool in (2, None):
        target = klover.from_callback(pool_functions.poisoned, 2)
        evaluator = Evaluator(target)
        with (
            Journal(str(tmp_path / "journal"), 2, np.float64) as journal,
            sharing(target, pool),
            evaluator.keeping(journal),
        ):
            with pytest.warns(UserWarning, match="was given up at"):
                found = evaluator.values(points)
            np.testing.assert_array_equal(found, expected)
            np.testing.assert_array_equal(evaluator.values(points[1:2]), -np.inf)
        assert len(evaluator.quarantined) == 1
        assert "has died" in evaluator.quarantined[0]


def test_a_full_disk_ends_a_fit_on_the_host_in_words(tmp_path):
    path, limits = tmp_path / "journal", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        for kind in ("host", "jax"):
            with pytest.raises(Unwritable, match="cannot be written: File too large"):
                resumed_job.fit(kind, str(path), [])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert_same(resumed_job.fit("jax", str(path), []), resumed_job.fit("jax", None, []))


def test_the_file_is_free_after_a_fit_and_after_an_error(tmp_path):
    path, target = tmp_path / "journal", resumed_job.make_target("jax", [])

    def fail(info):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        klover.refine(0, target, journal=path, callback=fail)
    fit = klover.refine(0, target, journal=path)
    size = path.stat().st_size
    fit.importance(1, 100)
    assert (fit.verdict.trusted, path.stat().st_size) == (True, size)
