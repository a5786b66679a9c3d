"""The target as the host sees it: NumPy in, NumPy out, in blocks of few sizes, every evaluation counted.

Only the user's log density is compiled: a program for values, and one for values with gradients at each block size. All
other work of :func:`klover.refine` is NumPy, unless particles take over, so a first answer does not wait for the
compiler.
"""

import contextlib
import datetime
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from klover.base.checks import check_count
from klover.base.shapes import Float
from klover.targets.loaded import TargetLike, as_target
from klover.targets.positions import pad, ravel_rows
from klover.targets.target import LARGEST_INTERMEDIATE, Target

GRADIENT_BLOCKS = (32, 512)
VALUE_BLOCK = 1024
NUM_PRIOR_DRAWS = 256

COUNTS = ("num_evaluations", "num_nan", "num_infinite", "num_raised", "seconds")

# What a target that raises on the host raises here; a ValueError where that surfaces with the result.
RAISED = (jax.errors.JaxRuntimeError, ValueError)

Budget = int | datetime.timedelta | None
Points = Float[np.ndarray, "draw dim"]


class BudgetExhausted(Exception):
    """Raised before an evaluation that the budget does not allow."""


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


def check_budget(budget: Any, minimum: int = 1) -> Budget:
    """Return a budget: none, a time, or a whole number of evaluations, at least so many."""
    if budget is None or isinstance(budget, datetime.timedelta):
        return budget
    return check_count("budget", budget, minimum, "Pass a number of evaluations, or a datetime.timedelta.")


class Evaluator:
    """Evaluate a target on the host, count the evaluations, and stop at the budget.

    Parameters
    ----------
    target
        The target.
    budget
        Most evaluations (an integer; a gradient counts as one) or most time (a ``datetime.timedelta``).
    reserve
        Evaluations that are kept back from the budget until :meth:`overtime`.
    """

    def __init__(self, target: TargetLike, budget: Budget = None, reserve: int = 0):
        self.target = as_target(target)
        self._budget, self.reserve = check_budget(budget), reserve
        self._held_back, self._is_overtime = reserve, False
        self.num_evaluations = self.num_nan = self.num_infinite = self.num_raised = 0
        self.seconds = 0.0
        self._began = time.perf_counter()
        limit = max(LARGEST_INTERMEDIATE // self.target.largest_intermediate, 1)
        self._value_blocks = (min(VALUE_BLOCK, limit),)
        self._gradient_blocks = tuple(block for block in GRADIENT_BLOCKS if block <= limit) or (limit,)
        self.has_gradient = _is_differentiable(self.target, self._gradient_blocks[0])
        self._prior = np.zeros((0, self.target.dim))
        self._compilation = threading.Thread(target=self._compile_values, daemon=True)
        self._prior_drawing = threading.Thread(target=self._draw_prior, daemon=True)
        if self.has_gradient:
            self._compilation.start()
            if getattr(self.target.model_info, "prior", None) is not None:
                self._prior_drawing.start()

    @property
    def elapsed(self) -> float:
        """Seconds since the evaluator was made."""
        return time.perf_counter() - self._began

    @property
    def num_left(self) -> int | None:
        """Evaluations that the budget still allows; None without such a budget."""
        return self._budget - self.num_evaluations if isinstance(self._budget, int) else None

    def counts(self) -> dict[str, int | float]:
        """Return what has been counted, and the seconds that have passed."""
        return {name: getattr(self, name) for name in COUNTS} | {"elapsed": self.elapsed}

    def set_counts(self, counts: dict[str, int | float]) -> None:
        """Go on counting from where another evaluator stopped."""
        for name in COUNTS:
            setattr(self, name, counts[name])
        self._began = time.perf_counter() - counts["elapsed"]

    @contextlib.contextmanager
    def overtime(self) -> Iterator[None]:
        """Let the reserve be used, and do not refuse for want of time meanwhile."""
        self._held_back, self._is_overtime = 0, True
        try:
            yield
        finally:
            self._is_overtime = False

    def charge(self, num: int) -> None:
        """Count evaluations that are about to be made here or elsewhere, if the budget allows them."""
        if isinstance(self._budget, datetime.timedelta):
            is_too_much = not self._is_overtime and self.elapsed > self._budget.total_seconds()
        else:
            is_too_much = self._budget is not None and self.num_evaluations + num > self._budget - self._held_back
        if is_too_much:
            raise BudgetExhausted
        self.num_evaluations += num

    def values(self, x: Points) -> Float[np.ndarray, " draw"]:
        """Log density at points; NaN and +inf are counted and become -inf."""
        if self._compilation.is_alive():
            self._compilation.join()
        (value,) = self._run(_values, x, self._value_blocks)
        return self._clean(value)

    def values_and_gradients(self, x: Points) -> tuple[Float[np.ndarray, " draw"], Points]:
        """Log density and its gradient at points; a gradient that is not finite becomes zero."""
        value, gradient = self._run(_values_and_gradients, x, self._gradient_blocks)
        value = self._clean(value)
        return value, np.where(np.isfinite(gradient) & np.isfinite(value)[:, None], gradient, 0.0)

    def _compile_values(self) -> None:
        """Compile the program for values while the search, which needs gradients, compiles its own."""
        dtype = self.target.start.dtype
        shape = jax.ShapeDtypeStruct((self._value_blocks[0], self.target.dim), dtype)
        # What is wrong with it comes up again where the values are wanted. A thread does not inherit jax.enable_x64.
        with contextlib.suppress(Exception), jax.enable_x64(dtype == np.float64):
            _values.lower(self.target, shape).compile()

    def prior_draws(self) -> Points:
        """Return draws of the model's prior, unconstrained; none where it has none that can be drawn from."""
        if self._prior_drawing.is_alive():
            self._prior_drawing.join()
        return self._prior

    def _draw_prior(self) -> None:
        """Draw from the prior while the search, which comes to need it last, does its work."""
        info, dtype = self.target.model_info, self.target.start.dtype
        assert info is not None
        assert info.prior is not None
        self._compilation.join()
        # A model whose prior cannot be drawn from has none for the search.
        with contextlib.suppress(Exception), jax.enable_x64(dtype == np.float64):
            keys = jax.random.split(jax.random.key(0), NUM_PRIOR_DRAWS)
            draws = np.asarray(ravel_rows(jax.jit(jax.vmap(info.prior))(keys)), float)
            self._prior = draws[np.isfinite(draws).all(axis=1)]

    def _clean(self, value: Float[np.ndarray, " draw"]) -> Float[np.ndarray, " draw"]:
        is_nan, is_infinite = np.isnan(value), value == np.inf
        self.num_nan += int(is_nan.sum())
        self.num_infinite += int(is_infinite.sum())
        return np.where(is_nan | is_infinite, -np.inf, value)

    def _run(self, program: Callable, x: Points, blocks: tuple[int, ...]) -> list[np.ndarray]:
        """Run a program over points in blocks, and put the parts of each of its results together."""
        self.charge(len(x))
        began = time.perf_counter()
        x = np.asarray(x, self.target.start.dtype)
        # Many points go in large blocks; few do not wait for a large block's compilation.
        size = blocks[-1] if len(x) >= blocks[-1] else blocks[0]
        parts = [self._run_block(program, x[start : start + size], size) for start in range(0, len(x), size)]
        self.seconds += time.perf_counter() - began
        return _joined(parts)

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


def _joined(parts: list[list[np.ndarray]]) -> list[np.ndarray]:
    return [np.concatenate(results) for results in zip(*parts, strict=True)]
