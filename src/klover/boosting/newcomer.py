r"""One round's fit of one component: the newcomer f and its weight γ, with the previous mixture held fixed.

A newcomer is a :class:`~klover.Mixture` of one component whose only weight is γ; the missing mass 1 - γ belongs
to the previous mixture. In the first round there is no previous mixture, and γ = 1.
"""

import dataclasses

import jax
import jax.numpy as jnp

from klover.base.shapes import Key, PyTree, RandomKey, Scalar
from klover.boosting import placement, sources
from klover.boosting.settings import Settings
from klover.boosting.sources import BoostState, Draws
from klover.fitting import divergences, em
from klover.fitting.adam import minimise
from klover.fitting.sample import Sample
from klover.fitting.simplex import forward_weights
from klover.importance.ratios import log_evidence, normalise
from klover.mixtures.mixture import Mixture
from klover.targets.target import Target

ThreeKeys = Key[jax.Array, "3"]
Previous = BoostState | None
"""What the last round has left; None in the first one."""


def propose(keys: ThreeKeys, state: BoostState, target: Target, settings: Settings) -> Mixture:
    """Place a newcomer beside the previous mixture, and fit it with its weight."""
    key_scout, key_start, key_fit = keys
    if settings.newcomer == "ascent":
        placed = start_by_ascent(key_start, target, state, settings)
    else:
        scouts = sources.draw_defended(key_scout, target, state.mixture, state.anchor, settings.num_round_draws)
        placed = start_by_search(key_start, target, state.mixture, scouts, settings)
    return fit_newcomer(key_fit, target, state, placed, settings)


def start_first(key: RandomKey, target: Target, settings: Settings) -> Mixture:
    """Place the first component: by the paper's ascent of log p, or at the highest of several L-BFGS tops."""
    if settings.newcomer == "ascent":
        return start_by_ascent(key, target, None, settings)
    steps = jax.random.normal(key, (placement.NUM_CLIMBS - 1, target.dim), target.start.dtype)
    starts = jnp.concatenate([target.start[None], target.start + steps])
    candidates = placement.candidates_from_climbs(settings.family, target, None, starts)
    height = target.log_prob(candidates.location)
    best = jnp.argmax(jnp.where(jnp.isnan(height), -jnp.inf, height))
    return Mixture.of(jax.tree.map(lambda leaf: leaf[best][None], candidates))


def start_by_search(key: RandomKey, target: Target, previous: Mixture, scouts: Draws, settings: Settings) -> Mixture:
    """Place a newcomer at the best of many candidates.

    ``scouts`` are draws of a broader proposal than the mixture: one half proposes candidates, the other half chooses.
    """
    half = scouts.x.shape[0] // 2
    seen = jax.tree.map(lambda leaf: leaf[:half], scouts)
    unseen = jax.tree.map(lambda leaf: leaf[half:], scouts)
    log_residual = seen.log_p - seen.log_previous
    if settings.newcomer == "gain":
        candidates = placement.candidates_from_draws(key, settings.family, seen.x, seen.log_ratio, log_residual)
    else:
        highest = jnp.argsort(-log_residual)[: placement.NUM_CLIMBS]
        candidates = placement.candidates_from_climbs(settings.family, target, previous, seen.x[highest])
    return placement.choose(candidates, unseen.x, unseen.log_ratio, unseen.log_previous)


def start_by_ascent(key: RandomKey, target: Target, previous: Previous, settings: Settings) -> Mixture:
    """Begin as the paper does: mean at a top of the residual, standard deviations from N(0, σ²)."""
    start = target.start if previous is None else previous.draws.x[0]
    log_normaliser = 0.0 if previous is None else log_evidence(previous.draws.log_ratio)[0]

    def residual(point):
        if previous is None:
            return target.log_prob(point)
        log_p = divergences.smoothed(target.log_prob(point) - log_normaliser, settings.log_epsilon)
        return log_p - divergences.smoothed(previous.mixture.log_prob(point), settings.log_epsilon)

    location = placement.ascent(residual, start, settings.learning_rate_location)
    scale = settings.initial_scale * jax.random.normal(key, (1, target.dim), start.dtype)
    components = settings.family.components(location[None], scale**2)
    gamma = 1.0 if previous is None else 1 / (1 + previous.mixture.num_components)
    return Mixture(components, jnp.log(jnp.full(1, gamma, start.dtype)))


def fit_newcomer(key: RandomKey, target: Target, previous: Previous, newcomer: Mixture, settings: Settings) -> Mixture:
    """Fit a newcomer and its weight, beginning with ``newcomer``."""
    fitted = (_fit_em if settings.fitter == "em" else _fit_adam)(key, target, previous, newcomer, settings)
    if previous is not None and settings.approach == "remainder":
        draws = previous.draws
        log_component = jnp.stack([fitted.component_log_prob(draws.x)[0], draws.log_previous])
        start = jnp.log(jnp.array([0.5, 0.5], draws.x.dtype))
        log_weights, _ = forward_weights(start, log_component, jnp.exp(normalise(draws.log_ratio)))
        fitted = Mixture(fitted.components, log_weights[:1])
    return fitted


def _is_redrawn(previous: Previous, settings: Settings) -> bool:
    """Whether the forward KL makes new draws at each step of the fitter."""
    return previous is None or settings.draws != "previous"


