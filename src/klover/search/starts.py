"""Where a search for missed parts of the target begins: rungs of starts, further and further from what is known.

A missed mode is nearly always narrower than the one that was found, and is seen from inside its basin alone. For one
Gaussian found and one missed, 4 to 20 standard deviations away in any direction, starts of Normals that are 2 to 12
times as wide as the found one fall into the basin most often, in 2 to 30 dimensions; a factor between two such rungs
matters little. That is what the first six rungs are. Two have the covariance of the whole mixture, which lies along
the modes that are known; one is as wide as these lie apart, but in every direction, for a further mode need not lie
along the others. Three know nothing but the example and the user's box. A model with a proper prior has one more, of
draws of that prior.
"""

import numpy as np

from klover.base.linalg import divided, times
from klover.base.shapes import Float
from klover.mixtures.algebra import inflate
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.search.region import Region

INFLATIONS = tuple(np.geomspace(2.0, 12.0, 6).tolist())
"""Of each component's standard deviations, a rung each."""
OVERALL = (0.5, 1.5)
"""Standard deviations of the whole mixture, a rung each."""
APART = 1.5
"""Variance of the rung in every direction, in mean squares of the distances of the components from their centre."""
RADII = (1.0, 100.0)
"""Between the smallest and the largest distance from the example, in the user's own units."""


def draw_rungs(
    generator: np.random.Generator,
    region: Region,
    mixture: Mixture,
    prior: Float[np.ndarray, "draw dim"],
    num: int,
) -> Float[np.ndarray, "rung start dim"]:
    """Draw as many starts on each rung; one rung is taken from draws of the prior, if there are any."""
    dim, mean, root = mixture.dim, mixture.mean(), mixture.root()
    wide = Mixture(_with_normal_tails(mixture).components, np.full(mixture.capacity, -np.log(mixture.capacity)))
    rungs = [inflate(wide, factor).draw(generator, num) for factor in INFLATIONS]
    noise = generator.standard_normal((len(OVERALL) + 3, num, dim))
    rungs += [mean + factor * times(root, noise[place]) for place, factor in enumerate(OVERALL)]
    rungs.append(mean + times(_every_way(mixture, root), noise[-3]))
    rungs += [region.centre + times(root, noise[-2]), region.draw_starts(generator, num)]
    radius = np.exp(generator.uniform(np.log(RADII[0]), np.log(RADII[1]), (num, 1)))
    rungs.append(region.centre + radius * noise[-1] / np.linalg.norm(noise[-1], axis=1, keepdims=True))
    if len(prior):
        rungs.append(generator.choice(prior, num))
    return np.stack(rungs)


def _every_way(mixture: Mixture, root: Float[np.ndarray, "dim *dim"]) -> Float[np.ndarray, "dim *dim"]:
    r"""Return the root of the components' mean covariance W, as many times as wide as their locations lie apart.

    With the covariance V of the whole mixture, :math:`\operatorname{tr}(W^{-1}V)/d-1` is the mean square of the
    locations' distances from their centre, for each dimension, in units of W.
    """
    spread, weights = mixture.components.spread, np.asarray(mixture.weights)
    if root.ndim == 1:
        within = np.sqrt(weights @ spread.variance())
        square = np.mean((root / within) ** 2) - 1
    else:
        within = np.linalg.cholesky(np.einsum("k,kij->ij", weights, spread.covariance()))
        square = np.sum(divided(within, root.T) ** 2) / mixture.dim - 1
    return np.sqrt(max(APART * square, 1.0)) * within


def _with_normal_tails(mixture: Mixture) -> Mixture:
    components = mixture.components
    normal = Family("normal").components(components.location, components.spread.variance())
    return Mixture(type(components)(components.location, components.spread, normal.df, "normal"), mixture.log_weights)
