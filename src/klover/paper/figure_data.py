r"""The numbers behind the paper's figures: boosting over many seeds at once, and what each round of it has reached.

Every run knows a box in which the target lies. A Gaussian or Student-t that covers the box (:func:`klover.diffuse`) is
where the first forward component is fitted from, and forward and reverse boosting place their newcomers on the same
kind of draws, of which a quarter come from that cover: reverse boosting can find every mode too. The two differ in the
divergence, and also in the fitter and in that only forward boosting corrects earlier components and weights.

Divergences are exact up to quadrature, and never come from the draws of the runs that they judge. Each figure has a
function here, from its first seed and the number of seeds to its curves and a caption that states settings, truncation
and seeds. KL(p‖q) is infinite for the Cauchy density p and any mixture q of Gaussians, so Cauchy figures are about the
density cut to [-1000, 1000].
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from klover.base.shapes import AnyArray, Float, RandomKey
from klover.boosting import rounds, sources
from klover.boosting.rounds import BoostInfo, BoostState
from klover.boosting.settings import CLOSED_FORM, Settings
from klover.fitting import em
from klover.fitting.sample import Sample
from klover.importance.ratios import normalise
from klover.mixtures.algebra import diffuse
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.paper import simulations
from klover.targets.target import Target

Numbers = dict[str, Any]

NUM_FIRST_FITS = 3
NUM_QUADRATURE_POINTS = 10_001
MOMENTS = ("first moment", "second moment")
BAND = (0.1, 0.5, 0.9)
LOGPDF_ROUNDS = (1, 5, 10)
LOGPDF_RANGE = (-22.0, 12.0)
RESIDUAL_ROUNDS = (1, 5, 10, 20)
RESIDUAL_LIMIT = 10.0
RESIDUAL_GRID = 160
NEGLIGIBLE = -15.0
"""Where both log densities are below this the residual compares nothing with nothing: in all, a mass below 1e-4."""

_EM = dataclasses.replace(CLOSED_FORM, family=Family("normal"))
# As in Miller et al. (2017): the rest stays as it is while a newcomer and its weight are fitted. Correcting all weights
# by the projected gradient would take most of the time of a figure.
_ADAM = Settings(
    family=Family("normal"),
    divergence="reverse",
    newcomer="gain",
    weights="none",
    num_round_draws=1000,
    num_steps=300,
    learning_rate_location=0.1,
    learning_rate_scale=0.1,
)
ONE_FORWARD = dataclasses.replace(_EM, max_components=1, num_round_draws=20_000, num_steps=1)
ONE_REVERSE = dataclasses.replace(_ADAM, max_components=1)
CAUCHY_FORWARD = dataclasses.replace(_EM, max_components=10, num_round_draws=4000, num_steps=15)
CAUCHY_STUDENT = dataclasses.replace(CAUCHY_FORWARD, family=Family("student"), max_components=3)
CAUCHY_REVERSE = dataclasses.replace(_ADAM, max_components=10)
MODES_FORWARD = dataclasses.replace(_EM, max_components=20, num_round_draws=2000, num_steps=10)
# As many draws as the forward runs, since the moments are estimated with them.
MODES_REVERSE = dataclasses.replace(_ADAM, max_components=20, num_round_draws=MODES_FORWARD.num_round_draws)

TARGETS = {
    "two modes": (simulations.two_modes, ((-8.0,), (8.0,))),
    "cauchy": (simulations.cauchy, ((-simulations.CAUCHY_LIMIT,), (simulations.CAUCHY_LIMIT,))),
    "twenty modes": (simulations.twenty_modes, simulations.TWENTY_MODE_BOX),
}


@functools.lru_cache(maxsize=4)
def runs(name: str, settings: Settings, seeds: range) -> list[BoostState]:
    """Boost on one of :data:`TARGETS` from every seed in one program; return the states after K = 1, 2, ...

    They have a leading axis of seeds, and two figures may share them.
    """
    make, box = TARGETS[name]
    target, cover = make(), diffuse(*box, family=settings.family)
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds))

    def grow(key, state, info, number):
        return rounds.grow(key, state, info, target, settings, number, number + 1)

    grow = jax.jit(jax.vmap(grow, in_axes=(0, 0, 0, None)))
    state, info = jax.jit(jax.vmap(lambda key: _begin(key, target, cover, settings)))(keys)
    states = [state]
    for number in range(1, settings.max_components):
        state, info = grow(keys, state, info, number)
        states.append(state)
    return states


def _begin(key: RandomKey, target: Target, cover: Mixture, settings: Settings) -> tuple[BoostState, BoostInfo]:
    """Fit the first component by the divergence of the settings, and keep the cover as the anchor of later rounds."""
    key_init, key_fit, key_draw = jax.random.split(key, 3)
    if settings.divergence == "reverse":
        state, info = rounds.init(key_init, target, settings, "reverse")
        return dataclasses.replace(state, anchor=cover), info
    mixture = _fit_first(key_fit, target, cover, settings).with_capacity(settings.max_components)
    draws, info = rounds.measure(key_draw, target, mixture, settings)
    return BoostState(mixture, draws, cover), info


def _fit_first(key: RandomKey, target: Target, cover: Mixture, settings: Settings) -> Mixture:
    """Fit one component by the forward KL, begun at the cover: for a Gaussian, match the moments of the target.

    The first draws come from a cover that may be hundreds of times too wide; the next ones also from what they gave.
    """

    def fit(mixture, key_draw):
        draws = sources.draw_defended(key_draw, target, mixture, cover, settings.num_round_draws)
        sample = Sample(draws.x, jnp.exp(normalise(draws.log_ratio)))
        return em.fit(mixture, sample, settings.steps, is_df_fitted=settings.family.is_df_fitted), None

    return jax.lax.scan(fit, cover, jax.random.split(key, NUM_FIRST_FITS))[0]


def _one_of(mixture: Mixture, index: int) -> Mixture:
    """Return one mixture of a batch, on the host: its log density is then NumPy's, and nothing is compiled."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[index], mixture)


