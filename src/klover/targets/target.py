r"""The target: a log density :math:`\log\hat p(\theta)`, known up to a constant, on a pytree of parameters.

Inside the library a point is a flat vector ``x`` of :math:`\mathbb R^d`; a ``position`` is the user's pytree. The log
density is traced once, and the arrays that it has captured (the data) become leaves of the target, which is itself a
pytree: they are arguments of every compiled program, not constants baked into it, and targets can be vmapped.
"""

import dataclasses
from collections.abc import Callable, Hashable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from klover.base.arrays import exact_products, namespace
from klover.base.checks import as_key, check_count, check_finite, check_points
from klover.base.jaxpr import ClosedJaxpr, Jaxpr, largest_array, signature
from klover.base.shapes import AnyArray, Float, Int, KeyLike, PyTree
from klover.targets.model_info import ModelInfo

FLOAT32_LIMIT = 1e3
"""Beyond this size of log p, float32 leaves fewer than four digits after the point."""

LARGEST_INTERMEDIATE = 2**24
"""Numbers that the largest array of one evaluation may hold: 128 MiB in float64."""

BLOCK = 1024
"""Points that are constrained at a time, so that one program serves any number of them."""


@dataclasses.dataclass(frozen=True)
class _Program:
    """All of a target that is not an array; targets with equal programs share what was compiled."""

    signature: Hashable
    names: tuple[str, ...]
    dim: int
    jaxpr: Jaxpr = dataclasses.field(compare=False)
    unravel: Callable = dataclasses.field(compare=False)
    constrain: Jaxpr | None = dataclasses.field(compare=False)
    read: PyTree = dataclasses.field(compare=False)
    """Shapes of a constrained position."""
    model_info: ModelInfo | None = dataclasses.field(compare=False)


