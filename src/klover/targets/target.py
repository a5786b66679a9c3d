r"""The target: a log density :math:`\log\hat p(\theta)`, known up to a constant, on a pytree of parameters.

Inside the library a point is a flat vector ``x`` of :math:`\mathbb R^d`; a ``position`` is the user's pytree. The
user's functions are traced once, and the arrays that they have captured (the data) become leaves of the target, which
is itself a pytree: they are arguments of every compiled program, not constants baked into it, and targets can be
vmapped.
"""

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from klover.base.checks import (
    as_key,
    as_numbers,
    check_count,
    check_finite,
    check_function,
    check_instance,
    check_names,
    check_points,
)
from klover.base.jaxpr import Jaxpr, evaluate_jaxpr, largest_array, signature
from klover.base.processes import are_shared, num_devices, to_host
from klover.base.shapes import AnyArray, Float, Int, KeyLike, PyTree
from klover.targets.check import TargetCheck, find_problems
from klover.targets.model_info import ModelInfo
from klover.targets.positions import flat_box, flatten, names_of, pad, ravel_rows
from klover.targets.recipe import Recipe, reduce
from klover.targets.trace import check_scalar, identity, trace, without_jit

LARGEST_INTERMEDIATE = 2**24
"""Numbers that the largest array of one evaluation may hold: 128 MiB in float64."""

BLOCK = 1024
"""Points that are constrained at a time, so that one program serves any number of them."""


class _Arrays(NamedTuple):
    """All of a target that is data."""

    start: Float[AnyArray, " dim"]
    density: tuple[AnyArray, ...]
    constrain: tuple[AnyArray, ...]
    box: tuple[Float[AnyArray, " dim"], Float[AnyArray, " dim"]] | None


