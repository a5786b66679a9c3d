"""Programs that JAX has traced: when two are the same, how much memory one takes, what of it is not needed.

Compiled functions are kept for arguments of equal structure. Two log densities that were traced apart, say for two data
sets of one shape, have jaxprs that are different objects; compared by what they compute they are the same, and the
second data set compiles nothing.
"""

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from klover.base.shapes import AnyArray, PyTree

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


def evaluate_jaxpr(jaxpr: Jaxpr, constants: Sequence[AnyArray], *arguments: AnyArray) -> list[jax.Array]:
    """Call a traced program."""
    from jax.extend import core

    return core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, list(constants)))(*arguments)


@dataclasses.dataclass(frozen=True)
class Program:
    """A jaxpr that is equal to others that compute the same."""

    key: Hashable
    jaxpr: Jaxpr = dataclasses.field(compare=False)


def _run(program: Program, constants: Sequence[AnyArray], leaves: Sequence[AnyArray]) -> list[jax.Array]:
    return evaluate_jaxpr(program.jaxpr, constants, *leaves)


def _in_a_hurry() -> dict[str, Any]:
    """Say how to compile what runs once: the compiler's optimisation of random numbers alone takes it a second."""
    # The older emitters take half the time; jax 0.12 has the new ones alone.
    older = {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 12) else {}
    return {"xla_backend_optimization_level": 0} | older


_compiled = jax.jit(_run, static_argnums=0)
_compiled_in_a_hurry = jax.jit(_run, static_argnums=0, compiler_options=_in_a_hurry())


@functools.cache
def _compiled_for_any_threads() -> Callable:
    """Return a function whose sums and products of matrices are not cut in pieces, one for each thread there is."""
    options = {"xla_cpu_multi_thread_eigen": False, "xla_cpu_experimental_ynn_fusion_type": ""}
    return jax.jit(
        _run,
        static_argnums=0,
        compiler_options={name: value for name, value in options.items() if _is_known(name, value)},
    )


def _is_known(name: str, value: Any) -> bool:
    """Whether this version of the compiler has an option."""
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def trace(
    function: Callable[..., PyTree], *arguments: PyTree, is_for_one_run: bool = False, is_for_any_threads: bool = False
) -> Callable[..., PyTree]:
    """Return a compiled function of arguments like these: functions that compute the same share one program.

    The arrays that the function refers to are arguments of that program. One that runs once, or for a moment, is not
    optimised by the compiler where that is the CPU's. There the last digits of sums may depend on the number of
    threads; those of a program for any number of them do not.
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    closed, structure = prune(closed), jax.tree.structure(shapes)
    program = Program(signature(closed.jaxpr), closed.jaxpr)
    run = _compiled
    if jax.default_backend() == "cpu":
        run = (
            _compiled_in_a_hurry if is_for_one_run else _compiled_for_any_threads() if is_for_any_threads else _compiled
        )
    return lambda *arguments: jax.tree.unflatten(structure, run(program, closed.consts, jax.tree.leaves(arguments)))


def signature(jaxpr: Jaxpr) -> Hashable:
    """Return a key that two jaxprs share if they compute the same from the same constants and arguments."""
    # The names of variables differ between traces; the order in which they appear does not.
    order = collections.defaultdict(itertools.count().__next__)
    inputs = [_read_atom(variable, order) for variable in (*jaxpr.constvars, *jaxpr.invars)]
    equations = [_read_equation(equation, order) for equation in jaxpr.eqns]
    return tuple(inputs), tuple(equations), tuple(_read_atom(atom, order) for atom in jaxpr.outvars)


def _read_equation(equation: Any, order: dict[Any, int]) -> Hashable:
    atoms = tuple(_read_atom(atom, order) for atom in (*equation.invars, *equation.outvars))
    names = sorted(set(equation.params).difference(RULES))
    return equation.primitive, atoms, tuple((name, _read_parameter(equation.params[name])) for name in names)


def _read_atom(atom: Any, order: dict[Any, int]) -> Hashable:
    from jax.extend.core import Literal

    return str(atom.aval), np.asarray(atom.val).tobytes() if isinstance(atom, Literal) else order[atom]


def _read_parameter(value: Any) -> Hashable:
    from jax.extend import core

    if isinstance(value, core.ClosedJaxpr):
        return signature(value.jaxpr), tuple(Itself(constant) for constant in value.consts)
    if isinstance(value, core.Jaxpr):
        return signature(value)
    if isinstance(value, tuple | list):
        return tuple(_read_parameter(entry) for entry in value)
    if callable(value) and not isinstance(value, type):
        return Itself(value)
    try:
        hash(value)
    except TypeError:
        return Itself(value)
    return type(value), value


def largest_array(jaxpr: Jaxpr) -> int:
    """Return the number of entries of the largest array that a program makes."""
    made = [variable.aval for equation in jaxpr.eqns for variable in equation.outvars]
    sizes = [math.prod(getattr(aval, "shape", ())) for aval in made]
    return max([1, *sizes, *(largest_array(inner) for equation in jaxpr.eqns for inner in _inner(equation))])


def _inner(equation: Any) -> Iterator[Jaxpr]:
    """Yield the programs inside an equation: bodies of loops, branches, functions of their own."""
    from jax.extend import core

    for value in equation.params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if isinstance(part, core.ClosedJaxpr | core.Jaxpr):
                yield part.jaxpr if isinstance(part, core.ClosedJaxpr) else part


def calls_host(jaxpr: Jaxpr) -> bool:
    """Whether a program calls Python on its way, as ``jax.pure_callback`` does."""
    is_callback = any("callback" in equation.primitive.name for equation in jaxpr.eqns)
    return is_callback or any(calls_host(inner) for equation in jaxpr.eqns for inner in _inner(equation))


def prune(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Leave out all equations and constants of a program that its results do not need."""
    from jax.extend import core

    jaxpr, kept = closed.jaxpr, []
    needed = {atom for atom in jaxpr.outvars if isinstance(atom, core.Var)}
    for equation in reversed(jaxpr.eqns):
        if equation.effects or needed.intersection(equation.outvars):
            kept.append(equation)
            needed.update(atom for atom in equation.invars if isinstance(atom, core.Var))
    pairs = [pair for pair in zip(jaxpr.constvars, closed.consts, strict=True) if pair[0] in needed]
    pruned = jaxpr.replace(eqns=kept[::-1], constvars=[variable for variable, _ in pairs])
    return core.ClosedJaxpr(pruned, [constant for _, constant in pairs])
