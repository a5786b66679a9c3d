import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klover.importance.ratios import effective_sample_size, stride, temper

BOTH = pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])


def test_tempering_leaves_the_wanted_number_of_draws():
    log_ratio = np.append(20 * np.random.default_rng(0).standard_normal(1000), -np.inf)
    log_weight = temper(log_ratio, 100)
    assert effective_sample_size(log_weight) == pytest.approx(100, rel=1e-3)
    assert np.exp(log_weight).sum() == pytest.approx(1.0)
    assert log_weight[-1] == -np.inf
    # The weights are a power of the ratios: differences of logarithms keep their proportions.
    power = np.diff(log_weight[:-1]) / np.diff(log_ratio[:-1])
    np.testing.assert_allclose(power, power[0])
    assert 0 < power[0] < 1


def test_ratios_with_enough_effective_draws_stay_as_they_are():
    np.testing.assert_allclose(temper(np.zeros(10), 5), -np.log(10))


def test_no_more_than_half_of_the_draws_is_asked_for():
    log_ratio = np.append(np.linspace(0.0, 50.0, 20), np.full(5, -np.inf))
    assert effective_sample_size(temper(log_ratio, 1000)) == pytest.approx(10, rel=1e-3)


def test_draws_outside_the_support_stay_outside():
    np.testing.assert_array_equal(temper(np.full(3, -np.inf), 2), -np.inf)


@given(scale=st.floats(0.01, 1e4), seed=st.integers(0, 2**32 - 1))
def test_a_stride_leaves_so_many_draws_effective(scale, seed):
    change = scale * np.random.default_rng(seed).normal(size=100)
    part = stride(change, 50.0)
    assert 0 < part <= 1
    effective = effective_sample_size(part * change)
    assert effective >= 50 - 1e-6
    assert part == 1 or effective == pytest.approx(50, abs=1e-3)


@BOTH
@pytest.mark.parametrize("fewest", [100.0, 180.0])
def test_a_stride_leaves_so_many_draws_of_every_row_effective(xp, fewest):
    change = xp.asarray(np.random.default_rng(0).normal(size=(3, 200)) * 10)
    part = stride(change, fewest)
    assert effective_sample_size(part * change).min() == pytest.approx(fewest, abs=0.2)
    assert stride(0.01 * change, fewest) == 1.0
