r"""Exact samplers of the paper's regressions: the judge of everything else.

All full conditionals are known. A :math:`\mathcal T_2` prior is a Gaussian with a random precision,
:math:`w\mid\lambda\sim\mathrm N(0,A^\top A/\lambda)`, :math:`\lambda\sim\mathrm{Gamma}(1,1)`: one draw more.
"""

import numpy as np

from klover.paper.datasets import Split
from klover.paper.models import GAMMA_RATE, GAMMA_SHAPE, PRIOR_DF, design, prior_factor

NUM_WARMUP = 200


def sample_linear_regression(rng: np.random.Generator, split: Split, num_draws: int) -> dict[str, np.ndarray]:
    """Draw from the posterior with the Gaussian prior; arrays ``alpha``, ``tau``, ``w``."""
    precision = np.eye(split.train_features.shape[1] + 1)
    draws = _sample(rng, split, precision, GAMMA_SHAPE, GAMMA_RATE, num_draws)
    return {"alpha": draws["lambda"], "tau": draws["tau"], "w": draws["w"]}


def sample_heavy_tailed_regression(rng: np.random.Generator, split: Split, num_draws: int) -> dict[str, np.ndarray]:
    """Draw from the posterior with the heavy-tailed prior; arrays ``tau``, ``w``."""
    inverse = np.linalg.inv(prior_factor(split.train_features.shape[1] + 1))
    draws = _sample(rng, split, inverse @ inverse.T, PRIOR_DF / 2, PRIOR_DF / 2, num_draws)
    return {"tau": draws["tau"], "w": draws["w"]}


def _sample(
    rng: np.random.Generator, split: Split, precision: np.ndarray, shape: float, rate: float, num_draws: int
) -> dict[str, np.ndarray]:
    r"""Cycle through :math:`w\mid\lambda,\tau`, :math:`\tau\mid w` and :math:`\lambda\mid w`.

    The prior is :math:`w\sim\mathrm N(0,(\lambda P)^{-1})` with :math:`\lambda\sim\mathrm{Gamma}`(shape, rate).
    """
    inputs, outputs = design(split.train_features), split.train_target
    gram, moment, size = inputs.T @ inputs, inputs.T @ outputs, len(outputs)
    num_weights = inputs.shape[1]
    scale, tau = 1.0, 1.0
    kept = {"w": np.empty((num_draws, num_weights)), "tau": np.empty(num_draws), "lambda": np.empty(num_draws)}
    for number in range(-NUM_WARMUP, num_draws):
        factor = np.linalg.cholesky(tau * gram + scale * precision)
        mean = np.linalg.solve(factor.T, np.linalg.solve(factor, tau * moment))
        weights = mean + np.linalg.solve(factor.T, rng.standard_normal(num_weights))
        residual = outputs - inputs @ weights
        tau = rng.gamma(GAMMA_SHAPE + size / 2, 1 / (GAMMA_RATE + residual @ residual / 2))
        scale = rng.gamma(shape + num_weights / 2, 1 / (rate + weights @ precision @ weights / 2))
        if number >= 0:
            kept["w"][number], kept["tau"][number], kept["lambda"][number] = weights, tau, scale
    return kept
