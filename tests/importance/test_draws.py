import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from helpers import Known, compilations, gaussian, gaussian_log_density, gaussian_mixture, linear_regression, student
from klover.importance import ratios
from klover.importance.draws import sample_importance, weigh
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.targets.target import Target

LOG_RATIOS = st.lists(st.one_of(st.floats(-200, 200), st.just(-np.inf)), min_size=2, max_size=40).filter(
    lambda values: max(values) > -np.inf
)
FUNCTIONS = [
    ratios.normalise,
    ratios.effective_sample_size,
    ratios.log_evidence,
    ratios.truncate,
    ratios.forward_kl,
    ratios.renyi_divergence,
    ratios.required_draws,
]


def student_around(mean, covariance, df: float = 5.0) -> Mixture:
    return Mixture.of(Family("student", df=df).components(jnp.asarray(mean)[None], jnp.asarray(covariance)[None]))


def normal_around(mean, covariance) -> Mixture:
    return Mixture.of(Family("normal").components(jnp.asarray(mean)[None], jnp.asarray(covariance)[None]))


def flat(position):
    return ravel_pytree(position)[0]


def flat_moments(position):
    x = flat(position)
    return {"first": x, "second": jnp.outer(x, x)}


def draws_for(known: Known, num_draws: int = 8000, seed: int = 0):
    proposal = student_around(known.mean + 0.1, 1.2 * known.covariance)
    return sample_importance(jax.random.key(seed), known.target, proposal, num_draws)


@pytest.fixture(scope="module")
def draws():
    return draws_for(gaussian())


@pytest.mark.parametrize("make", [gaussian, gaussian_mixture, student, linear_regression])
def test_answers_agree_with_closed_forms(make):
    known = make()
    draws = draws_for(known)
    assert abs(draws.log_evidence - known.log_evidence) < 5 * draws.log_evidence_se
    mean, error = draws.expectation(flat_moments)
    second = known.covariance + np.outer(known.mean, known.mean)
    assert np.all(np.abs(mean["first"] - known.mean) < 5 * error["first"])
    assert np.all(np.abs(mean["second"] - second) < 5 * error["second"])
    assert draws.num_draws == 8000
    assert 0.2 < draws.ess / 8000 < 1
    assert draws.pareto_k < 0.5


def test_standard_errors_are_calibrated():
    known, num_draws, num_repeats = gaussian(2), 300, 400
    proposal = student_around(known.mean + 0.2, 1.5 * known.covariance)

    @jax.jit
    @jax.vmap
    def scores(key):
        draws = sample_importance(key, known.target, proposal, num_draws)
        mean, error = draws.expectation(lambda x: x)
        evidence = (draws.log_evidence - known.log_evidence) / draws.log_evidence_se
        return jnp.append((mean - known.mean) / error, evidence)

    z = np.asarray(scores(jax.random.split(jax.random.key(1), num_repeats)))
    # The bias of order 1/S is small beside the errors: it moves the mean of z by about 1/sqrt(S).
    assert np.all(np.abs(z.mean(0)) < 5 / np.sqrt(num_repeats) + 1 / np.sqrt(num_draws))
    assert np.all(np.abs(z.std(0) - 1) < 5 / np.sqrt(2 * num_repeats))


def test_bias_of_self_normalised_means_falls_with_the_number_of_draws():
    # p = N(1/2, 1) from q = N(0, 1): the leading term is -E_q[(p/q)² (x - 1/2)] / S = -exp(1/4) / (2 S).
    num_repeats, sizes = 100_000, np.array([16, 32, 64])
    compute = jax.jit(jax.vmap(lambda x: ratios.self_normalised(0.5 * x, x)[0]))
    bias, error = np.empty(3), np.empty(3)
    for place, size in enumerate(sizes):
        x = np.random.default_rng(place).normal(size=(num_repeats, size))
        estimate = np.asarray(compute(x))
        bias[place], error[place] = estimate.mean() - 0.5, estimate.std() / np.sqrt(num_repeats)
    assert np.all(bias < -5 * error)
    logarithm = np.log(sizes)
    leverage = (logarithm - logarithm.mean()) / np.sum((logarithm - logarithm.mean()) ** 2)
    slope, slope_error = leverage @ np.log(-bias), np.sqrt(leverage**2 @ (error / bias) ** 2)
    assert abs(slope + 1) < 5 * slope_error + 0.05
    # What is left after the leading term is of the next order, S^(-2).
    assert np.all(np.abs(sizes * bias + np.exp(0.25) / 2) < 5 * sizes * error + 2 / sizes)


