"""Any Python function as a target: simulators, compiled code, other libraries, with or without a gradient."""

import dataclasses
import functools
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from klover.base.checks import as_numbers, check_count, check_flag, check_function
from klover.base.shapes import AnyArray, Float
from klover.targets.adapters.host import Failures, HostModelInfo, Points, Tape, in_words, make_logdensity, recalled
from klover.targets.bounds import Corners, reach
from klover.targets.journal import GRADIENTS, VALUES, Unwritable
from klover.targets.target import Target
from klover.workers.crew import Crew, check_pool
from klover.workers.errors import PoolGone, Refused
from klover.workers.parcel import Job
from klover.workers.work import Errors, OnPoints


def from_callback(
    logdensity: Callable[[np.ndarray], Any],
    dim: int,
    *,
    grad: Callable[[np.ndarray], Any] | None = None,
    vectorized: bool = False,
    bounds: tuple[Any, Any] | None = None,
    names: Sequence[str] | None = None,
    throw: bool = False,
    pool: Any = None,
    timeout: float | None = None,
    start: Any = None,
) -> Target:
    """Make a target of a Python function on NumPy arrays.

    The function is called once here, at the start, so that what is wrong with it shows at once. Later errors are kept
    in ``target.model_info.failures``; points that raise are NaN, which counts as outside the support and is counted by
    the verdict, and the first one is named in a warning.

    Parameters
    ----------
    logdensity
        From a point of shape (dim,) to its log density; -inf outside the support.
    dim
        Length of a point.
    grad
        The gradient of ``logdensity``, on the same points; without it klover works with values alone.
    vectorized
        Whether the functions take points of shape (S, dim), and return shapes (S,) and (S, dim).
    bounds
        ``(lower, upper)``, each one number or ``dim`` of them, infinite where there is none. Inside, coordinates are
        transformed (logarithm, scaled logit) and the density gets their Jacobian, so that the evidence is that of the
        natural scale; the functions see, and people read, points strictly inside the bounds. Where a part of the
        posterior is so close to a bound that numbers cannot tell, the verdict refuses. Numbers are dense around 0: let
        a parameter that crowds to its bound be its distance from it.
    names
        Names of the coordinates.
    throw
        Whether an error of the functions goes on to the caller, in words that name the point.
    pool
        Who evaluates, where a point takes a millisecond or more: a whole number of processes, a
        ``concurrent.futures.Executor`` (so mpi4py's) or a function that opens one, a Dask ``Client``, any object with
        ``.map``. The functions travel once to each worker. A point that kills its worker is NaN, and named in the
        verdict (``docs/scale.md``). A script that passes a whole number needs ``if __name__ == "__main__":``.
    timeout
        Seconds that one point may take, with a pool; one that takes longer twice is NaN, and named in the verdict.
    start
        Where searches start, on the natural scale; in the middle of the bounds, one inside a single bound, else 0.
    """
    options = {"grad": grad, "vectorized": vectorized, "bounds": bounds, "names": names, "throw": throw}
    # Another process can have a number of processes of its own, and no other pool.
    can_travel = isinstance(pool, numbers.Integral)
    options |= {"pool": pool if can_travel else None, "timeout": timeout if can_travel else None, "start": start}
    dim = check_count("dim", dim, 1)
    check_pool(pool, timeout)
    for name, flag in {"vectorized": vectorized, "throw": throw}.items():
        check_flag(name, flag)
    for name, function in {"logdensity": logdensity, "grad": grad}.items():
        if name == "logdensity" or function is not None:
            check_function(name, function, "NumPy arrays")
    interval, is_free = _Interval.parse(bounds, dim), bounds is None
    begin = interval.parse_start(start)
    failures, crew = Failures(throw), Crew(pool, timeout)
    shared = failures, crew, Tape(lambda points: value.spread(points))
    value = _Caller(Job("logdensity", OnPoints(logdensity, (), vectorized)), VALUES, *shared)
    slope = grad and _Caller(Job("grad", OnPoints(grad, (dim,), vectorized)), GRADIENTS, *shared)
    for caller in (value, slope):
        if caller is not None:
            if pool is not None:
                _ = caller.job.parcel  # what cannot be packed is refused here
            caller.check(begin if is_free else np.asarray(jax.jit(interval.natural)(begin)))
    density = make_logdensity(dim, value.spread, None if slope is None else functools.partial(_both, value, slope))

    def unconstrain(position):
        x = position["x"] if names is None else jnp.stack([position[name] for name in names])
        return interval.free(x)

    return Target(
        density if is_free else lambda u: density(interval.natural(u)) + interval.log_jacobian(u),
        begin,
        constrain=None if is_free else interval.natural,
        names=names,
        model_info=HostModelInfo(
            "callback", unconstrain=unconstrain, failures=failures, crew=crew, tape=shared[-1], reach=interval.reach
        ),
    ).remade_by(from_callback, logdensity, dim, **options)


