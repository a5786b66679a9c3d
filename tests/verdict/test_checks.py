"""What can speak against an answer: each check alone, and which of several comes first."""

import copy
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.importance.islands import ParticleDraws
from klover.importance.psis import reliable_k
from klover.search.missed import Searched
from klover.search.recall import Part
from klover.targets.budget import SPENT
from klover.targets.evaluator import Evaluator
from klover.targets.model_info import ModelInfo
from klover.tuning import Tuning
from klover.verdict import checks
from klover.verdict.checks import CHECKS, NUM_REPEATED, PARTICLE_CHECKS, widest
from klover.verdict.judge import judge
from klover.verdict.status import Status


def with_numbers(case, part, **changes):
    changed = dataclasses.replace(getattr(case.tuning, part), **changes)
    return dataclasses.replace(case, tuning=dataclasses.replace(case.tuning, **{part: changed}))


def with_draws(case, **changes):
    return dataclasses.replace(case, draws=dataclasses.replace(case.draws, **changes))


def without_support(case):
    return with_draws(case, log_p=np.full_like(case.draws.log_p, -np.inf))


def without_end(case):
    components = case.mixture.components
    far = dataclasses.replace(components, location=components.location + 1e11)
    return dataclasses.replace(case, mixture=dataclasses.replace(case.mixture, components=far))


def with_errors(case):
    evaluator = copy.copy(case.evaluator)
    evaluator.num_raised = 3
    return dataclasses.replace(case, evaluator=evaluator)


def with_part(case):
    return dataclasses.replace(case, parts=(Part(np.array([8.0, 0.0]), np.eye(2), 0.0),))


def at_bounds(case):
    known = ModelInfo("mine", reach=(np.full(2, -2.5), np.full(2, 2.5)))
    evaluator = copy.copy(case.evaluator)
    evaluator.target = klover.Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2), model_info=known)
    return dataclasses.replace(case, evaluator=evaluator)


HIDDEN, LUCKY = Status.HIDDEN_MODES, Searched(9, 9, 9, (2.0, 12.0), 9, 2, 0.5)
FLAWS = {
    "no_support": (without_support, Status.NO_SUPPORT),
    "improper": (without_end, Status.IMPROPER),
    "raised": (with_errors, Status.TARGET_RAISED),
    "hidden": (lambda case: dataclasses.replace(case, most_invalid=(30, 5, 2000)), Status.NOT_A_NUMBER),
    "invalid": (lambda case: with_draws(case, num_nan=np.asarray(400)), Status.NOT_A_NUMBER),
    "noisy": (lambda case: with_draws(case, log_p=case.draws.log_p + 1e-3), Status.NOISY),
    "heavy": (lambda case: with_draws(case, pareto_k=np.asarray(1.5)), Status.HEAVY_WEIGHTS),
    "few": (lambda case: with_numbers(case, "answer", fewest_effective=10**6), Status.FEW_EFFECTIVE_DRAWS),
    "poor": (lambda case: with_numbers(case, "answer", least_share=1.0), Status.POOR_COVER),
    "dominated": (lambda case: dataclasses.replace(case, last_ess=10.0), Status.DOMINATED),
    "unfinished": (lambda case: dataclasses.replace(case, cause=SPENT), Status.UNFINISHED),
    "drifting": (lambda case: dataclasses.replace(case, beyond=5.0), Status.DRIFTING_PARTICLES),
    "coarse": (lambda case: with_numbers(case, "answer", coarse_log=0.0), Status.COARSE_NUMBERS),
    "pinned": (at_bounds, Status.COARSE_NUMBERS),
    "unstable": (lambda case: dataclasses.replace(case, last_evidence=(100.0, 0.01)), Status.UNSTABLE_EVIDENCE),
    "missed": (with_part, Status.UNCOVERED_MODE),
    "unsearchable": (lambda case: dataclasses.replace(case, searched=LUCKY), HIDDEN),
}
"""A change of a good case for each check of importance draws, and what it leads to."""


