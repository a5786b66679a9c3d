r"""A likelihood and a transform of the unit cube to its prior: the two functions that nested samplers take.

The cube is reached from :math:`\mathbb R^d` by :math:`u=\Phi(x)`, so that the prior of x is standard Normal, and where
the likelihood says nothing so is the posterior. With the prior as factor of the density,

.. math:: \int L(T(\Phi(x)))\prod_i\varphi(x_i)\,dx=\int_{[0,1]^d}L(T(u))\,du,

the evidence is the nested samplers'. A periodic coordinate has no ends: it is the angle, in turns, of a point of the
plane with two standard Normal coordinates, and that angle is uniform too.
"""

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from klover.base.checks import as_numbers, check_count, check_flag, check_function, check_names, in_words, note
from klover.base.shapes import AnyArray, Float, Key, Point
from klover.targets.adapters.callback import from_callback
from klover.targets.adapters.host import HostModelInfo, Points, on_host
from klover.targets.bounds import Corners
from klover.targets.target import Target

TURN = 2 * np.pi


def from_prior_transform(
    loglike: Callable[[np.ndarray], Any],
    prior_transform: Callable[[np.ndarray], Any],
    ndim: int,
    *,
    names: Sequence[str] | None = None,
    periodic: Sequence[int | str] | None = None,
    vectorized: bool = False,
    start: Any = None,
    **options: Any,
) -> Target:
    """Make a target of what dynesty, nautilus and UltraNest take: a likelihood, and a transform from the unit cube.

    People read the parameters, ``prior_transform(u)``. Log evidence is that of the likelihood averaged over the prior.
    Gradients are not used: write a density that JAX can trace as a :class:`klover.Target`, which uses them.

    Parameters
    ----------
    loglike
        From parameters of shape (ndim,) to their log likelihood; -inf where they are impossible.
    prior_transform
        From a point u strictly inside the unit cube, of shape (ndim,), to parameters of that shape. Where it returns
        NaN or infinite ones, ``loglike`` is not called, and the density is NaN, which the verdict counts.
    ndim
        Number of parameters.
    names
        Names of the parameters.
    periodic
        Indices, or names, of parameters for which u = 0 and u = 1 are one point, such as angles: a mode there is one
        mode, and not two. Each takes one dimension more.
    vectorized
        Whether both functions take points of shape (S, ndim).
    start
        Where searches start: a point u inside the unit cube; its middle by default.
    **options
        As :func:`klover.from_callback` has them for its function, ``grad`` and ``bounds`` excepted.

    Examples
    --------
    >>> import klover
    >>> import numpy as np
    >>> target = klover.from_prior_transform(lambda x: -0.5 * np.sum(x**2), lambda u: 10 * u - 5, 2)
    >>> fit = klover.refine(0, target)
    >>> fit.verdict.trusted, round(fit.log_evidence, 1)  # the truth is log 2π - 2 log 10 = -2.8
    (True, -2.8)
    """
    for name in ("grad", "bounds"):
        if name in options:
            raise TypeError(f"from_prior_transform takes no {name}: it works without gradients, inside the unit cube.")
    ndim = check_count("ndim", ndim, 1)
    check_flag("vectorized", vectorized)
    for name, function in {"loglike": loglike, "prior_transform": prior_transform}.items():
        check_function(name, function, "NumPy arrays")
    if names is not None:
        check_names("names", names, ndim)
    cube = _Cube(ndim, _places(periodic, ndim, names))
    begin = _inside("start", np.full(ndim, 0.5) if start is None else start, ndim)
    likelihood = _Likelihood(loglike, prior_transform, vectorized)
    likelihood.check(np.stack([begin, begin]) if vectorized else begin)
    density = from_callback(likelihood, ndim, vectorized=vectorized, start=begin, **options)
    read, info, recipe = on_host(likelihood.parameters, (ndim,)), density.model_info, density._recipe
    assert isinstance(info, HostModelInfo)
    assert recipe is not None
    remaking = {"names": names, "periodic": periodic, "vectorized": vectorized, "start": start}
    return Target(
        lambda x: density.log_prob(cube.point(x)) + log_prior(x),
        cube.origin(begin),
        constrain=lambda x: read(cube.point(x)),
        names=names,
        model_info=dataclasses.replace(
            info, name="prior_transform", unconstrain=None, prior=cube.draw_prior, reach=cube.reach
        ),
    ).remade_by(
        from_prior_transform,
        loglike,
        prior_transform,
        ndim,
        **remaking,
        **{name: recipe.options[name] for name in options},
    )


def log_prior(x: Float[AnyArray, "*draw dim"]) -> Float[AnyArray, "*draw"]:
    """Return the log density of the prior: without it, the density is the likelihood."""
    return -0.5 * (x**2 + np.log(TURN)).sum(-1)


