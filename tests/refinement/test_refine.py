import datetime
import io
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.mixtures.components import TAILS
from klover.mixtures.scale import Diagonal, Full, LowRank
from klover.targets import evaluator
from klover.tuning import Rounds, Search, Tuning
from klover.verdict.status import Status
from klover.warps.warped import unwarped

LOG_2PI = float(np.log(2 * np.pi))


def normal(dim, **kwargs):
    def log_density(x):
        return -0.5 * jnp.sum(x**2) - 0.5 * dim * LOG_2PI

    return klover.Target(log_density, jnp.ones(dim), **kwargs)


def two_modes(dim, distance, weight, shift=0.0):
    def log_density(x):
        far = jnp.log(weight) - 0.5 * jnp.sum((x - distance) ** 2)
        return jnp.logaddexp(jnp.log1p(-weight) - 0.5 * jnp.sum(x**2), far) - 0.5 * dim * LOG_2PI + shift

    return klover.Target(log_density, jnp.zeros(dim), box=(-2 * distance, 2 * distance))


def funnel(dim, shift=0.0):
    def log_density(x):
        scale = jnp.exp(0.5 * x[0])
        return (
            -0.5 * (x[0] / 3) ** 2
            - jnp.log(3.0)
            - 0.5 * jnp.sum((x[1:] / scale) ** 2)
            - 0.5 * (dim - 1) * x[0]
            - (0.5 * dim * LOG_2PI)
            + shift
        )

    return klover.Target(log_density, jnp.zeros(dim))


def assert_right(fit, log_evidence=0.0):
    assert fit.verdict.trusted, str(fit.verdict)
    assert abs(fit.log_evidence - log_evidence) < 4 * fit.log_evidence_se


@pytest.mark.parametrize("dim", [1, 2, 10, 40, 150])
def test_normal_target_is_trusted_and_right(getkey, dim):
    fit = klover.refine(getkey(), normal(dim))
    assert_right(fit)
    weight = np.exp(fit.draws.log_weight)
    assert np.all(np.abs(weight @ fit.draws.x) < 5 / np.sqrt(fit.ess))


@pytest.mark.slow
def test_an_easy_target_is_not_explored():
    # With the tenth key few particles raise a false alarm.
    target = klover.Target(lambda x: -0.5 * jnp.sum(jnp.arange(1, 11) * x**2), jnp.zeros(10))
    assert max(klover.refine(jax.random.key(seed), target).num_evaluations for seed in range(12)) < 50_000


def test_cauchy_target_gets_heavy_tails(getkey):
    def log_density(x):
        return jax.scipy.special.gammaln(3.0) - 3.0 * jnp.log(jnp.pi) - 3.0 * jnp.log1p(jnp.sum(x**2))

    fit = klover.refine(getkey(), klover.Target(log_density, jnp.zeros(5)))
    assert_right(fit)
    assert fit.pareto_k < 0.7


def test_two_far_modes_have_their_weights(getkey):
    fit = klover.refine(getkey(), two_modes(5, 10.0, 0.1))
    assert_right(fit)
    share = np.exp(fit.draws.log_weight) @ (fit.draws.x[:, 0] > 5.0)
    assert abs(share - 0.1) < 4 * np.sqrt(0.1 * 0.9 / fit.ess)


@pytest.mark.slow
def test_funnel_is_right(getkey):
    assert_right(klover.refine(getkey(), funnel(4)))


def test_gradient_free_target(getkey):
    def log_density(x):
        shape = jax.ShapeDtypeStruct((), x.dtype)
        return jax.pure_callback(
            lambda v: np.asarray(-0.5 * np.sum((v - 1) ** 2, -1)), shape, x, vmap_method="broadcast_all"
        )

    fit = klover.refine(getkey(), klover.Target(log_density, jnp.zeros(3)))
    assert_right(fit, 1.5 * LOG_2PI)


def test_half_of_the_space_is_outside_the_support(getkey):
    def log_density(x):
        return jnp.where(x[0] > 0, -0.5 * jnp.sum(x**2) - LOG_2PI, -jnp.inf)

    assert_right(klover.refine(getkey(), klover.Target(log_density, jnp.ones(2))), float(np.log(0.5)))


