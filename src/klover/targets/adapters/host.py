"""Densities that JAX cannot trace: code on the host, called with whole blocks of points.

A block that JAX evaluates at once (``vmap``) is one call of the host's function, or few where it is large.
"""

import dataclasses
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from klover.base.shapes import Bool, Float, Point, Scalar
from klover.targets.journal import Journal
from klover.targets.model_info import ModelInfo
from klover.workers.crew import Crew
from klover.workers.errors import Quarantined

Points = Float[np.ndarray, "draw dim"]
Values = Callable[[Points], Float[np.ndarray, " draw"]]
ValuesAndGradients = Callable[[Points], tuple[Float[np.ndarray, " draw"], Points]]
LogDensity = Callable[[Point], Scalar]

SAFE_BYTES = 100 * 1024
"""Largest argument of a callback, not inclusive: JAX copies a larger one in a thread of its own, and where there is one
core that is the one in which the callback waits for the copy, for ever (jax-ml/jax#24255)."""


@dataclasses.dataclass(eq=False)
class Failures:
    """Errors that a function on the host has raised: at how many points, and the first, on the function's own scale."""

    throw: bool = False
    """Whether the first error goes on to the caller."""
    num_raised: int = 0
    point: np.ndarray | None = None
    error: Exception | None = None
    quarantined: dict[bytes, str] = dataclasses.field(default_factory=dict)
    """What ended its process or took too long, in words, by the bytes of the point, which is not evaluated again."""
    fatal: Exception | None = None
    """Why nothing can be evaluated any more, which goes on to the caller in any case."""

    def add(self, point: Float[np.ndarray, " dim"], error: Exception, num_raised: int = 1) -> None:
        """Count an error, or several of which this is the first; the first of all is kept, and thrown or warned of."""
        self.num_raised += num_raised
        if isinstance(error, Quarantined):
            self.quarantined[np.asarray(point).tobytes()] = f"{in_words(point)} ({error})"
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

    def are_quarantined(self, points: Points) -> Bool[np.ndarray, " draw"]:
        """Whether points are among those that are not evaluated again."""
        return np.array([bool(self.quarantined) and point.tobytes() in self.quarantined for point in points], bool)

    def __str__(self) -> str:
        """Say what the first error was."""
        if self.error is None:
            return "the log density raised no error"
        if isinstance(self.error, Quarantined):
            return f"the log density was given up at {in_words(self.point)}: {self.error}"
        return f"the log density raised {type(self.error).__name__}: {self.error}, at {in_words(self.point)}"


def recalled(words: str) -> Exception:
    """Return an error that a journal tells of; its class has the name that it had, wherever that was defined."""
    name, _, text = words.partition(": ")
    known = {each.__name__: each for each in Quarantined.__subclasses__()}
    return known.get(name, type(name, (Exception,), {}))(text)


@dataclasses.dataclass(eq=False)
class Tape:
    """Where evaluations are written down by chunks, on the function's own scale: a block of them may take hours."""

    values: Values
    """Log densities of points, on that scale."""
    journal: Journal | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class HostModelInfo(ModelInfo):
    """What is known of a model whose density runs on the host.

    ``failures`` keeps the errors that it raises; ``crew`` evaluates it, where that can be done elsewhere, and ``tape``
    keeps a journal, where that is not done by blocks of points.
    """

    failures: Failures = dataclasses.field(default_factory=Failures)
    crew: Crew | None = None
    tape: Tape | None = None


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

    @jax.custom_batching.custom_vmap
    def traced(x):
        if x.size == 0:
            return jnp.zeros((*x.shape[:-1], *shape), x.dtype)
        vectors = x.reshape(-1, x.shape[-1])
        num = max((SAFE_BYTES - 1) // max(x.dtype.itemsize * x.shape[-1], 1), 1)
        size = min(num, len(vectors))
        result = jax.ShapeDtypeStruct((size, *shape), x.dtype)
        # What fills the last part are copies of its first vector.
        num_parts = -(-len(vectors) // num)
        first = min((num_parts - 1) * num, len(vectors) - 1)
        fill = jnp.broadcast_to(vectors[first], (num_parts * size - len(vectors), x.shape[-1]))
        parts = jnp.concatenate([vectors, fill]).reshape(num_parts, size, x.shape[-1])
        found = jax.lax.map(lambda part: jax.pure_callback(call, result, part), parts)
        return found.reshape(-1, *shape)[: len(vectors)].reshape(*x.shape[:-1], *shape)

    @traced.def_vmap
    def _(axis_size, in_batched, x):
        return traced(x), True

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
