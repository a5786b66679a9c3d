"""Mixtures made out of mixtures: joined, inflated, widened, marginal; and made from a box, or from covariances."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from klover.base.arrays import logsumexp, namespace
from klover.base.checks import as_floats
from klover.base.linalg import cholesky
from klover.base.shapes import AnyArray, Float, Int, Locations, Point, Weights
from klover.mixtures.components import Components, Family
from klover.mixtures.mixture import Mixture
from klover.mixtures.scale import Diagonal, Full

FLATTENING = 0.3
"""Power of the weights of stretched components: the ends of a ridge have little weight, and are wanted."""
BOX_INFLATION = 1.2


def join(first: Mixture, second: Mixture, share: float) -> Mixture:
    """Return the mixture of two mixtures, the second with a share of the weight."""
    xp = namespace(first.log_weights, second.log_weights)
    if type(first.components.spread) is not type(second.components.spread):
        first, second = _with_matrices(first), _with_matrices(second)
    components = jax.tree.map(lambda one, two: xp.concatenate([one, two]), first.components, second.components)
    log_weights = [first.log_weights + np.log1p(-share), second.log_weights + np.log(share)]
    return Mixture(components, xp.concatenate(log_weights))


def _with_matrices(mixture: Mixture) -> Mixture:
    """Return the same mixture with whole covariance matrices."""
    spread = Full(cholesky(mixture.components.spread.covariance()))
    return Mixture(dataclasses.replace(mixture.components, spread=spread), mixture.log_weights)


def take(mixture: Mixture, index: Int[AnyArray, " chosen"]) -> Mixture:
    """Return the mixture of some of the components, weights renormalised."""
    log_weights = mixture.log_weights[index]
    return Mixture(jax.tree.map(lambda leaf: leaf[index], mixture.components), log_weights - logsumexp(log_weights))


def inflate(mixture: Mixture, factor: float, df: float = np.inf) -> Mixture:
    """Return wider copies of all components, with tails at least as heavy as asked."""
    components = mixture.components
    wide = dataclasses.replace(components, spread=components.spread.inflated(factor), df=_at_most(components, df))
    return Mixture(wide, mixture.log_weights)


def _at_most(components: Components, df: float) -> Weights:
    """Return degrees of freedom that are no larger than asked; those of Normals stay infinite."""
    return namespace(components.df).minimum(components.df, df) if components.tail == "student" else components.df


def defensive_inflation(dim: int) -> float:
    r"""Return :math:`1+2/\sqrt d`: copies so much wider cover the tails of each component, and few go astray."""
    return 1 + 2 / dim**0.5


def stretch(mixture: Mixture, factor: float, df: float) -> Mixture:
    """Return copies that are longer along their longest axis, with tails at least as heavy as asked.

    Lengths are measured in standard deviations of the whole mixture. A ridge goes on where its last component points:
    draws of the longer copy follow it, while those of a copy that is wider in all directions miss it.
    """
    components = mixture.components
    if not isinstance(components.spread, Full):
        return inflate(mixture, factor, df)
    delta = components.location - mixture.mean()
    covariance = components.spread.covariance()
    scale = np.sqrt(mixture.weights @ (components.spread.variance() + delta**2))
    values, vectors = np.linalg.eigh(covariance / np.outer(scale, scale))
    axis = scale * np.sqrt((factor**2 - 1) * values[:, -1:]) * vectors[:, :, -1]
    spread = Full(cholesky(covariance + axis[:, :, None] * axis[:, None, :]))
    long = dataclasses.replace(components, spread=spread, df=_at_most(components, df))
    log_weights = FLATTENING * mixture.log_weights
    return Mixture(long, log_weights - logsumexp(log_weights))


def widen(mixture: Mixture, num: int, factor: float, df: float) -> Mixture:
    """Return copies that are wider in the first ``num`` coordinates alone, with tails at least as heavy as asked."""
    components = mixture.components
    scale = np.where(np.arange(mixture.dim) < num, factor, 1.0)
    spread = Full(cholesky(scale[:, None] * components.spread.covariance() * scale))
    return Mixture(dataclasses.replace(components, spread=spread, df=_at_most(components, df)), mixture.log_weights)


def mixture_of(
    family: Family,
    location: Locations,
    covariance: Float[AnyArray, "component dim *dim"],
    df: Weights | float,
    weight: Weights,
) -> Mixture:
    """Return a mixture of the family; variances instead of matrices give diagonal covariances instead of full ones."""
    is_reduced = covariance.ndim == 2 and family.covariance == "full"
    spread = Diagonal(np.sqrt(covariance)) if is_reduced else family.spread(covariance)
    df = np.inf if family.tail == "normal" else (family.df or df)
    df = np.broadcast_to(np.asarray(df, float), len(weight))
    return Mixture(Components(location, spread, df, family.tail), np.log(weight / np.sum(weight)))


def marginal(mixture: Mixture, coordinates: Sequence[int]) -> Mixture:
    """Return the mixture of some coordinates alone: a Student-t's marginal has the same degrees of freedom."""
    chosen = list(coordinates)
    components = mixture.components
    spread = jax.tree.map(lambda leaf: np.asarray(leaf, float), components.spread)
    if isinstance(spread, Full):
        covariance = spread.covariance()[:, chosen][:, :, chosen]
    else:
        # Whole matrices of a thousand coordinates would fill the memory.
        covariance = jax.tree.map(lambda leaf: leaf[:, chosen], spread).covariance()
    location, df = np.asarray(components.location, float)[:, chosen], np.asarray(components.df, float)
    components = Components(location, Full(cholesky(covariance)), df, components.tail)
    return Mixture(components, np.asarray(mixture.log_weights, float))


def box_variance(lower: Point, upper: Point) -> Point:
    """Return the variances of a component that covers a box: its scales are 1.2 times those of the box."""
    return (BOX_INFLATION * (upper - lower)) ** 2 / 12


def diffuse(
    lower: Sequence[float] | AnyArray, upper: Sequence[float] | AnyArray, family: str | Family = "student"
) -> Mixture:
    """Return one component that covers the box between two corners, with 1.2 times the box's standard deviations."""
    lower, upper = (np.atleast_1d(as_floats(*pair)) for pair in (("lower", lower), ("upper", upper)))
    if lower.size == 0 or lower.shape != upper.shape or lower.ndim != 1:
        raise ValueError(f"lower and upper must be vectors of one length, got shapes {lower.shape}, {upper.shape}.")
    if not (np.isfinite(lower).all() and np.isfinite(upper).all() and (lower < upper).all()):
        raise ValueError(f"lower must be below upper in every coordinate, and both finite, got {lower} and {upper}.")
    location, variance = jnp.asarray(0.5 * (lower + upper))[None], jnp.asarray(box_variance(lower, upper))[None]
    return Mixture.of(Family.parse(family).components(location, variance))
