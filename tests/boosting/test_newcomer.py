import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from klover import Target
from klover.boosting import newcomer, sources
from klover.boosting.settings import Settings
from klover.boosting.sources import BoostState
from klover.fitting.divergences import forward_loss
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture

LOG_Z = 5.0
SHARES, LOCATIONS, SCALES = np.array([0.65, 0.35]), np.array([-1.5, 1.8]), np.array([0.6, 0.5])
GRID = np.linspace(-15, 15, 6001)
EXACT = np.log(SHARES @ stats.norm.pdf(GRID, LOCATIONS[:, None], SCALES[:, None]))


def log_two_modes(x):
    parts = -0.5 * ((x[0] - LOCATIONS) / SCALES) ** 2 - jnp.log(SCALES * np.sqrt(2 * np.pi))
    return jax.nn.logsumexp(parts + np.log(SHARES)) + LOG_Z


TARGET = Target(log_two_modes, jnp.array([-1.0]))


def normal(location, scale, log_weight=0.0):
    components = Family("normal", "diagonal").components(np.array([[location]]), np.array([[scale**2]]))
    return Mixture(components, np.array([log_weight]))


# On the first mode, and wide enough to touch the second.
FIRST = normal(-1.5, 1.1)
START = normal(1.0, 0.4, np.log(0.5))


def divergence(mixture, kind):
    log_q = mixture.log_prob(GRID[:, None])
    if kind == "forward":
        return np.trapezoid(np.exp(EXACT) * (EXACT - log_q), GRID)
    return np.trapezoid(np.exp(log_q) * (log_q - EXACT), GRID)


def is_free_of_nan(tree):
    return not any(np.any(np.isnan(leaf)) for leaf in jax.tree.leaves(tree))


draw_previous = jax.jit(sources.draw_previous, static_argnums=3)
fit_newcomer = jax.jit(newcomer.fit_newcomer, static_argnames="settings")


@functools.cache
def previous_round():
    draws = draw_previous(jax.random.key(0), TARGET, FIRST, 1000)
    return BoostState(FIRST, draws, FIRST)


FORWARD = [
    {"draws": draws, "approach": approach, "fitter": fitter}
    for draws, approach, fitter in itertools.product(sources.SOURCES, ("direct", "remainder"), ("adam", "em"))
    if (draws, approach) not in (("newcomer", "direct"), ("current", "remainder"))
]
REPEATED = (("previous", "remainder", "adam"), ("current", "direct", "adam"))
"""Of these each part is tried by others; they follow in `make test-all`."""
REVERSE = [{"divergence": "reverse", "approach": approach, "fitter": "adam"} for approach in ("direct", "remainder")]


def grow(fitted):
    """Add a newcomer to the first component, in NumPy, where nothing is compiled."""
    components = jax.tree.map(lambda *parts: np.concatenate(parts), FIRST.components, fitted.components)
    return Mixture(components, np.append(np.log1p(-fitted.weights), fitted.log_weights))


@pytest.mark.parametrize(
    "choices",
    [
        pytest.param(
            choices,
            id="-".join(choices.values()),
            marks=pytest.mark.slow if tuple(choices.values()) in REPEATED else (),
        )
        for choices in FORWARD + REVERSE
    ],
)
def test_a_newcomer_lowers_the_divergence(getkey, choices):
    settings = Settings(
        num_round_draws=1000,
        num_draws_per_step=100,
        num_steps=20 if choices["fitter"] == "em" else 600,
        learning_rate_location=0.02,
        learning_rate_scale=0.02,
        **choices,
    )
    fitted = fit_newcomer(getkey(), TARGET, previous_round(), START, settings)
    assert is_free_of_nan(fitted)
    assert 0 < fitted.weights[0] < 1
    assert divergence(grow(fitted), settings.divergence) < 0.9 * divergence(FIRST, settings.divergence)
    if settings.approach == "remainder" and (settings.draws != "previous" or settings.divergence == "reverse"):
        # New draws at every step see all of p/q, whose mean and spread a Normal takes over.
        remainder = np.exp(EXACT - FIRST.log_prob(GRID[:, None]))
        mean = np.trapezoid(remainder * GRID, GRID) / np.trapezoid(remainder, GRID)
        assert abs(fitted.components.location[0, 0] - mean) < 0.2
    else:
        # It has gone to the mode that was missing.
        assert abs(fitted.components.location[0, 0] - LOCATIONS[1]) < 2 * SCALES[1]


