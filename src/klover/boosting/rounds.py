r"""The rounds of the paper's algorithm ("Forward KL Boosting"), which grow a mixture component by component.

Round :math:`i=2,\dots,K`:

1. take the draws of :math:`q_{i-1}` that were made at the end of the last round, and place a newcomer;
2. fit the newcomer :math:`f_i` and its weight γ with everything else held fixed (:mod:`klover.boosting.newcomer`);
3. re-optimise all weights on draws of the new mixture (:mod:`klover.fitting.simplex`), and, if asked, all components
   by EM;
4. make fresh draws of the result: they measure it, and begin the next round.

:func:`init`, :func:`step` and :func:`grow` are pure: they can be jitted, and vmapped over keys and targets. A mixture
has all of its slots from the start, so one compiled program serves all rounds. :func:`run` is for the host, which sees
each round as it ends.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from klover.base.shapes import AnyArray, Count, Float, Int, RandomKey, Scalar, record
from klover.boosting import newcomer, sources
from klover.boosting.newcomer import ThreeKeys
from klover.boosting.settings import Settings
from klover.boosting.sources import BoostState, Draws
from klover.fitting import em
from klover.fitting.sample import Sample
from klover.fitting.simplex import forward_weights, kkt_gap, reverse_weights
from klover.importance import psis
from klover.importance.ratios import effective_sample_size, forward_kl, log_evidence, normalise
from klover.mixtures.mixture import Mixture
from klover.targets.target import Target, evaluate

Propose = Callable[[ThreeKeys, BoostState, Target, Settings], Mixture]
"""From three keys and what the last round has left to a newcomer: a mixture of one component, its weight γ."""


@record
class BoostInfo:
    """What a person may ask about a round, measured on draws that were not fitted to."""

    num_components: Int[AnyArray, "..."]
    forward_kl: Float[AnyArray, "..."]
    log_evidence: Float[AnyArray, "..."]
    log_evidence_se: Float[AnyArray, "..."]
    ess_share: Float[AnyArray, "..."]
    pareto_k: Float[AnyArray, "..."]
    gamma: Float[AnyArray, "..."]
    kkt_gap: Float[AnyArray, "..."]
    num_draws: Int[AnyArray, "..."]
    num_nan: Int[AnyArray, "..."]
    num_infinite: Int[AnyArray, "..."]


def init(
    key: RandomKey, target: Target, settings: Settings, start: str | Mixture = "reverse"
) -> tuple[BoostState, BoostInfo]:
    """Fit the first component by the divergence that ``start`` names, or take a given mixture, and measure it."""
    key_start, key_fit, key_measure = jax.random.split(key, 3)
    mixture = start
    if not isinstance(mixture, Mixture):
        chosen = _for_first(settings, mixture)
        placed = newcomer.start_first(key_start, target, chosen)
        mixture = newcomer.fit_newcomer(key_fit, target, None, placed, chosen)
    grown = mixture.with_capacity(max(settings.max_components, mixture.capacity))
    draws, info = measure(key_measure, target, grown, settings)
    return BoostState(grown, draws, mixture), info


def _for_first(settings: Settings, divergence: str) -> Settings:
    """Return settings that fit a component by the given divergence; only Adam fits the reverse KL."""
    if divergence == settings.divergence:
        return settings
    changed = {"divergence": divergence, "weights": "projected", "update": "newcomer"}
    if divergence == "reverse" and settings.fitter == "em":
        changed |= {"fitter": "adam", "num_steps": None}
    return dataclasses.replace(settings, **changed)


def step(
    key: RandomKey, state: BoostState, target: Target, settings: Settings, propose: Propose = newcomer.propose
) -> tuple[BoostState, BoostInfo]:
    """Add the component that ``propose`` makes."""
    keys = jax.random.split(key, 5)
    key_correct, key_measure = keys[3:]
    previous, fitted = state.mixture, propose(keys[:3], state, target, settings)
    is_sound = jnp.all(jnp.stack([jnp.all(~jnp.isnan(leaf)) for leaf in jax.tree.leaves(fitted)]))
    grown = previous.append(fitted.components, jnp.clip(fitted.log_weights[0], -50.0, -1e-6))
    mixture = jax.tree.map(lambda new, old: jnp.where(is_sound, new, old), grown, previous)
    mixture = _correct(key_correct, target, mixture, state.anchor, settings)
    draws, info = measure(key_measure, target, mixture, settings, jnp.exp(fitted.log_weights[0]))
    return BoostState(mixture, draws, state.anchor), info


def grow(
    key: RandomKey,
    state: BoostState,
    info: BoostInfo,
    target: Target,
    settings: Settings,
    first: Count,
    last: Count,
    propose: Propose = newcomer.propose,
) -> tuple[BoostState, BoostInfo]:
    """Add components, from number ``first`` + 1 to number ``last``: the one loop of the algorithm.

    It is one compiled loop, whose ends may be traced: mixtures of two and of three components are one program. ``info``
    is what was measured of ``state``, and ``propose`` makes the newcomers.
    """

    def add(number, grown):
        return step(jax.random.fold_in(key, number), grown[0], target, settings, propose)

    return jax.lax.fori_loop(first, last, add, (state, info))


def _correct(key: RandomKey, target: Target, mixture: Mixture, anchor: Mixture, settings: Settings) -> Mixture:
    """Re-optimise all weights, and all components where ``update`` is "all", on draws of the defended mixture."""
    if settings.divergence == "reverse":
        return mixture if settings.weights == "none" else _correct_reverse(key, target, mixture, settings)
    if settings.weights == "none" and settings.update == "newcomer":
        return mixture
    draws = sources.draw_defended(key, target, mixture, anchor, settings.num_round_draws)
    weight = jnp.exp(normalise(draws.log_ratio))
    if settings.weights != "none":
        log_component = mixture.component_log_prob(draws.x)
        log_weights, _ = forward_weights(mixture.log_weights, log_component, weight, settings.weights)
        mixture = Mixture(mixture.components, log_weights)
    if settings.update == "all":
        sample = Sample(draws.x, weight)
        strength = em.prior_strength(draws.log_ratio, target.dim, settings.prior)
        mixture = em.fit(mixture, sample, settings.steps, strength, is_df_fitted=settings.family.is_df_fitted)
    return mixture


def _correct_reverse(key: RandomKey, target: Target, mixture: Mixture, settings: Settings) -> Mixture:
    num_slots, num_draws = mixture.capacity, max(settings.num_round_draws // mixture.capacity, 2)
    index = jnp.repeat(jnp.arange(num_slots), num_draws)
    x = mixture.components.sample(key, index)
    log_component = mixture.component_log_prob(x).reshape(num_slots, num_slots, num_draws)
    log_p = evaluate(target, x)[0].reshape(num_slots, num_draws)
    return Mixture(mixture.components, reverse_weights(mixture.log_weights, log_component, log_p))


def measure(
    key: RandomKey, target: Target, mixture: Mixture, settings: Settings, gamma: Scalar | float = 1.0
) -> tuple[Draws, BoostInfo]:
    """Make fresh draws of a mixture; return them with what they say about it."""
    x, log_q = mixture.sample_and_log_prob(key, settings.num_round_draws)
    log_p, num_nan, num_infinite = evaluate(target, x)
    draws, log_ratio = Draws(x, log_p, log_q, log_q), log_p - log_q
    log_z, log_z_se = log_evidence(log_ratio)
    info = BoostInfo(
        num_components=mixture.num_components,
        forward_kl=forward_kl(log_ratio),
        log_evidence=log_z,
        log_evidence_se=log_z_se,
        ess_share=effective_sample_size(log_ratio) / log_ratio.shape[0],
        pareto_k=psis.pareto_k(log_ratio),
        gamma=jnp.asarray(gamma, log_ratio.dtype),
        kkt_gap=kkt_gap(mixture.log_weights, mixture.component_log_prob(x), jnp.exp(normalise(log_ratio))),
        num_draws=jnp.asarray(settings.num_round_draws),
        num_nan=num_nan,
        num_infinite=num_infinite,
    )
    return draws, info


_init_named = jax.jit(init, static_argnames=("settings", "start"))
_init_given = jax.jit(init, static_argnames="settings")
_grow = jax.jit(grow, static_argnames="settings")


def run(
    key_start: RandomKey,
    key_rounds: RandomKey,
    target: Target,
    settings: Settings,
    start: str | Mixture = "reverse",
    report: Callable[[BoostState, BoostInfo], None] = lambda state, info: None,
) -> BoostState:
    """Grow a mixture on the host; ``report`` is called with the start, and with the state after each round."""
    begin = _init_given if isinstance(start, Mixture) else _init_named
    state, info = begin(key_start, target, settings, start)
    report(state, info)
    for number in range(int(info.num_components), settings.max_components):
        state, info = _grow(key_rounds, state, info, target, settings, number, number + 1)
        report(state, info)
    return state
