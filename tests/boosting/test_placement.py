import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from klover import Target
from klover.boosting import placement
from klover.mixtures.algebra import diffuse
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture

MODES, SCALE = np.array([[-4.0, 0.0], [4.0, 1.0]]), 0.6
FAMILIES = {name: Family.parse(name) for name in ("normal-full", "normal-diagonal", "student-low-rank")}


def two_modes(x):
    log_component = -0.5 * jnp.sum(((x - MODES) / SCALE) ** 2, axis=1) - 2 * np.log(SCALE) - np.log(2 * np.pi)
    return jax.nn.logsumexp(log_component + np.log([0.6, 0.4]))


def normal_mixture(location, covariance):
    return Mixture.of(Family("normal", "full").components(jnp.asarray(location), jnp.asarray(covariance)))


def test_ascent_finds_the_mode_of_the_residual():
    width = 2.0
    previous = normal_mixture(MODES[:1], width**2 * np.eye(2)[None])
    top = jax.jit(lambda start: placement.ascent(lambda x: two_modes(x) - previous.log_prob(x), start, 0.05))(
        jnp.array([1.0, -2.0])
    )
    # Far from the first mode the residual is a difference of two quadratics.
    expected = (MODES[1] / SCALE**2 - MODES[0] / width**2) / (1 / SCALE**2 - 1 / width**2)
    np.testing.assert_allclose(top, expected, atol=1e-3)


def test_ascent_does_not_leave_the_support():
    def log_density(x):
        return jnp.where(x[0] > 0, jnp.log(jnp.maximum(x[0], 0.0)) - 5.0 * x[0], -jnp.inf)

    climb = jax.jit(lambda start: placement.ascent(log_density, start, 0.3, 200))
    assert climb(jnp.array([1.0]))[0] > 0
    np.testing.assert_array_equal(climb(jnp.array([-1.0])), [-1.0])


@pytest.mark.parametrize("tail", ["normal", "student"])
@pytest.mark.parametrize("covariance", ["full", "diagonal", "low-rank"])
def test_diffuse_covers_the_box(tail, covariance):
    lower, upper = np.array([-2.0, 0.0, 10.0]), np.array([4.0, 0.1, 1000.0])
    mixture = diffuse(lower, upper, f"{tail}-{covariance}")
    assert mixture.capacity == 1
    assert mixture.components.family_name == f"{tail}-{covariance}"
    np.testing.assert_allclose(mixture.mean(), (lower + upper) / 2)
    scale = np.sqrt(np.diagonal(mixture.components.spread.covariance()[0]))
    np.testing.assert_allclose(scale, 1.2 * stats.uniform(lower, upper - lower).std())


@pytest.mark.parametrize(
    ("lower", "upper"), [([0.0, 1.0], [1.0, 1.0]), ([0.0, 2.0], [1.0, 1.0]), ([0.0, -np.inf], [1.0, 1.0])]
)
def test_diffuse_refuses_an_empty_or_endless_box(lower, upper):
    with pytest.raises(ValueError, match="below upper"):
        diffuse(np.array(lower), np.array(upper))


def make_draws(seed, num_draws=300):
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 4, (num_draws, 2))
    log_p = special.logsumexp(
        [stats.multivariate_normal.logpdf(x, mode, SCALE**2 * np.eye(2)) for mode in MODES], axis=0
    )
    log_previous = stats.multivariate_normal.logpdf(x, MODES[0], 1.5 * np.eye(2))
    return x, log_p - stats.norm.logpdf(x, 0, 4).sum(1), log_p - log_previous


propose = jax.jit(placement.candidates_from_draws, static_argnums=1)
choose = jax.jit(placement.choose)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
def test_candidates_stand_at_draws_where_the_residual_is_positive(getkey, family):
    x, log_ratio, log_residual = make_draws(0)
    # Draws outside the support would be the best of all by their residual.
    log_ratio[:20], log_residual[:20] = -np.inf, 1e3
    candidates = propose(getkey(), family, *map(jnp.asarray, (x, log_ratio, log_residual)))
    num_sizes = len(placement.SCALES)
    assert candidates.location.shape == (placement.NUM_CENTRES * num_sizes, 2)
    weight = special.softmax(log_ratio)
    index = np.array([np.flatnonzero((x == centre).all(1))[0] for centre in np.asarray(candidates.location)])
    assert index.min() >= 20
    residual = log_residual - weight @ np.where(weight > 0, log_residual, 0.0)
    assert np.all(residual[index] > 0)
    delta = x - weight @ x
    shape = delta.T @ (weight[:, None] * delta)
    covariance = np.asarray(candidates.spread.covariance())
    for which, size in enumerate(placement.SCALES):
        if family.covariance == "full":
            np.testing.assert_allclose(covariance[which], size**2 * shape, rtol=1e-4)
        else:
            np.testing.assert_allclose(np.diag(covariance[which]), size**2 * np.diag(shape), rtol=1e-10)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((candidates.location, candidates.spread)))


@given(shift=st.floats(-1e3, 1e3))
@settings(max_examples=10)
def test_candidates_do_not_see_the_constant_of_the_target(shift):
    x, log_ratio, log_residual = map(jnp.asarray, make_draws(1))
    key, family = jax.random.key(1), FAMILIES["normal-full"]
    plain = propose(key, family, x, log_ratio, log_residual)
    moved = propose(key, family, x, log_ratio + shift, log_residual + shift)
    np.testing.assert_array_equal(moved.location, plain.location)