def test_scales_far_apart(getkey):
    def log_density(x):
        return -0.5 * ((1e8 * x[0]) ** 2 + (1e-8 * x[1]) ** 2) - LOG_2PI

    assert_right(klover.refine(getkey(), klover.Target(log_density, jnp.zeros(2))))


def test_improper_posterior_is_refused_with_the_coordinate(getkey):
    target = klover.Target(lambda p: -0.5 * p["a"] ** 2, {"a": 0.0, "flat": 0.0})
    verdict = klover.refine(getkey(), target).verdict
    assert verdict.status is Status.IMPROPER
    assert "flat" in verdict.reason
    assert "flat" in verdict.remedy


def test_nothing_to_fit_fails_with_a_clear_message(getkey):
    with pytest.raises(ValueError, match=r"finite at none .* NaN"):
        klover.refine(getkey(), klover.Target(lambda x: jnp.nan * x[0], jnp.zeros(2)))


def test_same_key_same_answer(getkey):
    key = getkey()
    first, second = (klover.refine(key, normal(3)) for _ in range(2))
    np.testing.assert_array_equal(first.draws.x, second.draws.x)
    np.testing.assert_array_equal(first.draws.log_weight, second.draws.log_weight)


def correlated_normal(shift):
    precision = np.linalg.inv(np.array([[2.0, 0.6, 0.0], [0.6, 1.0, -0.3], [0.0, -0.3, 0.5]]))
    return klover.Target(lambda x: -0.5 * (x - 1.0) @ precision @ (x - 1.0) + shift, jnp.ones(3))


def quartic(shift):
    return klover.Target(lambda x: -0.5 * jnp.sum(x**2) - jnp.sum(x[:1] ** 4) + shift, jnp.ones(3))


SHIFTS = (0.0, 1e3, -1e4)


@pytest.mark.parametrize(
    ("make", "budget", "tolerance"),
    [
        pytest.param(correlated_normal, None, 1e-12, id="normal"),
        pytest.param(quartic, None, 1e-12, id="quartic"),
        # The first weights of modes are made of their heights, and are rounded as those are.
        pytest.param(lambda shift: two_modes(3, 10.0, 0.1, shift), None, 1e-9, id="two-modes"),
        pytest.param(lambda shift: funnel(3, shift), 20_000, 1e-12, id="funnel"),
    ],
)
def test_a_constant_changes_the_evidence_and_nothing_else(make, budget, tolerance):
    # The shift is an argument of the compiled program, so that all three run the same one.
    plain, *others = (klover.refine(0, make(jnp.asarray(shift)), budget=budget) for shift in SHIFTS)
    scale = plain.draws.x.std(0)
    for shift, moved in zip(SHIFTS[1:], others, strict=True):
        assert moved.verdict.status is plain.verdict.status
        # A climb of the last search, which draws nothing of the answer, may end a step earlier by rounding.
        searched = plain.verdict.searched
        num_climbs = 0 if searched is None else searched.num_climbs
        assert abs(moved.num_evaluations - plain.num_evaluations) <= num_climbs
        np.testing.assert_array_equal(moved.history["num_components"], plain.history["num_components"])
        np.testing.assert_allclose(moved.draws.x / scale, plain.draws.x / scale, rtol=0, atol=tolerance)
        for leaf, same in zip(jax.tree.leaves(moved.mixture), jax.tree.leaves(plain.mixture), strict=True):
            np.testing.assert_allclose(leaf, same, rtol=tolerance, atol=tolerance)
        # The log density itself is rounded to a unit in the last place of the shift.
        unit = np.spacing(abs(shift))
        np.testing.assert_allclose(moved.draws.log_weight, plain.draws.log_weight, rtol=1e-8, atol=100 * unit)
        assert moved.log_evidence - plain.log_evidence == pytest.approx(shift, abs=4 * unit)
        assert moved.log_evidence_se == pytest.approx(plain.log_evidence_se, rel=1e-8)