@dataclasses.dataclass(frozen=True)
class _Program:
    """All of a target that is not an array; targets with equal programs share what was compiled."""

    signature: Hashable
    names: tuple[str, ...]
    density: Jaxpr = dataclasses.field(compare=False)
    constrain: Jaxpr | None = dataclasses.field(compare=False)
    """From a flat point to the leaves of a constrained position; None where that is the position itself."""
    unravel: Callable = dataclasses.field(compare=False)
    model_info: ModelInfo | None = dataclasses.field(compare=False)
    read: Any
    """Structure of a constrained position."""


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
        check_function("logdensity", logdensity, "one position")
        if constrain is not None:
            check_function("constrain", constrain, "one position")
        if model_info is not None:
            check_instance("model_info", model_info, ModelInfo, "It is for adapters: leave it out.")
        check_finite("example", example, "Pass a pytree of finite numbers shaped like one position.")
        start, unravel = flatten(example)
        density, value = trace("logdensity", without_jit(logdensity), unravel, start)
        check_scalar(value)
        reading, read = trace("constrain", constrain or identity, unravel, start)
        if not jax.tree.leaves(read):
            raise ValueError(f"constrain must return the quantities that people read, got {read}.")
        made = tuple(names_of(read))
        if names is not None:
            check_names("names", names, len(made))
        corners = None if box is None else flat_box(box, start)
        self._arrays = _Arrays(start, tuple(density.consts), tuple(reading.consts), corners)
        self._program = _Program(
            (signature(density.jaxpr), signature(reading.jaxpr), jax.tree.structure(example)),
            made if names is None else tuple(names),
            density.jaxpr,
            None if constrain is None else reading.jaxpr,
            unravel,
            model_info,
            jax.tree.structure(read),
        )
        options = {"constrain": constrain, "names": names, "box": box, "model_info": model_info}
        self._recipe: Recipe | None = Recipe(Target, (logdensity, example), options)

    def remade_by(self, maker: Callable[..., "Target"], *arguments: Any, **options: Any) -> "Target":
        """Return the target, which pickle will make again by calling ``maker``."""
        check_function("maker", maker, "the arguments that follow", arguments, options)
        self._recipe = Recipe(maker, arguments, options)
        return self

    @property
    def made_of(self) -> tuple[Any, ...]:
        """The functions and data that a copy of this target is made of in another process."""
        return () if self._recipe is None else self._recipe.arguments

    def __reduce__(self):
        return reduce(self._recipe)

    def __copy__(self) -> "Target":
        return self

    def __deepcopy__(self, memo: dict) -> "Target":
        """Return the target itself: nothing in it changes."""
        return self

    def tree_flatten(self):
        """Split into arrays and program, for JAX."""
        return (self._arrays,), self._program

    @classmethod
    def tree_unflatten(cls, program, children):
        """Put arrays and program together again, for JAX."""
        target = object.__new__(cls)
        (target._arrays,) = children
        target._program, target._recipe = program, None
        return target

    @property
    def dim(self) -> int:
        """Dimension d of the flat space."""
        return self._program.density.invars[0].aval.shape[0]

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
        return self._arrays.start

    @property
    def box(self) -> tuple[Float[AnyArray, " dim"], Float[AnyArray, " dim"]] | None:
        """Lower and upper corner of the region where the posterior is expected, if the user gave one."""
        return self._arrays.box

    @property
    def num_devices(self) -> int:
        """Number of devices that the data lie on, in all processes; 0 where they are NumPy arrays."""
        return num_devices(self._arrays)

    @property
    def is_shared(self) -> bool:
        """Whether other processes hold parts of the data, so that all of them have to evaluate in step."""
        return are_shared(self._arrays)

    @property
    def largest_intermediate(self) -> int:
        """Most numbers in one array that an evaluation at one point makes on its way."""
        return largest_array(self._program.density)

    def log_prob(self, x: Float[AnyArray, "*draw dim"]) -> Float[jax.Array, "*draw"]:
        """Log density at one flat point of shape (d,) or at points of shape (S, d), as the user's function gives it."""
        points = jnp.asarray(check_points("x", x, self.dim), self.start.dtype)
        single = lambda point: evaluate_jaxpr(self._program.density, self._arrays.density, point)[0]  # noqa: E731
        return single(points) if points.ndim == 1 else jax.vmap(single)(points)

    def coordinate_name(self, index: int) -> str:
        """Name one coordinate of the flat, unconstrained point."""
        index = check_count("index", index, 0, maximum=self.dim - 1)
        return names_of(self.unravel(self.start))[index]

    def unravel(self, x: Float[AnyArray, "*draw dim"]) -> PyTree:
        """Turn flat points into (unconstrained) positions, whose arrays have the leading axes of x."""
        points = as_numbers("x", x)
        if points.ndim == 0 or points.shape[-1] != self.dim:
            raise ValueError(f"x must hold points of {self.dim} numbers on its last axis, got shape {points.shape}.")
        return self._program.unravel(points)

    def position(self, x: Float[AnyArray, " dim"]) -> PyTree:
        """Turn one flat point into the constrained position that a person reads."""
        point = check_points("x", x, self.dim, (1,))
        return self.unravel(point) if self._program.constrain is None else _position(self, point)

    def positions(self, x: Float[AnyArray, "draw dim"]) -> PyTree:
        """Turn flat points into constrained positions, whose arrays have a leading axis of draws.

        On the host: NumPy arrays, by one program for any number of points, and by none where nothing is constrained.
        """
        if isinstance(x, Tracer):
            return jax.vmap(self.position)(x)
        points = np.asarray(check_points("x", x, self.dim, (2,)), self.start.dtype)
        if self._program.constrain is None:
            return self.unravel(points)
        size = min(BLOCK, max(LARGEST_INTERMEDIATE // largest_array(self._program.constrain), 1))
        padded = pad(points, -(-len(points) // size) * size)
        parts = [_positions(self, padded[first : first + size]) for first in range(0, max(len(padded), 1), size)]
        return jax.tree.map(lambda *leaves: np.concatenate([to_host(leaf) for leaf in leaves])[: len(points)], *parts)

    def flat_position(self, x: Float[AnyArray, "draw dim"]) -> Float[AnyArray, "draw value"]:
        """Turn flat points into constrained positions, each raveled in the order of ``names``."""
        points = check_points("x", x, self.dim, (2,))
        return points if self._program.constrain is None else ravel_rows(self.positions(points))

    def check(self, key: KeyLike, num_points: int = 100) -> TargetCheck:
        """Look for what is wrong with the density, before time is spent on it.

        The density and its gradient, where it has one, are evaluated at the example and at points around it (standard
        normal steps).
        """
        key = as_key(key)
        check_count("num_points", num_points, 1)
        steps = jax.random.normal(key, (num_points, self.dim), self.start.dtype)
        points = jnp.concatenate([self.start[None], self.start + steps])
        function = jax.value_and_grad(Target.log_prob, argnums=1)
        try:
            jax.eval_shape(function, self, self.start)
        except (TypeError, ValueError, NotImplementedError):
            # A callback on the host has no gradient, and needs none.
            function = lambda target, point: (target.log_prob(point), jnp.zeros_like(point))  # noqa: E731
        value, gradient = jax.jit(jax.vmap(function, (None, 0)))(self, points)
        return TargetCheck(tuple(find_problems(to_host(value), to_host(gradient))))


def log_prob_in_blocks(target: Target, x: Float[AnyArray, "draw dim"]) -> Float[jax.Array, " draw"]:
    """Log density as the user's function gives it; in blocks, where all points at once would take too much memory."""
    block = max(LARGEST_INTERMEDIATE // target.largest_intermediate, 1)
    is_large = x.shape[0] > block
    return jax.lax.map(target.log_prob, jnp.asarray(x), batch_size=block) if is_large else target.log_prob(x)


def evaluate(
    target: Target, x: Float[AnyArray, "draw dim"]
) -> tuple[Float[jax.Array, " draw"], Int[jax.Array, ""], Int[jax.Array, ""]]:
    """Log density with every invalid value (NaN, +inf) replaced by -inf, and the counts of NaN and of +inf."""
    value = log_prob_in_blocks(target, x)
    is_nan, is_positive = jnp.isnan(value), value == jnp.inf
    return jnp.where(is_nan | is_positive, -jnp.inf, value), jnp.sum(is_nan), jnp.sum(is_positive)


@jax.jit
def _position(target: Target, x: Float[AnyArray, " dim"]) -> PyTree:
    leaves = evaluate_jaxpr(target._program.constrain, target._arrays.constrain, x)
    return jax.tree.unflatten(target._program.read, leaves)


@jax.jit
def _positions(target: Target, x: Float[AnyArray, "draw dim"]) -> PyTree:
    return jax.vmap(target.position)(x)
