"""What a search would have found: probabilities against scipy, the envelope against simulated searches."""

import numpy as np
import pytest
from scipy import stats

from klover.search import envelope
from klover.search.envelope import DISTANCES, MASS, smallest_scale
from klover.search.starts import INFLATIONS


@pytest.mark.parametrize("dim", [1, 2, 5, 12, 30])
def test_the_probability_of_a_ball_is_that_of_a_noncentral_chi_square(dim):
    for distance in (0.5, 2.0, 5.0, 9.0):
        for radius in (0.3, 1.0, 4.0, 8.0):
            expected = stats.ncx2.cdf(radius**2, dim, distance**2)
            np.testing.assert_allclose(envelope._in_ball(dim, distance, radius), expected, rtol=0.02, atol=0.01)


@pytest.mark.parametrize("dim", [2, 8, 20])
def test_the_envelope_is_where_one_start_in_a_hundred_searches_misses(dim):
    num, generator = 50, np.random.default_rng(dim)
    scale = smallest_scale(dim, num, INFLATIONS)
    found = []
    for distance in DISTANCES:
        for _ in range(100):
            x = np.concatenate([factor * generator.standard_normal((num, dim)) for factor in INFLATIONS])
            centre = distance * np.eye(dim)[0]
            other = np.log(MASS) - dim * np.log(scale) - 0.5 * np.sum((x - centre) ** 2, 1) / scale**2
            found.append(np.any(other > -0.5 * np.sum(x**2, 1)))
    # At the worst distance 1 % are missed; at the others fewer.
    assert np.mean(~np.array(found)) < 0.02
    assert smallest_scale(dim, 1, INFLATIONS) > scale > smallest_scale(dim, 10_000, INFLATIONS)


def test_more_dimensions_hide_more():
    scales = [smallest_scale(dim, 224, INFLATIONS) for dim in (1, 2, 5, 12, 30, 100)]
    assert scales == sorted(scales)
    assert 0 < scales[0] < 0.1
    assert 0.95 < scales[-1] <= 1
