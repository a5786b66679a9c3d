r"""Weighted expectation-maximisation: the forward KL in closed form.

On draws :math:`\theta_s` with weights :math:`w_s` the forward KL is a weighted log likelihood, and EM raises

.. math:: \sum_s w_s\log\Big(\sum_k\lambda_kf_k(\theta_s)+\big(1-\textstyle\sum_k\lambda_k\big)\,b(\theta_s)\Big)
          -\frac\epsilon2\sum_k\big(\log|\Sigma_k|+\mathrm{tr}\,\Sigma_k^{-1}\Psi_k\big)

at every step. The *background* b is a density that is held fixed: for boosting it is the previous mixture, and the one
fitted component is the newcomer (``eq:old_mixture``); without a background all components are fitted. The second line
is a prior that pulls each covariance to the one it started with, :math:`\Psi_k`; it counts as :math:`\epsilon` units of
weight, so that one heavy draw cannot collapse a component.

Degrees of freedom are raised first, by a zero of the derivative of the expected log likelihood in ν (the mixing
variables integrated out, which converges much faster than the textbook update), then location and scale with the usual
Student-t weights :math:`u=(\nu+d)/(\nu+m)`.
"""

import dataclasses
import math

import jax

from klover.base.arrays import BLOCK, digamma, exact_products, iterate, logsumexp, namespace, over_blocks
from klover.base.linalg import solve_positive
from klover.base.shapes import PerComponent, PerDraw, Scalar, Weights
from klover.fitting.sample import Sample
from klover.importance.ratios import effective_sample_size
from klover.mixtures.mixture import Mixture
from klover.mixtures.scale import Spread

SMALLEST_DF, LARGEST_DF = 1.0, 200.0
LARGEST_DF_CHANGE = 2.0
MANY, DF_PER_DIM = 128, 10.0
"""Dimensions beyond which degrees of freedom may exceed the largest number, and how many for each."""
NUM_NARROWINGS = 3
SMALLEST_MASS = 1e-10


def largest_df(dim: int) -> float:
    """Return the most degrees of freedom: a Student-t with fewer than dimensions is no Normal in many of these."""
    return LARGEST_DF if dim <= MANY else DF_PER_DIM * dim


def prior_strength(log_weight: PerDraw, dim: int, num_draws: float = 1.0) -> Scalar:
    """Weight of the covariance prior, such that it counts like ``num_draws * (dim + 1)`` effective draws."""
    return num_draws * (dim + 1) / namespace(log_weight).maximum(effective_sample_size(log_weight), 1.0)


def responsibilities(mixture: Mixture, sample: Sample) -> tuple[PerComponent, PerComponent, PerDraw]:
    """Return posterior component probabilities, squared distances, and the log density of the whole."""
    xp = namespace(sample.x)
    components = mixture.components
    remaining = xp.maximum(1.0 - xp.sum(mixture.weights), 0.0)
    log_remaining = xp.where(remaining > 0, xp.log(xp.where(remaining > 0, remaining, 1.0)), -xp.inf)
    background = xp.full_like(sample.weight, -xp.inf) if sample.background is None else sample.background
    log_scale = mixture.log_weights - components.spread.log_scale()

    distance = components.squared_distance(sample.x)

    def of_block(distance, background):
        log_joint = log_scale[:, None] + components.log_radial(distance.T)
        log_density = xp.logaddexp(logsumexp(log_joint, axis=0), log_remaining + background)
        covered = log_density > -xp.inf
        return xp.exp(log_joint - xp.where(covered, log_density, 0.0)), log_density

    blocks = over_blocks(of_block, distance.T, background, block=_block(distance))
    responsibility, log_density = (xp.concatenate(parts, axis=-1) for parts in zip(*blocks, strict=True))
    return responsibility, distance, log_density


def objective(mixture: Mixture, sample: Sample, prior: Spread, strength: Scalar | float) -> Scalar:
    """Weighted log likelihood plus the covariance prior of the used components: what every step raises."""
    xp = namespace(sample.x)
    log_density = responsibilities(mixture, sample)[2]
    likelihood = xp.sum(xp.where(sample.weight > 0, sample.weight * xp.maximum(log_density, -1e300), 0.0))
    spread = mixture.components.spread
    precision_times_prior = solve_positive(spread.covariance(), prior.covariance())
    trace = xp.einsum("kii->k", precision_times_prior)
    used = mixture.log_weights > -xp.inf
    return likelihood - 0.5 * strength * xp.sum(xp.where(used, 2 * spread.log_scale() + trace, 0.0))


