import numpy as np
import pytest

from klover.targets.bounds import reach

INFINITY = np.inf


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_between_bounds_the_last_digit_is_lost_where_the_rest_is_as_small_as_a_spacing(dtype):
    left, right = reach(np.array([0.0, 1.0, -2.0, 0.0]), np.array([1.0, 2.0, 0.0, 10.0]), dtype)
    tiny, eps = (np.log(float(getattr(np.finfo(dtype), name))) for name in ("tiny", "eps"))
    # Numbers are dense around 0; elsewhere they are a spacing apart.
    spacing = np.log(float(np.spacing(dtype(10.0))))
    np.testing.assert_allclose(left, [tiny, eps, eps, tiny - np.log(10)], rtol=1e-12)
    np.testing.assert_allclose(right, [-eps, -eps - np.log(2), np.log(2) - tiny, np.log(10) - spacing], rtol=1e-12)


def test_beyond_one_bound_there_is_one_end():
    left, right = reach(
        np.array([0.0, 5.0, -INFINITY, -INFINITY]), np.array([INFINITY, INFINITY, 3.0, INFINITY]), float
    )
    np.testing.assert_allclose(np.exp(left), [np.finfo(float).tiny, np.spacing(5.0), np.spacing(3.0), 0.0], rtol=1e-9)
    np.testing.assert_array_equal(right, INFINITY)


def test_a_parameter_rounds_to_its_neighbours_there_and_not_before():
    (left,), (right,) = reach(np.array([1.0]), np.array([3.0]), float)

    def natural(u):
        return 1.0 + 2.0 / (1.0 + np.exp(-u)) if u < 0 else 3.0 - 2.0 / (1.0 + np.exp(u))

    for end, bound, sign in ((left, 1.0, -1), (right, 3.0, 1)):
        assert abs(natural(end + sign * 0.01) - bound) <= np.spacing(bound)
        assert abs(natural(end - sign * 2.0) - bound) > np.spacing(bound)