def test_second_call_compiles_nothing(getkey):
    klover.refine(getkey(), normal(3))
    programs = evaluator._values, evaluator._values_and_gradients
    before = [program._cache_size() for program in programs]
    klover.refine(getkey(), normal(3))
    assert [program._cache_size() for program in programs] == before


@pytest.mark.parametrize("budget", [500, 5_000, 30_000])
def test_budget_of_evaluations_is_kept(getkey, budget):
    fit = klover.refine(getkey(), normal(2), budget=budget)
    assert fit.num_evaluations <= budget
    spent = fit.history["num_evaluations"]
    assert np.all(np.diff(spent) > 0)
    # With a small budget the draws of the rounds are the answer.
    is_small = budget <= Tuning().rounds.small_budget
    assert (0 if is_small else spent[-1:].sum()) + fit.draws.num_draws <= fit.num_evaluations


def test_spent_budget_is_refused(getkey):
    fit = klover.refine(getkey(), funnel(5), budget=10_000)
    assert not fit.verdict.trusted


def test_unfinished_work_says_why_it_was_stopped():
    # The weights are good enough, so that nothing but the budget speaks against them.
    verdict = klover.refine(1, funnel(3), budget=20_000).verdict
    assert verdict.status is Status.UNFINISHED
    assert "stopped (the budget is spent) before its own criteria were met" in verdict.reason
    assert "larger budget" in verdict.remedy


def test_rounds_come_to_an_end():
    tuning = Tuning(rounds=Rounds(most_rounds=2))
    fit = klover.refine(1, funnel(3), tuning=tuning)
    assert len(fit.history["round"]) == 2
    assert not fit.verdict.trusted
    assert klover.refine(1, quartic(0.0), tuning=Tuning(rounds=Rounds(most_rounds=1))).verdict.reason.startswith(
        "the refinement was stopped (1 rounds)"
    )


def test_budget_of_time(getkey):
    fit = klover.refine(getkey(), funnel(5), budget=datetime.timedelta(seconds=0))
    assert not fit.verdict.trusted
    # Without a search or a round the region is all that there is to draw from.
    assert len(fit.history["round"]) == 0
    assert fit.num_evaluations == fit.draws.num_draws


def test_callback_sees_every_round(getkey):
    seen = []
    fit = klover.refine(getkey(), normal(2), callback=seen.append)
    assert [info.round for info in seen] == list(range(len(fit.history["round"])))
    for name, values in fit.history.items():
        np.testing.assert_array_equal([getattr(info, name) for info in seen], values)
    assert seen[-1].num_evaluations + fit.draws.num_draws <= fit.num_evaluations


def test_progress_is_shown_when_asked(getkey, capsys):
    klover.refine(getkey(), normal(2), progress=True)
    assert "log evidence" in capsys.readouterr().err


def test_interruption_returns_the_best_so_far(getkey):
    def interrupt(_):
        raise KeyboardInterrupt

    fit = klover.refine(getkey(), funnel(4), callback=interrupt)
    assert len(fit.history["round"]) == 1
    assert not fit.verdict.trusted
    verdict = klover.refine(getkey(), quartic(0.0), callback=interrupt).verdict
    assert verdict.status is Status.UNFINISHED
    assert "stopped (interrupted)" in verdict.reason


def test_a_budget_that_just_suffices_leaves_the_last_search_its_part(getkey):
    key = getkey()
    whole = klover.refine(key, normal(2))
    fit = klover.refine(key, normal(2), budget=whole.num_evaluations - 3000)
    assert fit.draws.num_draws < whole.draws.num_draws
    assert_right(fit)


def test_start_from_a_mixture_a_fit_and_draws(getkey):
    target = two_modes(3, 30.0, 0.5)
    location = jnp.array([[0.0] * 3, [30.0] * 3])
    mixture = klover.Mixture.of(klover.Family().components(location, jnp.ones((2, 3))))
    fit = klover.refine(getkey(), target, mixture)
    assert_right(fit)
    assert_right(klover.refine(getkey(), target, fit))
    draws = np.random.default_rng(0).normal(size=(1000, 3)) + 30 * (np.arange(1000)[:, None] % 2)
    assert_right(klover.refine(getkey(), target, draws))


