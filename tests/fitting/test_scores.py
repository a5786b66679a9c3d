"""Gaussians from scores; the judge is a Gaussian, whose scores are exact."""

import numpy as np
import pytest

from klover.fitting.scores import Pairs, centred, fit_full, fit_low_rank, loss, match, moved, of_precision, regress
from klover.warps.linear import Linear
from klover.warps.low_rank import LowRankLinear

DIM, RANK = 60, 4


def low_rank_gaussian(narrow: bool = False, seed: int = 0):
    rng = np.random.default_rng(seed)
    scale, directions = 10 ** rng.uniform(-2, 2, DIM), np.linalg.qr(rng.normal(size=(DIM, RANK)))[0]
    lengths = 1 / np.geomspace(3.0, 30.0, RANK) if narrow else np.geomspace(3.0, 300.0, RANK)
    inner = np.eye(DIM) + directions @ np.diag(1 / lengths**2 - 1) @ directions.T
    return 10 * rng.normal(size=DIM), inner / np.outer(scale, scale), scale


def make_pairs(mean, precision, scale, num, seed: int = 1) -> Pairs:
    rng = np.random.default_rng(seed)
    middle = mean + scale * rng.normal(size=len(mean))
    delta = scale * rng.normal(size=(num, len(mean)))
    after, before = (-(middle + sign * delta - mean) @ precision for sign in (1, -1))
    return Pairs(middle, delta, after, before)


def covariance_of(layer) -> np.ndarray:
    root = (layer.from_base(np.eye(DIM))[0] - layer.centre).T
    return root @ root.T


def assert_is_gaussian(layer, mean, precision):
    """Whitened by the true precision, the covariance is the identity."""
    root = np.linalg.cholesky(precision)
    np.testing.assert_allclose(root.T @ covariance_of(layer) @ root, np.eye(DIM), atol=1e-6)
    np.testing.assert_allclose(root.T @ (layer.centre - mean), 0.0, atol=1e-6)
    determinant = layer.to_base(layer.centre[None])[1][0]
    np.testing.assert_allclose(determinant, 0.5 * np.linalg.slogdet(precision)[1], atol=1e-6)


@pytest.mark.parametrize("narrow", [False, True], ids=["wide", "narrow"])
def test_fewer_pairs_than_dimensions_give_a_low_rank_covariance_exactly(narrow):
    mean, precision, scale = low_rank_gaussian(narrow)
    pairs = make_pairs(mean, precision, scale, DIM // 2)
    layer = fit_low_rank(pairs, RANK)
    assert_is_gaussian(layer, mean, precision)
    assert loss(layer, make_pairs(mean, precision, scale, 8, seed=2)) < 1e-10
    # More directions than there are do no harm, fewer are not enough.
    assert loss(fit_low_rank(pairs, RANK + 2), make_pairs(mean, precision, scale, 8, seed=2)) < 1e-6
    assert loss(fit_low_rank(pairs, RANK - 2), make_pairs(mean, precision, scale, 8, seed=2)) > 0.05


def test_a_diagonal_needs_two_pairs():
    mean, scale = np.arange(DIM, dtype=float), np.geomspace(1e-3, 1e3, DIM)
    layer = fit_low_rank(make_pairs(mean, np.diag(1 / scale**2), scale, 2), 0)
    np.testing.assert_allclose(layer.variance(), scale**2)
    np.testing.assert_allclose(layer.centre / scale, mean / scale, atol=1e-9)


def test_a_regression_gives_any_covariance_exactly():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(DIM, DIM))
    mean, precision = rng.normal(size=DIM), root @ root.T + 0.1 * np.eye(DIM)
    scale = 1 / np.sqrt(np.diagonal(precision))
    pairs = make_pairs(mean, precision, scale, 2 * DIM)
    begun = LowRankLinear.diagonal(pairs.middle, scale**2)
    layer = fit_full(begun, pairs, regress(begun, pairs))
    assert_is_gaussian(layer, mean, precision)
    np.testing.assert_allclose(layer.matrix @ layer.inverse, np.eye(DIM), atol=1e-8)
    # Half of the way is half of the way, in the coordinates of the first.
    half = fit_full(begun, pairs, regress(begun, pairs), 0.5)
    between = 0.5 * (np.diag(1 / scale**2) + precision)
    np.testing.assert_allclose(np.linalg.inv(covariance_of(half)), between, rtol=1e-6, atol=1e-6)


def test_a_precision_matrix_makes_its_layer():
    mean, precision, _ = low_rank_gaussian()
    assert_is_gaussian(of_precision(mean, precision), mean, precision)


def test_the_mean_follows_by_one_step_of_newton():
    mean, precision, scale = low_rank_gaussian()
    pairs = make_pairs(mean, precision, scale, 5)
    layer = of_precision(pairs.middle, precision)
    np.testing.assert_allclose(np.linalg.cholesky(precision).T @ (moved(layer, pairs).centre - mean), 0.0, atol=1e-6)
    assert isinstance(centred(layer, mean), Linear)


def test_the_loss_is_about_twice_the_divergence():
    r"""With the covariance (1+ε)I for I, KL = d(ε - log(1+ε))/2, about dε²/4, and the loss is dε²/2 times 1+ε."""
    rng, width = np.random.default_rng(0), 0.1
    delta = np.sqrt(1 + width) * rng.normal(size=(20_000, DIM))
    pairs = Pairs(np.zeros(DIM), delta, -delta, delta)
    found = loss(LowRankLinear.diagonal(np.zeros(DIM), np.full(DIM, 1 + width)), pairs)
    np.testing.assert_allclose(found, 0.5 * DIM * width**2, rtol=0.02)


def test_rising_directions_do_not_break_it():
    precision = np.eye(DIM)
    precision[0, 0] = -1.0
    layer = fit_low_rank(make_pairs(np.zeros(DIM), precision, np.ones(DIM), 20), 2)
    assert np.isfinite(layer.variance()).all()
    assert np.all(layer.variance() > 0)


def test_scores_at_any_points_match_a_gaussian_exactly():
    mean, precision, scale = low_rank_gaussian()
    x = mean + 3 * scale * (1 + np.random.default_rng(1).normal(size=(2 * DIM, DIM)))
    location, covariance = match(x, -(x - mean) @ precision)
    root = np.linalg.cholesky(precision)
    np.testing.assert_allclose(root.T @ covariance @ root, np.eye(DIM), atol=1e-4)
    np.testing.assert_allclose(root.T @ (location - mean), 0.0, atol=1e-3)


def test_skewed_points_are_matched_by_the_least_divergence():
    """Of independent coordinates the variance is the root of that of the points over that of the scores."""
    z = np.random.default_rng(1).gamma(2.0, size=(20000, 2))
    x, score = np.log(z), 2.0 - z
    location, covariance = match(x, score)
    variance = np.sqrt(x.var(0) / score.var(0))
    # Sample correlations are of the size of 1/√20000.
    np.testing.assert_allclose(np.diagonal(covariance), variance, rtol=1e-3)
    np.testing.assert_allclose(location, x.mean(0) + variance * score.mean(0), atol=1e-3)


@pytest.mark.parametrize("score", [0.0, 1.0, 1e200], ids=["flat", "constant", "overflow"])
def test_scores_that_tell_no_covariance_are_refused(score):
    x = np.random.default_rng(0).normal(size=(40, 3))
    scores = np.full((40, 3), score) if score < 1e100 else score * x
    with np.errstate(over="ignore", invalid="ignore"), pytest.raises(np.linalg.LinAlgError):
        match(x, scores)
