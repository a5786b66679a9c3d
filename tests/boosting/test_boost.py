import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.boosting import boost
from klover.boosting.settings import Settings
from klover.paper import datasets, models, simulations
from klover.verdict.judge import judge

EM = {"fitter": "em", "newcomer": "gain", "weights": "newton", "draws": "current", "num_steps": 10}
QUICK_ADAM = {"num_steps": 60, "num_draws": 300, "num_draws_per_step": 40}


def two_gaussians(offset=2.0):
    """Two correlated Gaussians in two dimensions, weights 0.7 and 0.3, log Z = 0."""
    locations = jnp.array([[-offset, 0.0], [offset, 1.0]])

    def logdensity(x):
        distance = jnp.sum((x - locations) ** 2, axis=1)
        return jax.nn.logsumexp(jnp.log(jnp.array([0.7, 0.3])) - 0.5 * distance) - jnp.log(2 * jnp.pi)

    return logdensity


@pytest.mark.slow
def test_forward_kl_covers_both_modes_and_reverse_kl_sits_on_one():
    target = simulations.two_modes()
    # Both begin alike. From this start nearly all reverse fits end on one mode, which is the global optimum, log 2; a
    # wide Gaussian is a local one, and a wide start usually ends there.
    start = {"num_components": 1, "initial_scale": 0.5, "learning_rate_location": 0.05, "learning_rate_scale": 0.05}
    start |= {"num_draws_per_step": 500}
    grid = np.linspace(-14, 14, 20_001)[:, None]
    log_p = np.asarray(target.log_prob(grid))

    def masses(fit):
        x = np.asarray(fit.mixture.sample(jax.random.key(0), 20_000))[:, 0]
        return np.sort([np.mean(np.abs(x - mode) < 3 * simulations.TWO_MODE_SCALE) for mode in (-3.0, 3.0)])

    def reverse_kl(fit):
        log_q = np.asarray(fit.mixture.log_prob(jnp.asarray(grid)))
        return np.trapezoid(np.exp(log_q) * (log_q - log_p), grid[:, 0])

    num_on_one = 0
    for seed in range(10):
        forward = klover.boost(jax.random.key(seed), target, first="forward", **start)
        assert masses(forward)[0] > 0.3
        assert forward.verdict.trusted
        reverse = klover.boost(jax.random.key(seed), target, divergence="reverse", **start)
        if masses(reverse)[0] < 0.01:
            num_on_one += 1
            assert masses(reverse)[1] > 0.95
            assert reverse_kl(reverse) == pytest.approx(np.log(2), abs=0.01)
            assert reverse.verdict.status is klover.Status.UNCOVERED_MODE
        else:
            assert reverse_kl(reverse) > 2
    assert num_on_one >= 8


def test_boosting_finds_the_second_mode_from_a_reverse_start(getkey):
    fit = klover.boost(getkey(), simulations.two_modes(), family="normal", num_components=3, num_draws=4000, **EM)
    assert fit.verdict.trusted
    assert abs(fit.log_evidence) < max(5 * fit.log_evidence_se, 1e-6)
    assert fit.ess > 0.7 * fit.draws.num_draws


