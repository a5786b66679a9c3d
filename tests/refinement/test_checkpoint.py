import dataclasses
import datetime
import enum
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coordinates import draw_funnel, equal_weights
from helpers import damage
from klover import Target
from klover.fitting.sample import equal
from klover.mixtures.algebra import mixture_of
from klover.mixtures.components import Family
from klover.refinement import checkpoint
from klover.refinement.pool import Pool
from klover.refinement.state import Context, RoundInfo, Stage, State
from klover.results.codec import DamagedFile
from klover.sampling.hamiltonian import Particles
from klover.targets.evaluator import Evaluator
from klover.warps.warp import fit_warp
from klover.warps.warped import behind, is_behind

DIM = 3
ASKED = {"key": [0, 7], "max_components": None, "family": "student", "start": None}


def make_target(shift=0.0):
    return Target(lambda x: -0.5 * jnp.sum((x - shift) ** 2), jnp.zeros(DIM))


def make_context(target=None, budget=None, reserve=0, seed=0) -> Context:
    return Context(np.random.default_rng(seed), Evaluator(target or make_target(), budget, reserve), 8)


def make_mixture(family="student", seed=0):
    rng = np.random.default_rng(seed)
    covariance = rng.uniform(0.5, 2.0, (2, DIM))[:, :, None] * np.eye(DIM)
    return mixture_of(Family.parse(family), rng.normal(size=(2, DIM)), covariance, 6.0, np.array([1.0, 2.0]))


def full_state(context: Context, family="student") -> State:
    """Return a state in which every field holds something."""
    pool = Pool.empty(DIM)
    for seed in range(2):
        x = make_mixture(family, seed).draw(context.generator, 40)
        pool = pool.add(make_mixture(family, seed), x, context.evaluator.values(x))
    warp = fit_warp("led", draw_funnel(500, DIM), equal_weights(500))
    warped = behind(make_mixture(family, 3), warp)
    x = warped.draw(context.generator, 40)
    pool = pool.add(warped, x, context.evaluator.values(x))
    particles = [
        Particles(pool.x[part], pool.log_p[part], -pool.x[part], 0.1 * (1 + number))
        for number, part in enumerate([slice(0, 8), slice(8, 16), slice(16, 24), slice(24, 32)])
    ]
    infos = tuple(RoundInfo(n, 2, 40, 0.5, np.inf, -0.3, 0.1, 0.0, 40 * (n + 1), 0.5) for n in range(2))
    return State(
        make_mixture(family, 5),
        make_mixture(family, 6),
        pool,
        stage=Stage.EXPLORE,
        was_hard=True,
        warp=warp,
        frontier=make_mixture(family, 7),
        frontier_particles=(particles[0], particles[1]),
        archive=(particles[2], particles[3]),
        discovered=(0.25, -0.01),
        most_invalid=(3, 1, 40),
        can_chain=True,
        chains=pool.x[:8],
        seen=equal(pool.x[:16], pool.log_p[:16]),
        num_windows=2,
        is_followed=True,
        best_ess=0.7,
        num_stale=1,
        num_returns=1,
        is_done=False,
        history=infos,
    )


def assert_same(one, other):
    """Compare two values of the same kind, all the way down and to the last bit."""
    assert type(one) is type(other)
    if dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for first, second in zip(one, other, strict=True):
            assert_same(first, second)
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, enum.Enum):
        assert one is other
    else:
        assert one == other


@pytest.mark.parametrize("family", ["student", "normal-diagonal", "student-low-rank"])
def test_a_state_comes_back_to_the_last_bit(tmp_path, family):
    context = make_context()
    state = full_state(context, family)
    checkpoint.save(tmp_path / "state.npz", context, state, ASKED)
    assert_same(checkpoint.load(tmp_path / "state.npz", make_context(), ASKED), state)


def test_a_state_of_the_beginning_comes_back(tmp_path):
    context = make_context()
    state = State(make_mixture(), make_mixture(seed=1), Pool.empty(DIM))
    checkpoint.save(tmp_path / "state.npz", context, state, ASKED)
    assert_same(checkpoint.load(tmp_path / "state.npz", make_context(), ASKED), state)


def test_chance_and_counts_go_on_from_where_they_were(tmp_path):
    context = make_context()
    state = full_state(context)
    context.generator.normal(size=7)
    context.evaluator.num_nan, context.evaluator.num_raised = 5, 2
    counts = context.evaluator.counts()
    checkpoint.save(tmp_path / "state.npz", context, state, ASKED)
    expected = context.generator.normal(size=5)
    other = make_context(seed=99)
    checkpoint.load(tmp_path / "state.npz", other, ASKED)
    np.testing.assert_array_equal(other.generator.normal(size=5), expected)
    for name in ("num_evaluations", "num_nan", "num_infinite", "num_raised", "seconds"):
        assert getattr(other.evaluator, name) == counts[name]
    assert other.evaluator.elapsed > counts["elapsed"]


def test_a_file_is_replaced_at_once_and_leaves_nothing_behind(tmp_path):
    context = make_context()
    state = full_state(context)
    for number in range(2):
        checkpoint.save(tmp_path / "state.npz", context, dataclasses.replace(state, num_stale=number), ASKED)
    assert [path.name for path in tmp_path.iterdir()] == ["state.npz"]
    assert checkpoint.load(tmp_path / "state.npz", make_context(), ASKED).num_stale == 1


def test_no_part_of_a_file_is_pickled(tmp_path):
    context = make_context()
    checkpoint.save(tmp_path / "state.npz", context, full_state(context), ASKED)
    with np.load(tmp_path / "state.npz", allow_pickle=False) as archive:
        assert all(archive[name].dtype != object for name in archive.files)