def test_start_from_a_pytree_of_draws(getkey):
    target = klover.Target(lambda p: -0.5 * (p["a"] ** 2 + jnp.sum(p["b"] ** 2)), {"a": 0.0, "b": jnp.zeros(2)})
    generator = np.random.default_rng(0)
    start = {"a": generator.normal(size=500), "b": generator.normal(size=(500, 2))}
    assert_right(klover.refine(getkey(), target, start), 1.5 * LOG_2PI)


def test_start_from_arviz(getkey):
    arviz = pytest.importorskip("arviz")
    generator = np.random.default_rng(0)
    draws = {"a": generator.normal(size=(2, 300)), "b": generator.normal(size=(2, 300, 2))}
    # From 1.0 on the groups are named inside the dictionary, and a DataTree comes back.
    data = arviz.from_dict(draws if arviz.__version__.startswith("0.") else {"posterior": draws})
    target = klover.Target(lambda p: -0.5 * (p["a"] ** 2 + jnp.sum(p["b"] ** 2)), {"a": 0.0, "b": jnp.zeros(2)})
    assert_right(klover.refine(getkey(), target, data), 1.5 * LOG_2PI)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (np.zeros((10, 5)), r"shape \(10, 5\)"),
        (np.full((10, 2), np.nan), "finite"),
        (np.zeros((10, 2)), "must hold draws that vary"),
        ("laplace", "start must be"),
    ],
)
def test_bad_start_is_refused(getkey, start, message):
    with pytest.raises(ValueError, match=message):
        klover.refine(getkey(), normal(2), start)


def test_integrand_lowers_the_error_of_its_expectation(getkey):
    def rare(x):
        return jnp.where(x[0] > 3.5, 1.0, 0.0)

    truth = 0.00023262907903552504
    plain = klover.refine(getkey(), normal(2)).draws.expectation(rare)
    value, error = klover.refine(getkey(), normal(2), integrand=rare).draws.expectation(rare)
    assert abs(value - truth) < 4 * error
    assert error < 0.5 * plain[1]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"target": lambda x: x}, TypeError, "klover.Target"),
        ({"max_components": 0}, ValueError, "max_components"),
        ({"num_draws": 1}, ValueError, "num_draws"),
        ({"budget": 0}, ValueError, "budget"),
        ({"budget": 1}, ValueError, "budget must be a whole number of at least 2"),
        ({"integrand": 3.0}, TypeError, "integrand must be a function of one constrained position, got a float"),
        ({"integrand": lambda: 0.0}, TypeError, "integrand must be a function of one constrained position"),
        ({"integrand": lambda x: x}, ValueError, "integrand must return one number, got an array of shape"),
        ({"integrand": lambda x: "a"}, TypeError, "integrand must be a function that JAX can trace"),
        ({"integrand": lambda x: float(x[0])}, TypeError, "integrand must be a function that JAX can trace"),
        ({"integrand": lambda x: x["a"]}, TypeError, "integrand must be a function that JAX can trace"),
        ({"callback": 1}, TypeError, "callback must be a function of what a round has measured"),
        ({"callback": lambda: None}, TypeError, "callback must be a function of what a round has measured"),
        ({"progress": "yes"}, TypeError, "progress must be True or False, got 'yes'"),
        ({"journal": True}, TypeError, "journal must be a path .* got True"),
        ({"journal": io.BytesIO()}, TypeError, "journal must be a path"),
        ({"journal": "."}, IsADirectoryError, "journal must be the path of a file, got the folder"),
        ({"journal": "absent/file"}, FileNotFoundError, "journal must be .* in a folder that exists"),
        ({"tuning": {}}, TypeError, "tuning must be a Tuning, got {}"),
        ({"start": np.zeros((10, 5))}, ValueError, r"start must hold .* shape \(10, 5\)"),
        ({"start": np.zeros(0)}, ValueError, "start must hold arrays of numbers with one leading axis of draws"),
        ({"start": klover.diffuse([0.0], [1.0])}, ValueError, "start must have the target's dimension, 2, got 1"),
    ],
)
def test_bad_arguments(getkey, arguments, error, message):
    refine = getattr(klover.refine, "__wrapped__", klover.refine)
    calls = []
    target = klover.from_callback(lambda x: calls.append(x) or -0.5 * float(x @ x), 2)
    calls.clear()
    with pytest.raises(error, match=message):
        refine(getkey(), **({"target": target} | arguments))
    # The door is before all work.
    assert calls == []


