"""The target as the host sees it: NumPy in, NumPy out, in blocks of few sizes, every evaluation counted.

Only the user's log density is compiled: a program for values, and one for values with gradients at each block size. All
other work of :func:`klover.refine` is NumPy, unless particles take over, so a first answer does not wait for the
compiler.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from klover.base.processes import check_agreement
from klover.base.shapes import Float
from klover.targets.blocks import Blocks, Results, cut, joined
from klover.targets.budget import Allowance, Bound, Budget, BudgetExhausted, check_budget
from klover.targets.journal import BOTH, VALUES, Journal
from klover.targets.loaded import TargetLike, as_target
from klover.targets.prior import Points, PriorDraws
from klover.targets.spending import Spending
from klover.targets.target import LARGEST_INTERMEDIATE, Target

GRADIENT_BLOCKS = (32, 512)
VALUE_BLOCK = 1024
MANY = 2**14
"""Points from which on many at a time are worth another program: it saves some µs a point, and takes 0.15 to 0.3 s."""
SMALL_BLOCKS = (1, 32)
"""Further blocks where the budget is a time."""

THRIFTY_BLOCKS = (1, 8, 32)
"""Blocks where every point is expensive, and to fill a block with copies would cost as much."""

SAME_POINTS = "All of them have to run the same calls with the same arguments, on processors of one kind."


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


class Evaluator(Spending):
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
    bound
        Where the work ends without a budget; nowhere if None.
    """

    def __init__(
        self,
        target: TargetLike,
        budget: Budget = None,
        reserve: int = 0,
        is_thrifty: bool = False,
        bound: Bound | None = None,
    ):
        bound = bound if bound is not None and budget is None else Bound()
        super().__init__(Allowance(check_budget(budget), reserve), bound)
        self.target = as_target(target)
        self._num_of_many = 0
        self.coordinates: Coordinates | None = None
        limit = max(LARGEST_INTERMEDIATE // self.target.largest_intermediate, 1)
        # Where the clock counts and a filled block costs more than its points, some blocks have to be small.
        self._is_filling_free = hasattr(self.target.model_info, "failures")
        self._num_given_up = len(self._given_up)
        small = SMALL_BLOCKS if self._allowance.is_timed and not self._is_filling_free else ()
        self._value_blocks = _up_to(limit, *small, VALUE_BLOCK)
        self._gradient_blocks = _up_to(limit, *small[:1], *GRADIENT_BLOCKS)
        self._is_thrifty = is_thrifty and not self._is_filling_free and not self._allowance.is_timed
        if self._is_thrifty:
            self._value_blocks = self._gradient_blocks = _up_to(limit, *THRIFTY_BLOCKS)
        self._ready: set[tuple[Callable, int]] = set()
        self._blocks = Blocks(self.target)
        self.is_differentiable = _is_differentiable(self.target, self._gradient_blocks[0])
        self.has_gradient = self.is_differentiable
        self._compilation = threading.Thread(target=self._compile_values, daemon=True)
        self._prior = PriorDraws(self.target, self._compilation)
        if self.has_gradient:
            self._compilation.start()

    def measure_pace(self) -> None:
        """Find out how long an evaluation takes, by one at the example, if the budget is a time."""
        if self._allowance.is_timed:
            with contextlib.suppress(BudgetExhausted):
                self.values(np.asarray(self.target.start, float)[None])

    @contextlib.contextmanager
    def keeping(self, journal: Journal) -> Iterator[None]:
        """Write evaluations to a journal meanwhile, and do not make those that it holds; refuse another target's."""
        with contextlib.ExitStack() as stack:
            with self.evaluating():
                stack.enter_context(self._blocks.keeping(journal, _values, self._value_blocks[0]))
            yield

    @property
    def num_replayed(self) -> int:
        """Evaluations that were not made, because the journal held them."""
        return self._blocks.num_replayed

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
            with self.evaluating():
                self._compilation.join()
        x, log_det = (x, 0.0) if self.coordinates is None else self.coordinates.from_base(x)
        (value,) = self._run(_values, x, self._value_blocks)
        return self._clean(value) + log_det

    def values_in_time(self, x: Points) -> Float[np.ndarray, " some"]:
        """Log density at the first of the points, as many as there is time for; at two of them whatever it takes."""
        if not self._allowance.is_timed:
            self._bound.extend(self._work, len(x))
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
        with self.evaluating():
            draws = self._prior.get()
        return draws if self.coordinates is None else self.coordinates.to_base(draws)[0]

    def draw_prior_ahead(self) -> None:
        """Draw from the prior while other work is done; the search needs it last."""
        # Several devices have to run programs in one order.
        if self.target.num_devices < 2:
            self._prior.begin()

    def _clean(self, value: Float[np.ndarray, " draw"]) -> Float[np.ndarray, " draw"]:
        is_nan, is_infinite = np.isnan(value), value == np.inf
        self.num_nan += int(is_nan.sum())
        self.num_infinite += int(is_infinite.sum())
        return np.where(is_nan | is_infinite, -np.inf, value)

    def _run(self, program: Callable, x: Points, blocks: tuple[int, ...]) -> Results:
        """Run a program over points in blocks, and put the parts of each of its results together."""
        if self._allowance.is_timed:
            return self._run_in_time(program, x, blocks)
        self.charge(len(x))
        x = np.asarray(x, self.target.start.dtype)
        if self.target.is_shared:
            check_agreement(SAME_POINTS, program is _values, x.shape, x)
        # Many points go in large blocks; few, and the first thousands, do not wait for a large block's compilation.
        is_many = len(x) >= blocks[-1] > blocks[0]
        self._num_of_many += is_many * len(x)
        size = blocks[-1] if is_many and self._num_of_many > MANY else blocks[0]
        if self._is_thrifty:
            size = next((block for block in blocks if block >= len(x)), blocks[-1])
        with self.evaluating():
            return joined(self._run_blocks(program, cut(x, size), size))

    def _run_blocks(self, program: Callable, blocks: Sequence[np.ndarray], size: int) -> list[Results]:
        raised = self._blocks.num_raised
        parts = self._blocks.run(program, VALUES if program is _values else BOTH, blocks, size)
        self.num_raised += self._blocks.num_raised - raised
        return parts

    def _run_in_time(self, program: Any, x: Points, blocks: tuple[int, ...], fewest: int | None = None) -> Results:
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
        return joined(parts)

    def _next_block(self, rest: int, most: float, blocks: tuple[int, ...]) -> tuple[int, int]:
        """Choose how many points to evaluate next, about ``most`` of them, and the size of the block to be filled."""
        if self._is_filling_free:
            num = int(min(rest, max(most, 1), blocks[-1]))
            return num, blocks[-1] if num > blocks[0] else blocks[0]
        allowed = [block for block in blocks if block <= most] or blocks[:1]
        size = next((block for block in allowed if block >= rest), allowed[-1])
        return min(size, rest), size

    def _run_paced(self, program: Any, block: Points, size: int) -> Results:
        """Run one block, and remember its pace, to which compilation does not belong."""
        with self.evaluating():
            if (program, size) not in self._ready:
                program.lower(self.target, jax.ShapeDtypeStruct((size, self.target.dim), block.dtype)).compile()
                self._ready.add((program, size))
            compiled, replayed = time.perf_counter(), self.num_replayed
            (results,) = self._run_blocks(program, [block], size)
            if self.num_replayed == replayed:  # the file is quicker than the target
                self._allowance.note_pace(time.perf_counter() - compiled, len(block))
        self.num_evaluations += len(block)
        return results

    @property
    def quarantined(self) -> list[str]:
        """The points that have been given up since the evaluator was made, because workers died or hung there."""
        return list(self._given_up.values())[self._num_given_up :]

    @property
    def _given_up(self) -> dict[bytes, str]:
        failures = getattr(self.target.model_info, "failures", None)
        return {} if failures is None else failures.quarantined


def _up_to(limit: int, *sizes: int) -> tuple[int, ...]:
    """Return the sizes of blocks that are no larger than the limit, or the limit itself."""
    return tuple(size for size in sizes if size <= limit) or (limit,)