@pytest.mark.parametrize(("fitter", "num_steps"), [("em", 4), ("adam", 60)])
def test_draws_of_a_wide_newcomer_lower_the_divergence(getkey, fitter, num_steps):
    # For a few steps only: once the newcomer has left the first mode, its draws know nothing of it, and γ goes to 1.
    settings = Settings(
        num_round_draws=2000,
        num_draws_per_step=500,
        num_steps=num_steps,
        learning_rate_location=0.02,
        learning_rate_scale=0.02,
        fitter=fitter,
        draws="newcomer",
    )
    start = normal(0.5, 2.5, np.log(0.5))
    fitted = fit_newcomer(getkey(), TARGET, previous_round(), start, settings)
    assert divergence(grow(fitted), "forward") < 0.9 * divergence(grow(start), "forward")
    assert divergence(grow(fitted), "forward") < 0.9 * divergence(FIRST, "forward")


@pytest.mark.parametrize("choices", [{"fitter": "em"}, {"divergence": "reverse"}], ids=["em", "reverse"])
def test_the_first_component_has_all_the_weight_and_fits_a_gaussian(getkey, choices):
    centre, scale = 3.0, 0.7
    target = Target(lambda x: -0.5 * jnp.sum(((x - centre) / scale) ** 2), jnp.array([0.0]))
    settings = Settings(
        num_round_draws=1000,
        num_draws_per_step=200,
        num_steps=25 if choices.get("fitter") == "em" else 1500,
        learning_rate_location=0.01,
        learning_rate_scale=0.01,
        prior=0.0,
        **choices,
    )
    fitted = fit_newcomer(getkey(), target, None, normal(2.0, 1.0), settings)
    np.testing.assert_allclose(fitted.log_weights, [0.0], atol=1e-12)
    # The target is of the family, so its weights end up equal and the fit does not depend on luck.
    error = scale / np.sqrt(settings.num_draws_per_step)
    np.testing.assert_allclose(fitted.components.location, [[centre]], atol=5 * error)
    np.testing.assert_allclose(fitted.components.spread.scale, [[scale]], atol=5 * error)


MODES = np.array([[-2.0, 0.0], [2.0, 1.0]])


@functools.cache
def fixed_problem(name):
    """Draws of a wide first component on one mode of a two-mode target in the plane, and a newcomer near the other."""
    family = Family.parse(name)
    covariance = np.array([[0.6, 0.2], [0.2, 0.4]])
    precision = np.linalg.inv(covariance)

    def log_density(x):
        delta = x - MODES
        return jax.nn.logsumexp(-0.5 * jnp.einsum("ki,ij,kj->k", delta, precision, delta) + np.log([0.6, 0.4]))

    target = Target(log_density, jnp.zeros(2))
    first = Mixture.of(family.components(jnp.asarray(MODES[:1]), jnp.asarray([[3.0, 2.0]])))
    draws = draw_previous(jax.random.key(3), target, first, 500)
    start = Mixture(family.components(jnp.asarray(MODES[1:]), jnp.asarray([[0.7, 0.7]])), jnp.log(jnp.array([0.4])))
    return target, BoostState(first, draws, first), start


@pytest.mark.parametrize("name", ["normal-diagonal", "normal-full"])
def test_em_and_adam_reach_the_same_newcomer(name):
    target, previous, start = fixed_problem(name)
    draws = previous.draws
    fitted = {}
    for fitter, num_steps in (("em", 400), ("adam", 3000)):
        settings = Settings(
            family=Family.parse(name),
            fitter=fitter,
            num_steps=num_steps,
            prior=0.0,
            learning_rate_location=0.01,
            learning_rate_scale=0.01,
        )
        fitted[fitter] = fit_newcomer(jax.random.key(0), target, previous, start, settings)

    def loss(mixture):
        log_q = sources.mix(mixture.components.log_prob(draws.x)[0], draws.log_previous, mixture.log_weights[0])
        return forward_loss(draws.log_ratio, log_q)

    np.testing.assert_allclose(loss(fitted["adam"]), loss(fitted["em"]), atol=1e-4)
    assert loss(fitted["em"]) < loss(start) - 1e-3
    em, adam = fitted["em"], fitted["adam"]
    np.testing.assert_allclose(adam.weights, em.weights, atol=1e-2)
    np.testing.assert_allclose(adam.components.location, em.components.location, atol=1e-2)
    np.testing.assert_allclose(adam.components.covariance(), em.components.covariance(), atol=1e-2)


