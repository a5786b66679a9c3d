"""The coordinates in which a refinement works: the user's own, or those behind a warp.

The pool and the answer are always in the user's coordinates. The mixture, and all that is done with it (defence,
particles, searches), are in base coordinates, so that none of it knows of warps.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from klover.base.shapes import Float
from klover.mixtures.algebra import mixture_of
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.mixtures.scale import Full
from klover.refinement.state import Context, Stage, State
from klover.warps.warp import Warp

Points = Float[np.ndarray, "draw dim"]


@contextlib.contextmanager
def in_base(context: Context, state: State) -> Iterator[State]:
    """Give the state with its pool in base coordinates, in which the target is evaluated meanwhile."""
    with context.evaluator.within(state.warp):
        yield dataclasses.replace(state, pool=state.pool.in_base(state.warp))


def in_user_coordinates(state: State) -> Mixture:
    """Return the mixture in the user's coordinates, about."""
    warp = state.warp
    return state.mixture if warp is None else moved(state.mixture, lambda z: warp.from_base(z)[0])


def adopt(state: State, warp: Warp | None) -> State:
    """Go on behind a warp: what is known of the target is taken along, what particles have seen is left behind."""
    if warp is state.warp:
        return state
    old = state.warp

    def change(z: Points) -> Points:
        x = z if old is None else old.from_base(z)[0]
        return x if warp is None else warp.to_base(x)[0]

    return dataclasses.replace(
        state,
        mixture=moved(state.mixture, change),
        warp=warp,
        broad=moved(state.broad, change),
        found=None if state.found is None else moved(state.found, change),
        stage=Stage.POOL if state.stage is Stage.EXPLORE else state.stage,
        was_hard=False,
        frontier=None,
        frontier_particles=(),
        archive=(),
        best_ess=0.0 if old is None else state.best_ess,
        num_stale=0 if old is None else state.num_stale,
    )


def moved(mixture: Mixture, change: Callable[[Points], Points]) -> Mixture:
    """Return a mixture whose components have the moments that a change of coordinates gives them, about."""
    components = mixture.components
    pairs = [_moments(*pair, change) for pair in zip(components.location, components.spread.covariance(), strict=True)]
    location, covariance = (np.stack(each) for each in zip(*pairs, strict=True))
    df = np.asarray(components.df)
    if not isinstance(components.spread, Full):
        covariance = np.diagonal(covariance, axis1=1, axis2=2)
    return mixture_of(Family(components.tail), location, covariance, df, np.asarray(mixture.weights))


def _moments(
    location: Float[np.ndarray, " dim"], covariance: Float[np.ndarray, "dim dim"], change: Callable[[Points], Points]
) -> tuple[Float[np.ndarray, " dim"], Float[np.ndarray, "dim dim"]]:
    """Return mean and covariance after a change, by the 2d points that have those before (the unscented transform)."""
    dim = len(location)
    axes = np.sqrt(dim) * np.linalg.cholesky(covariance).T
    points = change(location + np.concatenate([axes, -axes]))
    mean = points.mean(0)
    delta = points - mean
    scatter = delta.T @ delta / len(points)
    return mean, scatter + 1e-9 * np.diag(np.diagonal(scatter)) + 1e-12 * np.eye(dim)
