"""Draws by the billion: drawn, weighed, added up and forgotten, in constant memory.

Draws come in chunks, and chunk i has random numbers of its own, made of the key and i. A task is some chunks in a row;
tasks run side by side, on threads and on all devices, and their sums are added in their order. So the numbers depend
neither on how many workers there are nor on who ends first. For a density that JAX can trace, one compiled program
makes the sums of a chunk; one that calls the host is weighed and summed on the host.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from klover.base.arrays import namespace
from klover.base.checks import check_result, note
from klover.base.jaxpr import calls_host, trace
from klover.base.shapes import AnyArray, Float, PerComponent, PerDraw, Points, PyTree, RandomKey
from klover.importance import psis
from klover.importance.draws import over_draws
from klover.importance.sums import Sums, combine, stack, sums_of
from klover.targets.cores import num_side_by_side
from klover.targets.evaluator import Evaluator
from klover.targets.positions import ravel_rows
from klover.targets.target import LARGEST_INTERMEDIATE, Target, log_prob_in_blocks
from klover.warps.warped import Proposal

CHUNK, HOST_CHUNK, LARGE_CHUNK = 2**14, 2**12, 2**20
"""Draws of a chunk: it stays in a core's cache, a slow function does not take for ever, and an accelerator is busy."""
CHUNKS_PER_TASK = 16
TASKS_PER_WORKER = 16
"""Tasks that are under way for each worker; what they have found waits until it is added in its order."""
RESERVE = 2
"""Times as many of the largest ratios are kept as k̂ needs, so that streams can be merged."""

Functions = Mapping[str, Callable[[PyTree], PyTree]]
Draw = Callable[[int], Points]
Chunk = Callable[[int, int], tuple[Sums, PerDraw]]
"""From the number of a chunk, and of its draws that count, to its sums and its ratios."""


class Part(NamedTuple):
    """What a task has found: its sums, and its largest ratios."""

    sums: Sums
    largest: Float[np.ndarray, " known"]


def num_kept(num_draws: int) -> int:
    """Count the largest ratios that are kept of so many draws."""
    return min(RESERVE * psis.num_needed(num_draws), num_draws)


def keep_largest(log_ratio: PerDraw, num: int) -> Float[np.ndarray, " known"]:
    """Return the largest ratios, in any order; those that are zero tell nothing."""
    finite = np.asarray(log_ratio, float)
    finite = finite[finite > -np.inf]
    return finite if len(finite) <= num else np.partition(finite, len(finite) - num)[len(finite) - num :]


def stream(
    key: RandomKey,
    target: Target,
    proposal: Proposal,
    functions: Functions,
    num_draws: int,
    num_workers: int | None = None,
    tell: Callable[[int], None] = lambda num_done: None,
) -> Iterator[Part]:
    """Draw and weigh, and yield what all draws so far add up to, after each wave of tasks."""
    tasks = Tasks.of(key, target, proposal, functions, num_draws)
    num_workers = num_workers or tasks.num_workers
    total = Total(num_draws, tell)
    with ThreadPoolExecutor(num_workers) as pool:
        for first in range(0, tasks.num_tasks, TASKS_PER_WORKER * num_workers):
            wave = range(first, min(first + TASKS_PER_WORKER * num_workers, tasks.num_tasks))
            for part in pool.map(functools.partial(tasks.run, floor=total.floor), wave):
                total.add(part)
            yield total.so_far


class Total:
    """What tasks add up to, added in their order, and told.

    Parameters
    ----------
    num_draws
        Of all tasks.
    tell
        Called with the number of draws so far.
    """

    def __init__(self, num_draws: int, tell: Callable[[int], None]):
        self._num_kept, self._tell = num_kept(num_draws), tell
        self.done: Part | None = None

    @property
    def so_far(self) -> Part:
        """What all tasks so far add up to."""
        assert self.done is not None
        return self.done

    @property
    def floor(self) -> float:
        """What a ratio has to be above to count: whoever knows it leaves out the others at once."""
        enough = self.done is not None and len(self.done.largest) == self._num_kept
        return float(self.so_far.largest.min()) if enough else -np.inf

    def add(self, part: Part) -> None:
        """Add the next task."""
        self.done = part if self.done is None else add(self.done, part, self._num_kept)
        self._tell(int(self.done.sums.num_draws))


