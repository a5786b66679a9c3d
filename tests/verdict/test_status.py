import re
import string

import pytest

from klover.verdict.status import Status

EACH = pytest.mark.parametrize("status", Status, ids=lambda status: status.name)
FIGURES = {"pareto_k", "ess", "num_draws", "num_nan", "num_infinite", "limit", "minimum"}
"""What any verdict knows."""
OWN = {
    Status.UNCOVERED_MODE: {"mode"},
    Status.PARTICLES_MISS_MODE: {"mode"},
    Status.DRIFTING_PARTICLES: {"drift"},
    Status.UNSTABLE_EVIDENCE: {"log_evidence", "difference", "ratio"},
    Status.IMPROPER: {"width", "name"},
    Status.UNFINISHED: {"cause"},
    Status.COARSE_NUMBERS: {"what", "precision"},
    Status.TARGET_RAISED: {"num_raised"},
    Status.PARTICLES: {"num_islands", "spread", "drift", "agreement"},
    Status.DOMINATED: {"top", "share", "before"},
    Status.POOR_COVER: {"ess_share"},
    Status.NOISY: {"difference"},
    Status.HIDDEN_MODES: {"recall"},
    Status.UNEVEN_MODES: {"num", "ratio", "scale"},
    Status.UNCONVERGED_PARTICLES: {"num_islands", "spread", "drift", "agreement"},
}
"""What the reason and the remedy of a status know beside that."""
FACTS = FIGURES | {"log_evidence", "log_evidence_se", "ess_share", "wanted", "needed", "four_times"}
FACTS |= {"components", "dimensions", "spent", "num_islands", "spread", "drift", "agreement"}
FACTS |= {"largest_spread", "largest_drift", "least_agreement"}
"""What an explanation knows of a fit."""


def fields(*texts: str) -> set[str]:
    return {name for text in texts for _, name, _, _ in string.Formatter().parse(text) if name}


@EACH
def test_every_status_has_four_texts(status):
    assert len(status.value) == 4
    assert status.reason
    assert status.meaning
    assert status.advice
    assert all(isinstance(line, str) and line for line in status.advice)
    assert (status.remedy == "") == (status in (Status.TRUSTED, Status.PARTICLES))


@EACH
def test_texts_are_sentences(status):
    for text in (status.reason, status.remedy, status.meaning, *status.advice):
        assert text == text.strip()
        assert "  " not in text
        assert not text or text.endswith(".")


@EACH
def test_a_verdict_knows_what_its_texts_name(status):
    assert fields(status.reason, status.remedy) <= FIGURES | OWN.get(status, set())


@EACH
def test_no_limit_is_retyped_in_words(status):
    # Every number is filled in; the rest of the digits belong to names.
    texts = " ".join((status.reason, status.remedy, status.meaning, *status.advice))
    texts = re.sub(r"{[^}]*}|float64|jax_enable_x64|log1p", "", texts)
    assert re.findall(r"\d+", texts) == []


@EACH
def test_an_explanation_knows_what_its_texts_name(status):
    assert fields(status.meaning, *status.advice) <= FACTS


def test_no_two_statuses_are_one():
    # Members of an enumeration with equal values would be one member with two names.
    assert len({status.reason for status in Status}) == len(list(Status.__members__))
