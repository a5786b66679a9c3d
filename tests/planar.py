"""Mixtures in the plane, and draws of them, that tests of fits share."""

import numpy as np

from helpers import correlated_covariance
from klover.base.linalg import moments
from klover.fitting.sample import Sample, equal
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture

DIM = 2
FAMILIES = {
    f"{tail}-{covariance}": Family(tail, covariance, rank=1)
    for tail in ("normal", "student")
    for covariance in ("full", "diagonal", "low-rank")
}


def make_mixture(family=FAMILIES["student-full"], weights=(0.5, 0.3, 0.2), seed: int = 0) -> Mixture:
    rng = np.random.default_rng(seed)
    covariance = np.stack([correlated_covariance(DIM, seed + slot) for slot in range(len(weights))])
    components = family.components(3 * rng.normal(size=(len(weights), DIM)), covariance)
    return Mixture(components, np.log(np.asarray(weights)))


def three_parts(tail: str) -> Mixture:
    means = np.array([[-4.0, 0.0], [4.0, 1.0], [0.0, 4.0]])
    covariance = np.stack([0.5 * correlated_covariance(DIM, seed) for seed in range(3)])
    components = Family(tail, "full", df=8.0 if tail == "student" else None).components(means, covariance)
    return Mixture(components, np.log([0.5, 0.3, 0.2]))


def exact_draws(mixture: Mixture, num_draws: int, seed: int = 0) -> Sample:
    x = mixture.draw(np.random.default_rng(seed), num_draws)
    return equal(x, mixture.log_prob(x))


def one_component(sample: Sample, tail: str = "student") -> Mixture:
    mean, covariance = moments(sample.x, sample.weight)
    return Mixture.of(Family(tail, "full").components(mean[None], covariance[None]))
