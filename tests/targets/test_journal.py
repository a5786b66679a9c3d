import contextlib
import os
import re
import resource

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klover import Target
from klover.base.checks import DamagedFile
from klover.base.frames import pack
from klover.targets.evaluator import Evaluator
from klover.targets.journal import BOTH, GRADIENTS, MAGIC, VALUES, Journal, Unwritable

POINTS = np.random.default_rng(0).normal(size=(6, 2))
HEIGHTS = -0.5 * np.sum(POINTS**2, axis=1, keepdims=True)


def write(path, dim=2):
    """Write values of four points, values and gradients of two, and a fact."""
    with Journal(str(path), dim, np.float64) as journal:
        journal.append(VALUES, POINTS[:4], HEIGHTS[:4], {1: "ValueError: é"})
        journal.fact("seconds", lambda: 0.25)
        journal.append(BOTH, POINTS[4:], np.column_stack([HEIGHTS[4:], -POINTS[4:]]))


def opened(path, dtype=np.float64, dim=2):
    return Journal(str(path), dim, dtype)


def held(path) -> int:
    """Count what a file gives out, each of it as it was written."""
    with opened(path) as journal:
        values, both = journal.find(VALUES, POINTS), journal.find(BOTH, POINTS)
        np.testing.assert_array_equal(values.rows[values.is_known], HEIGHTS[values.is_known])
        np.testing.assert_array_equal(both.rows[both.is_known, 1:], -POINTS[both.is_known])
        return int(values.is_known.sum() + both.is_known.sum())


def normal(shift=0.0, noise=0.0, dim=2):
    return Target(lambda x: -0.5 * jnp.sum((x - shift) ** 2), jnp.zeros(dim))


def test_what_was_written_is_given_out_once(tmp_path):
    write(tmp_path / "a")
    with opened(tmp_path / "a") as journal:
        found = journal.find(VALUES, POINTS[[0, 1, 4, 0]])
        assert found.is_known.tolist() == [True, True, False, False]
        np.testing.assert_array_equal(found.rows[:, 0], [*HEIGHTS[:2, 0], np.nan, np.nan])
        assert found.words == {1: "ValueError: é"}
        assert not journal.find(GRADIENTS, POINTS).is_known.any()
        assert journal.find(BOTH, POINTS).is_known.tolist() == [False] * 4 + [True] * 2
        assert journal.num_replayed == 4
        assert journal.fact("seconds", lambda: 99.0) == 0.25


def test_a_point_that_was_evaluated_twice_has_both_results_in_their_order(tmp_path):
    for number in (1.0, 2.0):
        with opened(tmp_path / "a") as journal:
            journal.append(VALUES, POINTS[:1], np.array([[number]]))
    with opened(tmp_path / "a") as journal:
        journal.append(VALUES, POINTS[:1], np.array([[3.0]]))  # what this run has made is not given to it
        found = journal.find(VALUES, POINTS[[0, 0, 0]])
        assert found.rows[:2, 0].tolist() == [1.0, 2.0]
        assert not found.is_known[2]


def test_a_file_cut_anywhere_holds_what_was_whole_and_can_be_written_again(tmp_path):
    write(tmp_path / "a")
    whole, counts = (tmp_path / "a").read_bytes(), []
    for length in (*range(0, len(whole), 5), len(whole)):
        (tmp_path / "b").write_bytes(whole[:length])
        counts.append(held(tmp_path / "b"))
        with opened(tmp_path / "b") as journal:
            journal.append(VALUES, POINTS[5:], HEIGHTS[5:])
        assert held(tmp_path / "b") == counts[-1] + 1
    assert sorted(set(counts)) == [0, 4, 6]
    assert counts == sorted(counts)


@settings(max_examples=40)
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_in_the_last_piece(tmp_path_factory, place, change):
    path = tmp_path_factory.mktemp("changed") / "a"
    write(path)
    content = bytearray(path.read_bytes())
    place %= len(content)
    content[place] ^= change
    path.write_bytes(bytes(content))
    try:
        assert held(path) == 4
    except DamagedFile as error:
        (told,) = re.findall(r"at byte (\d+)", str(error))  # where the piece begins that the byte is in
        assert 0 <= place - int(told) < 250


@pytest.mark.parametrize(
    "piece",
    [b"", b"v", b"v\1\0\0\0short", b"f[1]", b'f{"a": "b"}', b"f{", b"x", b"h{}", b"v\1\0\0\0" + bytes(24) + b"[]"],
)
def test_a_piece_that_says_nothing_is_damage(tmp_path, piece):
    path = tmp_path / "a"
    write(path)
    size = os.path.getsize(path)
    with open(path, "ab") as file:
        file.write(pack(piece))
    with pytest.raises(DamagedFile, match=f"at byte {size} "):
        opened(path)