def cut_forward_kl(mixture: Mixture) -> Float[np.ndarray, " seed"]:
    """KL(p‖q) on [-1000, 1000] of the Cauchy density for every mixture of a batch, by quadrature."""
    target, limit = simulations.cauchy(), simulations.CAUCHY_LIMIT
    each = (_one_of(mixture, index) for index in range(len(mixture.log_weights)))
    points = NUM_QUADRATURE_POINTS
    return np.array([simulations.forward_kl_by_quadrature(target, one, -limit, limit, points) for one in each])


def _moment_errors(state: BoostState) -> Float[AnyArray, "measure 2"]:
    """Mean squared errors, over the coordinates, of the first and second moments.

    First by importance sampling on the fresh draws that end a round, then of q itself (no draws).
    """
    weight, components = jnp.exp(normalise(state.draws.log_ratio)), state.mixture.components
    variance = jnp.diagonal(components.covariance(), axis1=-2, axis2=-1)
    drawn = weight @ state.draws.x, weight @ state.draws.x**2
    own = state.mixture.mean(), state.mixture.weights @ (components.location**2 + variance)
    return jnp.mean((jnp.asarray([drawn, own]) - jnp.asarray(simulations.twenty_mode_moments())) ** 2, axis=-1)


def _band(values: Float[np.ndarray, "round seed"]) -> Numbers:
    """Median over seeds against K, with its 10 % and 90 % quantiles."""
    low, median, high = np.quantile(values, BAND, axis=1)
    return {"K": np.arange(1, len(values) + 1), "median": median, "low": low, "high": high}


