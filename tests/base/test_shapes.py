"""Shapes are checked while tests run: at the first calls of a function, and again in the next test."""

import jaxtyping
import numpy as np
import pytest

from klover.importance.ratios import truncate
from klover.sampling.hamiltonian import Particles


@pytest.mark.parametrize("number", range(2))
def test_a_wrong_shape_is_found_in_every_test(number):
    with pytest.raises(jaxtyping.TypeCheckError, match="log_ratio"):
        truncate(np.zeros((2, 2)))
    for _ in range(200):
        truncate(np.zeros(2))


def test_arrays_of_a_record_must_fit_together():
    with pytest.raises(jaxtyping.TypeCheckError, match="gradient"):
        Particles(np.zeros((3, 2)), np.zeros(3), np.zeros((4, 2)))
