"""Comparisons: differences of log evidences, their errors, and what must not be compared."""

import dataclasses

import jax
import numpy as np
import pytest
from scipy import stats

import klover
from helpers import gaussian, judged, linear_regression
from klover.importance import psis
from klover.results.comparison import stacking_weights
from klover.results.datatree import to_arviz
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


def test_probabilities_agree_with_closed_forms(fits, known):
    prior = {"three": 1.0, "two": 3.0, "<b>": 4.0}
    comparison = klover.compare(fits, prior=prior)
    joint = np.array([np.exp(1.7), 3 * np.exp(0.4), 0.0])
    assert np.all(np.abs(comparison.probability - joint / joint.sum()) <= 5 * comparison.probability_se)
    assert 0 < comparison.probability_se[0] < 0.02
    # Of two models the logit of the probability is the difference of the log evidences.
    two = klover.compare({name: fits[name] for name in ("three", "two")})
    expected = two.probability[0] * two.probability[1] * two.difference_se[1]
    np.testing.assert_allclose(two.probability_se, [expected, expected])
    with pytest.raises(ValueError, match="prior must be a dict by the names of the fits"):
        klover.compare(fits, prior={"three": 1.0})
    with pytest.raises(ValueError, match=r"prior\['two'\] must be"):
        klover.compare(fits, prior=prior | {"two": 0.0})


def test_overlapping_evidences_are_said(fits, known):
    assert klover.compare(fits).notes == ()
    comparison = klover.compare({"a": fits["three"], "b": make_fit(known["three"], seed=7)})
    assert "The evidences of" in str(comparison)
    assert "overlap within their errors" in comparison._repr_html_()


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # arviz 0.23 and pandas 3
def test_stacking_agrees_with_arviz(fits):
    az = pytest.importorskip("arviz")
    xarray = pytest.importorskip("xarray")
    generator = np.random.default_rng(0)
    data = generator.normal(size=40)
    loo = {}
    for name, centre in {"three": -0.6, "two": 0.9, "<b>": 4.0}.items():
        mean = centre + 0.1 * generator.normal(size=(2, 250, 1))
        groups = {
            "posterior": {"mean": (("chain", "draw"), mean[..., 0])},
            "log_likelihood": {"y": (("chain", "draw", "row"), stats.norm.logpdf(data, mean))},
        }
        tree = xarray.DataTree.from_dict({group: xarray.Dataset(values) for group, values in groups.items()})
        loo[name] = az.loo(to_arviz(tree), pointwise=True)
    table = az.compare(loo, method="stacking")
    comparison = klover.compare(fits, loo=loo)
    np.testing.assert_allclose(comparison.stacking, table["weight"][list(comparison.names)], atol=0.01)
    assert str(comparison).splitlines()[0].endswith("stacking")


@pytest.mark.parametrize(
    ("loo", "words"),
    [
        ({"a": np.zeros(3)}, "two LOO results or more"),
        ({"a": np.zeros(3), "b": np.zeros(4)}, "same observations"),
        ({"a": np.zeros(3), "b": [0.0, np.nan, 1.0]}, "finite number for each observation"),
    ],
)
def test_what_cannot_be_stacked(loo, words):
    with pytest.raises(ValueError, match=words):
        stacking_weights(loo)


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
