import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from helpers import two_gaussians
from klover.boosting import boost, rounds
from klover.boosting.settings import Settings
from klover.paper import simulations

EM = {"fitter": "em", "newcomer": "gain", "weights": "newton", "draws": "current", "num_steps": 10}
QUICK_ADAM = {"num_steps": 60, "num_round_draws": 300, "num_draws_per_step": 40}


@pytest.mark.slow
def test_forward_kl_covers_both_modes_and_reverse_kl_sits_on_one():
    target = simulations.two_modes()
    # Both begin alike. From this start nearly all reverse fits end on one mode, which is the global optimum, log 2; a
    # wide Gaussian is a local one, and a wide start usually ends there.
    start = {"max_components": 1, "initial_scale": 0.5, "learning_rate_location": 0.05, "learning_rate_scale": 0.05}
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
        forward = klover.boost(jax.random.key(seed), target, start="forward", **start)
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


@pytest.mark.slow
def test_boosting_finds_the_second_mode_from_a_reverse_start(getkey):
    fit = klover.boost(getkey(), simulations.two_modes(), family="normal", max_components=3, num_round_draws=4000, **EM)
    assert fit.verdict.trusted
    assert abs(fit.log_evidence) < max(5 * fit.log_evidence_se, 1e-6)
    assert fit.ess > 0.7 * fit.draws.num_draws


def test_all_rounds_are_one_program(getkey):
    target = klover.Target(two_gaussians(), jnp.zeros(2))
    before = rounds._grow._cache_size()
    seen = []
    with jax.numpy_dtype_promotion("strict"):
        fit = klover.boost(getkey(), target, max_components=5, callback=seen.append, **QUICK_ADAM)
    assert rounds._grow._cache_size() == before + 1
    assert len(seen) == 5
    np.testing.assert_array_equal(fit.history["forward_kl"], [info.forward_kl for info in seen])
    # A fit is a start, which a slow test grows further.
    start = boost._checked(fit, getkey(), target, Settings(max_components=5))
    for leaf, same in zip(jax.tree.leaves(start), jax.tree.leaves(fit.mixture), strict=True):
        np.testing.assert_array_equal(leaf, same)


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


# All covariances once, the full one in the tests of the paper's models; the other pairs follow in `make test-all`.
@pytest.mark.parametrize(
    "family",
    [
        "normal-low-rank",
        "normal-diagonal",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("student", "normal", "student-low-rank", "student-diagonal")
        ),
    ],
)
def test_conjugate_regression_has_the_known_evidence(family, getkey):
    target, log_evidence = conjugate_regression(is_orthogonal=family.endswith("diagonal"))
    # No type is changed unasked, from the first climb to the last search.
    with jax.numpy_dtype_promotion("strict"):
        fit = klover.boost(
            getkey(), target, start="forward", max_components=1, family=family, fitter="em", newcomer="lbfgs"
        )
    assert fit.verdict.trusted
    assert abs(fit.log_evidence - log_evidence) < min(0.01, max(3 * fit.log_evidence_se, 1e-6))


@pytest.mark.slow
def test_cauchy_is_covered_by_student_components(getkey):
    target = simulations.cauchy()
    limit = simulations.CAUCHY_LIMIT
    start = klover.diffuse([-limit], [limit], "student")
    fit = klover.boost(
        getkey(), target, start=start, family="student", max_components=3, update="all", num_round_draws=5000, **EM
    )
    assert simulations.forward_kl_by_quadrature(target, fit.mixture, -limit, limit) <= 0.005
    assert fit.verdict.trusted


@pytest.mark.slow
def test_twenty_modes_are_all_found_from_the_box(getkey):
    start = klover.diffuse(*simulations.TWENTY_MODE_BOX, family="normal")
    fit = klover.boost(
        getkey(),
        simulations.twenty_modes(),
        start=start,
        family="normal",
        max_components=25,
        update="all",
        num_round_draws=10_000,
        num_draws=100_000,
        **EM,
    )
    x = np.asarray(fit.draws.x)
    assert simulations.twenty_mode_masses(x, np.full(len(x), 1 / len(x))).min() >= 0.025
    assert abs(fit.log_evidence) <= 0.01
    assert fit.ess >= 0.7 * fit.draws.num_draws
    assert fit.verdict.trusted


def half_space(value):
    # An array is an argument of the compiled program, so that both values run the same one.
    outside = jnp.asarray(value)
    return klover.Target(lambda x: jnp.where(x[0] > 0, -0.5 * jnp.sum(x**2), outside), jnp.ones(2))


@pytest.mark.parametrize("value", [-jnp.inf, jnp.nan])
def test_a_target_that_is_invalid_on_half_of_the_space_works(value, getkey):
    start = klover.diffuse([-3.0, -3.0], [3.0, 3.0], "student")
    fit = klover.boost(getkey(), half_space(value), start=start, family="student", max_components=6, update="all", **EM)
    # Half of a bivariate standard normal without its constant: Z = π.
    assert abs(fit.log_evidence - np.log(np.pi)) < 5 * fit.log_evidence_se
    num_nan, num_draws = fit.history["num_nan"], fit.history["num_draws"][0]
    np.testing.assert_array_equal(fit.history["num_infinite"], 0)
    if np.isnan(value):
        # The start has half of its draws there. The last ones have learnt to avoid it: that alone would be trusted.
        assert abs(num_nan[0] - num_draws / 2) < 5 * np.sqrt(num_draws / 4)
        assert 0 < int(fit.draws.num_nan) < 0.1 * fit.draws.num_draws
        assert fit.verdict.status is klover.Status.NOT_A_NUMBER
        assert f"NaN at {num_nan[1:].max()} and +inf at 0 of {num_draws} draws" in fit.verdict.reason
    else:
        np.testing.assert_array_equal(num_nan, 0)
        assert fit.verdict.trusted


