"""The target as the host sees it: NumPy in, NumPy out, in blocks of few sizes, every evaluation counted.

Only the user's log density is compiled: a program for values, and one for values with gradients at each block size. All
other work of :func:`klover.refine` is NumPy, unless particles take over, so a first answer does not wait for the
compiler.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from klover.base.shapes import Float
from klover.targets.budget import Allowance, Budget, BudgetExhausted, check_budget
from klover.targets.cores import Cores
from klover.targets.loaded import TargetLike, as_target
from klover.targets.positions import pad
from klover.targets.prior import Points, PriorDraws
from klover.targets.target import LARGEST_INTERMEDIATE, Target

GRADIENT_BLOCKS = (32, 512)
VALUE_BLOCK = 1024
MANY = 2**14
"""Points from which on many at a time are worth another program: it saves some µs a point, and takes 0.15 to 0.3 s."""
SMALL_BLOCKS = (1, 32)
"""Further blocks where the budget is a time."""

THRIFTY_BLOCKS = (1, 8, 32)
"""Blocks where every point is expensive, and to fill a block with copies would cost as much."""

COUNTS = ("num_evaluations", "num_nan", "num_infinite", "num_raised", "seconds")

# What a target that raises on the host raises here; a ValueError where that surfaces with the result.
RAISED = (jax.errors.JaxRuntimeError, ValueError)


@runtime_checkable
class Coordinates(Protocol):
    """Other coordinates z for the points x of a target, as a :class:`klover.warps.warp.Warp` gives them."""

    def to_base(self, x: Any) -> tuple[Any, Any]:
        """Return z, and the log determinant of its derivative."""
        ...

    def from_base(self, z: Any) -> tuple[Any, Any]:
        """Return x, and the log determinant of its derivative."""
        ...

    def pull_back(self, z: Any, gradient: Any) -> Any:
        """Return the gradient of the density of z, given that of x."""
        ...


@jax.jit
def _values(target: Target, x):
    return (target.log_prob(x),)


@jax.jit
def _values_and_gradients(target: Target, x):
    return jax.vmap(jax.value_and_grad(target.log_prob))(x)


def _is_differentiable(target: Target, num_points: int) -> bool:
    """Whether JAX can differentiate the log density (a host callback has no gradient); what it traces is kept."""
    try:
        _values_and_gradients.eval_shape(target, jax.ShapeDtypeStruct((num_points, target.dim), target.start.dtype))
    except (TypeError, ValueError, NotImplementedError):
        return False
    return True


@contextlib.contextmanager
def _silent_callbacks() -> Iterator[None]:
    """Keep JAX from logging every error of a callback with its traceback; errors are counted and reported once."""
    log = logging.getLogger("jax._src.callback")
    was_disabled, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = was_disabled


class Evaluator:
    """Evaluate a target on the host, count the evaluations, and stop at the budget.

    Parameters
    ----------
    target
        The target.
    budget
        Most evaluations (an integer; a gradient counts as one) or most time (a ``datetime.timedelta``).
    reserve
        Evaluations that are kept back from the budget until :meth:`open_reserve`.
    is_thrifty
        Whether few points are evaluated at a time, each of them expensive: then blocks are small.
    """

    def __init__(self, target: TargetLike, budget: Budget = None, reserve: int = 0, is_thrifty: bool = False):
        self.target = as_target(target)
        self._allowance = Allowance(check_budget(budget), reserve)
        self.num_evaluations = self.num_nan = self.num_infinite = self.num_raised = 0
        self.seconds = self._seconds_outside = 0.0
        self._num_of_many = 0
        self.coordinates: Coordinates | None = None
        self._began = time.perf_counter()
        limit = max(LARGEST_INTERMEDIATE // self.target.largest_intermediate, 1)
        # Where the clock counts and a filled block costs more than its points, some blocks have to be small.
        self._is_filling_free = hasattr(self.target.model_info, "failures")
        small = SMALL_BLOCKS if self._allowance.is_timed and not self._is_filling_free else ()
        self._value_blocks = _up_to(limit, *small, VALUE_BLOCK)
        self._gradient_blocks = _up_to(limit, *small[:1], *GRADIENT_BLOCKS)
        self._is_thrifty = is_thrifty and not self._is_filling_free and not self._allowance.is_timed
        if self._is_thrifty:
            self._value_blocks = self._gradient_blocks = _up_to(limit, *THRIFTY_BLOCKS)
        self._ready: set[tuple[Callable, int]] = set()
        self._cores = Cores(self.target)
        self.has_gradient = _is_differentiable(self.target, self._gradient_blocks[0])
        self._compilation = threading.Thread(target=self._compile_values, daemon=True)
        self._prior = PriorDraws(self.target, self._compilation)
        if self.has_gradient:
            self._compilation.start()

    @property
    def elapsed(self) -> float:
        """Seconds since the evaluator was made."""
        return time.perf_counter() - self._began

    @property
    def reserve(self) -> int:
        """Evaluations that are kept back from the budget until :meth:`open_reserve`."""
        return self._allowance.reserve

    @property
    def num_left(self) -> int | None:
        """Evaluations that the budget still allows; None without such a budget."""
        return None if self._allowance.is_timed else self.num_affordable

    @property
    def num_affordable(self) -> int | None:
        """Evaluations that the rest of the budget pays for, at the present pace if it is a time; None if any number."""
        return self._allowance.num_affordable(self._spent)

    @property
    def seconds_left(self) -> float | None:
        """Seconds that the budget still allows; None without such a budget."""
        return float(self._allowance.rest(self.elapsed)) if self._allowance.is_timed else None

    @property
    def _spent(self) -> int | float:
        return self.elapsed if self._allowance.is_timed else self.num_evaluations

    def counts(self) -> dict[str, int | float]:
        """Return what has been counted, and the seconds that have passed."""
        return {name: getattr(self, name) for name in COUNTS} | {"elapsed": self.elapsed}

    def set_counts(self, counts: dict[str, int | float]) -> None:
        """Go on counting from where another evaluator stopped."""
        for name in COUNTS:
            setattr(self, name, counts[name])
        self._began = time.perf_counter() - counts["elapsed"]

    def measure_pace(self) -> None:
        """Find out how long an evaluation takes, by one at the example, if the budget is a time."""
        if self._allowance.is_timed:
            with contextlib.suppress(BudgetExhausted):
                self.values(np.asarray(self.target.start, float)[None])

    def part(self, share: float) -> contextlib.AbstractContextManager[None]:
        """Let no more than a share of the rest of the budget be spent meanwhile."""
        return self._allowance.part(self._spent, share)

    @contextlib.contextmanager
    def expect_as_long(self, factor: float) -> Iterator[None]:
        """Refuse a step of work if there is no time for one that, the target left aside, takes longer than the last."""
        if not self._allowance.has_room(self._spent, factor * self._seconds_outside):
            raise BudgetExhausted
        began = self.elapsed - self.seconds
        yield
        self._seconds_outside = self.elapsed - self.seconds - began

    def open_reserve(self) -> None:
        """Let the reserve be used from now on."""
        self._allowance.open_reserve(self._spent)

    def close_reserve(self) -> None:
        """Keep the reserve back again."""
        self._allowance.close_reserve()

    def charge(self, num: int) -> None:
        """Count evaluations that are about to be made here or elsewhere, if the budget allows them."""
        if not self._allowance.affords(self._spent, num):
            raise BudgetExhausted
        self.num_evaluations += num

    @contextlib.contextmanager
    def within(self, coordinates: Coordinates | None) -> Iterator[None]:
        """Let points be given in other coordinates meanwhile, and log densities be those of these."""
        before, self.coordinates = self.coordinates, coordinates
        try:
            yield
        finally:
            self.coordinates = before

    def values(self, x: Points) -> Float[np.ndarray, " draw"]:
        """Log density at points; NaN and +inf are counted and become -inf."""
        if self._compilation.is_alive():
            self._compilation.join()
        x, log_det = (x, 0.0) if self.coordinates is None else self.coordinates.from_base(x)
        (value,) = self._run(_values, x, self._value_blocks)
        return self._clean(value) + log_det

    def values_in_time(self, x: Points) -> Float[np.ndarray, " some"]:
        """Log density at the first of the points, as many as there is time for; at two of them whatever it takes."""
        if not self._allowance.is_timed:
            return self.values(x)
        (value,) = self._run_in_time(_values, x, self._value_blocks, fewest=2)
        return self._clean(value)

    def values_and_gradients(self, x: Points) -> tuple[Float[np.ndarray, " draw"], Points]:
        """Log density and its gradient at points; a gradient that is not finite becomes zero."""
        points, log_det = (x, 0.0) if self.coordinates is None else self.coordinates.from_base(x)
        value, gradient = self._run(_values_and_gradients, points, self._gradient_blocks)
        value = self._clean(value) + log_det
        if self.coordinates is not None:
            gradient = self.coordinates.pull_back(x, gradient)
        return value, np.where(np.isfinite(gradient) & np.isfinite(value)[:, None], gradient, 0.0)

    def _compile_values(self) -> None:
        """Compile the program for values while the search, which needs gradients, compiles its own."""
        dtype = self.target.start.dtype
        shape = jax.ShapeDtypeStruct((self._value_blocks[-1], self.target.dim), dtype)
        # What is wrong with it comes up again where the values are wanted. A thread does not inherit jax.enable_x64.
        with contextlib.suppress(Exception), jax.enable_x64(dtype == np.float64):
            _values.lower(self.target, shape).compile()

    @contextlib.contextmanager
    def probing(self) -> Iterator[None]:
        """Do not count what is invalid meanwhile: searches go where no draw does, and densities may overflow there."""
        counts = self.num_nan, self.num_infinite, self.num_raised
        try:
            yield
        finally:
            self.num_nan, self.num_infinite, self.num_raised = counts

    def prior_draws(self) -> Points:
        """Return draws of the model's prior, unconstrained; none where it has none that can be drawn from."""
        draws = self._prior.get()
        return draws if self.coordinates is None else self.coordinates.to_base(draws)[0]

    def draw_prior_ahead(self) -> None:
        """Draw from the prior while other work is done; the search needs it last."""
        self._prior.begin()

    def _clean(self, value: Float[np.ndarray, " draw"]) -> Float[np.ndarray, " draw"]:
        is_nan, is_infinite = np.isnan(value), value == np.inf
        self.num_nan += int(is_nan.sum())
        self.num_infinite += int(is_infinite.sum())
        return np.where(is_nan | is_infinite, -np.inf, value)

    def _run(self, program: Callable, x: Points, blocks: tuple[int, ...]) -> list[np.ndarray]:
        """Run a program over points in blocks, and put the parts of each of its results together."""
        if self._allowance.is_timed:
            return self._run_in_time(program, x, blocks)
        self.charge(len(x))
        began = time.perf_counter()
        x = np.asarray(x, self.target.start.dtype)
        # Many points go in large blocks; few, and the first thousands, do not wait for a large block's compilation.
        is_many = len(x) >= blocks[-1] > blocks[0]
        self._num_of_many += is_many * len(x)
        size = blocks[-1] if is_many and self._num_of_many > MANY else blocks[0]
        if self._is_thrifty:
            size = next((block for block in blocks if block >= len(x)), blocks[-1])
        parts = self._run_blocks(program, [x[start : start + size] for start in range(0, len(x), size)], size)
        self.seconds += time.perf_counter() - began
        return _joined(parts)

    def _run_blocks(self, program: Callable, blocks: Sequence[np.ndarray], size: int) -> list[list[np.ndarray]]:
        """Run blocks side by side where that is worth it, or one after another."""
        num_threads = self._cores.num_threads(program, size, len(blocks))
        if num_threads > 1:
            done = self._cores.run(program, [pad(block, size) for block in blocks], num_threads)
            return [[result[: len(block)] for result in part] for part, block in zip(done, blocks, strict=True)]
        parts = []
        for block in blocks:
            began = time.perf_counter()
            parts.append(self._run_block(program, block, size))
            self._cores.note(program, size, time.perf_counter() - began)
        return parts

    def _run_in_time(
        self, program: Any, x: Points, blocks: tuple[int, ...], fewest: int | None = None
    ) -> list[np.ndarray]:
        """Do the same against the clock, which is looked at before each block.

        Where ``fewest`` is given, the end of the time ends the work after so many points at the least; otherwise it is
        an error, and one that comes at once if all points would take too long.
        """
        x, done, parts = np.asarray(x, self.target.start.dtype), 0, []
        if fewest is None and not self._allowance.affords(self._spent, len(x)):
            raise BudgetExhausted
        while done < len(x):
            most = self._allowance.num_at_a_time(self._spent)
            if most < 1 and fewest is None:
                raise BudgetExhausted
            if most < 1 and done >= (fewest or 0):
                break
            num, size = self._next_block(len(x) - done, most, blocks)
            parts.append(self._run_paced(program, x[done : done + num], size))
            done += num
        return _joined(parts)

    def _next_block(self, rest: int, most: float, blocks: tuple[int, ...]) -> tuple[int, int]:
        """Choose how many points to evaluate next, about ``most`` of them, and the size of the block to be filled."""
        if self._is_filling_free:
            num = int(min(rest, max(most, 1), blocks[-1]))
            return num, blocks[-1] if num > blocks[0] else blocks[0]
        allowed = [block for block in blocks if block <= most] or blocks[:1]
        size = next((block for block in allowed if block >= rest), allowed[-1])
        return min(size, rest), size

    def _run_paced(self, program: Any, block: Points, size: int) -> list[np.ndarray]:
        """Run one block, and remember its pace, to which compilation does not belong."""
        began = time.perf_counter()
        if (program, size) not in self._ready:
            program.lower(self.target, jax.ShapeDtypeStruct((size, self.target.dim), block.dtype)).compile()
            self._ready.add((program, size))
        compiled = time.perf_counter()
        results = self._run_block(program, block, size)
        ended = time.perf_counter()
        self._allowance.note_pace(ended - compiled, len(block))
        self.seconds += ended - began
        self.num_evaluations += len(block)
        return results

    def _run_block(self, program: Callable, block: Points, size: int) -> list[np.ndarray]:
        """Run one block; where the target raises, run its points one by one, and call those that raise NaN."""
        try:
            return [np.asarray(result, float)[: len(block)] for result in program(self.target, pad(block, size))]
        except RAISED:
            self._throw_if_asked()
        if size > 1:
            with _silent_callbacks():
                return _joined([self._run_block(program, point[None], 1) for point in block])
        self.num_raised += 1
        return [np.full(result.shape, np.nan) for result in jax.eval_shape(program, self.target, block)]

    def _throw_if_asked(self) -> None:
        """Pass an error on where the user wants to see it (``throw=True``)."""
        failures = getattr(self.target.model_info, "failures", None)
        if failures is not None and failures.throw:
            raise RuntimeError(str(failures)) from failures.error


def _up_to(limit: int, *sizes: int) -> tuple[int, ...]:
    """Return the sizes of blocks that are no larger than the limit, or the limit itself."""
    return tuple(size for size in sizes if size <= limit) or (limit,)


def _joined(parts: list[list[np.ndarray]]) -> list[np.ndarray]:
    return [np.concatenate(results) for results in zip(*parts, strict=True)]
