import dataclasses
import string

import jax
import numpy as np
import pytest

import klover
from helpers import gaussian
from klover.importance.islands import ParticleDraws
from klover.results.explanation import explain
from klover.targets.model_info import ModelInfo
from klover.tuning import Tuning
from klover.verdict.judge import Verdict
from klover.verdict.status import Status


@pytest.fixture(scope="module")
def trusted():
    return klover.refine(jax.random.key(0), gaussian(3).target, num_draws=2000)


def ended(fit: klover.Fit, status: Status) -> klover.Fit:
    """Return the fit as if it had ended otherwise."""
    fields = {name: 2.5 for _, name, _, _ in string.Formatter().parse(status.reason + status.remedy) if name}
    fields |= dict.fromkeys({"name", "mode", "cause", "what", "precision"} & set(fields), "here")
    is_trusted = status in (Status.TRUSTED, Status.PARTICLES)
    verdict = Verdict(is_trusted, status.reason.format(**fields), status.remedy.format(**fields), status)
    draws = fit.draws
    if "PARTICLES" in status.name and status is not Status.DRIFTING_PARTICLES:
        shared = {field.name: getattr(draws, field.name) for field in dataclasses.fields(draws)}
        shared |= {"log_weight": np.full(draws.num_draws, -np.log(draws.num_draws)), "pareto_k": np.asarray(1.4)}
        draws = ParticleDraws(**shared, island_log_evidence=np.array([0.1, 0.2, 0.3, 0.4]), drift=np.asarray(0.7))
    return dataclasses.replace(fit, verdict=verdict, draws=draws)


@pytest.mark.parametrize("status", Status)
def test_every_ending_is_explained_with_the_fits_numbers(trusted, status):
    fit = ended(trusted, status)
    words = explain(fit)
    text = str(words)
    assert ("Trusted: " if fit.verdict.trusted else "Refused: ") + fit.verdict.reason == words.verdict
    assert len(words.meaning) > 140
    assert words.advice
    assert "{" not in text
    assert "nan" not in text  # a number that is missing; the texts write NaN
    assert str(fit.draws.num_draws) in text
    assert max(map(len, text.splitlines())) <= 100
    assert ("not to be reported" in text) != fit.verdict.trusted


def test_limits_come_from_the_tuning(trusted):
    tuning = Tuning()
    meaning = explain(ended(trusted, Status.UNCONVERGED_PARTICLES)).meaning
    assert f"0.13 (below {tuning.islands.largest_spread:.2g} is wanted)" in meaning
    assert f"0.7 standard errors (below {tuning.answer.largest_drift:.2g} is wanted)" in meaning


def test_draws_without_support_have_no_numbers(trusted):
    nothing = np.full(trusted.draws.num_draws, -np.inf)
    draws = dataclasses.replace(trusted.draws, log_p=nothing, log_weight=nothing)
    words = explain(ended(dataclasses.replace(trusted, draws=draws), Status.NO_SUPPORT))
    assert words.numbers == ("2000 draws, none of them in the support.",)


def test_improper_priors_are_named():
    target = klover.Target(lambda x: -0.5 * x["a"] ** 2, {"a": 0.0}, model_info=ModelInfo("mine", improper=("a",)))
    fit = klover.refine(jax.random.key(0), target, num_draws=1000, budget=5000)
    assert "The prior of a is improper, so the evidence means nothing." in explain(fit).numbers


def test_a_loaded_fit_is_explained_alike(trusted, tmp_path):
    trusted.save(tmp_path / "fit.klover")
    assert explain(klover.load(tmp_path / "fit.klover")) == explain(trusted)