def add(first: Part, second: Part, num: int) -> Part:
    """Add up two parts, and keep so many of the largest ratios."""
    largest = keep_largest(np.concatenate([first.largest, second.largest]), num)
    return Part(combine(stack([first.sums, second.sums])), largest)


@dataclasses.dataclass(frozen=True, eq=False)
class Tasks:
    """The tasks of a stream, by number."""

    num_draws: int
    chunk: Chunk
    size: int
    """Draws of a chunk."""
    num_workers: int
    is_double: bool
    devices: tuple[Any, ...]

    @classmethod
    def of(cls, key: RandomKey, target: Target, proposal: Proposal, functions: Functions, num_draws: int) -> "Tasks":
        """Prepare tasks: compiled ones if JAX can trace the density and the functions."""
        devices, dtype, backend = tuple(jax.local_devices()), target.start.dtype, jax.default_backend()
        is_double = dtype == np.float64
        source = jax.tree.map(jnp.asarray if backend != "cpu" else np.asarray, proposal)
        if not calls_host(jax.make_jaxpr(target.log_prob)(target.start).jaxpr):
            size = _chunk_size(CHUNK if backend == "cpu" else LARGE_CHUNK, num_draws, target, proposal)
            chunk = _compiled_chunk(target, proposal, functions, _drawer(key, source, size, dtype), size)
            if chunk is not None:
                # While the host adds up, an accelerator works on the next task.
                per_device = 2 if backend != "cpu" else num_side_by_side() if len(devices) == 1 else 1
                return cls(num_draws, chunk, size, per_device * len(devices), is_double, devices)
        size = _chunk_size(HOST_CHUNK, num_draws, target, proposal)
        chunk = _host_chunk(target, proposal, functions, _drawer(key, source, size, dtype))
        # Foreign code need not bear two threads.
        return cls(num_draws, chunk, size, 1, is_double, devices[:1])

    @property
    def num_draws_each(self) -> int:
        """Draws of a task."""
        return CHUNKS_PER_TASK * self.size

    @property
    def num_tasks(self) -> int:
        """How many tasks there are."""
        return -(-self.num_draws // self.num_draws_each)

    def run(self, index: int, floor: float) -> Part:
        """Run a task; of the ratios only those above ``floor`` are wanted."""
        first, end = index * self.num_draws_each, min((index + 1) * self.num_draws_each, self.num_draws)
        # A thread does not inherit the settings of the one that began it.
        with jax.default_device(self.devices[index % len(self.devices)]), jax.enable_x64(self.is_double):
            starts = range(first, end, self.size)
            done = [self.chunk(start // self.size, min(self.size, end - start)) for start in starts]
            ratios = [np.asarray(log_ratio) for _, log_ratio in done]
            sums = combine(stack([sums for sums, _ in done]))
        above = np.concatenate([log_ratio[log_ratio > floor] for log_ratio in ratios])
        return Part(sums, keep_largest(above, num_kept(self.num_draws)))


def _chunk_size(most: int, num_draws: int, target: Target, proposal: Proposal) -> int:
    """Return how many draws to take at a time: fewer where one of them makes large arrays."""
    limit = LARGEST_INTERMEDIATE // max(target.dim, proposal.capacity, 1)
    return max(min(most, limit, num_draws), 1)


def _drawer(key: RandomKey, proposal: Proposal, size: int, dtype: Any) -> Callable[[int], Points]:
    """Return a function that draws chunk i: on the host, which is quicker than XLA on a CPU, or on an accelerator."""
    if namespace(*jax.tree.leaves(proposal)) is jnp:
        draw = jax.jit(lambda index: proposal.sample(jax.random.fold_in(key, index), size).astype(dtype))
        return lambda index: draw(np.uint32(index))
    data = np.asarray(jax.random.key_data(key)).tolist()

    def draw_on_host(index):
        generator = np.random.default_rng(np.random.SeedSequence(data, spawn_key=(index,)))
        # Rounded as the target will see them, so that both densities are those of one point.
        return proposal.draw(generator, size).astype(dtype)

    return draw_on_host


def _relate(proposal: Proposal, x: Points) -> tuple[PerDraw, PerComponent]:
    """Return log q at draws, and the responsibilities over the roots of the weights: one exponential serves both."""
    xp = namespace(x)
    # Of a slot that is not used the density may be anything.
    is_used = (proposal.log_weights > -xp.inf)[:, None]
    joint = xp.where(is_used, proposal.log_weights[:, None] + proposal.component_log_prob(x), -xp.inf)
    highest = xp.max(joint, axis=0)
    share = xp.exp(joint - xp.where(highest > -xp.inf, highest, 0.0))
    total = xp.sum(share, axis=0)
    root = xp.where(is_used, xp.sqrt(proposal.weights)[:, None], 1.0)
    return highest + xp.log(total), share / (root * total)


def _values(target: Target, functions: Functions, x: Points) -> Float[AnyArray, "draw value"]:
    """Return the constrained positions at draws, and what the functions make of them, one row a draw."""
    positions = target.positions(x)
    columns = [positions, *(over_draws(function, positions) for function in functions.values())]
    return ravel_rows(jax.tree.map(lambda leaf: leaf.astype(x.dtype), columns))


def _compiled_chunk(target: Target, proposal: Proposal, functions: Functions, draw: Draw, size: int) -> Chunk | None:
    """Return a chunk that is one program but for the draws, or None if JAX cannot trace a function."""
    dtype = target.start.dtype
    proposal = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), proposal)

    def weigh(target, proposal, x, num_used):
        log_q, explaining = _relate(proposal, x)
        log_p = log_prob_in_blocks(target, x)
        is_used = jnp.arange(size) < num_used
        is_nan, is_infinite = is_used & jnp.isnan(log_p), is_used & (log_p == jnp.inf)
        log_ratio = jnp.where(is_used & ~is_nan & ~is_infinite, log_p - log_q, -jnp.inf)
        counts = num_used, jnp.sum(is_nan), jnp.sum(is_infinite)
        explaining = jnp.where(is_used, explaining, 0.0)
        sums = sums_of(log_ratio, explaining, _values(target, functions, x), *counts)
        return jax.tree.leaves(sums), log_ratio

    try:
        x = jax.ShapeDtypeStruct((size, target.dim), dtype)
        program = trace(weigh, target, proposal, x, np.int32(size), is_for_any_threads=True)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError):
        return None

    def run(index, num_used):
        sums, log_ratio = program(target, proposal, draw(index), np.int32(num_used))
        return Sums(*sums), log_ratio

    return run