def test_a_target_that_is_nan_everywhere_fails_at_once(getkey):
    with pytest.raises(ValueError, match=r"finite at none .* are NaN.*target\.check"):
        klover.boost(getkey(), klover.Target(lambda x: jnp.sum(x) * jnp.nan, jnp.zeros(2)))


BAD_CHOICES = {
    "max_components=0": ({"max_components": 0}, ValueError, "max_components"),
    "max_components=1.5": ({"max_components": 1.5}, TypeError, "max_components"),
    "num_round_draws=1": ({"num_round_draws": 1}, ValueError, "num_round_draws"),
    "num_steps=0": ({"num_steps": 0}, ValueError, "num_steps"),
    "num_draws=1": ({"num_draws": 1}, ValueError, "num_draws"),
    "divergence": ({"divergence": "sideways"}, ValueError, "'forward', 'reverse'"),
    "approach": ({"approach": "both"}, ValueError, "'direct', 'remainder'"),
    "draws": ({"draws": "prior"}, ValueError, "'previous', 'current', 'newcomer'"),
    "fitter": ({"fitter": "sgd"}, ValueError, "'adam', 'em'"),
    "newcomer": ({"newcomer": "random"}, ValueError, "'ascent', 'lbfgs', 'gain'"),
    "weights": ({"weights": "equal"}, ValueError, "'projected', 'em', 'newton', 'none'"),
    "update": ({"update": "some"}, ValueError, "'newcomer', 'all'"),
    "family": ({"family": "cauchy"}, ValueError, "'student'"),
    "start": ({"start": "laplace"}, ValueError, "'reverse', 'forward'"),
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


def test_every_option_is_in_the_signature_with_the_default_of_the_record():
    options = inspect.signature(klover.boost).parameters
    for field in dataclasses.fields(Settings):
        default = options[field.name].default
        assert (klover.Family.parse(default) if field.name == "family" else default) == field.default
    rest = {"key", "target", "start", "num_draws", "callback"}
    assert set(options) == rest | {field.name for field in dataclasses.fields(Settings)}


@pytest.mark.parametrize("key", [np.zeros(2, np.uint32), None])
def test_what_is_no_key_is_refused(key):
    with pytest.raises(TypeError, match=r"jax\.random\.key"):
        boost.boost.__wrapped__(key, klover.Target(two_gaussians(), jnp.zeros(2)))


def test_many_keys_are_refused():
    with pytest.raises(ValueError, match="one key"):
        boost.boost.__wrapped__(jax.random.split(jax.random.key(0)), klover.Target(two_gaussians(), jnp.zeros(2)))


def test_what_is_no_target_is_refused(getkey):
    with pytest.raises(TypeError, match=r"klover\.Target"):
        boost.boost.__wrapped__(getkey(), two_gaussians())


def test_bad_starts_are_refused(getkey):
    target = klover.Target(two_gaussians(), jnp.zeros(2))
    good = klover.diffuse([-1.0, -1.0], [1.0, 1.0], "normal-diagonal")
    broken = dataclasses.replace(good.components, location=good.components.location * jnp.nan)
    bad = {
        "dimension of the target, 2, got 3": klover.diffuse([-1.0] * 3, [1.0] * 3, "normal-diagonal"),
        "family='student-full'": klover.diffuse([-1.0, -1.0], [1.0, 1.0], "student"),
        "finite": klover.Mixture.of(broken),
        "max_components must be at least 4": good.with_capacity(4),
    }
    for message, start in bad.items():
        with pytest.raises(ValueError, match=message):
            klover.boost(getkey(), target, start)


@pytest.mark.slow
def test_a_fit_is_a_start(getkey):
    target = klover.Target(two_gaussians(), jnp.zeros(2))
    options = EM | {"family": "normal", "update": "all", "num_round_draws": 1000, "num_draws": 1000}
    first = klover.boost(0, target, "forward", max_components=1, **options)
    grown = klover.boost(getkey(), target, first, max_components=2, **options)
    np.testing.assert_array_equal(grown.history["num_components"], [1, 2])
    # One Gaussian misses two; two Gaussians meet them up to what 1000 draws leave open.
    assert grown.history["forward_kl"][1] < 0.1 * first.history["forward_kl"][0]
    assert grown.settings["start"] == "Fit"


def without_gradient():
    """Make a standard Normal in two dimensions of a function that JAX cannot differentiate."""
    return klover.from_callback(lambda x: -0.5 * np.sum(x**2, axis=-1), 2, vectorized=True)


@pytest.mark.parametrize(
    "options", [EM, pytest.param({"newcomer": "gain", **QUICK_ADAM}, marks=pytest.mark.slow)], ids=["em", "adam"]
)
def test_a_target_without_a_gradient_is_boosted_to_its_end(options, getkey):
    family = "normal-diagonal"
    start = klover.diffuse([-3.0, -3.0], [3.0, 3.0], family)
    fit = klover.boost(getkey(), without_gradient(), start, family=family, max_components=2, **options)
    assert fit.verdict.trusted
    assert abs(fit.log_evidence - np.log(2 * np.pi)) < 5 * fit.log_evidence_se


def test_choices_that_take_a_gradient_are_refused_where_there_is_none(getkey):
    start = klover.diffuse([-3.0, -3.0], [3.0, 3.0], "normal-diagonal")
    for choices in ({}, {"start": start}, {"start": start, "newcomer": "gain", "divergence": "reverse"}):
        with pytest.raises(
            ValueError, match=r"must have a gradient.*klover.diffuse\(lower, upper, 'normal-diagonal'\)"
        ):
            klover.boost(getkey(), without_gradient(), **choices)