def two_modes(mass=0.5, distance=8.0):
    """Return a target with two round modes, at zero and at a distance from it in the first coordinate."""

    def log_density(x):
        far = x - jnp.array([distance, 0.0])
        return jnp.logaddexp(jnp.log1p(-mass) - 0.5 * x @ x, jnp.log(mass) - 0.5 * far @ far) - jnp.log(2 * jnp.pi)

    return klover.Target(log_density, jnp.zeros(2), box=(np.full(2, -20.0), np.full(2, 20.0)))


def test_the_order_of_the_checks():
    assert [check.__name__ for check in CHECKS] == [*FLAWS]
    assert [check.__name__ for check in PARTICLE_CHECKS] == ["unconverged", "missed_by_particles"]


def test_nothing_speaks_against_a_good_case(make_case):
    case = make_case()
    assert [check(case) for check in CHECKS] == [None] * len(CHECKS)


@pytest.mark.parametrize("name", FLAWS)
def test_a_flaw_is_seen_by_its_own_check_alone(make_case, name):
    flaw, status = FLAWS[name]
    case = flaw(make_case())
    doubt = getattr(checks, name)(case)
    assert doubt is not None
    assert doubt.status is status
    # Draws without support break what comes after them, and a mixture that is far away cannot be searched from.
    if name not in ("no_support", "improper"):
        others = [check for check in CHECKS if check.__name__ != name]
        assert [check(case) for check in others] == [None] * len(others)


@pytest.mark.parametrize("second", FLAWS)
@pytest.mark.parametrize("first", FLAWS)
def test_of_two_flaws_the_first_is_the_verdict(make_case, first, second):
    order = list(FLAWS)
    (one, status), (other, _) = FLAWS[first], FLAWS[second]
    if order.index(first) > order.index(second):
        status = FLAWS[second][1]
    verdict = judge(other(one(make_case())))
    assert not verdict.trusted
    assert verdict.status is status
    assert not set("{}") & set(str(verdict))


def test_with_all_flaws_the_first_is_the_verdict_and_so_on_until_none_is_left(make_case):
    seen = []
    for number in range(len(FLAWS) + 1):
        case = make_case()
        for flaw, _ in list(FLAWS.values())[number:]:
            case = flaw(case)
        seen.append(judge(case).status)
    assert seen == [*(status for _, status in FLAWS.values()), Status.TRUSTED]


def test_a_verdict_costs_a_few_evaluations(make_case):
    case = make_case()
    before = case.evaluator.num_evaluations
    judge(case)
    # Draws that are evaluated again; for each of two coordinates a probe on both sides, and six gradients in search
    # of necks.
    assert case.evaluator.num_evaluations - before == NUM_REPEATED + 1 + 2 * 2 + 6 * 2


def test_where_the_budget_does_not_pay_for_them_the_work_is_unfinished(make_case):
    target = klover.Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2))
    verdict = judge(make_case(target, evaluator=Evaluator(target, 2001)))
    assert verdict.status is Status.UNFINISHED
    assert SPENT in verdict.reason


def test_no_support_counts_what_the_density_returned(make_case):
    target = klover.Target(lambda x: jnp.where(x[0] > 50, 0.0, jnp.where(x[1] > 0, jnp.nan, jnp.inf)), jnp.zeros(2))
    verdict = judge(make_case(target, num_draws=1000))
    assert verdict.status is Status.NO_SUPPORT
    num_nan = int(make_case(target, num_draws=1000).draws.num_nan)
    assert f"({num_nan} NaN, {1000 - num_nan} +inf)" in verdict.reason


@pytest.mark.parametrize(("scale", "location"), [(9e9, 0.0), (1.1e10, 0.0), (1.0, 9e9), (1.0, -1.1e10)])
def test_a_posterior_is_improper_beyond_a_width(make_case, scale, location):
    target = klover.Target(lambda p: -(p["a"] ** 2) - p["flat"] ** 2, {"a": 0.0, "flat": 0.0})
    case = make_case(target)
    components = case.mixture.components
    wide = dataclasses.replace(
        components,
        location=components.location + np.array([0.0, location]),
        spread=klover.mixtures.scale.Full(np.diag([1.0, scale])[None]),
    )
    case = dataclasses.replace(case, mixture=klover.Mixture.of(wide))
    doubt = checks.improper(case)
    assert (doubt is not None) == (abs(location) + scale > 1e10)
    if doubt is not None:
        assert doubt.figures["name"] == "flat"
        assert doubt.figures["width"] == pytest.approx(abs(location) + scale)
    assert checks.improper(with_numbers(case, "answer", largest_width=1e12)) is None