def test_the_first_start_is_at_the_highest_top(getkey):
    settings = Settings(newcomer="lbfgs")
    start = jax.jit(newcomer.start_first, static_argnums=2)(getkey(), TARGET, settings)
    top = GRID[np.argmax(EXACT)]
    np.testing.assert_allclose(start.components.location, [[top]], atol=GRID[1] - GRID[0])
    curvature = -np.gradient(np.gradient(EXACT, GRID), GRID)[np.argmax(EXACT)]
    np.testing.assert_allclose(start.components.spread.scale, [[1 / np.sqrt(curvature)]], rtol=1e-3)
    np.testing.assert_array_equal(start.log_weights, [0.0])


begin_by_ascent = jax.jit(newcomer.start_by_ascent, static_argnums=3)
# The residual of two Normals, where one mode of the target does not reach the other.
RESIDUAL_TOP = (LOCATIONS[1] / SCALES[1] ** 2 + 1.5 / 1.1**2) / (1 / SCALES[1] ** 2 - 1 / 1.1**2)


def begin_at(key, target, place, settings, shift=0.0):
    """Begin with draw number ``place``, since a climb starts at the first one."""
    draws = jax.tree.map(lambda leaf: np.roll(leaf, -place, axis=0), previous_round().draws)
    draws = dataclasses.replace(draws, log_p=draws.log_p + shift)
    return begin_by_ascent(key, target, BoostState(FIRST, draws, FIRST), settings)


def test_ascent_begins_as_the_paper_does(getkey):
    settings = Settings(initial_scale=0.2, learning_rate_location=0.05)
    # Draws from left to right: those on the right climb to the missing mode.
    order = np.argsort(previous_round().draws.x[:, 0])
    starts = [begin_at(getkey(), TARGET, place, settings) for place in order[:: len(order) // 40]]
    starts += [begin_at(getkey(), TARGET, place, settings) for place in order[-5:]]
    location = np.array([start.components.location[0, 0] for start in starts])
    assert np.all(np.isclose(location, RESIDUAL_TOP, atol=0.02) | np.isclose(location, -1.5, atol=0.02))
    np.testing.assert_allclose(location[-5:], RESIDUAL_TOP, atol=0.02)
    scale = np.array([start.components.spread.scale[0, 0] for start in starts])
    # Absolute values of N(0, 0.2²).
    assert stats.kstest(scale, stats.halfnorm(scale=0.2).cdf).pvalue > 1e-5
    assert all(np.isclose(start.weights[0], 0.5) for start in starts)


def test_smoothed_ascent_does_not_see_the_constant_of_the_target(getkey):
    settings = Settings(log_epsilon=-10.0, learning_rate_location=0.05)
    key, place = getkey(), int(np.argmax(previous_round().draws.x[:, 0]))
    shifted = Target(lambda x: log_two_modes(x) - 700.0, jnp.array([-1.0]))
    plain = begin_at(key, TARGET, place, settings)
    moved = begin_at(key, shifted, place, settings, -700.0)
    np.testing.assert_allclose(moved.components.location, plain.components.location, rtol=1e-6)
    # The smoothing matters here, or there would be nothing to see.
    assert abs(plain.components.location[0, 0] - RESIDUAL_TOP) > 0.01


@pytest.mark.parametrize("search", ["gain", "lbfgs"])
def test_search_finds_the_missing_mode(getkey, search):
    settings = Settings(newcomer=search)
    wide = normal(0.0, 4.0)
    draws = draw_previous(getkey(), TARGET, wide, 1000)
    scouts = dataclasses.replace(draws, log_previous=FIRST.log_prob(np.asarray(draws.x)))
    start = jax.jit(newcomer.start_by_search, static_argnums=4)(getkey(), TARGET, FIRST, scouts, settings)
    assert is_free_of_nan(start)
    assert abs(start.components.location[0, 0] - LOCATIONS[1]) < 3 * SCALES[1]
    assert divergence(grow(start), "forward") < 0.5 * divergence(FIRST, "forward")
