r"""The paper's algorithm: a mixture grown component by component to cover the target.

One round, for :math:`i=2,\dots,K` ("Forward KL Boosting"):

1. take the draws of :math:`q_{i-1}` that were made at the end of the last round, and place a newcomer;
2. fit the newcomer :math:`f_i` and its weight γ with everything else held fixed (:mod:`klover.boosting.newcomer`);
3. re-optimise all weights on draws of the new mixture (:mod:`klover.fitting.simplex`), and, if asked, all components
   by EM;
4. make fresh draws of the result: they measure it, and begin the next round.

:func:`init` and :func:`step` are pure and can be vmapped over keys and targets. A mixture has all of its slots from the
start, so ``step`` is compiled once for all rounds. :func:`boost` is the loop around them.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from klover.base.checks import as_key, check_choice, check_count, check_finite
from klover.base.shapes import AnyArray, Float, Int, Key, KeyLike, record
from klover.boosting import newcomer, sources
from klover.boosting.settings import Settings
from klover.boosting.sources import Draws
from klover.fitting import em
from klover.fitting.simplex import forward_weights, kkt_gap, reverse_weights
from klover.importance import psis
from klover.importance.draws import sample_importance
from klover.importance.ratios import effective_sample_size, forward_kl, log_evidence, normalise
from klover.mixtures.mixture import Mixture
from klover.results.files import settings_of
from klover.results.fit import Fit
from klover.targets.loaded import as_target
from klover.targets.target import Target, evaluate
from klover.verdict.judge import judge, uncovered_mode
from klover.verdict.status import Status

FIRST = ("reverse", "forward")
NUM_PROBES = 200


@record
class BoostState:
    """What the next round needs: the mixture, draws of it, and the mixture that it all began with."""

    mixture: Mixture
    draws: Draws
    anchor: Mixture


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


def init(
    key: Key[jax.Array, ""], target: Target, settings: Settings, first: str | Mixture = "reverse"
) -> tuple[BoostState, BoostInfo]:
    """Make the first component, or take a given mixture, and measure it.

    Parameters
    ----------
    first
        ``"reverse"`` or ``"forward"``: fit one component by that divergence. A mixture: begin with it.
    """
    key_start, key_fit, key_measure = jax.random.split(key, 3)
    if isinstance(first, Mixture):
        mixture = first
    else:
        chosen = settings if first == settings.divergence else _switched(settings, first)
        start = newcomer.start_first(key_start, target, chosen)
        mixture = newcomer.fit_newcomer(key_fit, target, None, start, chosen)
    grown = mixture.with_capacity(max(settings.num_components, mixture.capacity))
    draws, info = _measure(key_measure, target, grown, settings, jnp.ones(()))
    return BoostState(grown, draws, mixture), info


def _switched(settings: Settings, divergence: str) -> Settings:
    """Return settings for a first component by the other divergence; only Adam fits the reverse KL."""
    if divergence == "forward" or settings.fitter == "adam":
        return dataclasses.replace(settings, divergence=divergence, weights="projected", update="newcomer")
    return dataclasses.replace(
        settings, divergence="reverse", fitter="adam", num_steps=None, weights="projected", update="newcomer"
    )


def step(
    key: Key[jax.Array, ""], state: BoostState, target: Target, settings: Settings
) -> tuple[BoostState, BoostInfo]:
    """Add one component."""
    key_scout, key_start, key_fit, key_correct, key_measure = jax.random.split(key, 5)
    previous = state.mixture
    held = newcomer.Previous(previous, state.draws)
    if settings.newcomer == "ascent":
        start = newcomer.start_by_ascent(key_start, target, held, settings)
    else:
        scouts = sources.draw_defended(key_scout, target, previous, state.anchor, settings.num_draws)
        start = newcomer.start_by_search(key_start, target, previous, scouts, settings)
    fitted = newcomer.fit_newcomer(key_fit, target, held, start, settings)
    is_sound = jnp.all(jnp.stack([jnp.all(~jnp.isnan(leaf)) for leaf in jax.tree.leaves(fitted)]))
    grown = previous.append(fitted.components, jnp.clip(fitted.log_weights[0], -50.0, -1e-6))
    mixture = jax.tree.map(lambda new, old: jnp.where(is_sound, new, old), grown, previous)
    mixture = _correct(key_correct, target, mixture, state.anchor, settings)
    draws, info = _measure(key_measure, target, mixture, settings, jnp.exp(fitted.log_weights[0]))
    return BoostState(mixture, draws, state.anchor), info


def _correct(key: Key[jax.Array, ""], target: Target, mixture: Mixture, anchor: Mixture, settings: Settings) -> Mixture:
    """Re-optimise all weights, and all components where ``update`` is "all", on draws of the defended mixture."""
    if settings.divergence == "reverse":
        return mixture if settings.weights == "none" else _correct_reverse(key, target, mixture, settings)
    if settings.weights == "none" and settings.update == "newcomer":
        return mixture
    draws = sources.draw_defended(key, target, mixture, anchor, settings.num_draws)
    weight = jnp.exp(normalise(draws.log_ratio))
    if settings.weights != "none":
        log_component = mixture.component_log_prob(draws.x)
        log_weights, _ = forward_weights(mixture.log_weights, log_component, weight, settings.weights)
        mixture = Mixture(mixture.components, log_weights)
    if settings.update == "all":
        sample = em.WeightedSample(draws.x, weight, jnp.full_like(weight, -jnp.inf))
        strength = em.prior_strength(draws.log_ratio, target.dim, settings.prior)
        mixture = em.fit(mixture, sample, settings.steps, strength, is_df_fitted=settings.family.is_df_fitted)
    return mixture


def _correct_reverse(key: Key[jax.Array, ""], target: Target, mixture: Mixture, settings: Settings) -> Mixture:
    num_slots, num_draws = mixture.capacity, max(settings.num_draws // mixture.capacity, 2)
    index = jnp.repeat(jnp.arange(num_slots), num_draws)
    x = mixture.components.sample(key, index)
    log_component = mixture.component_log_prob(x).reshape(num_slots, num_slots, num_draws)
    log_p = evaluate(target, x)[0].reshape(num_slots, num_draws)
    return Mixture(mixture.components, reverse_weights(mixture.log_weights, log_component, log_p))


def _measure(
    key: Key[jax.Array, ""], target: Target, mixture: Mixture, settings: Settings, gamma: Float[AnyArray, ""]
) -> tuple[Draws, BoostInfo]:
    draws = sources.draw_previous(key, target, mixture, settings.num_draws)
    log_ratio = draws.log_ratio
    log_z, log_z_se = log_evidence(log_ratio)
    info = BoostInfo(
        num_components=mixture.num_components,
        forward_kl=forward_kl(log_ratio),
        log_evidence=log_z,
        log_evidence_se=log_z_se,
        ess_share=effective_sample_size(log_ratio) / log_ratio.shape[0],
        pareto_k=psis.pareto_k(log_ratio),
        gamma=gamma,
        kkt_gap=kkt_gap(mixture.log_weights, mixture.component_log_prob(draws.x), jnp.exp(normalise(log_ratio))),
    )
    return draws, info


compiled_init = jax.jit(init, static_argnames=("settings", "first"))
compiled_init_given = jax.jit(init, static_argnames="settings")
compiled_step = jax.jit(step, static_argnames="settings")


def boost(
    key: KeyLike,
    target: Target,
    *,
    first: str | Mixture = "reverse",
    num_final_draws: int = 10_000,
    callback: Callable[[int, BoostInfo], None] | None = None,
    **choices,
) -> Fit:
    """Grow a mixture that covers the target, by the paper's algorithm.

    Parameters
    ----------
    key
        A typed key, or a whole number as its seed.
    target
        The target.
    first
        The first component: by ``"reverse"`` KL (the paper: "initialise with RKL, refine with FKL"), by ``"forward"``
        KL, or a given :class:`~klover.Mixture`, whose components count.
    num_final_draws
        Fresh draws of the final mixture, on which verdict and summary rest.
    callback
        Called after each round with the number of components and the :class:`BoostInfo`.
    **choices
        The fields of :class:`~klover.boosting.settings.Settings`: ``divergence``, ``approach``, ``draws``, ``fitter``,
        ``newcomer``, ``weights``, ``update``, ``family``, ``num_components``, ``num_steps``, ``num_draws``, ...

    Returns
    -------
    A :class:`~klover.Fit`.
    """
    key, target = as_key(key), as_target(target)
    settings = Settings.of(**choices)
    check_count("num_final_draws", num_final_draws, 2, "10,000 is a good number.")
    key_init, key_rounds, key_final, key_search = jax.random.split(key, 4)
    if isinstance(first, Mixture):
        given = _given(first, target, settings)
        _check_support(target, given.sample(key_init, NUM_PROBES))
        state, info = compiled_init_given(key_init, target, settings, given)
    else:
        check_choice("first", first, FIRST)
        noise = np.random.default_rng(0).standard_normal((NUM_PROBES, target.dim))
        _check_support(target, np.asarray(target.start) + np.concatenate([0 * noise[:1], noise]))
        state, info = compiled_init(key_init, target, settings, first)
    history = [info]
    num_first = int(info.num_components)
    _report(callback, num_first, info)
    for number in range(num_first, settings.num_components):
        state, info = compiled_step(jax.random.fold_in(key_rounds, number), state, target, settings)
        history.append(info)
        _report(callback, number + 1, info)
    draws = sample_importance(key_final, target, state.mixture, num_final_draws)
    verdict = judge(draws)
    missed = uncovered_mode(key_search, draws, state.mixture) if verdict.trusted else None
    if missed is not None:
        verdict = judge(draws, Status.UNCOVERED_MODE, mode=missed)
    columns = {
        field.name: np.asarray([getattr(entry, field.name) for entry in history])
        for field in dataclasses.fields(BoostInfo)
    }
    made = settings_of("boost", key, first=first, num_final_draws=num_final_draws, **dataclasses.asdict(settings))
    return Fit(target, state.mixture, draws, columns, verdict, settings=made)


def _report(callback: Callable | None, num_components: int, info: BoostInfo) -> None:
    if callback is not None:
        callback(num_components, info)


def _given(first: Mixture, target: Target, settings: Settings) -> Mixture:
    """Check a given mixture, and bring it to the numbers that the target works with."""
    if first.dim != target.dim:
        raise ValueError(f"first has dimension {first.dim}, but the target has {target.dim}.")
    given, asked = first.components.family_name, f"{settings.family.tail}-{settings.family.covariance}"
    if given != asked:
        raise ValueError(
            f"first is a mixture of {given!r} components, but family asks for {asked!r}: a mixture has components of "
            f"one family. Pass family={given!r}, or a first mixture of the other family."
        )
    check_finite(
        "first", (first.components.location, first.components.spread), "Pass a mixture with finite parameters."
    )
    if first.capacity > settings.num_components:
        raise ValueError(f"num_components must be at least {first.capacity}, the size of the given first mixture.")
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, target.start.dtype), first)


def _check_support(target: Target, points: Float[AnyArray, "draw dim"]) -> None:
    """Fail at once, with a clear message, where the density is finite nowhere."""
    value = np.asarray(jax.jit(Target.log_prob)(target, points))
    if not np.isfinite(value).any():
        raise ValueError(
            f"the log density is finite at none of {value.size} points around the start ({np.isnan(value).sum()} are "
            "NaN), so there is nothing to fit. Run target.check(key), and choose an example or a first mixture inside "
            "the support."
        )
