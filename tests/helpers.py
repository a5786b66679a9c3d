import contextlib
import importlib.util
import os
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from klover import Target
from klover.importance.draws import WeightedDraws
from klover.mixtures.algebra import take
from klover.mixtures.mixture import Mixture
from klover.mixtures.scale import Diagonal, Full, LowRank
from klover.search.missed import Effort, find_missed
from klover.targets.evaluator import Evaluator
from klover.tuning import Tuning
from klover.verdict.case import Case
from klover.verdict.judge import Verdict, judge


def needs(*libraries: str) -> pytest.MarkDecorator:
    """Skip a test where a library of an extra is not installed, unless all have to be (``KLOVER_REQUIRE_EXTRAS=1``)."""
    is_required = os.environ.get("KLOVER_REQUIRE_EXTRAS") == "1"
    missing = [name for name in libraries if not is_required and importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """Collect the names of the programs that are compiled meanwhile, in any thread."""
    names = []

    def listen(event: str, seconds: float, fun_name: str = "", **about):
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield names
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


class Known(NamedTuple):
    """A target with everything that can be known about it: log evidence, posterior mean and covariance (flat)."""

    target: Target
    log_evidence: float
    mean: np.ndarray
    covariance: np.ndarray


def correlated_covariance(dim: int, seed: int = 0) -> np.ndarray:
    """Make a well-conditioned covariance with strong correlations and scales between 0.5 and 2."""
    basis = np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, dim)))[0]
    matrix = basis @ np.diag(np.geomspace(0.1, 1.0, dim)) @ basis.T
    scale = np.geomspace(0.5, 2.0, dim) / np.sqrt(np.diagonal(matrix))
    return matrix * scale[:, None] * scale


def gaussian_log_density(x, mean, covariance):
    """Return the log density of a multivariate Normal at one point, in plain jax.numpy."""
    delta = x - mean
    log_volume = np.linalg.slogdet(2 * np.pi * covariance)[1]
    return -0.5 * (delta @ np.linalg.inv(covariance) @ delta + log_volume)


def gaussian(dim: int = 3, log_evidence: float = 1.7, seed: int = 0) -> Known:
    mean, covariance = np.linspace(-1.0, 2.0, dim), correlated_covariance(dim, seed)
    target = Target(lambda x: gaussian_log_density(x, mean, covariance) + log_evidence, jnp.zeros(dim))
    return Known(target, log_evidence, mean, covariance)


def gaussian_mixture(
    means=((-3.0, 0.0), (3.0, 1.0)), weights=(0.3, 0.7), scale: float = 0.8, log_evidence: float = -0.4
) -> Known:
    """Mix spherical Normals of one scale."""
    means, weights = np.asarray(means), np.asarray(weights)
    dim = means.shape[1]
    within = scale**2 * np.eye(dim)

    def logdensity(x):
        each = jax.vmap(lambda mean: gaussian_log_density(x, mean, within))(jnp.asarray(means))
        return jax.nn.logsumexp(each + np.log(weights)) + log_evidence

    mean = weights @ means
    covariance = within + np.einsum("k,ki,kj->ij", weights, means - mean, means - mean)
    return Known(Target(logdensity, jnp.zeros(dim)), log_evidence, mean, covariance)


def student(dim: int = 2, df: float = 7.0, log_evidence: float = 0.6, seed: int = 0) -> Known:
    mean, scale_matrix = np.linspace(-1.0, 1.0, dim), correlated_covariance(dim, seed)
    precision = np.linalg.inv(scale_matrix)
    constant = stats.multivariate_t(mean, scale_matrix, df).logpdf(mean) + log_evidence

    def logdensity(x):
        return constant - 0.5 * (df + dim) * jnp.log1p((x - mean) @ precision @ (x - mean) / df)

    return Known(Target(logdensity, jnp.zeros(dim)), log_evidence, mean, df / (df - 2) * scale_matrix)


