import dataclasses

import pytest

from klover.boosting.settings import CHOICES, CLOSED_FORM, DEFAULT_STEPS, Settings


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_is_one_of_those_that_are_listed(name):
    with pytest.raises(ValueError, match=rf"{name}.*nothing"):
        Settings(**{name: "nothing"})


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"divergence": "reverse", "fitter": "em"}, "fitter='adam'"),
        ({"divergence": "reverse", "weights": "em"}, "weights='projected'"),
        ({"divergence": "reverse", "weights": "newton"}, "weights='projected'"),
        ({"approach": "remainder", "draws": "current"}, "draws='previous'"),
        ({"update": "all"}, "fitter='em'"),
        ({"fitter": "em", "log_epsilon": -10.0}, "fitter='adam'"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_remedy(options, remedy):
    with pytest.raises(ValueError, match=remedy):
        Settings(**options)


@pytest.mark.parametrize("fitter", DEFAULT_STEPS)
def test_a_fitter_has_its_own_number_of_steps(fitter):
    assert Settings(fitter=fitter).steps == DEFAULT_STEPS[fitter]
    assert Settings(fitter=fitter, num_steps=7).steps == 7


def test_equal_settings_are_one_program():
    # Settings are static arguments of compiled functions.
    assert hash(Settings()) == hash(dataclasses.replace(Settings()))
    assert dataclasses.replace(CLOSED_FORM, max_components=4) != CLOSED_FORM