@jax.tree_util.register_pytree_node_class
class Target:
    """An unnormalised log density on R^d.

    Parameters
    ----------
    logdensity
        A function that JAX can trace, from a pytree like ``example`` to a scalar; -inf outside the support.
    example
        A pytree of finite numbers: the shape of a position, and where searches start.
    constrain
        From an (unconstrained) position to the quantities that a person wants to read; its Jacobian belongs into
        ``logdensity``. The identity by default.
    names
        One name for each number that ``constrain`` returns; made from the paths in the pytree by default.
    box
        Roughly where the (unconstrained) posterior lies: ``(lower, upper)``, each one number or a pytree like
        ``example``. Searches spread their starts over it. It is a hint, not a bound.
    model_info
        What the modelling language knows, where the target comes from one.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> target = Target(lambda position: -0.5 * jnp.sum(position["w"] ** 2), {"w": jnp.zeros(2)})
    >>> target.dim, target.names
    (2, ('w[0]', 'w[1]'))
    """

    def __init__(
        self,
        logdensity: Callable[[PyTree], Float[AnyArray, ""]],
        example: PyTree,
        *,
        constrain: Callable[[PyTree], PyTree] | None = None,
        names: Sequence[str] | None = None,
        box: tuple[PyTree, PyTree] | None = None,
        model_info: ModelInfo | None = None,
    ):
        if not callable(logdensity):
            raise TypeError(f"logdensity must be a function of a position, got a {type(logdensity).__name__}.")
        check_finite("example", example, "Pass a pytree of finite numbers shaped like one position.")
        start, unravel = _flatten(example)
        density, value = _trace("logdensity", lambda x: _uncompiled(logdensity)(unravel(x)), start)
        _check_scalar(value)
        read, constrained = jax.eval_shape(unravel, start), None
        if constrain is not None:
            constrained, read = _trace("constrain", lambda x: constrain(unravel(x)), start)
        made = tuple(_names(read))
        if names is not None and len(names) != len(made):
            raise ValueError(f"names must hold {len(made)} names, one for each number read, got {len(names)}.")
        self._constants = (
            start,
            tuple(density.consts),
            () if constrained is None else tuple(constrained.consts),
            None if box is None else _flat_box(box, start),
        )
        self._program = _Program(
            (
                signature(density.jaxpr),
                constrained and signature(constrained.jaxpr),
                jax.tree.structure(example),
                jax.tree.structure(read),
            ),
            made if names is None else tuple(names),
            start.shape[0],
            density.jaxpr,
            unravel,
            constrained and constrained.jaxpr,
            read,
            model_info,
        )

    def tree_flatten(self):
        """Split into arrays and program, for JAX."""
        return (self._constants,), self._program

    @classmethod
    def tree_unflatten(cls, program, children):
        """Put arrays and program together again, for JAX."""
        target = object.__new__(cls)
        (target._constants,) = children
        target._program = program
        return target

    @property
    def dim(self) -> int:
        """Dimension d of the flat space."""
        return self._program.dim

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the numbers in a constrained position, in flat order."""
        return self._program.names

    @property
    def model_info(self) -> ModelInfo | None:
        """What the modelling language knows, where the target comes from one."""
        return self._program.model_info

    @property
    def start(self) -> Float[AnyArray, " dim"]:
        """The example position as a flat point."""
        return self._constants[0]

    @property
    def largest_intermediate(self) -> int:
        """Most numbers in one array that an evaluation at one point makes on its way."""
        return largest_array(self._program.jaxpr)

    @property
    def box(self) -> tuple[Float[AnyArray, " dim"], Float[AnyArray, " dim"]] | None:
        """Lower and upper corner of the region where the posterior is expected, if the user gave one."""
        return self._constants[3]

    def log_prob(self, x: Float[AnyArray, "*draw dim"]) -> Float[jax.Array, "*draw"]:
        """Log density at one flat point of shape (d,) or at points of shape (S, d), as the user's function gives it."""
        check_points("x", x, self.dim)
        points = jnp.asarray(x, self.start.dtype)
        single = lambda point: _run(self._program.jaxpr, self._constants[1], point)[0]  # noqa: E731
        return single(points) if points.ndim == 1 else jax.vmap(single)(points)

    def coordinate_name(self, index: int) -> str:
        """Name one coordinate of the flat, unconstrained point."""
        return _names(self.unravel(self.start))[index]

    def unravel(self, x: Float[AnyArray, "*draw dim"]) -> PyTree:
        """Turn flat points into (unconstrained) positions, whose arrays have the leading axes of x."""
        return self._program.unravel(x)

    def position(self, x: Float[AnyArray, " dim"]) -> PyTree:
        """Turn one flat point into the constrained position that a person reads."""
        return self.unravel(x) if self._program.constrain is None else _position(self, x)

    def positions(self, x: Float[AnyArray, "draw dim"]) -> PyTree:
        """Turn flat points into constrained positions, whose arrays have a leading axis of draws.

        On the host: NumPy arrays, by one program for any number of points, and by none where nothing is constrained.
        """
        if isinstance(x, Tracer):
            return jax.vmap(self.position)(x)
        points = np.asarray(x, self.start.dtype)
        if self._program.constrain is None:
            return self.unravel(points)
        size = min(BLOCK, max(LARGEST_INTERMEDIATE // largest_array(self._program.constrain), 1))
        padded = pad(points, -(-len(points) // size) * size)
        parts = [_positions(self, padded[first : first + size]) for first in range(0, max(len(padded), 1), size)]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(points)], *parts)

    def flat_position(self, x: Float[AnyArray, "draw dim"]) -> Float[AnyArray, "draw value"]:
        """Turn flat points into constrained positions, each raveled in the order of ``names``."""
        if self._program.constrain is None:
            return x
        leaves = jax.tree.leaves(self.positions(x))
        return namespace(*leaves).concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)

    def check(self, key: KeyLike, num_points: int = 100) -> "TargetCheck":
        """Look for what is wrong with the density, before time is spent on it.

        The density and its gradient are evaluated at the example and at points around it (standard normal steps).
        """
        key = as_key(key)
        check_count("num_points", num_points, 1)
        steps = jax.random.normal(key, (num_points, self.dim), self.start.dtype)
        points = jnp.concatenate([self.start[None], self.start + steps])
        value, gradient = jax.jit(jax.vmap(jax.value_and_grad(self.log_prob)))(points)
        return TargetCheck(tuple(_problems(np.asarray(value), np.asarray(gradient))))


@dataclasses.dataclass(frozen=True)
class TargetCheck:
    """What :meth:`Target.check` found: ``ok`` when there is nothing to say."""

    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    def __str__(self) -> str:
        """One line for each problem."""
        return "no problem found" if self.ok else "\n".join(f"- {problem}" for problem in self.problems)


def evaluate(
    target: Target, x: Float[AnyArray, "draw dim"]
) -> tuple[Float[jax.Array, " draw"], Int[jax.Array, ""], Int[jax.Array, ""]]:
    """Log density with every invalid value (NaN, +inf) replaced by -inf, and the counts of NaN and of +inf.

    Where all points at once would take too much memory, they are taken in blocks.
    """
    block = max(LARGEST_INTERMEDIATE // target.largest_intermediate, 1)
    is_large = x.shape[0] > block
    value = jax.lax.map(target.log_prob, jnp.asarray(x), batch_size=block) if is_large else target.log_prob(x)
    is_nan, is_positive = jnp.isnan(value), value == jnp.inf
    return jnp.where(is_nan | is_positive, -jnp.inf, value), jnp.sum(is_nan), jnp.sum(is_positive)


def _flatten(example: PyTree) -> tuple[Float[AnyArray, " dim"], Callable[[AnyArray], PyTree]]:
    """Flatten a pytree of numbers, and return the way back; on the host, where nothing needs to be compiled."""
    leaves, structure = jax.tree.flatten(example)
    xp = jnp if any(isinstance(leaf, Tracer) for leaf in leaves) else np
    arrays = [xp.asarray(leaf, jnp.result_type(float)) for leaf in leaves]
    shapes = [array.shape for array in arrays]
    ends = np.cumsum([array.size for array in arrays]).tolist()

    def unravel(x):
        parts = [x[..., first:end] for first, end in zip([0, *ends], ends, strict=False)]
        reshaped = [part.reshape((*x.shape[:-1], *shape)) for part, shape in zip(parts, shapes, strict=True)]
        return jax.tree.unflatten(structure, reshaped)

    return xp.concatenate([array.ravel() for array in arrays]), unravel


def _flat_box(
    box: tuple[PyTree, PyTree], start: Float[AnyArray, " dim"]
) -> tuple[Float[AnyArray, " dim"], Float[AnyArray, " dim"]]:
    """Flatten the corners of a box; one number stands for all coordinates."""
    if not (isinstance(box, tuple | list) and len(box) == 2):
        raise ValueError(f"box must be a pair (lower, upper), got {box!r}.")
    lower, upper = (
        np.full_like(start, corner) if isinstance(corner, int | float) else _flatten(corner)[0] for corner in box
    )
    if lower.shape != start.shape or upper.shape != start.shape:
        raise ValueError(
            f"box must hold corners of {start.size} numbers, like the example, got {lower.size} and {upper.size}. "
            "Pass pytrees shaped like the example, or one number for each corner."
        )
    if not (np.isfinite(lower) & np.isfinite(upper) & (lower < upper)).all():
        raise ValueError("box must be finite, with lower below upper in every coordinate.")
    return lower.astype(start.dtype), upper.astype(start.dtype)


@jax.jit
def _position(target: Target, x: Float[AnyArray, " dim"]) -> PyTree:
    program = target._program
    return jax.tree.unflatten(jax.tree.structure(program.read), _run(program.constrain, target._constants[2], x))


@jax.jit
def _positions(target: Target, x: Float[AnyArray, "draw dim"]) -> PyTree:
    return jax.vmap(target.position)(x)


def pad(block: Float[np.ndarray, "draw dim"], size: int) -> Float[np.ndarray, "size dim"]:
    """Fill a block of points up to a size, with copies of its first point."""
    return np.concatenate([block, np.repeat(block[:1], size - len(block), axis=0)])


def _run(jaxpr: Jaxpr, constants: Sequence[AnyArray], x: Float[AnyArray, " dim"]) -> list[jax.Array]:
    from jax.extend import core

    return core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, list(constants)))(x)