def test_the_widest_coordinate_is_that_of_any_component():
    location = np.array([[0.0, -50.0, 1.0], [3.0, 1.0, 1.0]])
    variance = np.array([[1.0, 4.0, 1.0], [1.0, 1.0, 30.0**2]])
    mixture = klover.Mixture.of(klover.Family("normal", "diagonal").components(location, variance))
    assert widest(mixture) == (1, 52.0)


@pytest.mark.parametrize(("num_invalid", "is_refused"), [(20, False), (21, True)])
def test_one_draw_in_a_hundred_of_a_round_may_be_no_number(make_case, num_invalid, is_refused):
    case = make_case(most_invalid=(num_invalid - 3, 3, 2000))
    doubt = checks.hidden(case)
    assert (doubt is not None) == is_refused
    if doubt is not None:
        assert doubt.figures == {"num_nan": num_invalid - 3, "num_infinite": 3, "num_draws": 2000}
    assert checks.hidden(with_numbers(case, "answer", largest_hidden=0.5)) is None


@pytest.mark.parametrize(("language", "is_refused"), [("stan", False), ("callback", True), ("numpyro", True)])
def test_a_stan_program_may_say_so_that_a_point_is_outside(make_case, language, is_refused):
    target = klover.Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2), model_info=ModelInfo(language))
    assert (checks.hidden(make_case(target, most_invalid=(500, 0, 2000))) is not None) == is_refused


@pytest.mark.parametrize(("left", "right", "is_refused"), [(-np.inf, 2.5, True), (-2.5, 9.0, True), (-9.0, 9.0, False)])
def test_mass_where_a_parameter_rounds_to_its_bound_is_refused(make_case, left, right, is_refused):
    reach = np.array([-np.inf, left]), np.array([np.inf, right])
    known = ModelInfo("mine", reach=reach)
    target = klover.Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2), model_info=known)
    case = make_case(target)
    doubt = checks.pinned(case)
    assert (doubt is not None) == is_refused
    if doubt is not None:
        # 0.6 % of a Normal lie beyond 2.5 standard deviations.
        assert doubt.status is Status.COARSE_NUMBERS
        assert "x[1], which rounds to its bound in 0.00" in doubt.figures["what"]
        assert checks.pinned(with_numbers(case, "missed", smallest_mode=0.1)) is None


def test_a_target_without_bounds_is_pinned_nowhere(make_case):
    assert checks.pinned(make_case()) is None


@pytest.mark.parametrize(("num_nan", "num_infinite", "is_refused"), [(200, 0, False), (100, 101, True), (0, 201, True)])
def test_one_final_draw_in_ten_may_be_no_number(make_case, num_nan, num_infinite, is_refused):
    changed = with_draws(make_case(), num_nan=np.asarray(num_nan), num_positive_infinite=np.asarray(num_infinite))
    assert (checks.invalid(changed) is not None) == is_refused


@pytest.mark.parametrize(("excess", "is_refused"), [(0.0, False), (1e-3, True), (np.nan, True), (-1.0, False)])
def test_weights_are_heavy_beyond_the_limit_for_their_number(make_case, excess, is_refused):
    case = make_case(num_draws=500)
    case = with_draws(case, pareto_k=np.asarray(reliable_k(500) + excess))
    assert (checks.heavy(case) is not None) == is_refused


def test_a_hundred_effective_draws_are_enough(make_case):
    case = make_case()
    ess = float(case.draws.ess)
    for fewest, is_refused in ((int(ess), False), (int(ess) + 1, True)):
        assert (checks.few(with_numbers(case, "answer", fewest_effective=fewest)) is not None) == is_refused
    assert checks.few(make_case(num_draws=60)) is not None
    assert Tuning().answer.fewest_effective == 100