def kl_comparison(seed: int, num_seeds: int) -> Numbers:
    """One Gaussian on two modes by each divergence; the seeds differ in the mode that the reverse KL sits on."""
    target, (lower, upper) = simulations.two_modes(), TARGETS["two modes"][1]
    grid = np.linspace(lower[0], upper[0], 601)
    numbers: Numbers = {"x": grid, "p": np.exp(np.asarray(target.log_prob(grid[:, None])))}
    for name, settings in (("reverse", ONE_REVERSE), ("forward", ONE_FORWARD)):
        mixture = _one_of(runs("two modes", settings, range(seed, seed + 1))[0].mixture, 0)
        numbers[name] = {
            "q": np.exp(np.asarray(mixture.log_prob(grid[:, None]))),
            "mean": float(mixture.mean()[0]),
            "sd": float(mixture.covariance()[0, 0]) ** 0.5,
            "KL(q|p)": simulations.reverse_kl_by_quadrature(target, mixture, -20.0, 20.0),
            "KL(p|q)": simulations.forward_kl_by_quadrature(target, mixture, -20.0, 20.0),
        }
    numbers["caption"] = (
        "One Gaussian on two equal Gaussians (at -3 and 3, sd 0.7), by the reverse and by the forward KL; divergences "
        f"by quadrature. Seed {seed}. Forward: moments of {ONE_FORWARD.num_round_draws} weighted draws, "
        f"{NUM_FIRST_FITS} times; reverse: {ONE_REVERSE.num_steps} steps of Adam."
    )
    return numbers


def cauchy_boosting(seed: int, num_seeds: int) -> Numbers:
    """KL(p‖q_K) against K on the cut Cauchy density."""
    limit, numbers = simulations.CAUCHY_LIMIT, {}
    names = ("reverse, Gaussians", "forward, Gaussians", "forward, Student-t")
    for name, settings in zip(names, (CAUCHY_REVERSE, CAUCHY_FORWARD, CAUCHY_STUDENT), strict=True):
        states = runs("cauchy", settings, range(seed, seed + num_seeds))
        numbers[name] = _band(np.array([cut_forward_kl(state.mixture) for state in states]))
    # A q that is the whole Cauchy density loses what it puts outside: KL = -log P(|θ| <= limit).
    numbers["floor"] = float(-np.log(2 / np.pi * np.arctan(limit)))
    numbers["caption"] = (
        f"KL(p‖q_K) by quadrature for the Cauchy density cut to [-{limit:g}, {limit:g}] and normalised there; q_K is "
        "not cut. Without the cut KL is infinite for every mixture of Gaussians. Student-t components (df fitted) are "
        f"shown up to K = {CAUCHY_STUDENT.max_components}; the dotted line, {numbers['floor']:.2g}, is "
        f"what the cut leaves of a perfect fit. {_seeds_words(seed, num_seeds)} "
        f"{_method_words(CAUCHY_FORWARD, CAUCHY_REVERSE)}"
    )
    return numbers


def cauchy_logpdf(seed: int, num_seeds: int) -> Numbers:
    """Log p, log q_K and the log residual after several rounds of forward boosting."""
    target, limit = simulations.cauchy(), simulations.CAUCHY_LIMIT
    states = runs("cauchy", CAUCHY_FORWARD, range(seed, seed + num_seeds))
    grid = np.sinh(np.linspace(-np.arcsinh(limit), np.arcsinh(limit), 401))
    log_p = np.asarray(target.log_prob(grid[:, None]))
    numbers: Numbers = {"x": grid, "log p": log_p}
    for number in LOGPDF_ROUNDS:
        mixture = _one_of(states[number - 1].mixture, 0)
        log_q = np.asarray(mixture.log_prob(grid[:, None]))
        value = simulations.forward_kl_by_quadrature(target, mixture, -limit, limit)
        numbers[f"K = {number}"] = {"log q": log_q, "log p/q": log_p - log_q, "KL(p|q)": value}
    numbers["caption"] = (
        f"Forward boosting with Gaussians on the Cauchy density cut to [-{limit:g}, {limit:g}]: log p, log q_K and the "
        f"log residual log p/q_K. The vertical axis is cut to [{LOGPDF_RANGE[0]:g}, {LOGPDF_RANGE[1]:g}]; the JSON has "
        f"the whole curves. Seed {seed}. {_method_words(CAUCHY_FORWARD)}"
    )
    return numbers