def test_without_gradients_a_second_mode_far_away_is_found(getkey):
    def log_density(x):
        far = -0.5 * np.sum(((x - 6.0) / 0.8) ** 2, axis=1) - 5 * np.log(0.8)
        return np.logaddexp(-0.5 * np.sum(x**2, axis=1), far)

    fit = klover.refine(getkey(), klover.from_callback(log_density, 5, vectorized=True))
    assert fit.verdict.trusted
    expected = np.log(2) + 2.5 * np.log(2 * np.pi)
    assert abs(fit.log_evidence - expected) < 5 * fit.log_evidence_se


def test_a_callback_that_fails_is_named(getkey):
    def fail(_):
        raise LookupError("no such table")

    with pytest.raises(LookupError) as caught:
        klover.refine(getkey(), normal(2), callback=fail)
    assert "callback failed" in caught.value.__notes__[0]


def test_raising_target_is_named(getkey):
    def raising(v):
        if v[0] > 3.0:
            raise RuntimeError("beyond the table")
        return np.asarray(-0.5 * np.sum(v**2))

    def log_density(x):
        return jax.pure_callback(raising, jax.ShapeDtypeStruct((), x.dtype), x, vmap_method="sequential")

    fit = klover.refine(getkey(), klover.Target(log_density, jnp.zeros(1)), budget=2000)
    assert fit.verdict.status is Status.TARGET_RAISED


SCALES, CENTRE = np.geomspace(0.1, 10.0, 5), np.linspace(-3.0, 3.0, 5)
FAMILIES = [f"{tail}{covariance}" for tail in TAILS for covariance in ("", "-full", "-diagonal", "-low-rank")]
SPREADS = {"full": Full, "diagonal": Diagonal, "low-rank": LowRank}


def scaled_normal():
    return klover.Target(lambda x: -0.5 * jnp.sum(((x - CENTRE) / SCALES) ** 2), jnp.zeros(5))


SCALED_EVIDENCE = 2.5 * LOG_2PI + float(np.log(SCALES).sum())


@pytest.mark.parametrize(
    "family",
    [*FAMILIES, klover.Family("student", "full", df=4.0), klover.Family("normal", "low-rank", rank=2)],
    ids=str,
)
def test_every_family_covers_a_gaussian(family, getkey):
    fit = klover.refine(getkey(), scaled_normal(), family=family)
    assert_right(fit, SCALED_EVIDENCE)
    parsed = klover.Family.parse(family)
    assert fit.mixture.components.tail == parsed.tail
    assert type(fit.mixture.components.spread) is SPREADS[parsed.covariance]
    weight = np.exp(fit.draws.log_weight)
    assert np.all(np.abs(weight @ fit.draws.x - CENTRE) < 5 * SCALES / np.sqrt(fit.ess))


@pytest.mark.parametrize("rank", [1, 2])
def test_a_low_rank_family_follows_correlations_that_a_diagonal_one_cannot(rank, getkey):
    direction = np.array([2.0, -2.0, 2.0, 1.0, -1.0])
    precision = np.linalg.inv(np.eye(5) + np.outer(direction, direction))
    target, key = klover.Target(lambda x: -0.5 * x @ precision @ x, jnp.zeros(5)), getkey()
    low, diagonal = (
        klover.refine(key, target, family=klover.Family("student", covariance, rank=rank), budget=60_000)
        for covariance in ("low-rank", "diagonal")
    )
    assert_right(low, 2.5 * LOG_2PI - 0.5 * np.linalg.slogdet(precision)[1])
    assert low.mixture.components.spread.factor.shape[-1] == rank
    assert low.ess / low.draws.num_draws > 2 * diagonal.ess / diagonal.draws.num_draws


