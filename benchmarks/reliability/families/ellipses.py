r"""Gaussians, Student-t's, and mixtures of them: unequal modes, halos of several scales, needles on a lattice."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import gammaln, logsumexp

from benchmarks.reliability.densities import (
    Affine,
    Density,
    Parts,
    push,
    random_dim,
    random_placement,
    random_rotation,
)


def ellipses(weights, locations, scales, rotations=None, df=np.inf) -> Density:
    r"""Mixture :math:`\sum_k\lambda_k\,t_{\nu_k}(\mu_k,R_k\,\mathrm{diag}(s_k^2)R_k^\top)`, Gaussian for infinite ν.

    Moments are :math:`\sum_k\lambda_k\mu_k` and, with covariances scaled by ν / (ν - 2), the usual sum.
    """
    weights, locations, scales = (np.asarray(each, float) for each in (weights, locations, scales))
    num, dim = locations.shape
    rotations = np.broadcast_to(np.eye(dim), (num, dim, dim)) if rotations is None else np.asarray(rotations)
    df = np.broadcast_to(np.asarray(df, float), num)
    is_normal, finite = np.isinf(df), np.where(np.isinf(df), 1.0, df)
    log_peak = gammaln((finite + dim) / 2) - gammaln(finite / 2) - 0.5 * dim * np.log(finite * np.pi)
    log_peak = np.where(is_normal, -0.5 * dim * np.log(2 * np.pi), log_peak)
    constants = np.log(weights) + log_peak - np.log(scales).sum(1)
    whiteners = rotations.mT / scales[:, :, None]

    def log_parts(x, xp):
        distance = xp.sum(xp.einsum("kij,...kj->...ki", whiteners, x[..., None, :] - locations) ** 2, axis=-1)
        heavy = -0.5 * (finite + dim) * xp.log1p(distance / finite)
        return constants + xp.where(is_normal, -0.5 * distance, heavy)

    def sample(generator, num_draws):
        part = generator.choice(num, size=num_draws, p=weights)
        step = generator.normal(size=(num_draws, dim))
        for k in range(num):
            mine = part == k
            if np.isfinite(df[k]):
                step[mine] /= np.sqrt(generator.chisquare(df[k], size=(mine.sum(), 1)) / df[k])
            step[mine] = locations[k] + (scales[k] * step[mine]) @ rotations[k].T
        return step

    def shares(x):
        log = log_parts(x, np)
        return np.exp(log - logsumexp(log, axis=1, keepdims=True))

    squares = (rotations * scales[:, None, :] ** 2) @ rotations.mT
    mean = weights @ locations
    covariance = None
    if df.min() > 2:
        spread = squares * np.where(is_normal, 1.0, finite / np.maximum(finite - 2, 1e-9))[:, None, None]
        away = locations - mean
        covariance = np.einsum("k,kij->ij", weights, spread + away[:, :, None] * away[:, None, :])
    return Density(
        lambda x: jax.nn.logsumexp(log_parts(x, jnp)) if num > 1 else log_parts(x, jnp)[0],
        dim,
        sample,
        mean if df.min() > 1 else None,
        covariance,
        tail=float(df.min()),
        is_unimodal=num == 1,
        parts=Parts(weights, locations, squares, shares) if num > 1 else None,
        scales=scales.max(0) if covariance is None else None,
    )


def random_df(generator) -> float:
    """Draw the degrees of freedom of a Student-t, one to thirty."""
    return float(generator.choice([1.0, 2.0, 2.5, 3.0, 4.5, 7.0, 15.0, 30.0]))


def gaussian(generator) -> Density:
    """One Gaussian: any condition number to 1e10, scales 1e±3, offsets; one in eight has up to 200 dimensions."""
    dim = random_dim(generator, 200, 31) if generator.random() < 0.12 else random_dim(generator)
    decades = generator.choice([1.0, 2.0, 4.0, 5.0], p=[0.4, 0.3, 0.2, 0.1])
    scales = 10 ** generator.uniform(-decades / 2, decades / 2, size=dim)
    base = ellipses([1.0], np.zeros((1, dim)), np.ones((1, dim)))
    placement = random_placement(generator, dim)
    return push(push(base, Affine(np.zeros(dim), scales)), placement)


def student(generator) -> Density:
    """One Student-t of 1 to 30 degrees of freedom; some in up to 100 dimensions."""
    dim = random_dim(generator, 100, 31) if generator.random() < 0.1 else random_dim(generator)
    base = ellipses([1.0], np.zeros((1, dim)), np.ones((1, dim)), df=random_df(generator))
    return push(base, random_placement(generator, dim))


def mixture(generator, dim: int | None = None) -> Density:
    """Two to six Gaussians (or, one time in four, Student-t's) of unequal weights, shapes and scales.

    Centres are a few to 25 scales apart; each part's scale is up to ten times the smallest one's.
    """
    dim = random_dim(generator) if dim is None else dim
    num = int(generator.integers(2, 7))
    weights = 0.02 + generator.dirichlet(np.full(num, generator.choice([1.0, 3.0, 10.0])))
    reach = generator.uniform(3, 16) / np.sqrt(2 * dim)
    locations = reach * generator.normal(size=(num, dim))
    spread, anisotropy = generator.choice([0.0, 0.3, 1.0], p=[0.3, 0.4, 0.3]), generator.choice([0.0, 0.1, 0.3])
    scales = 10 ** (generator.uniform(-spread / 2, spread / 2, size=(num, 1)))
    scales = scales * 10 ** generator.normal(0, anisotropy, size=(num, dim))
    rotations = np.stack([random_rotation(generator, dim) for _ in range(num)])
    df = np.inf
    if generator.random() < 0.25:
        df = np.where(generator.random(num) < 0.7, generator.choice([3.0, 5.0, 10.0], size=num), np.inf)
    base = ellipses(weights / weights.sum(), locations, scales, rotations, df)
    return push(base, random_placement(generator, dim, decades=2.0))


def halo(generator) -> Density:
    """One centre with two or three scales, 2 to 300 times apart: unimodal, with a mass that weights alone overlook."""
    dim, num = random_dim(generator), int(generator.integers(2, 4))
    ratios = 10 ** np.cumsum(np.r_[0.0, generator.uniform(0.3, 2.5 / (num - 1), size=num - 1)])
    weights = 0.05 + generator.dirichlet(np.full(num, 2.0))
    base = ellipses(weights / weights.sum(), np.zeros((num, dim)), np.outer(ratios, np.ones(dim)))
    return dataclasses.replace(push(base, random_placement(generator, dim, decades=1.0)), is_unimodal=True)


def lattice(generator) -> Density:
    """Narrow needles on a lattice in one to three dimensions, their weights those of a bell: nearly discrete."""
    dim = int(generator.integers(1, 4))
    side = int(generator.integers(3, {1: 12, 2: 6, 3: 4}[dim]))
    points = np.stack(np.meshgrid(*dim * [np.arange(side)], indexing="ij"), axis=-1).reshape(-1, dim)
    points = points - (side - 1) / 2
    weights = np.exp(-0.5 * np.sum((points / generator.uniform(0.5, 2) + generator.normal(size=dim)) ** 2, axis=1))
    weights = 0.01 + weights / weights.max()
    width = 10 ** generator.uniform(-2, -0.8)
    base = ellipses(weights / weights.sum(), points, np.full(points.shape, width))
    return push(base, random_placement(generator, dim, decades=1.0))
