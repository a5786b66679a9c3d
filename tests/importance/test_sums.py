import jax
import jax.numpy as jnp
import numpy as np
import pytest

from klover.importance import ratios
from klover.importance.control_variates import control
from klover.importance.stream import _relate
from klover.importance.sums import (
    combine,
    effective_sample_size,
    log_evidence,
    mean_and_error,
    stack,
    standard_deviation,
    sums_of,
)
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture

NUM = 3000


@pytest.fixture(scope="module")
def weighed():
    """Return a mixture with a slot that is not used, draws of it, log p, log q, and values far from zero."""
    location = np.array([[-1.0, 0.0], [1.0, 0.5]])
    components = Family("normal").components(location, np.stack([np.eye(2), 2 * np.eye(2)]))
    mixture = jax.tree.map(np.asarray, Mixture.of(components).with_capacity(3))
    x = mixture.draw(np.random.default_rng(0), NUM)
    log_p = np.where(x[:, 0] > 3, -np.inf, -0.5 * np.sum((x - 0.3) ** 2, axis=1)) - 700
    values = np.column_stack([1e6 + x[:, 0], np.where(x[:, 0] > 3, np.nan, x[:, 1])])
    return mixture, x, log_p, mixture.log_prob(x), values


def of_rows(weighed, rows, xp=np):
    mixture, x, log_p, log_q, values = weighed
    return sums_of(
        xp.asarray((log_p - log_q)[rows]), xp.asarray(_relate(mixture, x[rows])[1]), xp.asarray(values[rows]),
        len(x[rows]), 2, 1,
    )  # fmt: skip


@pytest.mark.parametrize("xp", [np, jnp])
@pytest.mark.parametrize("num_parts", [1, 7])
def test_sums_of_parts_say_what_all_draws_say(weighed, xp, num_parts):
    mixture, x, log_p, log_q, values = weighed
    parts = np.array_split(np.arange(NUM), num_parts)
    total = combine(stack([of_rows(weighed, rows, xp) for rows in parts]))
    log_ratio = log_p - log_q
    counts = total.num_draws, total.num_finite, total.num_nan, total.num_infinite
    assert counts == (NUM, np.sum(log_ratio > -np.inf), 2 * num_parts, num_parts)
    expected = ratios.log_evidence(log_ratio, control(mixture, x, log_q, log_p))
    np.testing.assert_allclose(log_evidence(total, mixture.weights), expected, rtol=1e-10)
    np.testing.assert_allclose(effective_sample_size(total), ratios.effective_sample_size(log_ratio), rtol=1e-12)
    weight = np.exp(log_ratio - log_ratio.max())
    centred = values - [1e6, 0.0]  # what is left of the digits
    inside = np.where(weight[:, None] > 0, centred, 0.0)
    mean = weight @ inside / weight.sum()
    error = np.sqrt(weight**2 @ (inside - mean) ** 2) / weight.sum()
    found = mean_and_error(total)
    np.testing.assert_allclose(found[0] - [1e6, 0.0], mean, rtol=1e-8)
    np.testing.assert_allclose(found[1], error, rtol=1e-8)
    sd = np.sqrt(weight @ (inside - mean) ** 2 / weight.sum())
    np.testing.assert_allclose(standard_deviation(total), sd, rtol=1e-8)


def test_parts_without_support_add_nothing(weighed):
    mixture, x, log_p, log_q, values = weighed
    nowhere = sums_of(np.full(NUM, -np.inf), _relate(mixture, x)[1], values, NUM, 0, 0)
    assert effective_sample_size(nowhere) == 0
    assert log_evidence(nowhere, mixture.weights) == (-np.inf, np.inf)
    found = combine(stack([nowhere, of_rows(weighed, np.arange(NUM))]))
    alone = of_rows(weighed, np.arange(NUM))
    np.testing.assert_allclose(mean_and_error(found), mean_and_error(alone), rtol=1e-12)
    assert np.isnan(mean_and_error(combine(stack([nowhere, nowhere])))[0]).all()
