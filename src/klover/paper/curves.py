r"""The numbers behind the paper's figures: boosting over many seeds at once, and what each round of it has reached.

Every run knows a box in which the target lies. A Gaussian or Student-t that covers the box (:func:`klover.diffuse`) is
where the first forward component is fitted from, and forward and reverse boosting place their newcomers on the same
kind of draws, of which a quarter come from that cover: reverse boosting can find every mode too. The two differ in the
divergence, and also in the fitter and in that only forward boosting corrects earlier components and weights.

Divergences are exact up to quadrature, and never come from the draws of the runs that they judge.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from klover.base.shapes import AnyArray, Float, Key
from klover.boosting import boost, sources
from klover.boosting.boost import BoostState
from klover.boosting.settings import Settings
from klover.fitting import em
from klover.importance.ratios import normalise
from klover.mixtures.algebra import diffuse
from klover.mixtures.mixture import Mixture
from klover.paper import simulations
from klover.targets.target import Target

Box = tuple[tuple[float, ...], tuple[float, ...]]

NUM_FIRST_FITS = 3
NUM_NODES = 12
NUM_QUADRATURE_POINTS = 10_001

_EM = {"fitter": "em", "newcomer": "gain", "weights": "newton", "update": "all", "draws": "current"}
# As in Miller et al. (2017): the rest stays as it is while a newcomer and its weight are fitted. Correcting all weights
# by the projected gradient would take most of the time of a figure.
_ADAM = {"divergence": "reverse", "newcomer": "gain", "weights": "none", "num_draws": 1000, "num_steps": 300}
_ADAM |= {"learning_rate_location": 0.1, "learning_rate_scale": 0.1}
ONE_FORWARD = Settings.of(family="normal", num_components=1, num_draws=20_000, num_steps=1, **_EM)
ONE_REVERSE = Settings.of(family="normal", num_components=1, **_ADAM)
CAUCHY_FORWARD = Settings.of(family="normal", num_components=10, num_draws=4000, num_steps=15, **_EM)
CAUCHY_STUDENT = Settings.of(family="student", num_components=3, num_draws=4000, num_steps=15, **_EM)
CAUCHY_REVERSE = Settings.of(family="normal", num_components=10, **_ADAM)
MODES_FORWARD = Settings.of(family="normal", num_components=20, num_draws=2000, num_steps=10, **_EM)
# As many draws as the forward runs, since the moments are estimated with them.
MODES_REVERSE = Settings.of(family="normal", num_components=20, **(_ADAM | {"num_draws": MODES_FORWARD.num_draws}))

TARGETS = {
    "two modes": (simulations.two_modes, ((-8.0,), (8.0,))),
    "cauchy": (simulations.cauchy, ((-simulations.CAUCHY_LIMIT,), (simulations.CAUCHY_LIMIT,))),
    "twenty modes": (simulations.twenty_modes, simulations.TWENTY_MODE_BOX),
}


@functools.lru_cache(maxsize=4)
def runs(name: str, settings: Settings, seeds: range) -> list[BoostState]:
    """Boost on one of :data:`TARGETS`; two figures of one simulation share the runs."""
    make, box = TARGETS[name]
    return boosted(seeds, make(), box, settings)


def boosted(seeds: range, target: Target, box: Box, settings: Settings) -> list[BoostState]:
    """Boost from every seed in one vmapped program; return the states after K = 1, 2, ... with a leading seed axis."""
    cover = diffuse(*box, family=settings.family)
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds))
    state = jax.jit(jax.vmap(lambda key: _begin(key, target, cover, settings)))(keys)
    grow = jax.jit(jax.vmap(lambda key, state: boost.step(key, state, target, settings)[0]))
    states = [state]
    for number in range(1, settings.num_components):
        states.append(grow(jax.vmap(lambda key: jax.random.fold_in(key, number))(keys), states[-1]))  # noqa: B023
    return states


def _begin(key: Key[jax.Array, ""], target: Target, cover: Mixture, settings: Settings) -> BoostState:
    """Fit the first component by the divergence of the settings, and keep the cover as the anchor of later rounds."""
    key_init, key_fit, key_draw = jax.random.split(key, 3)
    if settings.divergence == "reverse":
        state, _ = boost.init(key_init, target, settings, "reverse")
        return dataclasses.replace(state, anchor=cover)
    mixture = _fit_first(key_fit, target, cover, settings).with_capacity(settings.num_components)
    return BoostState(mixture, sources.draw_previous(key_draw, target, mixture, settings.num_draws), cover)


def _fit_first(key: Key[jax.Array, ""], target: Target, cover: Mixture, settings: Settings) -> Mixture:
    """Fit one component by the forward KL, begun at the cover: for a Gaussian, match the moments of the target.

    The first draws come from a cover that may be hundreds of times too wide; the next ones also from what they gave.
    """

    def fit(mixture, key_draw):
        draws = sources.draw_defended(key_draw, target, mixture, cover, settings.num_draws)
        weight = jnp.exp(normalise(draws.log_ratio))
        sample = em.WeightedSample(draws.x, weight, jnp.full_like(weight, -jnp.inf))
        return em.fit(mixture, sample, settings.steps, is_df_fitted=settings.family.is_df_fitted), None

    return jax.lax.scan(fit, cover, jax.random.split(key, NUM_FIRST_FITS))[0]


def one_of(mixture: Mixture, index: int) -> Mixture:
    """Return one mixture of a batch, on the host: its log density is then NumPy's, and nothing is compiled."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[index], mixture)