def linear_regression(num_data: int = 20, num_slopes: int = 2, seed: int = 0) -> Known:
    """Regress with known noise and a Normal prior, on a position with keys ``intercept`` and ``slope``."""
    prior_scale, noise_scale = 2.0, 0.5
    generator = np.random.default_rng(seed)
    design = np.column_stack([np.ones(num_data), generator.normal(size=(num_data, num_slopes))])
    response = design @ generator.normal(size=num_slopes + 1) + noise_scale * generator.normal(size=num_data)

    def logdensity(position):
        coefficient = jnp.concatenate([position["intercept"][None], position["slope"]])
        log_prior = jax.scipy.stats.norm.logpdf(coefficient, 0.0, prior_scale).sum()
        return log_prior + jax.scipy.stats.norm.logpdf(response, design @ coefficient, noise_scale).sum()

    marginal = prior_scale**2 * design @ design.T + noise_scale**2 * np.eye(num_data)
    covariance = np.linalg.inv(design.T @ design / noise_scale**2 + np.eye(num_slopes + 1) / prior_scale**2)
    return Known(
        Target(logdensity, {"intercept": 0.0, "slope": np.zeros(num_slopes)}),
        float(stats.multivariate_normal(np.zeros(num_data), marginal).logpdf(response)),
        covariance @ design.T @ response / noise_scale**2,
        covariance,
    )


def make_spread(covariance: str, num: int = 2, dim: int = 3, rank: int = 2, seed: int = 0):
    """Make random spreads with signs as an optimiser may leave them."""
    generator = np.random.default_rng(seed)
    scale = generator.choice([-1.0, 1.0], (num, dim)) * generator.uniform(0.5, 2.0, (num, dim))
    if covariance == "diagonal":
        return Diagonal(scale)
    if covariance == "full":
        return Full(generator.normal(size=(num, dim, dim)) * 0.6 + scale[..., None] * np.eye(dim))
    return LowRank(scale, generator.normal(size=(num, dim, rank)))


def spread_covariance(spread) -> np.ndarray:
    """Return the covariance matrices of a spread, one by one and by definition."""
    if isinstance(spread, Diagonal):
        return np.stack([np.diag(scale**2) for scale in spread.scale])
    if isinstance(spread, Full):
        return np.stack([np.tril(factor) @ np.tril(factor).T for factor in spread.factor])
    pairs = zip(spread.scale, spread.factor, strict=True)
    return np.stack([np.diag(scale**2) + factor @ factor.T for scale, factor in pairs])


def two_gaussians(offset=2.0):
    """Log density of two unit Gaussians in two dimensions, weights 0.7 and 0.3; log Z = 0."""
    locations = jnp.array([[-offset, 0.0], [offset, 1.0]])

    def logdensity(x):
        distance = jnp.sum((x - locations) ** 2, axis=1)
        return jax.nn.logsumexp(jnp.log(jnp.array([0.7, 0.3])) - 0.5 * distance) - jnp.log(2 * jnp.pi)

    return logdensity


def judged(draws: WeightedDraws, mixture: Mixture) -> Verdict:
    """Judge draws of a mixture about whose making nothing is known."""
    on_host = jax.tree.map(lambda leaf: np.asarray(leaf, float), mixture)
    on_host = take(on_host, np.flatnonzero(on_host.log_weights > -np.inf))
    evaluator, generator, tuning = Evaluator(draws.target), np.random.default_rng(0), Tuning()
    effort = Effort.of(tuning.missed)
    parts, searched = find_missed(generator, evaluator, on_host, on_host, draws.x, draws.log_ratio, effort, tuning)
    return judge(Case(draws, on_host, on_host, evaluator, generator, parts=tuple(parts), searched=searched))


def damage(content: bytes, num: int, seed: int = 0) -> Iterator[bytes]:
    """Yield copies of a file that are cut somewhere, or in which a few bytes are others."""
    generator = np.random.default_rng(seed)
    for number in range(num):
        changed = bytearray(content)
        if number % 4 == 0:
            yield content[: generator.integers(len(content))]
            continue
        # Half of the changes are in the directory at the end, or at the beginning: few bytes, and all of them matter.
        ends = (0, 200), (len(content) - 1500, len(content)), (0, len(content)), (0, len(content))
        for place in generator.integers(*ends[generator.integers(4)], size=generator.integers(1, 4)):
            changed[place] ^= generator.integers(1, 256)
        yield bytes(changed)
