"""Targets of the particles' calibration: their constants and moments are those of their densities."""

import json

import jax
import numpy as np
import pytest

from benchmarks import particles

EACH = pytest.mark.parametrize("family", particles.FAMILIES)


@EACH
@pytest.mark.parametrize("seed", range(2))
def test_evidence_and_moments_are_integrals_of_the_density(family, seed):
    known = particles.FAMILIES[family](np.random.default_rng(seed), 2)
    # Midpoints of a grid over so many standard deviations that the tails beyond, of order u^-4, are below a thousandth.
    axes = [mean + sd * np.linspace(-40, 40, 1601) for mean, sd in zip(known.mean, known.sd, strict=True)]
    x = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    log_p = np.asarray(jax.vmap(known.log_density)(x))
    weight = np.exp(log_p - log_p.max())
    cell = np.prod([axis[1] - axis[0] for axis in axes])
    assert np.log(weight.sum() * cell) + log_p.max() == pytest.approx(known.log_evidence, abs=2e-3)
    mean = weight @ x / weight.sum()
    np.testing.assert_allclose((mean - known.mean) / known.sd, 0.0, atol=5e-3)
    # The fourth moment of a Student-t with four degrees of freedom does not exist, so its variance converges slowly.
    np.testing.assert_allclose(np.sqrt(weight @ (x - mean) ** 2 / weight.sum()), known.sd, rtol=2e-2)


def test_a_table_counts_outcomes_and_scores():
    line = {"family": "student", "outcome": "trusted right", "log_z_error": 0.2, "log_z_se": 0.1, "mean_z": [0.0, 1.0]}
    lines = [line | {"evaluations": 1000, "seconds": 2.0}, {"family": "poisson", "outcome": "unfinished"}]
    text = particles.table(json.loads(json.dumps(lines)))
    assert "| all | 2 | 1 | 0 | 0 | 1 | 1e+03 | 2 |" in text
    assert "| student | 1 | 1 | 0 | 0 | 0 | 1e+03 | 2 |" in text
    assert "mean of log Z +2.00" in text
    assert "means, 2: sd 0.50" in text