def saved(tmp_path):
    context, path = make_context(), tmp_path / "state.npz"
    checkpoint.save(path, context, full_state(context), ASKED)
    return path


def test_another_dimension_is_refused(tmp_path):
    path = saved(tmp_path)
    flat = Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2))
    with pytest.raises(ValueError, match="belongs to a target of dimension 3, but this one has 2"):
        checkpoint.load(path, make_context(flat), ASKED)


def test_another_target_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"belongs to another target: its log density differs by .* at a stored draw"):
        checkpoint.load(saved(tmp_path), make_context(make_target(0.1)), ASKED)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"key": [0, 8]}, r"key = \[0, 7\], got \[0, 8\]"),
        ({"max_components": 4}, "max_components = None, got 4"),
        ({"family": "normal"}, "family = student, got normal"),
        ({"start": "ndarray"}, "start = None, got ndarray"),
    ],
)
def test_other_arguments_are_refused(tmp_path, change, words):
    with pytest.raises(ValueError, match=words):
        checkpoint.load(saved(tmp_path), make_context(), ASKED | change)


def test_what_was_refused_has_changed_nothing(tmp_path):
    context, path = make_context(), saved(tmp_path)
    before = json.dumps(context.generator.bit_generator.state)
    with pytest.raises(ValueError, match="family"):
        checkpoint.load(path, context, ASKED | {"family": "normal"})
    assert json.dumps(context.generator.bit_generator.state) == before


def test_a_budget_must_pay_for_what_was_spent_and_for_the_final_draws(tmp_path):
    # The state's draws have cost 120 evaluations.
    path = saved(tmp_path)
    assert checkpoint.load(path, make_context(budget=150, reserve=30), ASKED).num_stale == 1
    with pytest.raises(ValueError, match=r"pay for the 120 evaluations of checkpoint .* and for 31 final draws"):
        checkpoint.load(path, make_context(budget=150, reserve=31), ASKED)


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_a_damaged_file_is_refused_with_the_remedy(tmp_path, content):
    path = tmp_path / "state.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="delete it, and begin again"):
        checkpoint.load(path, make_context(), ASKED)


def test_a_truncated_file_is_refused(tmp_path):
    path = saved(tmp_path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match="delete it, and begin again"):
        checkpoint.load(path, make_context(), ASKED)


def test_damaged_files_are_refused_or_read_as_they_were(tmp_path):
    path, context = saved(tmp_path), make_context()
    expected, content = checkpoint.load(path, context, ASKED), path.read_bytes()
    num_refused = 0
    for changed in damage(content, 200):
        path.write_bytes(changed)
        try:
            again = checkpoint.load(path, context, ASKED)
        except DamagedFile:
            num_refused += 1
            continue
        assert_same(again, expected)
    assert num_refused > 100


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_stale", "two"),
        ("was_hard", []),
        ("most_invalid", {"tuple": [1, 2]}),
        ("discovered", {"tuple": [0.1, None]}),
        ("mixture", None),
        ("stage", "explore"),
        ("history", {"tuple": [1]}),
        ("archive", {"tuple": [{"dict": {}}]}),
        ("warp", {"tuple": []}),
    ],
)
def test_a_state_that_is_something_else_is_damage(tmp_path, field, value):
    path = saved(tmp_path)
    with np.load(path) as archive:
        arrays = dict(archive)
    description = json.loads(str(arrays["description"]))
    description["state"]["fields"][field] = value
    with open(path, "wb") as file:
        np.savez(file, **(arrays | {"description": np.array(json.dumps(description))}))
    with pytest.raises(DamagedFile, match="delete it, and begin again"):
        checkpoint.load(path, make_context(), ASKED)


def test_changed_data_are_refused_in_single_precision(tmp_path):
    data = np.random.default_rng(0).normal(size=500).astype("float32")

    def context(data):
        return make_context(Target(lambda x: -0.5 * jnp.sum((x[0] - data) ** 2) - 0.5 * x @ x, np.zeros(DIM)))

    with jax.enable_x64(False):
        before = context(data)
        checkpoint.save(tmp_path / "a", before, full_state(before), ASKED)
        checkpoint.load(tmp_path / "a", context(data), ASKED)
        data = np.where(np.arange(500) == 3, data + np.float32(0.3), data)
        with pytest.raises(ValueError, match="belongs to another target"):
            checkpoint.load(tmp_path / "a", context(data), ASKED)


def test_a_time_that_is_over_still_tells_another_target(tmp_path):
    path, over = saved(tmp_path), datetime.timedelta(0)
    assert checkpoint.load(path, make_context(budget=over), ASKED).num_stale == 1
    with pytest.raises(ValueError, match="belongs to another target"):
        checkpoint.load(path, make_context(make_target(0.1), budget=over), ASKED)


def test_records_cover_all_that_a_state_is_made_of():
    # A new field of a new class would be written, and could not be read.
    seen = set()

    def visit(value):
        if dataclasses.is_dataclass(value):
            seen.add(type(value))
            for field in dataclasses.fields(value):
                visit(getattr(value, field.name))
        elif isinstance(value, tuple):
            for each in value:
                visit(each)
        elif isinstance(value, enum.Enum):
            seen.add(type(value))

    for family in ("student", "student-diagonal", "student-low-rank"):
        visit(full_state(make_context(), family))
    assert seen == set(checkpoint.RECORDS)
    assert not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(full_state(make_context()).mixture))


def test_a_proposal_still_has_the_coordinates_of_the_state(tmp_path):
    state = checkpoint.load(saved(tmp_path), make_context(), ASKED)
    assert is_behind(state.pool.proposals[-1], state.warp)
    assert not is_behind(state.pool.proposals[0], state.warp)