@pytest.mark.parametrize(
    ("cause", "drift", "status"),
    [
        (None, 0.0, None),
        (None, 50.0, None),
        (SPENT, 0.0, Status.UNFINISHED),
        (SPENT, 2.9, Status.UNFINISHED),
        (SPENT, 3.1, Status.DRIFTING_PARTICLES),
        (SPENT, np.inf, Status.UNFINISHED),
        ("24 rounds", 0.0, Status.UNFINISHED),
        ("interrupted", 7.0, Status.DRIFTING_PARTICLES),
    ],
)
def test_what_was_stopped_early_is_refused_with_what_was_last_seen(make_case, cause, drift, status):
    case = make_case(cause=cause, drift=drift)
    doubt = checks.unfinished(case)
    assert (None if doubt is None else doubt.status) is status
    verdict = judge(case)
    assert verdict.trusted == (status is None)
    if status is Status.UNFINISHED:
        assert f"({cause})" in verdict.reason
    if status is Status.DRIFTING_PARTICLES:
        assert f"({drift:.1f} standard errors)" in verdict.reason


def test_single_precision_is_too_coarse_for_a_huge_log_density(make_case):
    with jax.enable_x64(False):
        case = make_case(klover.Target(lambda x: -0.5 * jnp.sum(x**2), np.zeros(2, "float32")))
        assert judge(case).trusted
        moved = klover.Target(lambda x: 2e6 - 0.5 * jnp.sum(x**2), np.zeros(2, "float32"))
        verdict = judge(make_case(moved))
    assert verdict.status is Status.COARSE_NUMBERS
    assert "the log density" in verdict.reason
    assert "float32" in verdict.reason


@pytest.mark.parametrize(("offset", "is_refused"), [(1e4, False), (1e6, True)])
def test_single_precision_is_too_coarse_for_a_coordinate_far_from_zero(make_case, offset, is_refused):
    with jax.enable_x64(False):
        target = klover.Target(lambda p: -0.5 * (p["a"] ** 2 + p["far"] ** 2), {"a": 0.0, "far": 0.0})
        case = make_case(target)
        doubt = checks.coarse(with_draws(case, x=case.draws.x + np.array([0.0, offset])))
    # Neighbouring numbers lie a ten-millionth of the offset apart, and 0.01 standard deviations are allowed.
    assert (doubt is not None) == is_refused
    if doubt is not None:
        assert doubt.figures == {"what": "far", "precision": np.dtype("float32")}


def test_double_precision_is_fine_enough_for_the_same(make_case):
    case = make_case()
    assert checks.coarse(with_draws(case, x=case.draws.x + 1e6, log_p=case.draws.log_p + 2e6)) is None


@pytest.mark.parametrize(
    ("difference", "error", "is_refused"),
    [(0.0, 0.0, False), (0.049, 0.0, False), (0.5, 0.0, True), (0.5, 0.2, False), (-0.5, 0.01, True), (1.5, 0.2, True)],
)
def test_evidences_may_differ_by_their_errors_or_next_to_nothing(make_case, difference, error, is_refused):
    case = make_case()
    log_evidence, own = float(case.draws.log_evidence), float(case.draws.log_evidence_se)
    # Five errors of the draws themselves are less than a twentieth of a nat.
    assert 5 * own < 0.05
    case = dataclasses.replace(case, last_evidence=(log_evidence + difference, error))
    doubt = checks.unstable(case)
    assert (doubt is not None) == is_refused
    if doubt is not None:
        assert doubt.figures["difference"] == pytest.approx(abs(difference), rel=1e-9)
        assert doubt.figures["ratio"] == pytest.approx(abs(difference) / np.hypot(own, error), rel=1e-9)
        assert doubt.figures["log_evidence"] == log_evidence


def test_without_a_round_there_is_no_evidence_to_differ_from(make_case):
    assert checks.unstable(make_case(last_evidence=None)) is None


def test_a_mode_that_no_draw_has_visited_is_named(make_case):
    case = make_case(two_modes(), scale=1.1, is_searched=True)
    # The weights see nothing wrong.
    assert [check.__name__ for check in CHECKS if check(case) is not None] == ["missed"]
    doubt = checks.missed(case)
    assert doubt is not None
    assert doubt.status is Status.UNCOVERED_MODE
    assert doubt.figures["mode"].startswith("at x[0] = 8, x[1] = ")


