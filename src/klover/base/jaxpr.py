"""When two traced functions are one program.

Compiled functions are kept for arguments of equal structure. Two log densities that were traced apart, say for two data
sets of one shape, have jaxprs that are different objects; compared by what they compute they are the same, and the
second data set compiles nothing.
"""

import dataclasses
import math
from collections.abc import Hashable
from typing import Any, TypeAlias

import numpy as np

# jax.extend.core takes 20 ms to import, so it is imported where it is used.
Jaxpr: TypeAlias = Any
ClosedJaxpr: TypeAlias = Any

# Rules of differentiation are made anew at each trace. The function they belong to is compared by its own jaxpr.
RULES = ("jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd", "out_trees")


@dataclasses.dataclass(frozen=True, eq=False)
class Itself:
    """Something that is equal to itself alone; holding it keeps its address from being used again."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def signature(jaxpr: Jaxpr) -> Hashable:
    """Return a key that two jaxprs share if they compute the same from the same constants and arguments."""
    from jax.extend.core import Literal

    numbers: dict[Any, int] = {}

    def number(variable):
        return numbers.setdefault(variable, len(numbers)), str(variable.aval)

    def read(atom):
        if isinstance(atom, Literal):
            return str(atom.aval), np.asarray(atom.val).tobytes()
        return number(atom)

    entry = tuple(number(variable) for variable in (*jaxpr.constvars, *jaxpr.invars))
    equations = tuple(
        (
            equation.primitive,
            tuple(read(atom) for atom in equation.invars),
            tuple(number(variable) for variable in equation.outvars),
            tuple((name, _parameter(equation.params[name])) for name in sorted(equation.params) if name not in RULES),
        )
        for equation in jaxpr.eqns
    )
    return entry, equations, tuple(read(atom) for atom in jaxpr.outvars)


def largest_array(jaxpr: Jaxpr) -> int:
    """Return the number of entries of the largest array that a program makes."""
    from jax.extend import core

    sizes = [1]
    for equation in jaxpr.eqns:
        sizes += [math.prod(getattr(variable.aval, "shape", ())) for variable in equation.outvars]
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                if isinstance(part, core.ClosedJaxpr | core.Jaxpr):
                    sizes.append(largest_array(part.jaxpr if isinstance(part, core.ClosedJaxpr) else part))
    return max(sizes)


def _parameter(value: Any) -> Hashable:
    from jax.extend import core

    if isinstance(value, core.ClosedJaxpr):
        return signature(value.jaxpr), tuple(Itself(constant) for constant in value.consts)
    if isinstance(value, core.Jaxpr):
        return signature(value)
    if isinstance(value, tuple | list):
        return tuple(_parameter(entry) for entry in value)
    if callable(value) and not isinstance(value, type):
        return Itself(value)
    try:
        hash(value)
    except TypeError:
        return Itself(value)
    return type(value), value