def _host_chunk(target: Target, proposal: Proposal, functions: Functions, draw: Draw) -> Chunk:
    """Return a chunk that is computed on the host, where the target's own evaluator counts what is invalid."""
    evaluator = Evaluator(target)
    proposal = jax.tree.map(lambda leaf: np.asarray(leaf, float), proposal)

    def weigh(index, num_used):
        num_nan, num_infinite = evaluator.num_nan, evaluator.num_infinite
        x = np.asarray(draw(index), float)[:num_used]
        log_q, explaining = _relate(proposal, x)
        log_ratio = evaluator.values(x) - log_q
        counts = num_used, evaluator.num_nan - num_nan, evaluator.num_infinite - num_infinite
        return sums_of(log_ratio, explaining, _values(target, functions, x), *counts), log_ratio

    return weigh


def shapes_of(functions: Functions, target: Target) -> dict[str, PyTree]:
    """Return what each function gives at the example, and refuse what does not fit."""
    position = target.position(target.start)
    found = {}
    for name, function in functions.items():
        with note(f"functions[{name!r}] failed: make it a function of one constrained position."):
            found[name] = jax.tree.map(np.asarray, check_result(f"functions[{name!r}]", function(position)))
        if not jax.tree.leaves(found[name]):
            raise ValueError(f"functions[{name!r}] must return a number, an array or a pytree of arrays.")
    return found
