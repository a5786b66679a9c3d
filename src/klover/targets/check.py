"""What can be wrong with a log density, found before time is spent on it."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from klover.base.shapes import Float

FLOAT32_LIMIT = 1e3
"""Beyond this size of log p, float32 leaves fewer than four digits after the point."""


@dataclasses.dataclass(frozen=True)
class TargetCheck:
    """What :meth:`klover.Target.check` found: ``ok`` when there is nothing to say."""

    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    def __str__(self) -> str:
        """One line for each problem."""
        return "no problem found" if self.ok else "\n".join(f"- {problem}" for problem in self.problems)


def find_problems(value: Float[np.ndarray, " draw"], gradient: Float[np.ndarray, "draw dim"]) -> Iterator[str]:
    """Yield what is wrong with log densities and gradients at the example (first) and at points near it."""
    is_finite = np.isfinite(value)
    if not is_finite[0]:
        yield f"the log density is {value[0]} at the example; choose an example inside the support."
    for name, is_bad in {"NaN": np.isnan(value), "+inf": value == np.inf}.items():
        if is_bad.any():
            yield f"the log density is {name} at {is_bad.sum()} of {value.size} points near the example."
    if not is_finite.any():
        yield "the log density is finite nowhere near the example; check signs, logarithms and the support."
    is_bad = is_finite & ~np.isfinite(gradient).all(axis=1)
    if is_bad.any():
        yield (
            f"the gradient is not finite at {is_bad.sum()} of {is_finite.sum()} points where the log density is; look "
            "for a where() around an invalid branch, a square root or a norm at zero. The forward KL by EM needs no "
            "gradient."
        )
    largest = np.max(np.abs(value), initial=0.0, where=is_finite)
    if value.dtype == np.float32 and largest > FLOAT32_LIMIT:
        yield (
            f"the log density reaches {largest:.3g} in float32, where neighbouring numbers are "
            f"{np.spacing(np.float32(largest)):.1g} apart, and weights carry that error; call "
            "jax.config.update('jax_enable_x64', True) first."
        )