def _draw(
    key: RandomKey, target: Target, previous: Previous, newcomer: Mixture, settings: Settings, num_draws: int
) -> Draws:
    if previous is None:
        return sources.draw_newcomer(key, target, None, newcomer, num_draws)
    draw = {"newcomer": sources.draw_newcomer, "current": sources.draw_current}[settings.draws]
    return draw(key, target, previous.mixture, newcomer, num_draws)


def _fit_em(key: RandomKey, target: Target, previous: Previous, newcomer: Mixture, settings: Settings) -> Mixture:
    is_remainder = previous is not None and settings.approach == "remainder"
    if is_remainder:
        newcomer = Mixture.of(newcomer.components)

    def update(now: Mixture, draws: Draws, num_steps: int) -> Mixture:
        log_ratio = draws.log_ratio - draws.log_previous if is_remainder else draws.log_ratio
        background = jnp.full_like(draws.log_previous, -jnp.inf) if is_remainder else draws.log_previous
        sample = Sample(draws.x, jnp.exp(normalise(log_ratio)), background=background)
        strength = em.prior_strength(log_ratio, target.dim, settings.prior)
        return em.fit(now, sample, num_steps, strength, is_df_fitted=settings.family.is_df_fitted)

    if previous is not None and not _is_redrawn(previous, settings):
        return update(newcomer, previous.draws, settings.steps)

    def redraw(now, step_key):
        return update(now, _draw(step_key, target, previous, now, settings, settings.num_round_draws), 1), None

    return jax.lax.scan(redraw, newcomer, jax.random.split(key, settings.steps))[0]


def _fit_adam(key: RandomKey, target: Target, previous: Previous, newcomer: Mixture, settings: Settings) -> Mixture:
    """Fit by Adam in the paper's parametrisation: location, square root of the covariance, logit of γ."""
    has_gamma = previous is not None and settings.approach == "direct"
    components = newcomer.components
    params = {"location": components.location, "spread": components.spread}
    # The sampler's rejections hide df from reparametrised gradients, so the reverse KL leaves it where it is.
    if settings.family.is_df_fitted and settings.divergence == "forward":
        params["log_df"] = jnp.log(components.df)
    if has_gamma:
        params["logit"] = newcomer.log_weights - jnp.log1p(-jnp.exp(newcomer.log_weights))

    def unpack(params: PyTree) -> Mixture:
        df = jnp.exp(params["log_df"]) if "log_df" in params else components.df
        moved = dataclasses.replace(components, location=params["location"], spread=params["spread"], df=df)
        return Mixture(moved, jax.nn.log_sigmoid(params["logit"])) if has_gamma else Mixture.of(moved)

    def loss(step_key, params):
        loss_of = _reverse_loss if settings.divergence == "reverse" else _forward_loss
        return loss_of(step_key, target, previous, unpack(params), settings)

    rates = dict.fromkeys(params, settings.learning_rate_scale) | {"location": settings.learning_rate_location}
    is_stochastic = settings.divergence == "reverse" or _is_redrawn(previous, settings)
    fitted, _ = minimise(key, loss, params, rates, settings.steps, is_stochastic=is_stochastic)
    mixture = unpack(fitted)
    return dataclasses.replace(mixture, components=mixture.components.canonical())


def _forward_loss(key: RandomKey, target: Target, previous: Previous, newcomer: Mixture, settings: Settings) -> Scalar:
    if previous is not None and not _is_redrawn(previous, settings):
        draws = previous.draws
    else:
        held = jax.lax.stop_gradient(newcomer)
        draws = _draw(key, target, previous, held, settings, settings.num_draws_per_step)
    log_f = newcomer.component_log_prob(draws.x)[0]
    if previous is not None and settings.approach == "remainder":
        return divergences.forward_remainder_loss(draws.log_p, draws.log_previous, draws.log_source, log_f)
    log_q = log_f if previous is None else sources.mix(log_f, draws.log_previous, newcomer.log_weights[0])
    return divergences.forward_loss(draws.log_ratio, divergences.smoothed(log_q, settings.log_epsilon))


def _reverse_loss(key: RandomKey, target: Target, previous: Previous, newcomer: Mixture, settings: Settings) -> Scalar:
    r"""Reverse KL of :math:`(1-\gamma)q_{i-1}+\gamma f` by reparametrised draws of f and fixed draws of the rest."""
    x = newcomer.components.sample(key, jnp.zeros(settings.num_draws_per_step, int))
    log_p, log_f = target.log_prob(x), newcomer.component_log_prob(x)[0]
    if previous is None:
        return divergences.reverse_loss(log_p, log_f)
    log_previous = previous.mixture.log_prob(x)
    if settings.approach == "remainder":
        return divergences.reverse_remainder_loss(log_p, log_previous, log_f)
    log_gamma, draws = newcomer.log_weights[0], previous.draws
    gamma = jnp.exp(log_gamma)
    own = divergences.reverse_loss(log_p, sources.mix(log_f, log_previous, log_gamma))
    log_q = sources.mix(newcomer.component_log_prob(draws.x)[0], draws.log_previous, log_gamma)
    return gamma * own + (1 - gamma) * divergences.reverse_loss(draws.log_p, log_q)