@pytest.mark.parametrize(
    ("mass", "distance", "is_refused"),
    [(0.04, 0.0, False), (0.06, 0.0, True), (1e-3, 8.0, False), (2e-3, 8.0, True)],
    ids=["light", "heavy", "near", "far"],
)
def test_parts_are_missed_that_would_change_the_evidence_or_a_standard_deviation(make_case, mass, distance, is_refused):
    case = make_case()
    place, scale = np.array([distance, 0.0]), np.sqrt(np.exp(case.draws.log_weight) @ np.asarray(case.draws.x) ** 2)
    log_mass = float(case.draws.log_evidence) + np.log(mass)
    changed = dataclasses.replace(case, parts=(Part(place * scale, np.eye(2), log_mass),))
    assert (checks.missed(changed) is not None) == is_refused
    # Many that are light are heavy together.
    many = dataclasses.replace(case, parts=changed.parts * 100)
    assert checks.missed(many) is not None


@pytest.mark.parametrize(("recall", "is_refused"), [(0.0, True), (0.89, True), (0.91, False), (1.0, False)])
def test_a_search_that_would_miss_what_is_known_is_not_trusted(make_case, recall, is_refused):
    case = make_case(searched=Searched(100, 10, 10, (2.0, 12.0), 50, 2, recall))
    assert (checks.unsearchable(case) is not None) == is_refused
    assert checks.unsearchable(make_case(searched=None)) is None


@pytest.mark.parametrize(
    ("dim", "width", "is_refused"),
    [(12, 0.4, True), (12, 0.95, False), (20, 0.7, True), (2, 0.01, False), (5, 0.2, False)],
    ids=["uneven", "even", "many_dimensions", "few_dimensions", "five"],
)
def test_modes_that_differ_more_than_the_search_can_bridge_are_not_trusted(make_case, dim, width, is_refused):
    searched = Searched(69120, 100, 5760, (2.0, 12.0), 50, dim, num_modes=2, relative_width=width)
    doubt = checks.unsearchable(make_case(searched=searched))
    assert (doubt is not None) == is_refused
    assert doubt is None or doubt.status is Status.UNEVEN_MODES


@pytest.mark.parametrize(("top", "is_refused"), [(0.0, False), (0.01, False), (0.05, True)])
def test_a_draw_whose_weight_was_smoothed_away_is_seen(make_case, top, is_refused):
    case = make_case()
    log_ratio = np.zeros(2000)
    log_ratio[7] = np.log(top / (1 - top) * 1999) if top else 0.0
    equal = np.full(2000, -np.log(2000))
    case = with_draws(case, log_p=log_ratio, log_q=np.zeros(2000), log_weight=equal)
    doubt = checks.dominated(case)
    assert (doubt is not None) == is_refused
    if doubt is not None:
        assert doubt.figures["top"] == pytest.approx(top, rel=1e-6)


@pytest.mark.parametrize(("factor", "is_refused"), [(0.9, False), (1.9, False), (2.1, True)])
def test_final_draws_must_be_about_as_good_as_the_last_round(make_case, factor, is_refused):
    case = make_case()
    share = float(case.draws.ess) / case.draws.num_draws
    assert (checks.dominated(dataclasses.replace(case, last_ess=factor * share)) is not None) == is_refused
    assert checks.dominated(dataclasses.replace(case, last_ess=None)) is None


def test_a_density_that_changes_is_seen_at_the_final_draws_and_at_the_first_points(make_case):
    case = make_case()
    x, log_p = case.draws.x[-5:], case.draws.log_p[-5:]
    assert checks.noisy(dataclasses.replace(case, earliest=(x, log_p))) is None
    doubt = checks.noisy(dataclasses.replace(case, earliest=(x, log_p + np.array([0, 0, 0.2, 0, 0]))))
    assert doubt is not None
    assert doubt.figures["difference"] == pytest.approx(0.2)
    hidden = np.where(np.arange(5) == 1, -np.inf, log_p)
    assert checks.noisy(dataclasses.replace(case, earliest=(x, hidden))) is not None