CONFIGURATIONS = {
    "paper": {},
    "paper-current": {"draws": "current"},
    "paper-remainder": {"approach": "remainder"},
    "paper-smoothed": {"log_epsilon": -10.0},
    "reverse": {"divergence": "reverse"},
    "reverse-remainder": {"divergence": "reverse", "approach": "remainder", "weights": "none"},
    "em-student-all": EM | {"family": "student", "update": "all", "num_draws": 300},
    "em-low-rank-previous": EM | {"family": "normal-low-rank", "draws": "previous", "weights": "em", "num_draws": 300},
    "em-remainder-newcomer": EM | {"approach": "remainder", "draws": "newcomer", "newcomer": "lbfgs", "num_draws": 300},
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_constant_in_log_p_moves_the_evidence_and_nothing_else(name, getkey):
    choices = CONFIGURATIONS[name]
    settings = Settings.of(num_components=2, **(choices if "fitter" in choices else QUICK_ADAM | choices))
    first = "forward" if settings.divergence == "forward" else "reverse"
    logdensity = two_gaussians()
    key = getkey()

    @jax.jit
    def run(shift):
        target = klover.Target(lambda x: logdensity(x) + shift, jnp.zeros(2))
        state, first_info = boost.init(jax.random.fold_in(key, 0), target, settings, first)
        state, info = boost.step(jax.random.fold_in(key, 1), state, target, settings)
        draws = klover.importance.weigh(target, state.draws.x, state.draws.log_source)
        return state.mixture, first_info, info, draws

    reference = run(0.0)
    for shift in (1e4, -1e4):
        mixture, first_info, info, draws = run(shift)
        np.testing.assert_allclose(mixture.weights, reference[0].weights, atol=1e-6)
        # A component of no weight is nowhere in particular.
        used = np.asarray(mixture.weights) > 1e-6
        moved, kept = (
            (tree.components.location, tree.components.spread.covariance()) for tree in (mixture, reference[0])
        )
        for leaf, expected in zip(moved, kept, strict=True):
            np.testing.assert_allclose(leaf[used], expected[used], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(draws.x, reference[3].x, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(draws.log_weight, reference[3].log_weight, rtol=1e-4, atol=1e-4)
        assert judge(draws).status is judge(reference[3]).status
        for shifted, plain in ((first_info, reference[1]), (info, reference[2])):
            assert shifted.log_evidence - plain.log_evidence == pytest.approx(shift, rel=1e-6)
            for field in ("forward_kl", "ess_share", "pareto_k", "gamma", "kkt_gap"):
                assert getattr(shifted, field) == pytest.approx(float(getattr(plain, field)), rel=1e-4, abs=1e-5)


def test_all_rounds_are_one_program(getkey):
    target = klover.Target(two_gaussians(), jnp.zeros(2))
    before = boost.compiled_step._cache_size()
    seen = []
    fit = klover.boost(
        getkey(), target, num_components=5, callback=lambda number, info: seen.append(number), **QUICK_ADAM
    )
    assert boost.compiled_step._cache_size() == before + 1
    assert seen == [1, 2, 3, 4, 5]
    assert fit.history["num_components"].shape == (5,)


def test_batched_equals_looped_over_keys_and_data():
    settings = Settings.of(num_components=2, family="normal", num_draws=200, **EM)
    offsets = jnp.array([1.5, 2.5])
    keys = jax.random.split(jax.random.key(3), 2)

    def run(key, offset):
        target = klover.Target(two_gaussians(offset), jnp.zeros(2))
        state, _ = boost.init(key, target, settings, "forward")
        return boost.step(jax.random.fold_in(key, 1), state, target, settings)

    batched = jax.jit(jax.vmap(run))(keys, offsets)
    looped = [jax.jit(run)(key, offset) for key, offset in zip(keys, offsets, strict=True)]
    for index, single in enumerate(looped):
        for leaf, expected in zip(jax.tree.leaves(batched), jax.tree.leaves(single), strict=True):
            np.testing.assert_allclose(leaf[index], expected, rtol=1e-6, atol=1e-8)


def conjugate_regression(is_orthogonal):
    """Linear regression with known noise and a Gaussian prior: posterior and evidence in closed form."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(30, 3))
    if is_orthogonal:
        inputs = np.linalg.qr(inputs)[0] * 5
    outputs = inputs @ [1.0, -2.0, 0.5] + rng.normal(size=30)

    def logdensity(weights):
        residual = outputs - inputs @ weights
        return -0.5 * (residual @ residual + weights @ weights) - 0.5 * (30 + 3) * jnp.log(2 * jnp.pi)

    covariance = np.eye(30) + inputs @ inputs.T
    log_evidence = -0.5 * (
        outputs @ np.linalg.solve(covariance, outputs) + np.linalg.slogdet(covariance)[1] + 30 * np.log(2 * np.pi)
    )
    return klover.Target(logdensity, jnp.zeros(3)), log_evidence


@pytest.mark.parametrize(
    "family", ["normal", "student", "normal-low-rank", "student-low-rank", "normal-diagonal", "student-diagonal"]
)
def test_conjugate_regression_has_the_known_evidence(family, getkey):
    target, log_evidence = conjugate_regression(is_orthogonal=family.endswith("diagonal"))
    fit = klover.boost(
        getkey(), target, first="forward", num_components=1, family=family, fitter="em", newcomer="lbfgs"
    )
    assert fit.verdict.trusted
    assert abs(fit.log_evidence - log_evidence) < min(0.01, max(3 * fit.log_evidence_se, 1e-6))


@pytest.mark.slow
def test_kl_falls_at_least_as_fast_as_one_over_k(getkey):
    # Six unequal Gaussians on the line: a target in the convex hull of the family, by greedy newcomers alone.
    locations = jnp.array([-6.0, -3.0, -1.0, 1.0, 4.0, 7.0])[:, None]
    scales = jnp.array([0.5, 1.0, 0.3, 0.8, 0.4, 1.2])

    def logdensity(x):
        distance = jnp.sum((x - locations) ** 2, axis=1) / scales**2
        return jax.nn.logsumexp(-0.5 * distance - jnp.log(scales)) - jnp.log(6) - 0.5 * jnp.log(2 * jnp.pi)

    target = klover.Target(logdensity, jnp.zeros(1))
    settings = Settings.of(num_components=20, family="normal", num_draws=20_000, **EM)
    first = klover.diffuse([-10.0], [10.0], "normal")
    key = getkey()
    state, _ = boost.compiled_init_given(key, target, settings, first)
    values = [simulations.forward_kl_by_quadrature(target, state.mixture, -15.0, 15.0)]
    for number in range(1, 20):
        state, _ = boost.compiled_step(jax.random.fold_in(key, number), state, target, settings)
        values.append(simulations.forward_kl_by_quadrature(target, state.mixture, -15.0, 15.0))
    numbers = np.arange(1, 21)
    # The constant C of the bound C/K shows in the first rounds, and no later round may exceed it.
    products = np.array(values) * numbers
    assert products[5:].max() <= products[:5].max()
    assert np.polyfit(np.log(numbers), np.log(values), 1)[0] <= -1


def test_cauchy_is_covered_by_student_components(getkey):
    target = simulations.cauchy()
    limit = simulations.CAUCHY_LIMIT
    first = klover.diffuse([-limit], [limit], "student")
    fit = klover.boost(
        getkey(), target, first=first, family="student", num_components=3, update="all", num_draws=5000, **EM
    )
    assert simulations.forward_kl_by_quadrature(target, fit.mixture, -limit, limit) <= 0.005
    assert fit.verdict.trusted


@pytest.mark.slow
def test_twenty_modes_are_all_found_from_the_box(getkey):
    first = klover.diffuse(*simulations.TWENTY_MODE_BOX, family="normal")
    fit = klover.boost(
        getkey(),
        simulations.twenty_modes(),
        first=first,
        family="normal",
        num_components=25,
        update="all",
        num_draws=10_000,
        num_final_draws=100_000,
        **EM,
    )
    x = np.asarray(fit.draws.x)
    assert simulations.twenty_mode_masses(x, np.full(len(x), 1 / len(x))).min() >= 0.025
    assert abs(fit.log_evidence) <= 0.01
    assert fit.ess >= 0.7 * fit.draws.num_draws
    assert fit.verdict.trusted


def test_one_student_component_covers_the_paper_regression(getkey):
    dataset = datasets.load("boston")
    target = models.linear_regression(datasets.split(dataset, 1), dataset.feature_names)
    fit = klover.boost(
        getkey(), target, first="forward", num_components=1, family="student", fitter="em", newcomer="lbfgs"
    )
    assert fit.ess >= 0.6 * fit.draws.num_draws
    assert fit.pareto_k < 0.5
    assert fit.verdict.trusted


def half_space(value):
    return klover.Target(lambda x: jnp.where(x[0] > 0, -0.5 * jnp.sum(x**2), value), jnp.ones(2))


@pytest.mark.parametrize("value", [-jnp.inf, jnp.nan])
def test_a_target_that_is_invalid_on_half_of_the_space_works(value, getkey):
    first = klover.diffuse([-3.0, -3.0], [3.0, 3.0], "student")
    fit = klover.boost(getkey(), half_space(value), first=first, family="student", num_components=6, update="all", **EM)
    # Half of a bivariate standard normal without its constant: Z = π.
    assert abs(fit.log_evidence - np.log(np.pi)) < 5 * fit.log_evidence_se
    if np.isnan(value):
        assert int(fit.draws.num_nan) > 0
        assert f"{int(fit.draws.num_nan)}" in fit.verdict.reason
    else:
        assert fit.verdict.trusted


def test_a_target_that_is_nan_everywhere_fails_at_once(getkey):
    with pytest.raises(ValueError, match=r"finite at none .* are NaN.*target\.check"):
        klover.boost(getkey(), klover.Target(lambda x: jnp.sum(x) * jnp.nan, jnp.zeros(2)))


BAD_CHOICES = {
    "num_components=0": ({"num_components": 0}, ValueError, "num_components"),
    "num_components=1.5": ({"num_components": 1.5}, TypeError, "num_components"),
    "num_draws=1": ({"num_draws": 1}, ValueError, "num_draws"),
    "num_steps=0": ({"num_steps": 0}, ValueError, "num_steps"),
    "num_final_draws=1": ({"num_final_draws": 1}, ValueError, "num_final_draws"),
    "divergence": ({"divergence": "sideways"}, ValueError, "'forward', 'reverse'"),
    "approach": ({"approach": "both"}, ValueError, "'direct', 'remainder'"),
    "draws": ({"draws": "prior"}, ValueError, "'previous', 'current', 'newcomer'"),
    "fitter": ({"fitter": "sgd"}, ValueError, "'adam', 'em'"),
    "newcomer": ({"newcomer": "random"}, ValueError, "'ascent', 'lbfgs', 'gain'"),
    "weights": ({"weights": "equal"}, ValueError, "'projected', 'em', 'newton', 'none'"),
    "update": ({"update": "some"}, ValueError, "'newcomer', 'all'"),
    "family": ({"family": "cauchy"}, ValueError, "'student'"),
    "first": ({"first": "laplace"}, ValueError, "'reverse', 'forward'"),
    "unknown": ({"components": 3}, TypeError, "num_components"),
    "rate": ({"learning_rate_scale": 0.0}, ValueError, "learning_rate_scale"),
    "prior": ({"prior": -1.0}, ValueError, "prior"),
    "reverse-em": ({"divergence": "reverse", "fitter": "em"}, ValueError, "fitter='adam'"),
    "reverse-newton": ({"divergence": "reverse", "weights": "newton"}, ValueError, "weights='projected'"),
    "adam-all": ({"update": "all"}, ValueError, "fitter='em'"),
    "remainder-current": ({"approach": "remainder", "draws": "current"}, ValueError, "draws='previous'"),
    "em-epsilon": ({"fitter": "em", "log_epsilon": -10.0}, ValueError, "log_epsilon"),
}


@pytest.mark.parametrize("name", BAD_CHOICES)
def test_bad_choices_are_refused_with_the_remedy(name):
    choices, error, message = BAD_CHOICES[name]
    target = klover.Target(two_gaussians(), jnp.zeros(2))
    with pytest.raises(error, match=message):
        klover.boost(jax.random.key(0), target, **choices)


@pytest.mark.parametrize("key", [0, np.zeros(2, np.uint32), None])
def test_what_is_no_typed_key_is_refused(key):
    with pytest.raises(TypeError, match=r"jax\.random\.key"):
        boost.boost.__wrapped__(key, klover.Target(two_gaussians(), jnp.zeros(2)))


def test_many_keys_are_refused():
    with pytest.raises(ValueError, match="one key"):
        boost.boost.__wrapped__(jax.random.split(jax.random.key(0)), klover.Target(two_gaussians(), jnp.zeros(2)))


def test_what_is_no_target_is_refused(getkey):
    with pytest.raises(TypeError, match=r"klover\.Target"):
        boost.boost.__wrapped__(getkey(), two_gaussians())


def test_bad_first_mixtures_are_refused(getkey):
    target = klover.Target(two_gaussians(), jnp.zeros(2))
    good = klover.diffuse([-1.0, -1.0], [1.0, 1.0], "normal-diagonal")
    broken = dataclasses.replace(good.components, location=good.components.location * jnp.nan)
    bad = {
        "dimension 3": klover.diffuse([-1.0] * 3, [1.0] * 3, "normal-diagonal"),
        "family='student-full'": klover.diffuse([-1.0, -1.0], [1.0, 1.0], "student"),
        "finite": klover.Mixture.of(broken),
        "num_components must be at least 4": good.with_capacity(4),
    }
    for message, first in bad.items():
        with pytest.raises(ValueError, match=message):
            klover.boost(getkey(), target, first=first)
