import numpy as np
import pytest

from klover.targets.change import find_change


@pytest.mark.parametrize(
    ("dtype", "change", "is_found"),
    [("float64", 1e-5, False), ("float64", 1.0, True), ("float32", 0.05, False), ("float32", 0.5, True)],
)
def test_another_log_density_is_told_from_rounding(dtype, change, is_found):
    # Numbers of single precision are 0.004 apart at this height.
    x = np.random.default_rng(0).normal(size=(5, 2))
    log_p = np.asarray(-50_000 - x[:, 0] ** 2, dtype).astype(float)
    found = find_change(lambda points: -50_000 - points[:, 0] ** 2 + change, x, log_p)
    assert (found > 0) is is_found


def test_a_log_density_may_be_huge():
    x = np.array([[1.0], [1e30]])
    assert find_change(lambda points: -(points[:, 0] ** 2), x, -(x[:, 0] ** 2)) == 0.0


def test_draws_from_all_over_are_compared():
    x = np.arange(100.0)[:, None]
    assert find_change(lambda points: -points[:, 0] - (points[:, 0] == 99), x, -x[:, 0]) == 1.0
    assert find_change(lambda points: -points[:, 0] - (points[:, 0] == 0), x, -x[:, 0]) == 1.0


@pytest.mark.parametrize("seed", range(3))
def test_one_changed_datum_is_found_in_single_precision(seed):
    generator = np.random.default_rng(seed)
    data = generator.normal(size=1000).astype("float32")
    x = generator.normal(0.0, 0.03, size=(4000, 1))

    def log_density(data, order=slice(None)):
        return lambda points: (
            -0.5 * np.sum((data[order] - points.astype("float32")) ** 2 + np.float32(np.log(2 * np.pi)), axis=1)
        )

    log_p = log_density(data)(x).astype(float)
    # Another machine adds up in another order.
    assert find_change(log_density(data, generator.permutation(1000)), x, log_p) == 0.0
    changed = np.where(np.arange(1000) == 17, data + np.float32(0.5), data)
    assert find_change(log_density(changed), x, log_p) > 0
