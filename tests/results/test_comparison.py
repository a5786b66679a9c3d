"""Comparisons: differences of log evidences, their errors, and what must not be compared."""

import dataclasses

import jax
import numpy as np
import pytest

import klover
from helpers import gaussian, judged, linear_regression
from klover.importance import psis
from klover.targets.model_info import ModelInfo
from klover.verdict.judge import Verdict
from klover.verdict.status import Status


def make_fit(known, num_draws=2000, seed=0):
    components = klover.Family("student", df=5.0).components(known.mean[None], 1.2 * known.covariance[None])
    mixture, target = klover.Mixture.of(components), known.target
    x = mixture.draw(np.random.default_rng(seed), num_draws)
    log_p, log_q = np.asarray(jax.jit(klover.Target.log_prob)(target, x)), mixture.log_prob(x)
    log_weight, pareto_k = psis.smooth(log_p - log_q)
    none = np.asarray(0)
    draws = klover.WeightedDraws(x, log_p, log_q, log_weight, pareto_k, none, none, target)
    return klover.Fit(target, mixture, draws, {}, judged(draws, mixture))


@pytest.fixture(scope="module")
def known():
    return {"three": gaussian(3, log_evidence=1.7), "two": gaussian(2, log_evidence=0.4), "<b>": gaussian(1, -900.0)}


@pytest.fixture(scope="module")
def fits(known):
    return {name: make_fit(each, seed=seed) for seed, (name, each) in enumerate(known.items())}


def test_differences_agree_with_closed_forms(fits, known):
    comparison = klover.compare(dict(reversed(fits.items())))
    assert comparison.names == ("three", "two", "<b>")
    truth = np.array([known[name].log_evidence for name in comparison.names])
    error = np.array([fits[name].log_evidence_se for name in comparison.names])
    np.testing.assert_array_equal(comparison.log_evidence_se, error)
    np.testing.assert_allclose(comparison.difference_se, [0.0, *np.hypot(error[1:], error[0])])
    assert comparison.difference[0] == 0
    assert np.all(np.abs(comparison.difference - (truth - truth[0]))[1:] < 5 * comparison.difference_se[1:])
    assert np.all(np.abs(comparison.bayes_factor - np.exp(truth - 1.7))[1:2] < 5 * comparison.bayes_factor_se[1:2])
    np.testing.assert_array_equal(comparison.bayes_factor[[0, 2]], [1.0, 0.0])


def test_tables(fits):
    comparison = klover.compare(fits)
    lines = str(comparison).split("\n")
    assert [line.split()[0] for line in lines] == ["model", "three", "two", "<b>"]
    assert len({len(line) for line in lines}) == 1
    assert lines[2].split()[1] == f"{fits['two'].log_evidence:.3f}"
    page = comparison._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert page.count("<tr>") == 4


def test_errors_of_differences_are_calibrated():
    first, second = gaussian(2, log_evidence=0.3), gaussian(3, log_evidence=-0.5)
    scores = []
    for seed in range(30):
        comparison = klover.compare({"a": make_fit(first, 500, seed), "b": make_fit(second, 500, 100 + seed)})
        scores.append((comparison.difference[1] + 0.8) / comparison.difference_se[1])
    # The mean square of 30 standard normal numbers has a standard deviation of 0.26.
    assert 0.3 < np.mean(np.square(scores)) < 2.3


def test_refused_fits_are_not_compared(fits):
    verdict = Verdict(False, "the target has a mode, at 3.", "Look there.", Status.UNCOVERED_MODE)
    doubtful = dataclasses.replace(fits["two"], verdict=verdict)
    with pytest.raises(ValueError, match=r"fits\['b'\] is refused.*has a mode, at 3.*Or leave this model out"):
        klover.compare({"a": fits["three"], "b": doubtful})


def test_improper_priors_are_not_compared(fits):
    known = linear_regression()
    improper = klover.Target(
        known.target.log_prob, np.zeros(3), model_info=ModelInfo("language", improper=("intercept", "slope"))
    )
    fit = make_fit(known._replace(target=improper))
    with pytest.raises(ValueError, match=r"fits\['b'\] has an improper prior of intercept, slope"):
        klover.compare({"a": fits["three"], "b": fit})


def test_one_fit_is_no_comparison(fits):
    with pytest.raises(ValueError, match="two fits or more, got 1"):
        klover.compare({"a": fits["three"]})
