"""What a search finds is added, and the work goes on; seen from the engine and from outside."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover.refinement import completion
from klover.refinement.completion import add_parts, look_for_missed
from klover.refinement.start import from_target
from klover.refinement.state import Context, Stage
from klover.search.missed import Effort
from klover.search.recall import Part
from klover.targets.evaluator import Evaluator
from klover.tuning import Missed, Tuning


def two_modes(dim, distance, scale=1.0):
    """Return two Gaussians of equal mass, with log evidence 0, the second in a direction of its own."""
    direction = np.random.default_rng(dim).standard_normal(dim)
    centre = distance * direction / np.linalg.norm(direction)

    def log_density(x):
        parts = jnp.sum(x**2), jnp.sum((x - centre) ** 2) / scale**2 + 2 * dim * np.log(scale)
        return jnp.logaddexp(*(-0.5 * part for part in parts)) - np.log(2) - 0.5 * dim * np.log(2 * np.pi)

    return klover.Target(log_density, np.zeros(dim))


def context_of(target, tuning=None):
    return Context(np.random.default_rng(0), Evaluator(target), 8, tuning=tuning or Tuning())


@pytest.mark.parametrize(
    ("dim", "distance", "scale"),
    [pytest.param(5, 16.0, 1.0, marks=pytest.mark.slow), (10, 25.0, 1.0), (5, 4.0, 0.3)],
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_second_modes_that_no_draw_meets_are_found_and_weighed(seed, dim, distance, scale):
    fit = klover.refine(seed, two_modes(dim, distance, scale))
    assert fit.verdict.trusted
    assert abs(fit.log_evidence) < max(5 * fit.log_evidence_se, 0.02)
    # A mode that is searched for costs some rounds, and no particles.
    assert fit.num_evaluations < 300_000


def test_without_further_work_a_missed_mode_is_refused():
    tuning = Tuning(missed=Missed(most_returns=0))
    statuses = {klover.refine(seed, two_modes(5, 16.0), tuning=tuning).verdict.status.name for seed in range(4)}
    assert "UNCOVERED_MODE" in statuses


def test_parts_are_joined_by_their_mass_and_the_rounds_begin_anew():
    context = context_of(two_modes(3, 8.0))
    state = dataclasses.replace(from_target(context), stage=Stage.TEMPER, is_done=True, num_stale=3, best_ess=0.9)
    part = Part(np.full(3, 5.0), np.eye(3), 0.0)
    grown = add_parts(context, state, (part,), 0.0)
    assert (grown.is_done, grown.num_stale, grown.best_ess, grown.stage) == (False, 0, 0.0, Stage.POOL)
    assert grown.num_returns == state.num_returns + 1
    new = np.exp(grown.mixture.log_weights[len(state.mixture.log_weights) :])
    assert new.sum() == pytest.approx(0.5)
    assert grown.found.log_prob(part.x[None]) > grown.found.log_prob(np.zeros((1, 3)))
    twice = add_parts(context, grown, (dataclasses.replace(part, x=-part.x),), 0.0)
    np.testing.assert_allclose(twice.found.log_prob(np.array([part.x])), twice.found.log_prob(-part.x[None]), rtol=1e-6)
    small = add_parts(context, state, (dataclasses.replace(part, log_mass=-20.0),), 0.0)
    assert np.exp(small.mixture.log_weights[len(state.mixture.log_weights) :]).sum() == pytest.approx(0.1)


def look(target, is_thorough=False, tuning=None):
    context = context_of(target, tuning)
    state = from_target(context)
    x = state.mixture.draw(context.generator, 2000)
    log_ratio = context.evaluator.values(x) - state.mixture.log_prob(x)
    before = context.evaluator.num_evaluations
    _, searched = look_for_missed(context, state, state.mixture, x, log_ratio, is_thorough)
    return searched, context.evaluator.num_evaluations - before


def test_a_search_is_thorough_where_that_is_asked_for():
    target = klover.Target(lambda x: -0.5 * jnp.sum(x**2), np.zeros(2))
    usual, num = look(target)
    thorough, more = look(target, is_thorough=True)
    assert thorough.num_starts == Tuning().missed.thorough * usual.num_starts
    assert more > 10 * num
    assert thorough.smallest_scale < usual.smallest_scale


def test_where_several_modes_are_known_a_search_is_thorough_if_that_is_cheap(monkeypatch):
    def num_starts(dim):
        searched = klover.refine(0, two_modes(dim, 8.0)).verdict.searched
        assert searched.num_modes == 2
        return searched.num_starts

    missed, dim = Tuning().missed, Tuning().rounds.tiled_dim + 1
    thorough, larger, few = (num_starts(each) for each in (dim, dim - 1, 1))
    monkeypatch.setattr(completion, "CHEAP_SIZE", 1)
    # It has a pass for each of them, and so has a usual one where a thorough one would not be cheap. In fewer
    # dimensions it is larger where a usual one would miss what is half as wide.
    assert thorough == 2 * missed.thorough * few
    assert larger == missed.fairly * few
    assert num_starts(dim) == 2 * few


def test_passes_end_with_what_the_first_of_them_finds(monkeypatch):
    efforts, part = [], Part(np.full(2, 5.0), np.eye(2), -1.0)

    def find_missed(generator, evaluator, proposal, mixture, x, log_ratio, effort, tuning):
        efforts.append(effort)
        found, searched = original(generator, evaluator, proposal, mixture, x, log_ratio, effort, tuning)
        return [part] if len(efforts) == 3 else found, searched

    original = completion.find_missed
    monkeypatch.setattr(completion, "find_missed", find_missed)
    monkeypatch.setattr(completion, "standing", lambda *_: (part, part, part, part))
    monkeypatch.setattr(completion, "_recall", lambda *_: 0.5)
    searched, _ = look(klover.Target(lambda x: -0.5 * jnp.sum(x**2), np.zeros(2)))
    usual, thorough = Effort.of(Tuning().missed), Effort.of(Tuning().missed, Tuning().missed.thorough)
    assert efforts == [usual, thorough, thorough]
    assert searched.num_starts_a_rung == 2 * thorough.num_starts
    assert searched.recall == 0.75


def test_the_verdict_and_the_summary_say_what_was_searched():
    fit = klover.refine(0, klover.Target(lambda x: -0.5 * jnp.sum(x**2), np.zeros(2)))
    assert fit.verdict.searched is not None
    assert 0 < fit.verdict.searched.smallest_scale < 0.5
    assert str(fit.verdict.searched) in str(fit.summary())


def test_search_must_be_one_of_two_words():
    target = klover.Target(lambda x: -0.5 * jnp.sum(x**2), np.zeros(2))
    with pytest.raises(ValueError, match="search must be one of"):
        klover.refine(0, target, search="hard")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_one_draw_that_smoothing_would_hide_is_followed_up(seed):
    centre = np.array([4.0, 0, 0, 0, 0])

    def log_density(x):
        narrow = -0.5 * jnp.sum((x - centre) ** 2) / 0.09 - 5 * np.log(0.3)
        return jnp.logaddexp(-0.5 * jnp.sum(x**2), narrow) - np.log(2) - 2.5 * np.log(2 * np.pi)

    fit = klover.refine(seed, klover.Target(log_density, np.zeros(5)))
    assert not fit.verdict.trusted or abs(fit.log_evidence) < 0.05


def test_a_prior_is_a_rung_of_the_search():
    numpyro = pytest.importorskip("numpyro")
    dist = pytest.importorskip("numpyro.distributions")

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(3.0, 2.0))
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(mu, scale), obs=y)

    evaluator = Evaluator(klover.from_numpyro(model, np.array([0.1, -0.4, 0.3])))
    prior = evaluator.prior_draws()
    assert prior.shape == (256, 2)
    np.testing.assert_allclose(prior[:, 0].mean(), 3.0, atol=5 * 2 / np.sqrt(256))
    np.testing.assert_allclose(np.exp(prior[:, 1]).mean(), np.sqrt(2 / np.pi), atol=5 * 0.6 / np.sqrt(256))
    assert len(Evaluator(klover.Target(lambda x: -(x**2), 0.0)).prior_draws()) == 0


def test_the_same_key_gives_the_same_search():
    target = two_modes(5, 16.0)
    one, other = (klover.refine(3, target) for _ in range(2))
    np.testing.assert_array_equal(one.draws.x, other.draws.x)
    assert one.verdict == other.verdict
    jax.block_until_ready(one.draws.log_p)
