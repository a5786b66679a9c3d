"""The paper's simulated targets, with what is exactly known about them."""

import jax
import jax.numpy as jnp
import numpy as np

from klover.base.shapes import Float, Point, Scalar
from klover.mixtures.mixture import Mixture
from klover.targets.target import Target

CAUCHY_LIMIT = 1000.0
"""KL(Cauchy‖Gaussian mixture) is infinite: the Cauchy density is cut here, and KL is integrated up to here."""

NUM_NODES = 12
"""Gauss-Hermite nodes in each coordinate of a mode."""

TWO_MODE_LOCATIONS, TWO_MODE_SCALE = (-3.0, 3.0), 0.7

TWENTY_MODE_SCALE = 0.1
# fmt: off
TWENTY_MODE_LOCATIONS = (
    (2.18, 5.76), (8.67, 9.59), (4.24, 8.48), (8.41, 1.68), (3.93, 8.82), (3.25, 3.47), (1.70, 0.50), (4.59, 5.60),
    (6.91, 5.81), (6.87, 5.40), (5.41, 2.65), (2.70, 7.88), (4.98, 3.70), (1.14, 2.39), (8.33, 9.50), (4.93, 1.50),
    (1.83, 0.09), (2.26, 0.31), (5.54, 6.86), (1.69, 8.11),
)
# fmt: on
"""Means of the twenty-mode mixture of Liang & Wong (2001): equal weights, σ = 0.1, in the box [0, 10]²."""
TWENTY_MODE_BOX = ((0.0, 0.0), (10.0, 10.0))


def cauchy() -> Target:
    """Cauchy density cut to [-1000, 1000] (Simulation 1); its mass there is 0.99936."""

    def logdensity(x):
        inside = jnp.abs(x) <= CAUCHY_LIMIT
        return jnp.where(inside, -np.log(np.pi) - jnp.log1p(x**2), -jnp.inf)

    return Target(logdensity, jnp.zeros(()))


def two_modes() -> Target:
    """Two equal Gaussians, for Figure 1: one component by the reverse KL sits on one, by the forward KL covers both."""
    return equal_gaussians(np.asarray(TWO_MODE_LOCATIONS)[:, None], TWO_MODE_SCALE)


def twenty_modes() -> Target:
    """Twenty well-separated Gaussians in two dimensions (Simulation 2); log Z = 0."""
    return equal_gaussians(np.asarray(TWENTY_MODE_LOCATIONS), TWENTY_MODE_SCALE)


def equal_gaussians(locations: Float[np.ndarray, "mode dim"], scale: float) -> Target:
    """Equally weighted Gaussians of one scale; log Z = 0."""
    centres = jnp.asarray(locations)
    num_modes, dim = locations.shape
    constant = -np.log(num_modes) - dim * np.log(scale * np.sqrt(2 * np.pi))

    def logdensity(x):
        return jax.nn.logsumexp(-0.5 * jnp.sum((x - centres) ** 2, axis=1) / scale**2) + constant

    return Target(logdensity, jnp.zeros(dim))


def forward_kl_by_quadrature(
    target: Target, mixture: Mixture, lower: float, upper: float, num_points: int = 40_001
) -> float:
    """KL(p‖q) of a target cut to an interval, by the trapezium rule on a grid that is denser near zero.

    The density is normalised on the interval; q is not, since what it puts outside is lost.
    """
    grid = np.sinh(np.linspace(np.arcsinh(lower), np.arcsinh(upper), num_points))
    log_p = np.asarray(target.log_prob(grid[:, None]), float)
    log_q = np.asarray(mixture.log_prob(jnp.asarray(grid[:, None])), float)
    log_p = log_p - np.log(np.trapezoid(np.exp(log_p), grid))
    inside = log_p > -np.inf
    integrand = np.where(inside, np.exp(log_p) * np.where(inside, log_p - log_q, 0.0), 0.0)
    return float(np.trapezoid(integrand, grid))


def reverse_kl_by_quadrature(target: Target, mixture: Mixture, lower: float, upper: float) -> float:
    """KL(q‖p) in one dimension by the trapezium rule, for a normalised p and a q that lies inside the interval."""
    grid = np.linspace(lower, upper, 10_001)
    log_p = np.asarray(target.log_prob(grid[:, None]))
    log_q = np.asarray(mixture.log_prob(grid[:, None]))
    return float(np.trapezoid(np.exp(log_q) * (log_q - log_p), grid))


def twenty_mode_forward_kl(mixture: Mixture) -> Scalar:
    r"""KL(p‖q) for the twenty-mode mixture, exact up to quadrature.

    The target is itself a mixture, so :math:`\mathrm E_p[g]=\frac1{20}\sum_m\mathrm E[g(\mu_m+\sigma z)]` with a
    standard Gaussian z, and each term is a Gauss-Hermite sum in the two coordinates of z.
    """
    node, weight = np.polynomial.hermite_e.hermegauss(NUM_NODES)
    z = np.stack(np.meshgrid(node, node), axis=-1).reshape(-1, 2)
    share = np.outer(weight, weight).ravel() / weight.sum() ** 2
    centres = np.asarray(TWENTY_MODE_LOCATIONS)
    points = (centres[:, None] + TWENTY_MODE_SCALE * z).reshape(-1, 2)
    log_residual = twenty_modes().log_prob(points) - mixture.log_prob(points)
    return jnp.mean(log_residual.reshape(len(centres), -1) @ share)


def twenty_mode_moments() -> tuple[Point, Point]:
    """Exact first and second moments of the twenty-mode mixture, coordinate by coordinate."""
    locations = np.asarray(TWENTY_MODE_LOCATIONS)
    return locations.mean(0), (locations**2).mean(0) + TWENTY_MODE_SCALE**2


def twenty_mode_masses(x: Float[np.ndarray, "draw 2"], weight: Float[np.ndarray, " draw"]) -> np.ndarray:
    """Weight of the draws that lie within three standard deviations of each mode."""
    distance = np.linalg.norm(x[:, None] - np.asarray(TWENTY_MODE_LOCATIONS), axis=-1)
    near = distance.min(1) < 3 * TWENTY_MODE_SCALE
    return np.bincount(distance.argmin(1)[near], weight[near], minlength=len(TWENTY_MODE_LOCATIONS))
