import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from helpers import gaussian, gaussian_mixture
from klover.importance import stream
from klover.importance.draws import sample_importance
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.results.fit import Fit, load
from klover.results.streamed import Meter, StreamedDraws
from klover.verdict.judge import Verdict
from klover.verdict.status import Status
from klover.warps.warp import fit_warp
from klover.warps.warped import WarpedMixture

FUNCTIONS = {"rare": lambda x: x[0] + x[1] > 10.0, "both": lambda x: {"square": x**2, "one": 1.0}}


def fit_of(target, mixture, status=Status.TRUSTED):
    verdict = Verdict(status is Status.TRUSTED, "reason", "remedy", status)
    return Fit(target, mixture, sample_importance(0, target, mixture, 100), {}, verdict)


@pytest.fixture(scope="module")
def known():
    return gaussian_mixture()


@pytest.fixture(scope="module")
def fit(known):
    location = np.array([[-3.0, 0.0], [3.0, 1.0]])
    mixture = Mixture.of(Family("student", df=5.0).components(location, np.stack([np.eye(2)] * 2)))
    return fit_of(known.target, mixture)


@pytest.fixture(scope="module")
def streamed(fit):
    return fit.stream(1, 100_000, FUNCTIONS)


def test_answers_agree_with_closed_forms(known, streamed):
    assert streamed.num_draws == 100_000
    assert abs(streamed.log_evidence - known.log_evidence) < 4 * streamed.log_evidence_se < 0.01
    # x₀ + x₁ of a component is Normal, with variance 2 · 0.8².
    probability = np.array([0.3, 0.7]) @ scipy.stats.norm.sf(10.0, [-3.0, 4.0], 0.8 * 2**0.5)
    assert probability < 1e-6
    value, error = streamed.expectation("rare")
    assert abs(value - probability) < 4 * error < probability
    for place, name in enumerate(known.target.names):
        mean, error = streamed.mean[name]
        assert abs(mean - known.mean[place]) < 4 * error
        assert abs(streamed.sd[name] - known.covariance[place, place] ** 0.5) < 0.02
    value, error = streamed.expectation("both")
    assert np.all(np.abs(value["square"] - known.mean**2 - np.diag(known.covariance)) < 4 * error["square"])
    assert (value["one"], error["one"]) == pytest.approx((1, 0))
    assert streamed.verdict.trusted
    assert repr(streamed).startswith("StreamedDraws(num_draws=100000, log_evidence=-0.4")


def test_merging_in_any_order_gives_the_same_to_the_last_digit(known, fit, streamed):
    parts = [streamed, *(fit.stream(key, num, FUNCTIONS) for key, num in ((2, 50_000), (3, 60_000)))]
    found = [first.merge(second).merge(third) for first, second, third in itertools.permutations(parts)]
    found += [parts[0].merge(*parts[1:]), parts[2].merge(parts[1].merge(parts[0]))]
    for each in found:
        assert each.num_draws == 210_000
        assert each.pareto_k == found[0].pareto_k
        assert (each.log_evidence, each.log_evidence_se, each.ess, each.mean, each.sd) == (
            found[0].log_evidence, found[0].log_evidence_se, found[0].ess, found[0].mean, found[0].sd
        )  # fmt: skip
    assert abs(found[0].log_evidence - known.log_evidence) < 4 * found[0].log_evidence_se < 4 * streamed.log_evidence_se


def test_what_does_not_belong_together_is_not_merged(fit, streamed):
    with pytest.raises(ValueError, match="different keys"):
        streamed.merge(streamed)
    with pytest.raises(ValueError, match="one fit and of the same functions"):
        streamed.merge(fit.stream(2, 100))
    with pytest.raises(TypeError, match="merge takes streamed draws, got 3"):
        StreamedDraws.merge.__wrapped__(streamed, 3)