def test_where_the_work_was_stopped_there_may_be_nothing_left_to_evaluate(make_case):
    target = klover.Target(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2))
    verdict = judge(make_case(target, evaluator=Evaluator(target, 2000), cause="interrupted"))
    assert verdict.status is Status.UNFINISHED
    assert "interrupted" in verdict.reason


def particles_of(case, islands=(0.69, 0.7, 0.71, 0.7), drift=0.1, agreement=0.3):
    """Return a case of particles in the place of importance draws: 400 of them, on the mode at zero."""
    target, num = case.draws.target, 400
    x = np.random.default_rng(1).normal(size=(num, target.dim))
    log_p, zero = np.asarray(target.log_prob(x)), np.asarray(0)
    weight, tail = np.full(num, -np.log(num)), np.asarray(1.2)
    measured = np.log(islands), np.asarray(drift)
    chance = np.asarray(agreement)
    draws = ParticleDraws(x, log_p, log_p, weight, tail, zero, zero, target, *measured, agreement=chance)
    return dataclasses.replace(case, draws=draws)


def test_particles_that_agree_and_stay_are_trusted(make_case):
    verdict = judge(particles_of(make_case()))
    assert verdict.trusted
    assert verdict.status is Status.PARTICLES
    assert "4 independent islands" in verdict.reason
    assert verdict.remedy == ""


@pytest.mark.parametrize(
    ("part", "changes", "is_refused"),
    [
        ("islands", {}, False),
        ("islands", {"largest_spread": 0.01}, True),
        ("islands", {"least_agreement": 0.31}, True),
        ("answer", {"largest_drift": 0.1}, True),
        ("answer", {"largest_drift": 0.11}, False),
        ("answer", {"fewest_effective": 401}, True),
    ],
)
def test_particles_have_converged_by_four_numbers(make_case, part, changes, is_refused):
    case = with_numbers(particles_of(make_case()), part, **changes)
    assert (checks.unconverged(case) is not None) == is_refused
    assert judge(case).status is (Status.UNCONVERGED_PARTICLES if is_refused else Status.PARTICLES)


@pytest.mark.parametrize(
    ("islands", "drift", "is_refused"),
    [((0.7, 0.7, 0.71, 0.69), 0.5, False), ((1e-3, 0.7, 70.0, 1.0), 0.5, True), ((0.7, 0.7, 0.71, 0.69), 3.5, True)],
)
def test_islands_that_disagree_and_particles_that_move_are_refused(make_case, islands, drift, is_refused):
    assert (checks.unconverged(particles_of(make_case(), islands, drift)) is not None) == is_refused


def test_particles_that_remember_their_start_are_refused_with_the_chance(make_case):
    verdict = judge(particles_of(make_case(), agreement=2e-4))
    assert verdict.status is Status.UNCONVERGED_PARTICLES
    assert "narrow and wide starts would by chance differ as they do with probability 0.0002" in verdict.reason


@pytest.mark.parametrize(("mass", "status"), [(0.3, Status.PARTICLES_MISS_MODE), (1e-9, Status.PARTICLES)])
def test_particles_on_one_of_two_modes_are_refused(make_case, mass, status):
    case = particles_of(make_case(two_modes(mass, 12.0)))
    verdict = judge(case)
    assert verdict.status is status
    assert ("x[0] = 12" in verdict.reason) == (status is Status.PARTICLES_MISS_MODE)


def test_particles_are_asked_in_order(make_case):
    # They miss a mode, and have not converged: what is cheap to see comes first.
    case = particles_of(make_case(two_modes(0.3, 12.0)), drift=10.0)
    before = case.evaluator.num_evaluations
    assert judge(case).status is Status.UNCONVERGED_PARTICLES
    assert case.evaluator.num_evaluations == before


def test_particles_have_no_weights_to_be_heavy(make_case):
    # What speaks against importance draws is why they were replaced.
    case = dataclasses.replace(particles_of(make_case()), cause=SPENT, last_evidence=(100.0, 0.01))
    assert judge(case).status is Status.PARTICLES
