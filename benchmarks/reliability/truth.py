"""The right answer of a case: evidence and moments, each with its own error, and which of them can be asked for."""

import dataclasses

import numpy as np

from benchmarks.reliability.densities import Density, Moments

NUM_NUMBERS, FEWEST_DRAWS, MOST_DRAWS = 2**22, 2**17, 2**19
"""Exact draws for moments without closed form: as many as make this many numbers, within limits."""
NUM_KURTOSIS_DRAWS = 2**15
BLOCK = 2**15
LARGEST_KURTOSIS = 26.0
"""4000 exact draws tell a standard deviation to 4 % if the kurtosis is below: a fifth of what counts as wrong."""
LEAST_SCALE, LARGEST_SCALE, LARGEST_DIM = 1e-3, 1e3, 20


@dataclasses.dataclass(frozen=True, eq=False)
class Truth:
    """What is known about the quantities of a case, in the order in which klover reads them.

    Attributes
    ----------
    log_evidence, log_evidence_se
        None where there is no evidence to compare with.
    mean, sd, mean_se, sd_se
        Of each quantity; None where they do not exist.
    has_sd
        Quantities whose standard deviation a few thousand exact draws would tell.
    is_proper
        Whether there is a posterior at all: where there is none, the only right answer is to refuse.
    """

    log_evidence: float | None
    mean: np.ndarray | None = None
    sd: np.ndarray | None = None
    mean_se: np.ndarray | float = 0.0
    sd_se: np.ndarray | float = 0.0
    has_sd: np.ndarray | bool = True
    log_evidence_se: float = 0.0
    is_proper: bool = True


def truth_of(density: Density, generator: np.random.Generator, constant: float = 0.0) -> Truth:
    """Put together what is known of a density times exp(constant); a mean counts if there is a variance."""
    log_evidence = density.log_evidence + constant
    if density.tail <= 2:
        return Truth(log_evidence)
    moments = moments_of(density, generator)
    has_sd = np.asarray(moments.kurtosis < LARGEST_KURTOSIS) & (density.tail > 4)
    return Truth(log_evidence, moments.mean, moments.sd, moments.mean_se, moments.sd_se, has_sd)


def moments_of(density: Density, generator: np.random.Generator) -> Moments:
    """Return exact moments, by closed form where there is one, by many exact draws where there is none."""
    if density.moments is not None:
        return density.moments
    if density.mean is None or density.covariance is None:
        num_draws = int(np.clip(NUM_NUMBERS // density.dim, FEWEST_DRAWS, MOST_DRAWS))
        return sampled_moments(density, generator, num_draws)
    sampled = sampled_moments(density, generator, NUM_KURTOSIS_DRAWS)
    return Moments(density.mean, np.sqrt(np.diagonal(density.covariance)), sampled.kurtosis)


def sampled_moments(density: Density, generator: np.random.Generator, num_draws: int) -> Moments:
    """Estimate the moments from exact draws, block by block; powers are of deviations from a first guess."""
    assert density.sample is not None
    first = density.sample(generator, BLOCK)
    centre, scale = np.median(first, axis=0), first.std(0)
    powers, num_blocks = np.zeros((4, density.dim)), -(-num_draws // BLOCK)
    for _ in range(num_blocks):
        step = (density.sample(generator, BLOCK) - centre) / scale
        powers += np.stack([np.mean(step**power, axis=0) for power in range(1, 5)]) / num_blocks
    first_power, second, third, fourth = powers
    variance = second - first_power**2
    fourth = fourth - 4 * first_power * third + 6 * first_power**2 * second - 3 * first_power**4
    kurtosis, sd, num = fourth / variance**2, scale * np.sqrt(variance), num_blocks * BLOCK
    sd_se = sd * np.sqrt(np.maximum(kurtosis - 1, 0) / (4 * num))
    return Moments(centre + scale * first_power, sd, kurtosis, sd / np.sqrt(num), sd_se)


def principal_scales(density: Density, sd: np.ndarray | None) -> np.ndarray:
    """Return the standard deviations along the principal axes, or what is known in their place."""
    if density.covariance is not None:
        return np.sqrt(np.maximum(np.linalg.eigvalsh(density.covariance), 0))
    if sd is not None:
        return sd
    return np.ones(1) if density.scales is None else density.scales


def is_in_reach(density: Density, truth: Truth) -> bool:
    """Whether klover ought to solve it: unimodal, at most 20 dimensions, principal scales from 1e-3 to 1e3."""
    scales = principal_scales(density, truth.sd)
    is_sane = scales.min() >= LEAST_SCALE and scales.max() <= LARGEST_SCALE
    return bool(density.is_unimodal and density.dim <= LARGEST_DIM and is_sane)
