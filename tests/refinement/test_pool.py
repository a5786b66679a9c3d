import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from helpers import correlated_covariance, gaussian
from klover.importance.ratios import effective_sample_size
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.refinement.pool import Pool

DIM = 2
KNOWN = gaussian(DIM)
SEEDS = st.integers(0, 2**32 - 1)
few_examples = settings(max_examples=20)


def proposal(seed: int, scale: float = 2.0) -> Mixture:
    rng = np.random.default_rng(seed)
    covariance = scale**2 * np.stack([correlated_covariance(DIM, seed), np.eye(DIM)])
    return Mixture(Family("student").components(rng.normal(size=(2, DIM)), covariance), np.log([0.7, 0.3]))


def log_target(x: np.ndarray) -> np.ndarray:
    delta = x - KNOWN.mean
    volume = np.linalg.slogdet(2 * np.pi * KNOWN.covariance)[1]
    squared = np.einsum("ni,ij,nj->n", delta, np.linalg.inv(KNOWN.covariance), delta)
    return -0.5 * (squared + volume) + KNOWN.log_evidence


def make_pool(sizes=(50, 80, 30), seed: int = 0, scale: float = 2.0) -> Pool:
    generator, pool = np.random.default_rng(seed), Pool.empty(DIM)
    for which, size in enumerate(sizes):
        x = proposal(which, scale).draw(generator, size)
        pool = pool.add(proposal(which, scale), x, log_target(x))
    return pool


def test_log_target_is_that_of_the_helpers():
    x = np.random.default_rng(0).normal(size=(5, DIM))
    np.testing.assert_allclose(log_target(x), KNOWN.target.log_prob(x), rtol=1e-12)


def test_an_empty_pool_has_a_dimension_and_nothing_else():
    pool = Pool.empty(3)
    assert (pool.x.shape, pool.log_p.shape, pool.log_q.shape) == ((0, 3), (0,), (0, 0))
    assert (pool.proposals, pool.sizes) == ((), ())


@pytest.mark.parametrize("sizes", [(40,), (50, 80, 30), (1, 600, 3, 20)])
def test_every_proposal_is_evaluated_at_every_draw(sizes):
    pool = make_pool(sizes)
    assert pool.sizes == sizes
    assert pool.x.shape == (sum(sizes), DIM)
    np.testing.assert_allclose(pool.log_p, log_target(pool.x), rtol=1e-12)
    assert pool.log_q.shape == (len(sizes), sum(sizes))
    for row, mixture in zip(pool.log_q, pool.proposals, strict=True):
        np.testing.assert_allclose(row, mixture.log_prob(pool.x), rtol=1e-12)


@pytest.mark.parametrize("sizes", [(40,), (50, 80, 30), (1, 200, 3)])
def test_ratios_have_the_deterministic_mixture_below(sizes):
    pool = make_pool(sizes)
    density = sum(
        size / sum(sizes) * np.exp(mixture.log_prob(pool.x))
        for size, mixture in zip(sizes, pool.proposals, strict=True)
    )
    np.testing.assert_allclose(pool.log_ratio, log_target(pool.x) - np.log(density), rtol=1e-10)
    expected = special.logsumexp(pool.log_ratio) - np.log(sum(sizes))
    assert pool.log_evidence == pytest.approx(expected, rel=1e-12)