def _uncompiled(function: Callable) -> Callable:
    """Return the function inside a compiled one, whose data would stay constants of it."""
    return getattr(function, "__wrapped__", function) if isinstance(function, type(jax.jit(max))) else function


def _trace(name: str, function: Callable, start: Float[AnyArray, " dim"]) -> tuple[ClosedJaxpr, PyTree]:
    """Trace a function of the flat point; return it with the shapes of its result."""
    try:
        with exact_products():
            return jax.make_jaxpr(function, return_shape=True)(start)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        error.add_note(
            f"{name} could not be traced by JAX: write it with jax.numpy, without conversions to NumPy or to Python "
            "numbers and without branches on values, or wrap foreign code in jax.pure_callback."
        )
        raise


def _check_scalar(value: PyTree) -> None:
    if getattr(value, "shape", None) != () or not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(
            f"logdensity must return one real number (shape ()), but it returned {value}. "
            "Sum the log likelihood over the data."
        )


def _names(read: PyTree) -> list[str]:
    names = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(read):
        stem = jax.tree_util.keystr(path, simple=True, separator=".") or "x"
        indices = np.ndindex(leaf.shape)
        names += [stem if not index else f"{stem}[{','.join(map(str, index))}]" for index in indices]
    return names


def _problems(value: np.ndarray, gradient: np.ndarray) -> list[str]:
    num = value.size
    problems = []
    if not np.isfinite(value[0]):
        problems.append(f"the log density is {value[0]} at the example; choose an example inside the support.")
    if np.isnan(value).any():
        problems.append(f"the log density is NaN at {np.isnan(value).sum()} of {num} points near the example.")
    if (value == np.inf).any():
        problems.append(f"the log density is +inf at {(value == np.inf).sum()} of {num} points near the example.")
    finite = np.isfinite(value)
    if not finite.any():
        problems.append("the log density is finite nowhere near the example; check signs, logarithms and the support.")
    bad_gradient = finite & ~np.isfinite(gradient).all(axis=1)
    if bad_gradient.any():
        problems.append(
            f"the gradient is not finite at {bad_gradient.sum()} of {finite.sum()} points where the log density is; "
            "look for a where() around an invalid branch, a square root or a norm at zero. The forward KL by EM needs "
            "no gradient."
        )
    if value.dtype == np.float32 and finite.any() and np.abs(value[finite]).max() > FLOAT32_LIMIT:
        digits = np.spacing(np.float32(np.abs(value[finite]).max()))
        problems.append(
            f"the log density reaches {np.abs(value[finite]).max():.3g} in float32, where neighbouring numbers are "
            f"{digits:.1g} apart, and weights carry that error; call jax.config.update('jax_enable_x64', True) first."
        )
    return problems