def test_foreign_newer_and_other_files_are_refused_and_left_as_they_are(tmp_path):
    path = tmp_path / "a"
    for content, words in (
        (b"text", "is no klover journal"),
        (MAGIC + pack(b'h{"version": 2}'), r"written by a newer klover \(format 2\): update"),
        (MAGIC + pack(b"h[]"), "is damaged"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=words):
            opened(path)
        assert path.read_bytes() == content
    path.unlink()
    write(path)
    with pytest.raises(ValueError, match="a target of dimension 2, but this one has 3"):
        opened(path, dim=3)
    with pytest.raises(ValueError, match="a target of precision float64, but this one has float32"):
        opened(path, np.float32)


def test_two_runs_do_not_write_one_file(tmp_path):
    with opened(tmp_path / "a"), pytest.raises(ValueError, match="is being written by another run"):
        opened(tmp_path / "a")
    opened(tmp_path / "a").__exit__(None, None, None)


def test_a_full_disk_is_told_and_what_was_written_stays(tmp_path):
    write(tmp_path / "a")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(tmp_path / "a") as journal:
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(tmp_path / "a") + 20, limits[1]))
        try:
            with pytest.raises(Unwritable, match="cannot be written: File too large. All evaluations before are in it"):
                journal.append(VALUES, POINTS, HEIGHTS)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert held(tmp_path / "a") == 6


@contextlib.contextmanager
def kept(path, target):
    """Give an evaluator that keeps a journal, and the journal."""
    evaluator = Evaluator(target)
    with Journal(str(path), target.dim, target.start.dtype) as journal, evaluator.keeping(journal):
        yield evaluator, journal


def test_an_evaluator_makes_only_what_the_file_does_not_hold(tmp_path, monkeypatch):
    x, path = np.random.default_rng(1).normal(size=(3000, 2)), tmp_path / "a"
    with kept(path, normal()) as (first, journal):
        expected = first.values(x), *first.values_and_gradients(x[:40])
    with kept(path, normal()) as (second, journal):
        sizes, append = [], journal.append
        monkeypatch.setattr(journal, "append", lambda kind, x, *rest: (sizes.append(len(x)), append(kind, x, *rest)))
        again = second.values(x), *second.values_and_gradients(x[:40])
        assert (sizes, second.num_replayed) == ([], 3040)
        np.testing.assert_array_equal(second.values(x[:5]), expected[0][:5])
        assert (sizes, second.num_replayed, second.num_evaluations) == ([5], 3040, 3045)
    for one, other in zip(again, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    with kept(path, normal()) as (third, journal):
        mixed = third.values(np.concatenate([x[:10], -x[:10]]))
        assert third.num_replayed == 10
    np.testing.assert_allclose(mixed, np.tile(expected[0][:10], 2))


def test_the_journal_of_another_density_is_refused(tmp_path):
    x = np.random.default_rng(2).normal(size=(100, 2))
    with kept(tmp_path / "a", normal()) as (evaluator, journal):
        evaluator.values_and_gradients(x)
    for other in (normal(1e-3), Target(lambda x: jnp.sum(x) * jnp.nan, jnp.zeros(2))):
        with pytest.raises(ValueError, match="belongs to another target: .* Were the model or its data changed"):
            kept(tmp_path / "a", other).__enter__()
    with kept(tmp_path / "b", Target(lambda x: -jnp.inf + 0 * x[0], jnp.zeros(2))) as (outside, journal):
        outside.values(x)
    with pytest.raises(ValueError, match=r"belongs to another target: .*\(by inf\)"):
        kept(tmp_path / "b", normal()).__enter__()
    # Rounding is no change: sums in another order.
    with kept(tmp_path / "a", Target(lambda x: -0.5 * (x[1] ** 2 + x[0] ** 2), jnp.zeros(2))) as (evaluator, _):
        evaluator.values_and_gradients(x)
        assert evaluator.num_replayed == 100


def test_errors_are_counted_as_if_they_had_been_raised_again(tmp_path):
    def fails(x):
        if x[0] > 0:
            raise ValueError("too large")
        return -0.5 * np.sum(x**2)

    call = jax.ShapeDtypeStruct((), np.float64)
    target = Target(lambda x: jax.pure_callback(fails, call, x, vmap_method="sequential"), jnp.zeros(2))
    counts = []
    for _ in range(2):
        with kept(tmp_path / "a", target) as (evaluator, journal):
            evaluator.values(POINTS)
            counts.append((evaluator.num_raised, evaluator.num_nan, evaluator.num_evaluations, evaluator.num_replayed))
    num_raised = int((POINTS[:, 0] > 0).sum())
    assert counts == [(num_raised, num_raised, 6, 0), (num_raised, num_raised, 6, 6)]