@given(cuts=st.lists(st.integers(0, 120), max_size=4), seed=SEEDS)
@few_examples
def test_draws_of_one_proposal_may_come_in_any_parts(cuts, seed):
    x = proposal(0).draw(np.random.default_rng(seed), 120)
    whole = Pool.empty(DIM).add(proposal(0), x, log_target(x))
    parts, ends = Pool.empty(DIM), sorted({0, 120, *cuts})
    for start, end in zip(ends[:-1], ends[1:], strict=True):
        parts = parts.add(proposal(0), x[start:end], log_target(x[start:end]))
    np.testing.assert_allclose(parts.log_ratio, whole.log_ratio, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(parts.sample().weight, whole.sample().weight, rtol=1e-10)


@given(order=st.permutations(range(3)))
@few_examples
def test_order_of_rounds_does_not_matter(order):
    generator = np.random.default_rng(0)
    rounds = [(proposal(which), proposal(which).draw(generator, 20 + 10 * which)) for which in range(3)]

    def pool_of(sequence):
        pool = Pool.empty(DIM)
        for which in sequence:
            mixture, x = rounds[which]
            pool = pool.add(mixture, x, log_target(x))
        return pool

    first, second = pool_of(range(3)), pool_of(order)
    np.testing.assert_allclose(np.sort(second.log_ratio), np.sort(first.log_ratio), rtol=1e-12)
    assert second.log_evidence == pytest.approx(first.log_evidence, rel=1e-12)


def test_evidence_is_unbiased():
    num_pools = 100
    ratio = np.exp([make_pool((5, 20, 10), seed).log_evidence - KNOWN.log_evidence for seed in range(num_pools)])
    assert abs(ratio.mean() - 1) < 5 * ratio.std(ddof=1) / np.sqrt(num_pools)


def test_a_proposal_that_misses_the_target_does_no_harm():
    # Alone its weights are worth nothing; beside good draws the denominator silences them.
    x = proposal(0).draw(np.random.default_rng(0), 4000)
    good = Pool.empty(DIM).add(proposal(0), x, log_target(x))
    far = Mixture.of(Family("normal").components(np.full((1, DIM), 4.0), np.full((1, DIM), 0.1)))
    stray = far.draw(np.random.default_rng(1), 400)
    both = good.add(far, stray, log_target(stray))
    ratio = np.exp(both.log_ratio - KNOWN.log_evidence)
    assert abs(ratio.mean() - 1) < 5 * ratio.std() / np.sqrt(len(ratio))
    assert effective_sample_size(both.log_ratio) > 0.99 * effective_sample_size(good.log_ratio)


def test_a_sample_without_a_demand_has_truncated_importance_weights():
    pool = make_pool()
    sample = pool.sample()
    ratio = np.exp(pool.log_ratio)
    expected = np.minimum(ratio, ratio.sum() / np.sqrt(len(ratio)))
    np.testing.assert_allclose(sample.weight, expected / expected.sum(), rtol=1e-10)
    np.testing.assert_array_equal(sample.x, pool.x)
    np.testing.assert_array_equal(sample.log_p, pool.log_p)
    # The weighted mean is that of the target.
    large = make_pool((2000, 2000, 2000)).sample()
    error = np.sqrt((large.weight**2) @ (large.x - KNOWN.mean) ** 2)
    assert np.all(np.abs(large.weight @ large.x - KNOWN.mean) < 5 * error)


@given(seed=SEEDS, fewest=st.floats(0.0, 200.0), scale=st.floats(0.1, 20.0))
@few_examples
def test_a_tempered_sample_has_as_many_effective_draws_as_asked(seed, fewest, scale):
    pool = make_pool(seed=seed, scale=scale)
    sample = pool.sample(fewest)
    assert sample.weight.sum() == pytest.approx(1.0)
    assert sample.ess >= min(fewest, 0.5 * len(sample)) - 1e-6
    # Tempering keeps the order, and does nothing that was not asked for.
    assert np.all(np.diff(sample.weight[np.argsort(pool.log_ratio)]) >= 0)
    plain = pool.sample()
    if plain.ess >= fewest:
        np.testing.assert_allclose(sample.weight, plain.weight, rtol=1e-12)


@given(seed=SEEDS)
@few_examples
def test_draws_outside_the_support_are_left_out(seed):
    generator = np.random.default_rng(seed)
    x = proposal(0).draw(generator, 100)
    inside = generator.uniform(size=100) < 0.6
    pool = Pool.empty(DIM).add(proposal(0), x, np.where(inside, log_target(x), -np.inf))
    sample = pool.sample(20.0)
    np.testing.assert_array_equal(sample.x, x[inside])
    np.testing.assert_array_equal(sample.log_p, log_target(x[inside]))
    assert np.all(np.isfinite(sample.weight))
    # They still count as draws in the evidence.
    expected = special.logsumexp(pool.log_ratio[inside]) - np.log(100)
    assert pool.log_evidence == pytest.approx(expected, rel=1e-12)


def test_a_pool_leaves_the_one_before_alone():
    first = make_pool((20,))
    x = first.x.copy()
    second = first.add(proposal(1), x[:5], first.log_p[:5])
    assert (first.sizes, second.sizes) == ((20,), (20, 5))
    np.testing.assert_array_equal(first.x, x)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves((second.x, second.log_p, second.log_q)))


def test_a_draw_that_no_proposal_knows_does_not_count():
    pool = Pool.empty(DIM).add(proposal(0), np.zeros((3, DIM)), np.zeros(3))
    lost = dataclasses.replace(pool, log_q=np.array([[0.0, -np.inf, 0.0]]), log_p=np.array([0.0, 0.0, -np.inf]))
    np.testing.assert_array_equal(lost.log_ratio, [0.0, -np.inf, -np.inf])