def cut_forward_kl(target: Target, mixture: Mixture, limit: float) -> Float[np.ndarray, " seed"]:
    """KL(p‖q) on [-limit, limit] for every mixture of a batch, by quadrature."""
    return np.array(
        [
            simulations.forward_kl_by_quadrature(
                target, one_of(mixture, index), -limit, limit, num_points=NUM_QUADRATURE_POINTS
            )
            for index in range(mixture.log_weights.shape[0])
        ]
    )


def reverse_kl_by_quadrature(target: Target, mixture: Mixture, lower: float, upper: float) -> float:
    """KL(q‖p) in one dimension by the trapezium rule, for a normalised p and a q that lies inside the interval."""
    grid = np.linspace(lower, upper, NUM_QUADRATURE_POINTS)
    log_p = np.asarray(target.log_prob(grid[:, None]))
    log_q = np.asarray(mixture.log_prob(grid[:, None]))
    return float(np.trapezoid(np.exp(log_q) * (log_q - log_p), grid))


def twenty_mode_forward_kl(mixture: Mixture) -> Float[AnyArray, ""]:
    r"""KL(p‖q) for the twenty-mode mixture, exact up to quadrature.

    The target is itself a mixture, so :math:`\mathrm E_p[g]=\frac1{20}\sum_m\mathrm E[g(\mu_m+\sigma z)]` with a
    standard Gaussian z, and each term is a Gauss-Hermite sum in the two coordinates of z.
    """
    node, weight = np.polynomial.hermite_e.hermegauss(NUM_NODES)
    z = np.stack(np.meshgrid(node, node), axis=-1).reshape(-1, 2)
    share = np.outer(weight, weight).ravel() / weight.sum() ** 2
    centres = np.asarray(simulations.TWENTY_MODE_LOCATIONS)
    points = (centres[:, None] + simulations.TWENTY_MODE_SCALE * z).reshape(-1, 2)
    log_residual = simulations.twenty_modes().log_prob(points) - mixture.log_prob(points)
    return jnp.mean(log_residual.reshape(len(centres), -1) @ share)


def own_moment_errors(state: BoostState) -> Float[AnyArray, "2"]:
    """Mean squared errors, over the coordinates, of the first and second moments of q itself (no draws)."""
    mixture = state.mixture
    variance = jnp.diagonal(mixture.components.covariance(), axis1=-2, axis2=-1)
    first = mixture.weights @ mixture.components.location
    return _moment_errors(first, mixture.weights @ (mixture.components.location**2 + variance))


def weighted_moment_errors(state: BoostState) -> Float[AnyArray, "2"]:
    """Mean squared errors of the moments by importance sampling on the fresh draws that end a round."""
    weight = jnp.exp(normalise(state.draws.log_ratio))
    return _moment_errors(weight @ state.draws.x, weight @ state.draws.x**2)


def _moment_errors(first: Float[AnyArray, " dim"], second: Float[AnyArray, " dim"]) -> Float[AnyArray, "2"]:
    exact_first, exact_second = simulations.twenty_mode_moments()
    return jnp.stack([jnp.mean((first - exact_first) ** 2), jnp.mean((second - exact_second) ** 2)])