def test_behind_a_warp():
    known = gaussian(2)
    x = np.random.default_rng(0).multivariate_normal(known.mean, known.covariance, 1000)
    warp = fit_warp("correlated", x, np.full(1000, 1e-3))
    base = Mixture.of(Family("student", df=5.0).components(np.zeros((1, 2)), 1.2 * np.eye(2)[None]))
    draws = fit_of(known.target, WarpedMixture(base, warp)).stream(0, 20_000)
    assert abs(draws.log_evidence - known.log_evidence) < 4 * draws.log_evidence_se < 0.1
    assert draws.verdict.trusted


def test_verdicts_are_those_of_the_weights_and_of_what_weights_do_not_show(known, fit):
    narrow = Mixture.of(Family("normal").components(known.mean[None], 0.5 * np.eye(2)[None]))
    assert fit_of(known.target, narrow).stream(0, 5000).verdict.status is Status.HEAVY_WEIGHTS
    assert fit.stream(0, 100).verdict.status is Status.FEW_EFFECTIVE_DRAWS
    # More draws settle that there were few of them, and not that a mode is missing.
    assert fit_of(known.target, fit.mixture, Status.FEW_EFFECTIVE_DRAWS).stream(0, 5000).verdict.trusted
    missed = fit_of(known.target, fit.mixture, Status.UNCOVERED_MODE).stream(0, 5000)
    assert missed.verdict.status is Status.UNCOVERED_MODE


def test_an_interruption_keeps_what_is_done(fit, monkeypatch):
    monkeypatch.setattr(stream, "CHUNK", 512)
    monkeypatch.setattr(stream, "CHUNKS_PER_TASK", 1)
    monkeypatch.setattr(stream, "TASKS_PER_WORKER", 1)
    monkeypatch.setattr(stream, "num_side_by_side", lambda: 1)
    most = 1024

    def interrupt(self, num_done):
        if num_done > most:
            raise KeyboardInterrupt

    monkeypatch.setattr(Meter, "tell", interrupt)
    with pytest.warns(UserWarning, match="interrupted after 1,024 of 5,000 draws"):
        draws = fit.stream(0, 5000)
    most = np.inf
    assert draws.mean == fit.stream(0, 1024).mean
    most = 0
    with pytest.raises(KeyboardInterrupt):
        fit.stream(0, 5000)


def test_progress_is_told(fit, monkeypatch, capsys):
    monkeypatch.setattr("klover.results.streamed.SECONDS", 0.0)
    fit.stream(0, 600, progress=True)
    assert capsys.readouterr().err.startswith("600 of 600 draws  ")
    fit.stream(0, 600)
    assert capsys.readouterr().err == ""


def test_bad_input(fit, streamed, tmp_path):
    with pytest.raises(TypeError, match="pool must be"):
        fit.stream(0, 100, pool="two")
    with pytest.raises(ValueError, match="num_draws must be a whole number of at least 2, got 1"):
        fit.stream(0, 1)
    with pytest.raises(TypeError, match=r"functions\['a'\] must return numbers"):
        fit.stream(0, 100, {"a": lambda x: "far"})
    with pytest.raises(ValueError, match=r"functions\['a'\] must return a number"):
        fit.stream(0, 100, {"a": lambda x: None})
    with pytest.raises(ValueError, match="name must be one of 'rare', 'both', got 'x'"):
        streamed.expectation("x")
    fit.save(tmp_path / "fit.klover")
    with pytest.raises(ValueError, match="loaded without its target"):
        load(tmp_path / "fit.klover").stream(0, 100)


def test_invalid_values_are_counted(known, fit):
    from klover import Target

    target = Target(lambda x: jnp.where(x[0] < -4, jnp.nan, jnp.where(x[1] > 2, jnp.inf, -jnp.sum(x**2))), np.zeros(2))
    draws = fit_of(target, fit.mixture).stream(0, 3000)
    again = sample_importance(jax.random.key(5), target, fit.mixture, 3000)
    for number, other in ((draws.num_nan, again.num_nan), (draws.num_positive_infinite, again.num_positive_infinite)):
        assert abs(number - int(other)) < 5 * (2 * int(other)) ** 0.5
    assert draws.verdict.status is Status.NOT_A_NUMBER
