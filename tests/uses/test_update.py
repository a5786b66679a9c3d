import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import klover
from klover import Target

DIM, PRIOR = 3, 1 / 9


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(100, DIM))
    return inputs, inputs @ np.array([1.0, -1.0, 0.5]) + rng.normal(size=100)


@pytest.fixture(scope="module")
def first(data):
    return klover.refine(0, regression(data, 20))


def regression(data, num):
    inputs, outcomes = (each[:num] for each in data)
    return Target(
        lambda x: -0.5 * (jnp.sum((outcomes - inputs @ x) ** 2) + PRIOR * jnp.sum(x**2)),
        np.zeros(DIM),
        names=("a", "b", "c"),
    )


def truth(data, num):
    inputs, outcomes = (each[:num] for each in data)
    precision = inputs.T @ inputs + PRIOR * np.eye(DIM)
    mean = np.linalg.solve(precision, inputs.T @ outcomes)
    top = -0.5 * (outcomes @ outcomes - mean @ precision @ mean)
    return mean, top + 0.5 * (DIM * np.log(2 * np.pi) - np.linalg.slogdet(precision)[1])


def modes(*centres):
    places = np.array(centres)
    return Target(lambda x: jax.nn.logsumexp(-0.5 * jnp.sum((x - places) ** 2, axis=1)), np.zeros(2))


def test_data_that_arrive_in_batches_cost_a_part_of_fits_from_nothing_and_give_their_answers(data, first):
    fit = first
    for num in (40, 60, 80, 100):
        fit = fit.update(regression(data, num))
        mean, log_evidence = truth(data, num)
        columns = fit.summary().columns
        assert fit.verdict.trusted
        assert fit.ess >= 1000
        assert fit.num_evaluations < first.num_evaluations / 3
        assert abs(fit.log_evidence - log_evidence) < 4 * fit.log_evidence_se
        assert np.all(np.abs(columns["mean"] - mean) < 4 * columns["mcse"])
    assert fit.settings["function"] == "update"
    # As many starts as a fit from nothing looks from.
    assert fit.verdict.searched.num_starts == first.verdict.searched.num_starts


def test_a_goal_spares_a_part_of_the_search_too(data, first):
    fit = first.update(regression(data, 40), min_ess=400)
    assert fit.verdict.trusted
    assert abs(fit.log_evidence - truth(data, 40)[1]) < 4 * fit.log_evidence_se
    assert fit.num_evaluations < first.num_evaluations / 8


def test_a_mode_that_new_data_bring_is_found():
    old = klover.refine(0, modes((0.0, 0.0)), min_ess=400)
    new = old.update(modes((0.0, 0.0), (7.0, 0.0)))
    assert new.verdict.trusted
    assert abs(new.log_evidence - np.log(4 * np.pi)) < 4 * new.log_evidence_se
    # It was none of the old draws that saw it.
    assert np.min(np.linalg.norm(np.asarray(old.draws.x) - [7.0, 0.0], axis=1)) > 1
    assert new.history["log_evidence"][0] < np.log(4 * np.pi) - 0.5


def test_where_the_old_draws_have_no_weight_the_work_begins_with_a_search():
    old = klover.refine(0, modes((0.0, 0.0)), min_ess=400)
    new = old.update(modes((40.0, -30.0)))
    assert new.verdict.trusted
    assert abs(new.log_evidence - np.log(2 * np.pi)) < 4 * new.log_evidence_se


def test_a_fit_that_was_loaded_without_its_target_can_be_updated(data, first, tmp_path):
    first.save(tmp_path / "fit")
    fit = klover.load(tmp_path / "fit").update(regression(data, 40))
    assert abs(fit.log_evidence - truth(data, 40)[1]) < 4 * fit.log_evidence_se


def test_a_refused_fit_is_a_start_with_a_warning(data, first):
    refused = dataclasses.replace(first, verdict=dataclasses.replace(first.verdict, trusted=False))
    with pytest.warns(UserWarning, match="the fit is refused"):
        fit = refused.update(regression(data, 40), min_ess=200)
    assert fit.verdict.trusted


def test_targets_of_other_parameters_are_refused(first):
    with pytest.raises(ValueError, match=r"target must have the parameters of the fit, 3 .* got 2"):
        first.update(modes((0.0, 0.0)))
    with pytest.raises(ValueError, match="but 'c' is 'd'"):
        first.update(Target(lambda x: -jnp.sum(x**2), np.zeros(DIM), names=("a", "b", "d")))