def test_centres_are_picked_by_weight_times_positive_residual(getkey):
    x, log_ratio, log_residual = make_draws(2)
    weight = special.softmax(log_ratio)
    score = weight * np.maximum(log_residual - weight @ log_residual, 1e-6)
    score = score / score.sum()
    num_repeats, num_centres = 60, placement.NUM_CENTRES
    count = np.zeros(len(x))
    for _ in range(num_repeats):
        candidates = propose(getkey(), FAMILIES["normal-full"], *map(jnp.asarray, (x, log_ratio, log_residual)))
        centres = np.asarray(candidates.location)[:: len(placement.SCALES)]
        count += (x[:, None] == centres).all(-1).sum(1)
    expected = num_repeats * num_centres * score
    # Counts of a stratified scheme vary less than those of independent picks.
    assert np.all(np.abs(count - expected) < 5 * np.sqrt(expected) + 1)


def test_candidates_from_climbs_stand_at_tops_with_their_curvature():
    target = Target(two_modes, jnp.zeros(2))
    width = 2.0
    previous = normal_mixture(MODES[:1], width**2 * np.eye(2)[None])
    starts = jnp.array([[-5.0, 1.0], [3.5, -1.0]])

    @jax.jit
    def climb(starts):
        return placement.candidates_from_climbs(Family("normal", "full"), target, previous, starts)

    candidates = climb(starts)
    residual_top = (MODES[1] / SCALE**2 - MODES[0] / width**2) / (1 / SCALE**2 - 1 / width**2)
    np.testing.assert_allclose(candidates.location, [MODES[0], MODES[1], MODES[0], residual_top], atol=1e-5)
    np.testing.assert_allclose(candidates.spread.covariance(), np.stack([SCALE**2 * np.eye(2)] * 4), atol=1e-5)


def improvements(candidates, x, log_weight, log_q):
    """Exact table of what each candidate gives at each weight."""
    weight = special.softmax(log_weight)
    log_f = np.stack([norm.logpdf(x) for norm in candidates])
    gammas = np.array(placement.GAMMAS)[:, None, None]
    return np.logaddexp(np.log1p(-gammas), np.log(gammas) + log_f - log_q) @ weight


@pytest.mark.parametrize("seed", range(4))
def test_choose_takes_the_largest_improvement(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 4, (200, 2))
    log_weight, log_q = rng.normal(0, 1, 200), stats.norm.logpdf(x, 1.0, 3.0).sum(1)
    log_weight[:10] = -np.inf
    location, variance = rng.normal(0, 3, (12, 2)), np.exp(rng.normal(1, 1.5, (12, 2)))
    candidates = FAMILIES["normal-diagonal"].components(jnp.asarray(location), jnp.asarray(variance))
    chosen = choose(candidates, *map(jnp.asarray, (x, log_weight, log_q)))
    exact = [stats.multivariate_normal(*pair) for pair in zip(location, map(np.diag, variance), strict=True)]
    table = improvements(exact, x, log_weight, log_q)
    which, best = np.unravel_index(np.argmax(table), table.shape)
    np.testing.assert_allclose(chosen.components.location[0], location[best])
    np.testing.assert_allclose(chosen.weights, [placement.GAMMAS[which]])


def test_choose_does_not_take_a_spike():
    rng = np.random.default_rng(5)
    x = np.concatenate([rng.normal(MODES[0], SCALE, (200, 2)), rng.normal(MODES[1], SCALE, (200, 2))])
    x = x[rng.permutation(400)]
    log_q = stats.multivariate_normal.logpdf(x, MODES[0], 4 * np.eye(2))
    seen, unseen = x[:200], x[200:]
    nearest = seen[np.argmin(np.sum((seen - MODES[1]) ** 2, axis=1))]
    location = np.stack([nearest, nearest])
    candidates = FAMILIES["normal-diagonal"].components(
        jnp.asarray(location), jnp.asarray([[1e-12, 1e-12], [SCALE**2, SCALE**2]])
    )
    # On the draws that proposed it the spike has the larger gain by far.
    gain = np.exp(np.asarray(candidates.log_prob(jnp.asarray(seen))) - log_q[:200]).mean(1)
    assert gain[0] > 1e3 * gain[1]
    chosen = choose(candidates, jnp.asarray(unseen), jnp.zeros(200), jnp.asarray(log_q[200:]))
    np.testing.assert_allclose(chosen.components.spread.scale[0], SCALE)
    assert chosen.weights[0] in np.array(placement.GAMMAS)[3:6]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_choose_still_compares_where_the_mixture_is_almost_zero(dtype):
    # In high dimension the ratio f/q of a missed mode is beyond the range of the numbers.
    x = jnp.linspace(-1, 1, 50, dtype=dtype)[:, None]
    location, variance = jnp.array([[4.0], [0.0], [9.0]], dtype), jnp.ones((3, 1), dtype)
    candidates = FAMILIES["normal-diagonal"].components(location, variance)
    chosen = choose(candidates, x, jnp.zeros(50, dtype), jnp.full(50, -500.0, dtype))
    np.testing.assert_array_equal(chosen.components.location, [[0.0]])
    np.testing.assert_allclose(chosen.weights, [0.9], rtol=1e-6)