def test_log_evidence_error_is_that_of_a_mean():
    log_ratio = np.random.default_rng(0).normal(size=50)
    ratio = np.exp(log_ratio)
    value, error = ratios.log_evidence(log_ratio)
    assert value == pytest.approx(np.log(ratio.mean()), rel=1e-12)
    assert error == pytest.approx(ratio.std(ddof=1) / np.sqrt(50) / ratio.mean(), rel=1e-12)


def test_equal_ratios_have_no_error():
    value, error = ratios.log_evidence(np.full(9, 0.1))
    assert value == pytest.approx(0.1, abs=1e-14)
    assert error == pytest.approx(0, abs=1e-7)
    mean, error = ratios.self_normalised(np.zeros(4), np.array([1.0, 2.0, 3.0, 6.0]))
    assert (mean, error) == pytest.approx((3.0, np.sqrt(14) / 4))


@given(LOG_RATIOS)
def test_numpy_and_jax_agree(values):
    log_ratio = np.array(values)
    padded = np.concatenate([log_ratio, np.full(40 - len(log_ratio), -np.inf)])  # one shape, one compilation
    for function in FUNCTIONS:
        np.testing.assert_allclose(function(padded), _compiled(function)(padded), rtol=1e-9, atol=1e-9)


@functools.cache
def _compiled(function):
    return jax.jit(function)


