"""Densities that JAX cannot trace: code on the host, called with whole blocks of points.

A block that JAX evaluates at once (``vmap``) is one call of the host's function.
"""

import dataclasses
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from klover.base.shapes import Float, Point, Scalar
from klover.targets.model_info import ModelInfo

Points = Float[np.ndarray, "draw dim"]
Values = Callable[[Points], Float[np.ndarray, " draw"]]
ValuesAndGradients = Callable[[Points], tuple[Float[np.ndarray, " draw"], Points]]
LogDensity = Callable[[Point], Scalar]


@dataclasses.dataclass(eq=False)
class Failures:
    """Errors that a function on the host has raised: at how many points, and the first, on the function's own scale."""

    throw: bool = False
    """Whether the first error goes on to the caller."""
    num_raised: int = 0
    point: np.ndarray | None = None
    error: Exception | None = None

    def add(self, point: Float[np.ndarray, " dim"], error: Exception, num_raised: int = 1) -> None:
        """Count an error, or several of which this is the first; the first of all is kept, and thrown or warned of."""
        self.num_raised += num_raised
        if self.error is None:
            self.point, self.error = np.array(point), error
            if not self.throw:
                warnings.warn(
                    f"{self}. Such points are taken as outside the support; make the log density return -inf where it "
                    "cannot be computed.",
                    stacklevel=2,
                )
        if self.throw:
            # JAX shows the message of an error, and not its notes.
            raise RuntimeError(str(self)) from error

    def __str__(self) -> str:
        """Say what the first error was."""
        if self.error is None:
            return "the log density raised no error"
        return f"the log density raised {type(self.error).__name__}: {self.error}, at {in_words(self.point)}"


@dataclasses.dataclass(frozen=True, eq=False)
class HostModelInfo(ModelInfo):
    """What is known of a model whose density runs on the host, and may raise errors: ``failures`` keeps them."""

    failures: Failures = dataclasses.field(default_factory=Failures)


def in_words(point: np.ndarray | None) -> str:
    """Write a point so that it can be copied."""
    return f"np.{np.asarray(point)!r}"


def on_host(function: Callable[[Points], np.ndarray], shape: tuple[int, ...] = ()) -> Callable[..., jax.Array]:
    """Make a function of blocks of vectors, (S, n) to (S, *shape), into one of one vector, which JAX may vectorise.

    Copies of a block's first vector are not evaluated: klover fills blocks with them, and a point may cost a second.
    """

    def call(x):
        x = np.asarray(x)
        points = np.array(x.reshape(-1, x.shape[-1]))
        is_copy = (points == points[:1]).all(axis=1)
        is_copy[:1] = False
        result = np.empty((len(points), *shape), x.dtype)
        found = function(points[~is_copy])
        with np.errstate(over="ignore"):  # what single precision cannot hold is as good as infinite
            result[~is_copy] = found
        result[is_copy] = result[:1]
        return result.reshape((*x.shape[:-1], *shape))

    def traced(x):
        return jax.pure_callback(call, jax.ShapeDtypeStruct(shape, x.dtype), x, vmap_method="broadcast_all")

    return traced


def make_logdensity(dim: int, values: Values, values_and_gradients: ValuesAndGradients | None = None) -> LogDensity:
    """Make a log density that JAX can vectorise, and differentiate once where there are gradients (by one call)."""
    if values_and_gradients is None:
        return on_host(values)
    both = on_host(lambda points: np.column_stack(values_and_gradients(points)), (dim + 1,))
    logdensity = jax.custom_jvp(on_host(values))

    @logdensity.defjvp
    def _(primals, tangents):
        found = both(*primals)
        return found[0], jnp.dot(found[1:], *tangents)

    return logdensity