@dataclasses.dataclass(frozen=True, eq=False)
class _Caller:
    """A user's function on blocks of points, what it raises, who evaluates it, and where that is written down."""

    job: Job
    kind: bytes
    failures: Failures
    crew: Crew
    tape: Tape

    @property
    def work(self) -> OnPoints:
        """The function, with the shape of its result at one point."""
        assert isinstance(self.job.work, OnPoints)
        return self.job.work

    def check(self, point: Float[np.ndarray, " dim"]) -> None:
        """Call the function once where it has to work."""
        work, name = self.work, self.job.name
        # Two points, so that a function of one point cannot pass for one of many.
        given = np.stack([point, point]) if work.vectorized else point.copy()
        try:
            found = np.asarray(work.function(given))
        except Exception as error:
            error.add_note(f"{name} failed at the start, {in_words(given)}; pass start= inside the support.")
            raise
        expected = (2, *work.shape) if work.vectorized else work.shape
        if found.shape != expected or found.dtype.kind not in "fiu":
            raise ValueError(
                f"{name} must return real numbers of shape {expected} for an argument of shape {given.shape}, got "
                f"{found.dtype} of shape {found.shape}."
                f" Pass vectorized={not work.vectorized} if it takes "
                + ("one point at a time." if work.vectorized else "many points at once.")
            )

    def spread(self, points: Points) -> np.ndarray:
        """Evaluate points, wherever that is done, or find them in a journal; those that raise are NaN, and counted."""
        found, raised = self.work.missing(len(points)), {}
        rest = np.flatnonzero(~self.failures.are_quarantined(points))
        if self.tape.journal is not None:
            known = self.tape.journal.find(self.kind, points[rest])
            found[rest] = known.rows.reshape(found[rest].shape)
            raised = {int(rest[place]): recalled(words) for place, words in known.words.items()}
            rest = rest[~known.is_known]

        def done(indices: np.ndarray, values: np.ndarray, errors: Errors) -> None:
            found[rest[indices]] = values
            raised.update((int(rest[index]), error) for index, error in errors)
            self.write(points[rest[indices]], values, [raised.get(int(row)) for row in rest[indices]])

        self.failures.fatal = None
        try:
            self.crew.run(self.job, points[rest], done)
        except (PoolGone, Refused, Unwritable) as error:
            self.failures.fatal = error
            raise
        for index, error in sorted(raised.items()):
            self.failures.add(points[index], error)
        return found

    def write(self, points: Points, values: np.ndarray, errors: list[Exception | None]) -> None:
        """Add a chunk to the journal; an error that the user wants to see is to be raised again, and not kept."""
        words = {place: f"{type(error).__name__}: {error}" for place, error in enumerate(errors) if error is not None}
        if self.tape.journal is not None and not (words and self.failures.throw):
            self.tape.journal.append(self.kind, points, values.reshape(len(points), -1), words)


def _both(value: _Caller, slope: _Caller, points: Points) -> tuple[Float[np.ndarray, " draw"], Points]:
    """Evaluate values, and gradients where the values are finite."""
    values, gradients = value.spread(points), np.zeros(points.shape)
    is_inside = np.isfinite(values)
    if is_inside.any():
        gradients[is_inside] = slope.spread(points[is_inside])
    return values, gradients