def step(
    mixture: Mixture,
    sample: Sample,
    prior: Spread,
    strength: Scalar | float = 0.0,
    *,
    is_df_fitted: bool = True,
    is_anchored: bool = False,
) -> Mixture:
    r"""Take one EM step; degrees of freedom move if the components are Student-t and ``is_df_fitted``.

    Anchored components keep their places and covariances: their weights and degrees of freedom move alone.

    Weights sum to one, or to less where the sample has a background. Covariances are pulled to those of ``prior``, with
    the weight :math:`\epsilon` of ``strength``.
    """
    xp = namespace(sample.x)
    components = mixture.components
    responsibility, distance, _ = responsibilities(mixture, sample)
    weight = responsibility * sample.weight
    mass = xp.sum(weight, axis=1)
    scaled = weight
    if components.tail == "student":
        if is_df_fitted:
            components = dataclasses.replace(components, df=_fit_df(components.df, components.dim, weight, distance))
        df = components.df[:, None]
        scaled = weight * (df + components.dim) / (df + distance)
    total = xp.sum(scaled, axis=1)
    safe_mass = xp.maximum(mass, SMALLEST_MASS)
    has_mass = mass > SMALLEST_MASS
    log_weights = xp.where(has_mass, xp.log(safe_mass), -xp.inf)
    if is_anchored:
        return Mixture(components, log_weights)
    with exact_products():
        sums = sum(over_blocks(lambda x, weight: weight.T @ x, sample.x, scaled.T))
        location = sums / xp.where(total > 0, total, 1.0)[:, None]
    moved = dataclasses.replace(components, location=location)
    blocks = over_blocks(lambda x, weight: moved.spread.scatter(moved.delta(x), weight.T), sample.x, scaled.T)
    scatter = jax.tree.map(lambda *parts: sum(parts), *blocks)
    with exact_products():
        # A spread and its prior are always of one class.
        spread = components.spread.maximise(scatter, safe_mass, prior, strength)  # pyright: ignore
    fitted = dataclasses.replace(moved, spread=spread)

    def choose(new, old):
        return xp.where(has_mass.reshape((-1,) + (1,) * (new.ndim - 1)), new, old)

    return Mixture(jax.tree.map(choose, fitted, mixture.components), log_weights)


def fit(
    mixture: Mixture,
    sample: Sample,
    num_steps: int,
    strength: Scalar | float = 0.0,
    *,
    is_df_fitted: bool = True,
    is_anchored: bool = False,
) -> Mixture:
    """Take ``num_steps`` EM steps, each covariance pulled to the one that it starts with, or held there."""
    prior, kind = mixture.components.spread, {"is_df_fitted": is_df_fitted, "is_anchored": is_anchored}
    return iterate(lambda now: step(now, sample, prior, strength, **kind), mixture, num_steps)


def _block(distance: PerComponent) -> int:
    """Return how many draws NumPy goes through at a time: more than usual where there are few components."""
    return max(8 * BLOCK // distance.shape[0], BLOCK)


def _fit_df(df: Weights, dim: int, weight: PerComponent, distance: PerComponent) -> Weights:
    r"""Solve :math:`\sum_s\omega_s\,\partial_\nu\log t_\nu(m_s)=0` near the present ν, between 1 and the largest.

    By false position in log ν, the retained end halved (the Illinois rule), between the present ν and half or twice of
    it; a solution beyond that end is left to the next step. The factor :math:`\nu^{3/2}` makes the slope nearly
    straight: every pass over all draws counts.
    """
    xp = namespace(distance)
    mass = xp.maximum(xp.sum(weight, axis=1), SMALLEST_MASS)

    def slope(log_df):
        nu = xp.exp(log_df)
        inverse = 1 / nu[:, None]

        def tail(distance, weight):
            scaled = distance.T * inverse
            term = (1 + dim * inverse) * scaled / (1 + scaled) - xp.log1p(scaled)
            return xp.sum(weight.T * term, axis=1)

        constant = digamma((nu + dim) / 2) - digamma(nu / 2) - dim / nu
        return nu**1.5 * (mass * constant + sum(over_blocks(tail, distance.T, weight.T, block=_block(distance))))

    def narrow(bracket):
        kept, kept_slope, last, last_slope = bracket
        rise = last_slope - kept_slope
        new = last - xp.where(rise == 0, 0.0, last_slope * (last - kept) / xp.where(rise == 0, 1.0, rise))
        new = xp.clip(new, math.log(SMALLEST_DF), math.log(largest_df(dim)))
        new_slope = slope(new)
        is_crossed = new_slope * last_slope < 0
        kept_slope = xp.where(is_crossed, last_slope, 0.5 * kept_slope)
        return xp.where(is_crossed, last, kept), kept_slope, new, new_slope

    now = xp.log(df)
    now_slope = slope(now)
    farthest = xp.where(now_slope > 0, LARGEST_DF_CHANGE * df, df / LARGEST_DF_CHANGE)
    end = xp.log(xp.clip(farthest, SMALLEST_DF, largest_df(dim)))
    end_slope = slope(end)
    solved = iterate(narrow, (end, end_slope, now, now_slope), NUM_NARROWINGS)[2]
    return xp.exp(xp.where(end_slope * now_slope > 0, end, solved))