def _places(periodic: Any, ndim: int, names: Sequence[str] | None) -> tuple[int, ...]:
    """Read which parameters are periodic, by index or by name."""
    if periodic is None:
        return ()
    if isinstance(periodic, str | bytes) or not isinstance(periodic, Sequence | np.ndarray):
        raise TypeError(f"periodic must be a list of indices or names, got {in_words(periodic)}.")
    known = {} if names is None else {name: place for place, name in enumerate(names)}
    for each in periodic:
        is_place = isinstance(each, int | np.integer) and not isinstance(each, bool) and 0 <= each < ndim
        if not is_place and not (isinstance(each, str) and each in known):
            raise ValueError(
                f"periodic must hold indices from 0 to {ndim - 1}, or names among {list(known)}, got {in_words(each)}."
            )
    return tuple(sorted({known[each] if each in known else int(each) for each in periodic}))


def _inside(name: str, point: Any, ndim: int) -> Float[np.ndarray, " dim"]:
    """Return a point inside the unit cube."""
    found = np.asarray(as_numbers(name, point), float)
    if found.shape != (ndim,) or not ((found > 0) & (found < 1)).all():
        raise ValueError(f"{name} must be a point of {ndim} numbers inside the unit cube, got {in_words(point)}.")
    return found


@dataclasses.dataclass(frozen=True)
class _Likelihood:
    """The log likelihood on the unit cube; a class, so that other processes can be given it."""

    loglike: Callable[[np.ndarray], Any]
    prior_transform: Callable[[np.ndarray], Any]
    vectorized: bool

    def check(self, u: np.ndarray) -> None:
        """Call both functions once where they have to work."""
        functions = {"prior_transform": (self.prior_transform, u.shape), "loglike": (self.loglike, u.shape[:-1])}
        found = u
        for name, (function, shape) in functions.items():
            given = found
            with note(f"{name} failed at the start, of a point np.{u!r} of the cube it got np.{given!r}."):
                found = np.asarray(function(np.array(given, float)))
            if found.shape != shape or found.dtype.kind not in "fiu":
                raise ValueError(
                    f"{name} must return real numbers of shape {shape} for an argument of shape {given.shape}, got "
                    f"{found.dtype} of shape {found.shape}. Pass vectorized={not self.vectorized} if it takes "
                    + ("one point at a time." if self.vectorized else "many points at once.")
                )
            if name == "prior_transform" and not np.isfinite(found).all():
                raise ValueError(f"prior_transform must return finite numbers inside the unit cube, got {found}.")

    def __call__(self, u: np.ndarray) -> Any:
        # A copy, since some transforms write into their argument.
        x = np.asarray(self.prior_transform(u.copy()), float)
        is_finite = np.isfinite(x).all(axis=-1)
        if np.all(is_finite):
            return self.loglike(x)
        values = np.full(is_finite.shape, np.nan)
        if np.any(is_finite):
            values[is_finite] = self.loglike(x[is_finite])
        return values

    def parameters(self, u: Points) -> Points:
        """Return the parameters at points of the cube."""
        if self.vectorized:
            return np.asarray(self.prior_transform(u.copy()), float)
        return np.array([self.prior_transform(each.copy()) for each in u], float).reshape(u.shape)


@dataclasses.dataclass(frozen=True)
class _Cube:
    """The unit cube and the way to it from R^d, whose last coordinates are the second ones of what is periodic."""

    ndim: int
    periodic: tuple[int, ...]

    @property
    def dim(self) -> int:
        """Dimension d of the way's domain."""
        return self.ndim + len(self.periodic)

    @property
    def reach(self) -> Corners:
        """Where u rounds to the last number before 0 or 1; a periodic coordinate has no such place."""
        limits, normal = np.finfo(jnp.result_type(float)), statistics.NormalDist()
        left, right = np.full(self.dim, -np.inf), np.full(self.dim, np.inf)
        plain = np.setdiff1d(np.arange(self.ndim), self.periodic)
        left[plain], right[plain] = normal.inv_cdf(float(limits.tiny)), normal.inv_cdf(1.0 - float(limits.eps))
        return left, right

    def draw_prior(self, key: Key[jax.Array, ""], num: int) -> Points:
        """Draw points whose images are uniform on the cube."""
        return np.random.default_rng(np.asarray(jax.random.key_data(key))).normal(size=(num, self.dim))

    def origin(self, u: Float[np.ndarray, " ndim"]) -> Float[np.ndarray, " dim"]:
        """Return a point from which the way leads to a point of the cube."""
        x = np.array([statistics.NormalDist().inv_cdf(each) for each in u])
        turn = TURN * u[list(self.periodic)]
        x[list(self.periodic)] = np.cos(turn)
        return np.concatenate([x, np.sin(turn)])

    def point(self, x: Point) -> Float[AnyArray, " ndim"]:
        """Return the point of the cube, never on its surface."""
        places = np.array(self.periodic, int)
        u = jax.scipy.special.ndtr(x[: self.ndim])
        angle = jnp.arctan2(x[self.ndim :], x[places]) / TURN
        limits = jnp.finfo(x.dtype)
        return jnp.clip(u.at[places].set(angle % 1.0), limits.tiny, 1.0 - limits.epsneg)