@dataclasses.dataclass(frozen=True, eq=False)
class _Interval:
    """Bounds of the coordinates, and the smooth way between them and the real line."""

    lower: Float[np.ndarray, " dim"]
    upper: Float[np.ndarray, " dim"]

    @classmethod
    def parse(cls, bounds: Any, dim: int) -> "_Interval":
        """Read bounds as the user gives them."""
        try:
            lower, upper = (-np.inf, np.inf) if bounds is None else bounds
            lower, upper = (np.array(np.broadcast_to(np.asarray(each, float), dim)) for each in (lower, upper))
        except (TypeError, ValueError):
            raise ValueError(
                f"bounds must be (lower, upper), each one number or {dim} of them, got {bounds!r}."
            ) from None
        if not (lower < upper).all():
            raise ValueError(
                "bounds must be (lower, upper), with lower below upper in every coordinate and inf where there is no "
                f"bound, got {lower} and {upper}."
            )
        return cls(lower, upper)

    def parse_start(self, start: Any) -> Float[np.ndarray, " dim"]:
        """Return the start on the real line; its origin if there is none."""
        if start is None:
            return np.zeros(self.lower.shape)
        point = np.asarray(as_numbers("start", start), float)
        if point.shape != self.lower.shape or not ((self.lower < point) & (point < self.upper)).all():
            raise ValueError(
                f"start must be a point of {len(self.lower)} numbers strictly inside the bounds, got {start!r}."
            )
        return np.asarray(jax.jit(self.free)(point), float)

    @property
    def _kinds(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Where there is a lower and an upper bound, and both bounds and their distance, with finite stand-ins."""
        has_lower, has_upper = np.isfinite(self.lower), np.isfinite(self.upper)
        lower, upper = np.where(has_lower, self.lower, 0.0), np.where(has_upper, self.upper, 0.0)
        return has_lower, has_upper, lower, upper, np.where(has_lower & has_upper, upper - lower, 1.0)

    @property
    def reach(self) -> Corners:
        """Where points come to the bounds."""
        return reach(self.lower, self.upper, jnp.result_type(float))

    def natural(self, u: Float[AnyArray, " dim"]) -> Float[AnyArray, " dim"]:
        """Go from the real line to the natural scale; never onto a bound, where densities may be infinite.

        What would round to a bound is the number next to it (:mod:`klover.targets.bounds`).
        """
        has_lower, has_upper, lower, upper, width = self._kinds
        u = jnp.asarray(u)
        limits = jnp.finfo(u.dtype)
        growth = jnp.exp(jnp.clip(u, np.log(limits.tiny), np.log(limits.max) - 1.0))
        share = width * jax.nn.sigmoid(-jnp.abs(u))
        both = jnp.where(u < 0, lower + share, upper - share)
        one = jnp.where(has_lower, lower + growth, upper - growth)
        x = jnp.where(has_lower & has_upper, both, jnp.where(has_lower | has_upper, one, u))
        smallest, largest = (_beside(edge, side, u.dtype) for edge, side in ((self.lower, 1), (self.upper, -1)))
        return jnp.clip(x, smallest, largest)

    def log_jacobian(self, u: Float[AnyArray, " dim"]) -> Float[AnyArray, ""]:
        """Log of the derivative of :meth:`natural`, summed over coordinates."""
        has_lower, has_upper, _, _, width = self._kinds
        both = np.log(width) + jax.nn.log_sigmoid(u) + jax.nn.log_sigmoid(-u)
        one = jnp.where(has_lower | has_upper, u, 0.0)
        return jnp.sum(jnp.where(has_lower & has_upper, both, one))

    def free(self, x: Float[AnyArray, " dim"]) -> Float[AnyArray, " dim"]:
        """Go from the natural scale to the real line; NaN outside the bounds."""
        has_lower, has_upper, lower, upper, _ = self._kinds
        above = jnp.where(has_lower, jnp.log(x - lower), 0.0)
        below = jnp.where(has_upper, jnp.log(upper - x), 0.0)
        one = jnp.where(has_lower, above, below)
        return jnp.where(has_lower & has_upper, above - below, jnp.where(has_lower | has_upper, one, x))


def _beside(edge: np.ndarray, side: int, dtype: Any) -> np.ndarray:
    """Return the number next to a bound on the inside; the smallest that XLA does not flush to zero beside 0."""
    limits = np.finfo(dtype)
    near = np.nextafter(edge.astype(dtype), np.asarray(side * np.inf, dtype))
    return np.where(np.abs(near) < limits.tiny, side * limits.tiny, near)
