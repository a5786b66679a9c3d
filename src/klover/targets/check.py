"""What can be wrong with a log density, found before time is spent on it."""

import dataclasses

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


def find_problems(value: Float[np.ndarray, " draw"], gradient: Float[np.ndarray, "draw dim"]) -> TargetCheck:
    """Judge log densities and their gradients at the example (first) and at points near it."""
    return TargetCheck((*_invalid_values(value), *_invalid_gradients(value, gradient), *_lost_digits(value)))


def _invalid_values(value: Float[np.ndarray, " draw"]) -> list[str]:
    problems = []
    if not np.isfinite(value[0]):
        problems.append(f"the log density is {value[0]} at the example; choose an example inside the support.")
    for name, is_bad in {"NaN": np.isnan(value), "+inf": value == np.inf}.items():
        if is_bad.any():
            problems.append(f"the log density is {name} at {is_bad.sum()} of {value.size} points near the example.")
    if not np.isfinite(value).any():
        problems.append("the log density is finite nowhere near the example; check signs, logarithms and the support.")
    return problems


def _invalid_gradients(value: Float[np.ndarray, " draw"], gradient: Float[np.ndarray, "draw dim"]) -> list[str]:
    is_finite = np.isfinite(value)
    is_bad = is_finite & ~np.isfinite(gradient).all(axis=1)
    if not is_bad.any():
        return []
    return [
        f"the gradient is not finite at {is_bad.sum()} of {is_finite.sum()} points where the log density is; look for "
        "a where() around an invalid branch, a square root or a norm at zero. The forward KL by EM needs no gradient."
    ]


def _lost_digits(value: Float[np.ndarray, " draw"]) -> list[str]:
    largest = np.max(np.abs(value), initial=0.0, where=np.isfinite(value))
    if value.dtype != np.float32 or largest <= FLOAT32_LIMIT:
        return []
    return [
        f"the log density reaches {largest:.3g} in float32, where neighbouring numbers are "
        f"{np.spacing(np.float32(largest)):.1g} apart, and weights carry that error; call "
        "jax.config.update('jax_enable_x64', True) first."
    ]
