r"""Starts for NUTS: positions, an inverse mass matrix and a step size, so that little is left to warm up.

The inverse mass matrix is the posterior covariance of the unconstrained coordinates, which are then nearly of unit
scale. The step size follows from a Normal posterior with variances :math:`\lambda_i` in the units of the metric.
Leapfrog steps of size ε keep a Hamiltonian that is off by :math:`\epsilon^2q_i^2/8\lambda_i^2` in each direction, so
that over a long trajectory the error of the energy has a variance of about
:math:`\sigma^2=\frac{\epsilon^4}{16}\sum_i\lambda_i^{-2}`; the mean acceptance is
:math:`2\Phi(-\sigma/2)`. For a mean of 0.8 and :math:`\lambda_i=1` that is :math:`1.42\,d^{-1/4}`.
"""

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist

import jax
import numpy as np

from klover.base.checks import check_flag, check_path
from klover.base.shapes import Float, KeyLike, PyTree
from klover.results.doubt import warn_if_refused
from klover.results.fit import Fit

ACCEPTANCE = 0.8
"""Mean acceptance that the step size is for: what the libraries aim at by default."""


@dataclasses.dataclass(frozen=True)
class NutsStart:
    """What chains need to begin in the posterior with a fitting metric; flat coordinates are in the order of NumPyro.

    ``positions`` are distinct unconstrained positions with a leading axis of chains. ``inverse_mass_matrix`` has the
    posterior variances, or the covariances if it is dense. ``places`` has the flat coordinates of each variable.
    """

    positions: PyTree
    inverse_mass_matrix: Float[np.ndarray, "..."]
    step_size: float
    places: PyTree

    def in_order(self, variables: Sequence[str]) -> Float[np.ndarray, "..."]:
        """Return the inverse mass matrix for variables in another order, as PyMC has them (``model.value_vars``)."""
        if not isinstance(self.places, dict) or set(variables) != set(self.places):
            known = list(self.places) if isinstance(self.places, dict) else "no names"
            raise ValueError(f"variables must be all that the positions have, {known}, got {list(variables)}.")
        order = np.concatenate([np.ravel(self.places[name]) for name in variables])
        matrix = self.inverse_mass_matrix
        return matrix[order] if matrix.ndim == 1 else matrix[np.ix_(order, order)]

    def save_metric(self, path: str | os.PathLike) -> None:
        """Write the inverse mass matrix as the JSON file that CmdStan reads (``metric_file``, of a Stan program)."""
        content = {"inv_metric": self.inverse_mass_matrix.tolist()}
        Path(check_path("path", path)).write_text(json.dumps(content), encoding="utf-8")


def nuts_start(fit: Fit, key: KeyLike, num_chains: int, dense: bool) -> NutsStart:
    """Make a start; the documentation is that of :meth:`klover.Fit.nuts_start`."""
    check_flag("dense", dense)
    positions = fit.draws.initial_positions(key, num_chains)
    warn_if_refused(fit, "Chains that begin with it may miss what it misses.")
    covariance = posterior_covariance(fit)
    variances = np.diag(covariance)
    scale = np.sqrt(variances)
    units = np.ones(len(scale)) if dense else np.linalg.eigvalsh(covariance / np.outer(scale, scale))
    places = fit.target.unravel(np.arange(fit.target.dim, dtype=float))
    places = jax.tree.map(lambda leaf: np.asarray(leaf).astype(int), places)
    return NutsStart(positions, covariance if dense else variances, step_size(units), places)


def posterior_covariance(fit: Fit) -> Float[np.ndarray, "dim dim"]:
    """Covariance of the flat coordinates, drawn towards its diagonal where effective draws are few for its size."""
    weight = np.exp(np.asarray(fit.draws.log_weight, float))
    x, weight = np.asarray(fit.draws.x, float)[weight > 0], weight[weight > 0]
    delta = x - weight @ x
    covariance = (delta * weight[:, None]).T @ delta
    share = fit.ess / (fit.ess + fit.target.dim)
    return share * covariance + (1 - share) * np.diag(np.diag(covariance))


def step_size(variances: Float[np.ndarray, " dim"]) -> float:
    """Step size for a Normal posterior with these variances in the units of the metric."""
    deviation = -2 * NormalDist().inv_cdf(ACCEPTANCE / 2)
    return float(np.sqrt(4 * deviation) / np.sum(variances**-2.0) ** 0.25)
