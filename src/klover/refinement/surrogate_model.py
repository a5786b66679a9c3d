r"""A surrogate of the target: a Gaussian process fitted to all values so far, and covered by a mixture.

The process (:mod:`klover.fitting.surrogate`) is one for :math:`\log p` less its highest value so far. Far below that a
value is no guide to the shape of the rest (log p of -1e6 is a long way down any hill), so its error is in proportion to
its depth. Scales are chosen by marginal likelihood, with priors that say that in whitened coordinates log p bends over
a few units.
"""

import dataclasses

import numpy as np

from klover.base.linalg import divided
from klover.base.shapes import Float
from klover.fitting.growth import grow
from klover.fitting.surrogate import Surrogate
from klover.mixtures.algebra import defensive_inflation, inflate, join
from klover.mixtures.mixture import Mixture
from klover.refinement.pool import Pool
from klover.refinement.state import Context
from klover.search.climb import climb

LENGTH, AMPLITUDE = (np.log(3.0), 1.0), (np.log(2.0), 1.5)
"""Means and standard deviations of the Normal priors of log ℓ and of log a."""
ERROR, DEPTH, DEPTH_OF_DIMENSION, DEEP_ERROR = 0.01, 10.0, 2.0, 0.2
"""Nats of a value's error; nats below the top, at all and for each dimension, from which on a share of the rest is."""
PRIOR_SCALE = 100.0
"""Of the coefficients of the quadratic, at the least."""
MOST_STEPS, TOLERANCE = 40, 1e-2
"""Of the climb to the best scales."""
MOST_POINTS = 200
"""That scales are fitted to."""
NUM_DRAWS, MOST_ROUNDS, FEWEST_ROUNDS, GOOD_ESS = 2000, 8, 3, 0.85
"""Draws of the process in a round, rounds, and the share of effective draws that ends them."""
COPIES = 0.2
"""Share of these draws that comes from wider copies."""

Points = Float[np.ndarray, "point dim"]
Values = Float[np.ndarray, " point"]


@dataclasses.dataclass(frozen=True)
class Model:
    """A process in coordinates z, where x = c + Rz."""

    surrogate: Surrogate
    centre: Float[np.ndarray, " dim"]
    root: Float[np.ndarray, "dim dim"]

    def to_base(self, x: Points) -> Points:
        """Return z."""
        return divided(self.root, x - self.centre)

    def predict(self, x: Points) -> tuple[Values, Values]:
        """Return means and variances of log p less its highest value."""
        return self.surrogate.predict(self.to_base(x))

    def log_density(self, x: Points) -> Values:
        """Return what is drawn from: the mean, lowered where it is not known, so that it has an end."""
        mean, variance = self.predict(x)
        return mean - 0.5 * variance


def fit_model(x: Points, log_p: Values, centre: Float[np.ndarray, " dim"], root: Float[np.ndarray, "dim dim"]) -> Model:
    """Fit a process to values; those outside of the support are left out."""
    inside = np.isfinite(log_p)
    z, y = divided(root, x[inside] - centre), log_p[inside] - log_p.max()
    dim = z.shape[1]
    error = ERROR + DEEP_ERROR * np.maximum(-y - DEPTH - DEPTH_OF_DIMENSION * dim, 0.0)
    prior_scale = max(PRIOR_SCALE, float(np.ptp(y)))
    middle, width = (np.array([*[one] * dim, two]) for one, two in zip(LENGTH, AMPLITUDE, strict=True))

    some = slice(None, None, -(-len(y) // MOST_POINTS))

    def posterior(log_scales):
        try:
            found = Surrogate.condition(z[some], y[some], error[some], log_scales, prior_scale)
        except np.linalg.LinAlgError:
            return -np.inf, np.zeros(dim + 1)
        away = (log_scales - middle) / width
        return found.log_likelihood - 0.5 * away @ away, found.slope - away / width

    def function(many):
        values, slopes = zip(*map(posterior, many), strict=True)
        return np.array(values), np.array(slopes)

    tops, _ = climb(function, middle[None], MOST_STEPS, TOLERANCE)
    return Model(Surrogate.condition(z, y, error, np.asarray(tops[0]), prior_scale), centre, root)


def fit_behind(x: Points, log_p: Values, mixture: Mixture) -> Model:
    """Fit a process in the coordinates that a mixture whitens."""
    return fit_model(x, log_p, np.asarray(mixture.mean()), np.asarray(mixture.root()))


def cover_model(context: Context, model: Model, mixture: Mixture) -> tuple[Mixture, Pool]:
    """Fit a mixture to the process, in rounds of weighted draws, which are returned as well."""
    pool, generator, dim = Pool.empty(context.dim), context.generator, context.dim
    fewest = context.tuning.rounds.tempered_draws * (dim + 1)
    for number in range(1, MOST_ROUNDS + 1):
        proposal = join(mixture, inflate(mixture, defensive_inflation(dim), context.tuning.defence.df), COPIES)
        x = proposal.draw(generator, NUM_DRAWS)
        pool = pool.add(proposal, x, model.log_density(x))
        if number >= FEWEST_ROUNDS and pool.fresh.ess > GOOD_ESS * NUM_DRAWS:
            break
        mixture = grow(generator, mixture, pool.thinned(generator, context.num_fitted, fewest), context.rules)
    return mixture, pool