def gmm20_residual(seed: int, num_seeds: int) -> Numbers:
    """Log p/q_K on the twenty-mode mixture after several rounds of forward boosting, masked where nothing is."""
    states = runs("twenty modes", MODES_FORWARD, range(seed, seed + num_seeds))
    axis = np.linspace(0.0, 10.0, RESIDUAL_GRID)
    points = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    log_p = np.asarray(simulations.twenty_modes().log_prob(points))
    numbers: Numbers = {"axis": axis}
    for number in RESIDUAL_ROUNDS:
        mixture = _one_of(states[number - 1].mixture, 0)
        log_q = np.asarray(mixture.log_prob(points))
        clipped = np.round(np.clip(log_p - log_q, -RESIDUAL_LIMIT, RESIDUAL_LIMIT), 2)
        residual = np.ma.masked_where(np.maximum(log_p, log_q) < NEGLIGIBLE, clipped)
        numbers[f"K = {number}"] = {
            "log p/q": residual.reshape(RESIDUAL_GRID, RESIDUAL_GRID),
            "KL(p|q)": float(simulations.twenty_mode_forward_kl(mixture)),
        }
    numbers["caption"] = (
        f"Log residual log p/q_K of forward boosting on the twenty-mode mixture, clipped to ±{RESIDUAL_LIMIT:g}: red "
        f"where q_K has too little, blue where it has too much, grey where both densities are below "
        f"exp({NEGLIGIBLE:g}). Circles: the modes (sd {simulations.TWENTY_MODE_SCALE}). Seed {seed}. "
        f"{_method_words(MODES_FORWARD)}"
    )
    return numbers


def gmm20_moments(seed: int, num_seeds: int) -> Numbers:
    """KL(p‖q_K) and squared errors of the first two moments against K, on the twenty-mode mixture."""
    numbers: Numbers = {}
    forward_kl, errors = (jax.jit(jax.vmap(each)) for each in (simulations.twenty_mode_forward_kl, _moment_errors))
    for name, settings in (("reverse", MODES_REVERSE), ("forward", MODES_FORWARD)):
        states = runs("twenty modes", settings, range(seed, seed + num_seeds))
        numbers[name] = {"KL(p|q)": _band(np.array([forward_kl(state.mixture) for state in states]))}
        values = np.array([errors(state) for state in states])
        for which, measure in enumerate(("importance sampling", "moments of q")):
            numbers[name][measure] = {moment: _band(values[:, :, which, i]) for i, moment in enumerate(MOMENTS)}
    numbers["caption"] = (
        "Twenty-mode mixture: KL(p‖q_K) by Gauss-Hermite quadrature around each mode, and squared errors (mean over "
        "the two coordinates) of the first and second moments: by importance sampling with draws of q_K, and of q_K "
        "itself (dotted, no band). "
        f"{_seeds_words(seed, num_seeds)} {_method_words(MODES_FORWARD, MODES_REVERSE)}"
    )
    return numbers


def _seeds_words(seed: int, num_seeds: int) -> str:
    return f"Median and 10-90 % band over {num_seeds} seeds ({seed} to {seed + num_seeds - 1})."


def _method_words(forward: Settings, reverse: Settings | None = None) -> str:
    words = (
        f"Forward: EM on {forward.num_round_draws} draws made anew in each of {forward.num_steps} steps, newcomers by "
        "gain, then Newton weights and EM over all components; the first component is fitted from a cover of the box."
    )
    if reverse is None:
        return words
    return (
        f"{words} Reverse: {reverse.num_steps} steps of Adam (rate {reverse.learning_rate_location:g}, "
        f"{reverse.num_draws_per_step} draws) for the newcomer and its weight, the rest and its weights held "
        f"fixed as in Miller et al. (2017); newcomers by gain, found on {reverse.num_round_draws} draws."
    )
