import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from klover.fitting import simplex

CAPACITY, NUM_DRAWS = 12, 150
METHODS = ("projected", "em", "newton")
SEEDS = st.integers(0, 2**32 - 1)
few_examples = settings(max_examples=15)

# One shape for all problems, so that each method is compiled once.
projected = jax.jit(lambda *problem: simplex.forward_weights(*problem, "projected", 2000))
newton = jax.jit(lambda *problem: simplex.forward_weights(*problem, "newton"))
multiplicative = jax.jit(lambda *problem: simplex.forward_weights(*problem, "em", 20_000))
SOLVERS = {"projected": projected, "em": multiplicative, "newton": newton}


def make_problem(seed, num_components, kind="separated"):
    """Return log-weights, log densities and weights; slots beyond ``num_components`` are unused."""
    rng = np.random.default_rng(seed)
    location = np.linspace(-6, 6, CAPACITY)
    rng.shuffle(location[:num_components])
    scale = np.full(CAPACITY, 0.7)
    if kind == "overlapping":
        location, scale = rng.normal(0, 2, CAPACITY), np.exp(rng.normal(0, 0.5, CAPACITY))
    if kind == "repeated":
        location[1], scale[1] = location[0], scale[0]
    # Only about half of the components have draws near them; the weights of the others end at zero.
    source = rng.choice(location[: (num_components + 2) // 2], NUM_DRAWS)
    x = source + 0.7 * rng.standard_normal(NUM_DRAWS)
    log_component = stats.norm.logpdf(x, location[:, None], scale[:, None])
    log_weights = np.full(CAPACITY, -np.inf)
    log_weights[:num_components] = np.log(rng.dirichlet(np.full(num_components, 2.0)))
    return log_weights, log_component, rng.dirichlet(np.full(NUM_DRAWS, 0.5))


def objective(log_weights, log_component, weight):
    return weight @ special.logsumexp(log_component, b=np.exp(log_weights)[:, None], axis=0)


def solve(problem, method):
    log_weights, gap = SOLVERS[method](*(jnp.asarray(part) for part in problem))
    return np.asarray(log_weights), float(gap)


@pytest.mark.parametrize("kind", ["separated", "overlapping", "repeated"])
@pytest.mark.parametrize("num_components", [2, 3, 5, 8, 12])
@pytest.mark.parametrize("seed", [0, 1])
def test_methods_agree_and_meet_the_optimality_conditions(seed, num_components, kind):
    problem = make_problem(seed, num_components, kind)
    answers = {method: solve(problem, method) for method in METHODS}
    values = {method: objective(answer, *problem[1:]) for method, (answer, _) in answers.items()}
    before = objective(*problem)
    for method, (log_weights, gap) in answers.items():
        assert values[method] >= before
        np.testing.assert_allclose(values[method], values["newton"], atol=1e-6, err_msg=method)
        np.testing.assert_allclose(np.exp(log_weights).sum(), 1.0)
        assert np.all(log_weights[num_components:] == -np.inf)
        np.testing.assert_allclose(gap, simplex.kkt_gap(log_weights, *problem[1:]), atol=1e-8)
        if kind == "separated":
            np.testing.assert_allclose(np.exp(log_weights), np.exp(answers["newton"][0]), atol=1e-6, err_msg=method)
    for method in ("newton", "projected"):
        log_weights, gap = answers[method]
        gain = _gain(log_weights, problem)[:num_components]
        assert np.all(gain <= 1 + 1e-6)
        np.testing.assert_allclose(gain[np.exp(log_weights[:num_components]) > 1e-4], 1.0, atol=1e-6)
        assert abs(gap) < 1e-6


def _gain(log_weights, problem):
    log_q = special.logsumexp(problem[1], b=np.exp(log_weights)[:, None], axis=0)
    return simplex.gain(problem[1], log_q, problem[2])


@given(seed=SEEDS, num_components=st.integers(2, CAPACITY))
@few_examples
def test_gap_bounds_what_can_still_be_gained(seed, num_components):
    problem = make_problem(seed, num_components)
    gap = simplex.kkt_gap(*problem)
    best, _ = simplex.forward_weights(*problem)
    left = objective(best, *problem[1:]) - objective(*problem)
    # With the gain's mean over q equal to one the gap is never negative, and it is zero at the optimum only.
    assert gap > 1e-4
    assert 0 <= left <= gap
    assert abs(simplex.kkt_gap(best, *problem[1:])) < 1e-8


def test_weights_that_end_at_zero_do_so():
    problem = make_problem(4, CAPACITY)
    log_weights, _ = solve(problem, "newton")
    gain = _gain(log_weights, problem)
    idle = (gain < 0.99) & (problem[0] > -np.inf)
    assert idle.sum() >= 2
    assert np.all(np.exp(log_weights[idle]) < 1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["separated", "repeated"])
def test_precision_of_the_numbers_is_enough(dtype, method, kind):
    problem = make_problem(4, 8, kind)
    best = objective(solve(problem, "newton")[0], *problem[1:])
    small = jax.tree.map(lambda part: jnp.asarray(part, dtype), problem)
    # The defaults: users of single precision will hardly set the number of steps.
    log_weights, gap = simplex.forward_weights(*small, method)
    assert log_weights.dtype == gap.dtype == dtype
    assert objective(np.asarray(log_weights, float), *problem[1:]) > best - 1e-4


@pytest.mark.parametrize("method", ["em", "newton"])
@pytest.mark.parametrize("kind", ["separated", "overlapping", "repeated"])
def test_numpy_and_jax_agree(method, kind):
    problem = make_problem(5, 7, kind)
    num_steps = 20_000 if method == "em" else None
    expected, gap = solve(problem, method)
    log_weights, numpy_gap = simplex.forward_weights(*problem, method, num_steps)
    assert isinstance(log_weights, np.ndarray)
    tolerance = 1e-6 if kind == "repeated" else 1e-9
    shares, expected = np.exp(log_weights), np.exp(expected)
    if kind == "repeated":
        # Only the sum of the two is determined.
        shares[0], expected[0] = shares[:2].sum(), expected[:2].sum()
        shares[1] = expected[1] = 0.0
    np.testing.assert_allclose(shares, expected, atol=tolerance)
    np.testing.assert_allclose(numpy_gap, gap, atol=tolerance)


@given(seed=SEEDS, num_components=st.integers(2, CAPACITY))
@few_examples
def test_one_multiplicative_step_is_weight_times_gain(seed, num_components):
    problem = make_problem(seed, num_components, "overlapping")
    log_weights, _ = simplex.forward_weights(*problem, "em", 1)
    expected = np.exp(problem[0]) * _gain(problem[0], problem)
    np.testing.assert_allclose(np.exp(log_weights), expected, atol=1e-6)


@given(seed=SEEDS)
@few_examples
def test_gain_is_the_negative_gradient(seed):
    log_weights, log_component, weight = make_problem(seed, CAPACITY, "overlapping")

    def loss(shares):
        return -jnp.sum(weight * jnp.log(shares @ jnp.exp(log_component)))

    gradient = jax.grad(loss)(jnp.exp(log_weights))
    np.testing.assert_allclose(-_gain(log_weights, (log_weights, log_component, weight)), gradient, rtol=1e-10)


@pytest.mark.parametrize("method", ["em", "newton"])
@given(seed=SEEDS, size=st.sampled_from([1.0, 100.0, 5000.0]))
@few_examples
def test_an_offset_for_each_draw_changes_nothing(method, seed, size):
    log_weights, log_component, weight = make_problem(seed, 6, "overlapping")
    offset = np.random.default_rng(seed).normal(0, size, NUM_DRAWS)
    plain, gap = simplex.forward_weights(log_weights, log_component, weight, method)
    moved, moved_gap = simplex.forward_weights(log_weights, log_component + offset, weight, method)
    np.testing.assert_allclose(np.exp(moved), np.exp(plain), atol=1e-8)
    np.testing.assert_allclose(moved_gap, gap, atol=1e-8)


def test_projected_does_not_see_an_offset_for_each_draw():
    log_weights, log_component, weight = make_problem(6, 6)
    offset = np.random.default_rng(6).normal(0, 1000, NUM_DRAWS)
    plain, _ = solve((log_weights, log_component, weight), "projected")
    moved, _ = solve((log_weights, log_component + offset, weight), "projected")
    np.testing.assert_allclose(np.exp(moved), np.exp(plain), atol=1e-8)


@pytest.mark.parametrize("method", ["em", "newton"])
def test_draws_of_weight_zero_change_nothing(method):
    log_weights, log_component, weight = make_problem(7, 6)
    more = np.concatenate([log_component, np.full((CAPACITY, 3), -np.inf), np.full((CAPACITY, 2), 700.0)], axis=1)
    plain, gap = simplex.forward_weights(log_weights, log_component, weight, method)
    padded, padded_gap = simplex.forward_weights(log_weights, more, np.append(weight, np.zeros(5)), method)
    np.testing.assert_allclose(np.exp(padded), np.exp(plain), atol=1e-10)
    np.testing.assert_allclose(padded_gap, gap, atol=1e-10)


@pytest.mark.parametrize("method", ["em", "newton"])
def test_without_any_weight_the_mixture_stays(method):
    log_weights, log_component, weight = make_problem(8, 6)
    kept, _ = simplex.forward_weights(*map(jnp.asarray, (log_weights, log_component, 0 * weight)), method)
    np.testing.assert_allclose(kept[:6], log_weights[:6])


def test_the_gain_is_the_exact_value_within_its_error(getkey):
    grid = np.linspace(-25, 25, 20_001)
    locations, scales = np.array([[0.0], [2.0], [-1.0]]), np.array([[1.0], [0.6], [2.0]])

    def log_p(x):
        return np.log(0.7 * stats.norm.pdf(x, 0.5, 1.2) + 0.3 * stats.norm.pdf(x, -2, 0.8))

    def log_q(x):
        return stats.norm.logpdf(x, 0, 2.0)

    ratio = np.exp(stats.norm.logpdf(grid, locations, scales) - log_q(grid))
    exact = np.trapezoid(np.exp(log_p(grid)) * ratio, grid)
    score = []
    for _ in range(20):
        x = np.asarray(2.0 * jax.random.normal(getkey(), (4000,)))
        weight = special.softmax(log_p(x) - log_q(x))
        log_candidate = stats.norm.logpdf(x, locations, scales)
        value = simplex.gain(log_candidate, log_q(x), weight)
        error = np.sqrt(np.sum((weight * (np.exp(log_candidate - log_q(x)) - value[:, None])) ** 2, axis=1))
        score.append((value - exact) / error)
    score = np.array(score)
    assert np.all(np.abs(score) < 5)
    # The scores have unit spread (chi-square with 60 degrees).
    assert stats.chi2.ppf(1e-5, 60) < (score**2).sum() < stats.chi2.ppf(1 - 1e-5, 60)


LOCATION, SCALE = np.array([-2.0, 0.5, 3.0]), np.array([0.8, 1.0, 0.6])
TRUE = np.array([0.5, 0.15, 0.35])


def log_components(x):
    return stats.norm.logpdf(x, LOCATION.reshape((-1,) + (1,) * x.ndim), SCALE.reshape((-1,) + (1,) * x.ndim))


def log_mixture(x, shares):
    return special.logsumexp(log_components(x), b=shares.reshape((-1,) + (1,) * x.ndim), axis=0)


def quantile_draws(num_draws=2000):
    """Evenly spread draws of each component, so that a mean over them is a quadrature."""
    level = (np.arange(num_draws) + 0.5) / num_draws
    return LOCATION[:, None] + SCALE[:, None] * stats.norm.ppf(level)


reverse = jax.jit(simplex.reverse_weights, static_argnums=3)


def test_reverse_step_follows_the_gradient_of_the_paper():
    grid = np.linspace(-15, 15, 20_001)
    start, target = np.array([0.3, 0.3, 0.4]), stats.norm.logpdf(grid, 0, 2.0)

    def divergence(shares):
        log_q = log_mixture(grid, shares)
        return np.trapezoid(np.exp(log_q) * (log_q - target), grid)

    gradient = np.trapezoid(np.exp(log_components(grid)) * (log_mixture(grid, start) - target), grid)
    numeric = [(divergence(start + 1e-5 * e) - divergence(start - 1e-5 * e)) / 2e-5 for e in np.eye(3)]
    np.testing.assert_allclose(gradient + 1, numeric, atol=1e-8)

    x = quantile_draws()
    moved = reverse(np.log(start), log_components(x), stats.norm.logpdf(x, 0, 2.0), 1)
    shift = np.exp(moved) - start
    direction = _project(start - gradient) - start
    assert shift @ direction > 0
    cosine = shift @ direction / np.linalg.norm(shift) / np.linalg.norm(direction)
    np.testing.assert_allclose(cosine, 1.0, atol=1e-5)
    assert divergence(np.exp(np.asarray(moved))) < divergence(start)


def _project(point):
    """Project onto the simplex, by bisection of the threshold."""
    low, high = point.min() - 1, point.max()
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.maximum(point - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(point - low, 0)


@pytest.mark.parametrize("shift", [0.0, 1e3, -1e7])
def test_reverse_weights_recover_a_target_of_the_same_components(shift):
    x = quantile_draws()
    solution = reverse(np.log(np.full(3, 1 / 3)), log_components(x), log_mixture(x, TRUE) + shift, 300)
    np.testing.assert_allclose(np.exp(solution), TRUE, atol=1e-4)


@pytest.mark.slow
def test_reverse_weights_recover_the_target_within_monte_carlo_error(getkey):
    num_repeats, num_draws = 40, 400

    @jax.jit
    @jax.vmap
    def recover(key):
        x = LOCATION[:, None] + SCALE[:, None] * jax.random.normal(key, (3, num_draws))
        log_component = jax.scipy.stats.norm.logpdf(x, LOCATION[:, None, None], SCALE[:, None, None])
        log_p = jax.nn.logsumexp(log_component + np.log(TRUE)[:, None, None], axis=0)
        return jnp.exp(simplex.reverse_weights(jnp.log(jnp.full(3, 1 / 3)), log_component, log_p))

    solution = np.asarray(recover(jax.random.split(getkey(), num_repeats)))
    error = solution.std(axis=0, ddof=1) / np.sqrt(num_repeats)
    assert np.all(np.abs(solution.mean(axis=0) - TRUE) < 5 * error + 1e-6)


def test_reverse_weights_leave_unused_slots_alone():
    x = quantile_draws()
    start = np.log([0.4, 0.6]).tolist() + [-np.inf]
    solution = np.asarray(reverse(np.array(start), log_components(x), log_mixture(x, TRUE), 300))
    assert solution[2] == -np.inf
    np.testing.assert_allclose(np.exp(solution).sum(), 1.0)


def test_an_unknown_method_is_refused():
    with pytest.raises(ValueError, match="'projected', 'em', 'newton'"):
        simplex.forward_weights(np.log([0.5, 0.5]), np.zeros((2, 3)), np.full(3, 1 / 3), "simplex")