@pytest.mark.parametrize("family", ["student-low-rank", "student"])
def test_beyond_the_largest_dimension_of_matrices_no_family_needs_them(family, getkey):
    tuning = Tuning(search=Search(full_dim=4, warped_dim=4))
    fit = klover.refine(getkey(), scaled_normal(), family=family, tuning=tuning)
    assert_right(fit, SCALED_EVIDENCE)
    assert type(unwarped(fit.mixture).components.spread) is (LowRank if "low-rank" in family else Diagonal)


@pytest.mark.parametrize("covariance", ["full", "diagonal", "low-rank"])
@pytest.mark.parametrize("df", [4.0, 9.0])
def test_degrees_of_freedom_that_are_fixed_stay_fixed(covariance, df, getkey):
    fit = klover.refine(getkey(), scaled_normal(), family=klover.Family("student", covariance, df=df))
    assert_right(fit, SCALED_EVIDENCE)
    # What is drawn in defence has tails of four degrees at the most.
    expected = {df, min(df, Tuning().defence.df)}
    assert set(np.asarray(fit.mixture.components.df).tolist()) == expected


def test_normal_components_have_no_degrees_of_freedom(getkey):
    fit = klover.refine(getkey(), scaled_normal(), family="normal")
    np.testing.assert_array_equal(fit.mixture.components.df, np.inf)


def test_a_family_that_is_unknown_is_refused(getkey):
    with pytest.raises(ValueError, match="family must be one of 'normal-full', .* 'student', got 'cauchy'"):
        klover.refine(getkey(), klover.Target(lambda x: -(x @ x), jnp.zeros(2)), family="cauchy")


def test_a_cold_answer_compiles_the_programs_of_the_target_alone(caplog):
    target = klover.Target(lambda x: -jnp.sum(jnp.cosh(x - 0.25)), np.zeros(3))
    key, programs = jax.random.key(3), (evaluator._values, evaluator._values_and_gradients)
    before = [program._cache_size() for program in programs]
    with jax.log_compiles():
        str(klover.refine(key, target).summary())
    compiled = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Compiling")]
    # The program for values is compiled by another thread, which does not log.
    assert all("_values" in message for message in compiled)
    assert [program._cache_size() for program in programs] == [number + 1 for number in before]


def test_single_precision_is_too_coarse_for_a_narrow_posterior_far_from_zero(getkey):
    with jax.enable_x64(False):
        target = klover.Target(lambda x: -0.5 * jnp.sum(((x - 58000.0) / 0.001) ** 2), np.full(1, 58000.0, "float32"))
        fit = klover.refine(getkey(), target)
    assert fit.verdict.status is Status.COARSE_NUMBERS, str(fit.verdict)


def test_a_posterior_that_nan_cuts_is_refused(getkey):
    target = klover.Target(lambda x: jnp.where(x[0] > 1.0, jnp.nan, -0.5 * x @ x), np.zeros(1))
    fit = klover.refine(getkey(), target)
    assert fit.verdict.status is Status.NOT_A_NUMBER, str(fit.verdict)


FAILURES = [np.linalg.LinAlgError("singular"), ZeroDivisionError("division by zero"), OverflowError("out of range")]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("klover.refinement.refine", "take_round"),
        ("klover.refinement.refine", "from_target"),
        ("klover.refinement.answer", "look_for_missed"),
        ("klover.verdict.judge", "CHECKS"),
    ],
)
@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_a_computation_that_fails_is_a_refusal_with_the_reason(monkeypatch, module, name, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(sys.modules[module], name, (fail,) if name == "CHECKS" else fail)
    target = klover.Target(lambda x: -0.5 * jnp.sum(jnp.exp(0.3 * x) ** 2 + x**2), np.zeros(3))
    fit = klover.refine(0, target)
    assert not fit.verdict.trusted
    assert str(error) in fit.verdict.reason