@given(LOG_RATIOS, st.floats(-1e4, 1e4))
def test_a_constant_moves_the_evidence_and_nothing_else(values, shift):
    log_ratio = np.array(values)
    moved = log_ratio + shift
    before, after = ratios.log_evidence(log_ratio), ratios.log_evidence(moved)
    np.testing.assert_allclose(after[0], before[0] + shift, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(after[1], before[1], rtol=1e-6, atol=1e-6)
    for function in (ratios.effective_sample_size, ratios.forward_kl, ratios.renyi_divergence):
        np.testing.assert_allclose(function(moved), function(log_ratio), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(ratios.truncate(moved), ratios.truncate(log_ratio) + shift, atol=1e-9)


@given(LOG_RATIOS)
def test_divergences_are_in_order(values):
    log_ratio = np.array(values)
    forward, renyi = ratios.forward_kl(log_ratio), ratios.renyi_divergence(log_ratio)
    chi_square = np.expm1(renyi)
    assert -1e-12 <= forward <= renyi + 1e-12
    assert renyi <= chi_square + 1e-12
    ess = ratios.effective_sample_size(log_ratio)
    assert 1 - 1e-9 <= ess <= np.sum(log_ratio > -np.inf) * (1 + 1e-9)
    assert ess == pytest.approx(len(values) / (1 + chi_square), rel=1e-9)
    assert scipy.special.logsumexp(ratios.normalise(log_ratio)) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("log_ratio", "ess", "required"),
    [
        (np.full(8, -300.0), 8, 1),
        (np.array([3.0] + [-np.inf] * 7), 1, 8),
        (np.array([1.0, 1.0] + [-np.inf] * 6), 2, 4),
        (np.array([0.0] + [-1e4] * 7), 1, 8),
    ],
    ids=["equal", "one", "two", "one far above"],
)
def test_limits_of_the_effective_number(log_ratio, ess, required):
    # Where p is q on a part of the space, KL is the logarithm of one over that part.
    assert ratios.effective_sample_size(log_ratio) == pytest.approx(ess, rel=1e-12)
    assert ratios.required_draws(log_ratio) == pytest.approx(required, rel=1e-12)


@pytest.mark.parametrize("convert", [np.asarray, jnp.asarray])
def test_no_draw_in_the_support(convert):
    log_ratio = convert(np.full(6, -np.inf))
    assert ratios.effective_sample_size(log_ratio) == 0
    np.testing.assert_array_equal(ratios.normalise(log_ratio), -np.inf)
    np.testing.assert_array_equal(ratios.truncate(log_ratio), -np.inf)
    log_evidence, error = ratios.log_evidence(log_ratio)
    assert (log_evidence, error) == (-np.inf, np.inf)
    # A proposal that never meets the target is as far from it as can be, not at distance zero.
    for function in (ratios.forward_kl, ratios.renyi_divergence, ratios.required_draws):
        assert function(log_ratio) == np.inf


@pytest.mark.parametrize("shift", [0.3, 1.0])
@pytest.mark.parametrize("scale", [0.7, 1.0])
def test_forward_kl_agrees_with_the_closed_form(shift, scale):
    num_draws = 100_000
    x = np.random.default_rng(0).normal(size=num_draws)
    log_ratio = scipy.stats.norm(shift, scale).logpdf(x) - scipy.stats.norm.logpdf(x)
    expected = 0.5 * (scale**2 + shift**2 - 1) - np.log(scale)
    ratio = np.exp(log_ratio)
    influence = ratio * (log_ratio - expected - 1) + 1
    error = influence.std() / np.sqrt(num_draws)
    assert abs(ratios.forward_kl(log_ratio + 7.0) - expected) < 5 * error
    squared = ratio**2
    renyi = np.log(scipy.integrate.quad(lambda y: np.exp(_squared_ratio(y, shift, scale)), -20, 20)[0])
    influence = squared / squared.mean() - 2 * ratio
    assert abs(ratios.renyi_divergence(log_ratio) - renyi) < 5 * influence.std() / np.sqrt(num_draws)


def _squared_ratio(y, shift, scale):
    return 2 * scipy.stats.norm(shift, scale).logpdf(y) - scipy.stats.norm.logpdf(y)


@given(LOG_RATIOS)
def test_truncation_cuts_at_the_root_of_the_number_of_draws(values):
    log_ratio = np.array(values)
    highest = log_ratio.max()
    ratio = np.exp(log_ratio - highest)
    with np.errstate(divide="ignore"):
        expected = np.log(np.minimum(ratio, np.sqrt(len(ratio)) * ratio.mean())) + highest
    np.testing.assert_allclose(ratios.truncate(log_ratio), expected, rtol=1e-9, atol=1e-9)


def test_values_outside_the_support_are_silent():
    log_weight = np.array([0.0, -np.inf, 0.0, -np.inf])
    values = np.array([[1.0, 2.0], [np.nan, np.inf], [3.0, 6.0], [np.inf, np.nan]])
    for convert in (np.asarray, jnp.asarray):
        mean, error = ratios.self_normalised(convert(log_weight), convert(values))
        np.testing.assert_allclose(mean, [2.0, 4.0])
        np.testing.assert_allclose(error, np.array([1.0, 2.0]) / np.sqrt(2))


def test_target_far_from_zero_changes_nothing_but_the_evidence(getkey):
    key, mean, covariance, offset = getkey(), np.zeros(2), np.eye(2), jnp.zeros(1)
    target = Target(lambda x: gaussian_log_density(x, mean, covariance) + offset[0], mean)
    proposal = normal_around(mean + 0.3, 1.5 * covariance)
    base = sample_importance(key, target, proposal, 1000)
    for shift in (1e4, -1e4):
        # The offset is a leaf of the target: no new compilation.
        shifted = jax.tree.map(lambda leaf, shift=shift: leaf + shift if leaf.shape == (1,) else leaf, target)
        moved = sample_importance(key, shifted, proposal, 1000)
        np.testing.assert_allclose(moved.log_evidence - base.log_evidence, shift, rtol=1e-12)
        for name in ("log_weight", "pareto_k", "ess", "forward_kl", "required_draws", "log_evidence_se"):
            np.testing.assert_allclose(getattr(moved, name), getattr(base, name), rtol=1e-6, atol=1e-9, err_msg=name)
        np.testing.assert_allclose(moved.expectation(flat), base.expectation(flat), rtol=1e-6, atol=1e-9)


def test_properties_come_from_the_raw_ratios(draws):
    log_ratio = np.asarray(draws.log_p) - np.asarray(draws.log_q)
    np.testing.assert_array_equal(draws.log_ratio, log_ratio)
    np.testing.assert_allclose((draws.log_evidence, draws.log_evidence_se), ratios.log_evidence(log_ratio))
    np.testing.assert_allclose(draws.ess, ratios.effective_sample_size(log_ratio))
    np.testing.assert_allclose(draws.forward_kl, ratios.forward_kl(log_ratio))
    np.testing.assert_allclose(draws.required_draws, np.exp(ratios.forward_kl(log_ratio)))
    assert scipy.special.logsumexp(draws.log_weight) == pytest.approx(0, abs=1e-12)


def test_a_function_is_compiled_once_and_read_at_each_call():
    known = gaussian(2)
    draws = sample_importance(0, known.target, on_host(student_around(known.mean, 1.2 * known.covariance)), 600)
    edge = np.array([0.1, 0.2])

    def above(x):
        return jnp.all(x > edge)

    def share():
        return np.exp(draws.log_weight) @ np.all(draws.x > edge, axis=1)

    np.testing.assert_allclose(draws.expectation(above)[0], share(), rtol=1e-12)
    with compilations() as names:
        np.testing.assert_allclose(draws.expectation(above)[0], share(), rtol=1e-12)
        # What the function refers to may change between two calls.
        edge = np.array([-0.1, 1.3])
        np.testing.assert_allclose(draws.expectation(above)[0], share(), rtol=1e-12)
        # Another function that computes the same.
        np.testing.assert_allclose(draws.expectation(lambda x: jnp.all(x > edge))[0], share(), rtol=1e-12)
    assert names == []


def test_expectations_of_pytrees(draws):
    def function(x):
        return {
            "both": (x[0], {"outer": jnp.outer(x, x)}),
            "positive": [jnp.where(x[1] > 0, 1.0, 0.0)],
            "constant": 2.0,
        }

    mean, error = draws.expectation(function)
    structure = jax.tree.structure({"both": (0, {"outer": 0}), "positive": [0], "constant": 0})
    assert jax.tree.structure(mean) == structure
    assert jax.tree.structure(error) == structure
    weight, x = np.exp(draws.log_weight), np.asarray(draws.x)
    expected = np.einsum("s,si,sj->ij", weight, x, x)
    np.testing.assert_allclose(mean["both"][1]["outer"], expected, rtol=1e-10)
    np.testing.assert_allclose(mean["positive"][0], weight @ (x[:, 1] > 0), rtol=1e-10)
    np.testing.assert_allclose(error["both"][0], np.sqrt(weight**2 @ (x[:, 0] - weight @ x[:, 0]) ** 2), rtol=1e-10)
    assert (mean["constant"], error["constant"]) == (pytest.approx(2.0), pytest.approx(0.0, abs=1e-12))


def test_expectations_see_constrained_positions():
    # exp of a Normal has the mean exp(mu + sigma² / 2).
    target = Target(lambda x: -0.5 * (x - 0.4) ** 2 / 0.25, 0.0, constrain=lambda x: {"rate": jnp.exp(x)})
    draws = sample_importance(jax.random.key(0), target, normal_around([0.4], [[0.36]]), 4000)
    mean, error = draws.expectation(lambda position: position["rate"])
    assert abs(mean - np.exp(0.4 + 0.125)) < 5 * error


def test_invalid_values_are_counted_and_weigh_nothing(getkey):
    def logdensity(x):
        inside = jnp.where(jnp.abs(x[0]) < 0.1, -jnp.inf, -0.5 * x[0] ** 2)
        return jnp.where(x[0] < -1, jnp.nan, jnp.where(x[0] > 1, jnp.inf, inside))

    draws = sample_importance(getkey(), Target(logdensity, jnp.ones(1)), normal_around([0.0], [[1.0]]), 4000)
    x = np.asarray(draws.x)[:, 0]
    assert int(draws.num_nan) == np.sum(x < -1) > 0
    assert int(draws.num_positive_infinite) == np.sum(x > 1) > 0
    outside = (np.abs(x) > 1) | (np.abs(x) < 0.1)
    np.testing.assert_array_equal(np.asarray(draws.log_weight) == -np.inf, outside)
    np.testing.assert_array_equal(draws.log_p[outside], -np.inf)
    # The proposal is the target up to a constant wherever the target is valid.
    np.testing.assert_allclose(draws.ess, np.sum(~outside), rtol=1e-12)
    np.testing.assert_allclose(draws.log_evidence, np.log(np.sqrt(2 * np.pi) * np.mean(~outside)), rtol=1e-12)


def test_tail_index_of_a_function(getkey):
    # Draws of the target itself: exp(a x²) has the tail index 2a, and the ratios have no tail at all.
    target = Target(lambda x: -0.5 * x[0] ** 2, jnp.zeros(1))
    draws = sample_importance(getkey(), target, normal_around([0.0], [[1.0]]), 4000)
    assert draws.pareto_k == 0.0
    assert draws.function_pareto_k(lambda x: x[0]) < 0.5
    assert draws.function_pareto_k(lambda x: -jnp.exp(0.6 * x[0] ** 2)) > 0.7
    with pytest.raises(ValueError, match=r"function must return one number, but it returned shape \(1,\)"):
        draws.function_pareto_k(lambda x: x)


def test_tail_index_of_a_function_does_not_see_outside_the_support(getkey):
    target = Target(lambda x: jnp.where(x[0] > 0, -0.5 * x[0] ** 2, -jnp.inf), jnp.ones(1))
    draws = sample_importance(getkey(), target, normal_around([0.5], [[1.0]]), 4000)
    expected = draws.function_pareto_k(lambda x: x[0] ** 2)
    assert np.isfinite(expected)
    for outside in (np.nan, np.inf, 0.0):
        result = draws.function_pareto_k(lambda x, outside=outside: jnp.where(x[0] > 0, x[0] ** 2, outside))
        np.testing.assert_allclose(result, expected, rtol=1e-9)


@pytest.mark.parametrize("method", ["systematic", "stratified", "residual"])
def test_resampled_draws_have_equal_weights(getkey, draws, method):
    known, num_draws = gaussian(), 4000
    x = np.asarray(draws.resample_unconstrained(getkey(), num_draws, method))
    assert x.shape == (num_draws, 3)
    assert set(map(tuple, x)) <= set(map(tuple, np.asarray(draws.x)))
    standard_error = np.sqrt(np.diagonal(known.covariance) * (1 / num_draws + 1 / draws.ess))
    assert np.all(np.abs(x.mean(0) - known.mean) < 5 * standard_error)


def test_resampled_draws_without_replacement_are_distinct(getkey, draws):
    x = np.asarray(draws.resample_unconstrained(getkey(), 500, "without-replacement"))
    assert len(set(map(tuple, x))) == 500
    assert set(map(tuple, x)) <= set(map(tuple, np.asarray(draws.x)))
    with pytest.raises(ValueError, match="num_draws must be at most the 8000 draws of positive weight"):
        draws.resample(getkey(), 8001, "without-replacement")


def on_host(mixture: Mixture) -> Mixture:
    return jax.tree.map(np.asarray, mixture)


def positive_target(**choices) -> Target:
    """Take a log rate and two weights, read as a rate and the weights."""
    return Target(
        lambda at: -0.5 * ((at["log_rate"] - 0.4) ** 2 + jnp.sum(at["weight"] ** 2)),
        {"log_rate": 0.0, "weight": np.zeros(2)},
        constrain=lambda at: {"rate": jnp.exp(at["log_rate"]), "weight": at["weight"]},
        **choices,
    )


@pytest.mark.parametrize("convert", [on_host, lambda mixture: mixture], ids=["host", "compiled"])
def test_resampled_values_are_constrained_and_have_names(convert):
    proposal = convert(normal_around([0.4, 0.0, 0.0], 1.3 * np.eye(3)))
    draws = sample_importance(0, positive_target(), proposal, 4000)
    x, values = draws.resample_unconstrained(5, 300), draws.resample(5, 300)
    assert {name: array.shape for name, array in values.items()} == {"rate": (300,), "weight": (300, 2)}
    assert all(isinstance(array, np.ndarray) for array in values.values())
    np.testing.assert_allclose(values["rate"], np.exp(x[:, 0]), rtol=1e-14)
    np.testing.assert_array_equal(values["weight"], x[:, 1:])
    assert np.any(values["rate"] != draws.resample(6, 300)["rate"])


def test_numbers_that_the_user_has_named_are_resampled_by_these_names():
    target = positive_target(names=["rate", "left", "right"])
    draws = sample_importance(0, target, on_host(normal_around([0.4, 0.0, 0.0], np.eye(3))), 100)
    values = draws.resample(1, 10)
    assert list(values) == ["rate", "left", "right"]
    np.testing.assert_array_equal(values["right"], draws.resample_unconstrained(1, 10)[:, 2])


def test_a_single_array_is_called_x(draws):
    (name, values), *others = draws.resample(1, 10).items()
    assert (name, others) == ("x", [])
    np.testing.assert_array_equal(values, draws.resample_unconstrained(1, 10))


def test_both_libraries_weigh_alike():
    known = gaussian_mixture()
    location = np.array([[-3.0, 0.0], [3.0, 1.0]])
    proposal = Mixture.of(Family("student", df=5.0).components(location, np.full((2, 2), 1.5)))
    host = sample_importance(0, known.target, proposal, 2000)
    assert all(isinstance(leaf, np.ndarray) for leaf in (host.x, host.log_p, host.log_q, host.log_weight, host.control))
    compiled = weigh(known.target, host.x, host.log_q, jax.tree.map(jnp.asarray, proposal))
    for name in ("log_p", "log_weight", "pareto_k", "control", "log_evidence", "log_evidence_se", "ess", "forward_kl"):
        np.testing.assert_allclose(getattr(host, name), getattr(compiled, name), rtol=1e-6, atol=1e-6, err_msg=name)
    for function in (lambda x: jnp.sum(x**2), lambda x: {"is_left": x[0] < 0, "both": (x, jnp.exp(x))}):
        leaves = zip(*map(jax.tree.leaves, (host.expectation(function), compiled.expectation(function))), strict=True)
        for found, expected in leaves:
            np.testing.assert_allclose(found, expected, rtol=1e-8)
    k = [draws.function_pareto_k(lambda x: x[0]) for draws in (host, compiled)]
    np.testing.assert_allclose(*k, rtol=1e-8)
    assert abs(host.log_evidence - known.log_evidence) < 5 * host.log_evidence_se


def test_the_key_decides_on_the_host():
    known = gaussian(2)
    proposal = on_host(student_around(known.mean, known.covariance))
    first, again, other = (sample_importance(key, known.target, proposal, 50) for key in (3, jax.random.key(3), 4))
    np.testing.assert_array_equal(first.x, again.x)
    assert not np.isin(first.x, other.x).any()


def test_a_traced_key_draws_in_a_program_from_any_mixture():
    known = gaussian(2)
    proposal = student_around(known.mean, 1.2 * known.covariance)
    keys = jax.random.split(jax.random.key(0), 3)

    def answer(mixture):
        def run(key):
            draws = sample_importance(key, known.target, mixture, 200)
            return draws.log_evidence, draws.resample(key, 5)

        return jax.jit(jax.vmap(run))(keys)

    on_device, captured = answer(proposal), answer(on_host(proposal))
    assert captured[1]["x"].shape == (3, 5, 2)
    for found, expected in zip(*map(jax.tree.leaves, (captured, on_device)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_results_on_the_host_compile_the_target_and_the_functions_of_the_user_alone():
    known = gaussian()
    proposal = on_host(student_around(known.mean, 1.2 * known.covariance))
    with compilations() as first:
        sample_importance(0, known.target, proposal, 500)
    # Keys are made by programs of their own.
    assert {name for name in first if "_values" in name} == {"jit(_values)"}
    with compilations() as later:
        draws = sample_importance(1, known.target, proposal, 3000)
        assert draws.ess > 500
        draws.resample(2, 100)
        draws.resample(3, 100, "residual")
        draws.initial_positions(4, 5)
    assert later == []
    with compilations() as own:
        # No other test computes these: their programs would be shared.
        draws.expectation(lambda x: {"first": x, "second": jnp.outer(x, jnp.sinh(x))})
        draws.function_pareto_k(lambda x: jnp.sum(jnp.cosh(x)))
    assert len(own) == 2


def test_functions_that_jax_cannot_trace_are_called_draw_by_draw(draws):
    mean, error = draws.expectation(lambda x: {"first": float(x[0]) ** 2, "all": np.asarray(x)})
    traced = draws.expectation(lambda x: {"first": x[0] ** 2, "all": x})
    np.testing.assert_allclose((mean["first"], error["first"]), [figure["first"] for figure in traced])
    np.testing.assert_allclose(mean["all"], traced[0]["all"])


def test_a_function_sees_what_it_has_captured_now(draws):
    threshold = [0.0]
    for value in (0.0, 1.0):
        threshold[0] = value
        expected = np.exp(draws.log_weight) @ (np.asarray(draws.x)[:, 0] > value)
        np.testing.assert_allclose(draws.expectation(lambda x: x[0] > threshold[0])[0], expected, rtol=1e-10)


def test_weigh_takes_draws_of_any_proposal():
    known = gaussian(2)
    proposal = scipy.stats.multivariate_t(known.mean, 1.5 * known.covariance, 6, seed=0)
    x = proposal.rvs(5000)
    draws = weigh(known.target, x, proposal.logpdf(x))
    assert abs(draws.log_evidence - known.log_evidence) < 5 * draws.log_evidence_se


def test_defended_proposal_is_weighed_by_the_whole_mixture(getkey):
    # Weighing each draw by its own component instead would give an evidence of any size.
    known = gaussian_mixture()
    location = jnp.asarray([[-3.0, 0.0], [3.0, 1.0]])
    proposal = Mixture(Family("normal").components(location, jnp.full((2, 2), 1.0)), jnp.log(jnp.array([0.8, 0.2])))
    draws = sample_importance(getkey(), known.target, proposal, 4000)
    assert abs(draws.log_evidence - known.log_evidence) < 5 * draws.log_evidence_se
    assert draws.log_evidence_se < 0.05


@pytest.mark.parametrize("num_draws", [0, 1])
def test_too_few_draws(getkey, num_draws):
    known = gaussian(2)
    with pytest.raises(ValueError, match="num_draws must be a whole number of at least 2.*10,000 is a good number"):
        sample_importance(getkey(), known.target, normal_around(known.mean, known.covariance), num_draws)


def test_positions_are_stacked(draws):
    np.testing.assert_array_equal(draws.positions, draws.x)
    stacked = dataclasses.replace(draws, target=linear_regression().target).positions
    assert {name: leaf.shape for name, leaf in stacked.items()} == {"intercept": (8000,), "slope": (8000, 2)}


def test_initial_positions_are_distinct_draws(getkey, draws):
    key = getkey()
    starts = draws.initial_positions(key, 64)
    assert starts.shape == (64, 3)
    assert len(np.unique(starts, axis=0)) == 64
    assert np.isin(starts, draws.x).all()
    np.testing.assert_array_equal(starts, draws.initial_positions(key, 64))
    # Few of many draws are hardly more than a sample of the posterior.
    known = gaussian()
    error = np.sqrt(np.diagonal(known.covariance) / 64)
    assert np.all(np.abs(starts.mean(axis=0) - known.mean) < 5 * error)


def test_initial_positions_on_both_scales(getkey):
    target = Target(
        lambda position: -0.5 * position["log_rate"] ** 2,
        {"log_rate": 0.0},
        constrain=lambda position: {"rate": jnp.exp(position["log_rate"])},
    )
    x = np.random.default_rng(0).normal(size=(100, 1))
    draws = weigh(target, x, normal_around([0.0], [[1.0]]).log_prob(x))
    key = getkey()
    free, constrained = (draws.initial_positions(key, 5, constrained) for constrained in (False, True))
    assert free["log_rate"].shape == (5,)
    np.testing.assert_allclose(jnp.exp(free["log_rate"]), constrained["rate"])


def test_copies_count_as_one_start(getkey):
    x = np.repeat([[0.0], [1.0], [2.0]], [10, 5, 1], axis=0)
    target = Target(lambda point: jnp.where(point[0] < 1.5, 0.0, -jnp.inf), jnp.zeros(1))
    draws = weigh(target, x, np.zeros(16))
    firsts = np.array([draws.initial_positions(getkey(), 1)[0, 0] for _ in range(100)])
    assert abs((firsts == 0).mean() - 2 / 3) < 5 * np.sqrt(2 / 9 / 100)
    np.testing.assert_array_equal(np.sort(draws.initial_positions(getkey(), 2)[:, 0]), [0.0, 1.0])
    with pytest.raises(ValueError, match="distinct draws of positive weight, 2, got 3"):
        draws.initial_positions(getkey(), 3)
    with pytest.raises(ValueError, match="num_chains must be a whole number of at least 1"):
        draws.initial_positions(getkey(), 0)
