"""What weights cannot see: modes that nobody is on, rounding, and parts of the target that are hidden."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from klover.refinement.judgement import judge_carried, judge_fit

import klover
from klover.importance.draws import WeightedDraws
from klover.importance.islands import ParticleDraws
from klover.refinement.defence import most_components
from klover.refinement.pool import Pool
from klover.refinement.state import Context, RoundInfo, State
from klover.targets.evaluator import Evaluator
from klover.verdict.status import Status

DIM = 3
LOG_2PI = float(np.log(2 * np.pi))


def log_normal(x, location, scale, log_mass):
    return log_mass - 0.5 * jnp.sum(((x - location) / scale) ** 2) - DIM * (jnp.log(scale) + 0.5 * LOG_2PI)


def target_of(*modes):
    """Return a sum of round Gaussians: centre in all coordinates, scale, mass."""

    def log_density(x):
        return jax.nn.logsumexp(jnp.stack([log_normal(x, c, s, jnp.log(m)) for c, s, m in modes]))

    return klover.Target(log_density, np.zeros(DIM), box=(np.full(DIM, -20.0), np.full(DIM, 20.0)))


def around(target, num=2000):
    """Return all that a refinement knows that has seen nothing but the mode at zero, and draws of it."""
    evaluator, generator = Evaluator(target), np.random.default_rng(0)
    context = Context(generator, evaluator, most_components(DIM))
    components = klover.Family("student").components(np.zeros((1, DIM)), np.eye(DIM)[None])
    mixture = jax.tree.map(np.asarray, klover.Mixture.of(components))
    state = State(mixture, mixture, Pool.empty(DIM))
    x = mixture.draw(generator, num)
    log_p, log_q = evaluator.values(x), mixture.log_prob(x)
    log_weight = log_p - log_q
    log_weight -= np.log(np.exp(log_weight).sum())
    zero = np.asarray(0)
    draws = WeightedDraws(x, log_p, log_q, log_weight, np.asarray(0.1), zero, zero, target)
    info = RoundInfo(0, 1, num, 0.9, 0.1, float(draws.log_evidence), float(draws.log_evidence_se), 0.0, num, 1.0)
    state.history = (info,)
    return context, state, mixture, draws


def test_a_missed_mode_is_found_behind_a_higher_spike():
    target = target_of((0.0, 1.0, 0.7), (12.0, 1.0, 0.3), (-12.0, 1e-3, 1e-6))
    context, state, mixture, draws = around(target)
    verdict = judge_fit(context, state, mixture, draws, None)
    assert verdict.status is Status.UNCOVERED_MODE
    assert "= 12" in verdict.reason


def test_a_spike_alone_is_no_mode():
    context, state, mixture, draws = around(target_of((0.0, 1.0, 1.0), (-12.0, 1e-3, 1e-6)))
    assert judge_fit(context, state, mixture, draws, None).trusted


def as_particles(target):
    x = np.random.default_rng(1).normal(size=(400, DIM))
    log_p = np.asarray(jax.vmap(target.log_prob)(x))
    equal, zero = np.full(400, -np.log(400)), np.asarray(0)
    island_log_evidence = np.log([0.69, 0.7, 0.71, 0.7])
    return ParticleDraws(
        x, log_p, log_p, equal, np.asarray(1.2), zero, zero, target, island_log_evidence, np.asarray(0.1)
    )


@pytest.mark.parametrize(("mass", "status"), [(0.3, Status.PARTICLES_MISS_MODE), (1e-9, Status.PARTICLES)])
def test_particles_on_one_of_two_modes_are_refused(mass, status):
    target = target_of((0.0, 1.0, 1.0 - mass), (12.0, 1.0, mass))
    context, state, mixture, _ = around(target)
    assert judge_carried(context, state, mixture, as_particles(target)).status is status


def test_single_precision_is_too_coarse_for_a_narrow_posterior_far_from_zero(getkey):
    with jax.enable_x64(False):
        target = klover.Target(lambda x: -0.5 * jnp.sum(((x - 58000.0) / 0.001) ** 2), np.full(1, 58000.0, "float32"))
        fit = klover.refine(getkey(), target)
    assert fit.verdict.status is Status.COARSE_NUMBERS, str(fit.verdict)


def test_single_precision_is_too_coarse_for_a_huge_log_density():
    with jax.enable_x64(False):
        context, state, mixture, draws = around(target_of((0.0, 1.0, 1.0)))
        assert judge_fit(context, state, mixture, draws, None).trusted
        huge = dataclasses.replace(draws, log_p=draws.log_p + 2e6)
        verdict = judge_fit(context, state, mixture, huge, None)
    assert verdict.status is Status.COARSE_NUMBERS
    assert "the log density" in verdict.reason


def test_a_posterior_that_nan_cuts_is_refused(getkey):
    target = klover.Target(lambda x: jnp.where(x[0] > 1.0, jnp.nan, -0.5 * x @ x), np.zeros(1))
    fit = klover.refine(getkey(), target)
    assert fit.verdict.status is Status.NOT_A_NUMBER, str(fit.verdict)
