r"""A Gaussian process for a log density: from few values of it, a guess at all others with its error.

Values at points z are :math:`y=H\beta+f(z)+\varepsilon`: a quadratic, with coefficients
:math:`\beta\sim N(0,b^2)` that are integrated out, a process with the kernel

.. math:: k(z,z')=a^2\exp\Bigl(-\tfrac12\sum_i(z_i-z_i')^2/\ell_i^2\Bigr),

and errors of known scales. A Gaussian density is a quadratic and needs no process; what the process adds is the rest.
With :math:`K+S=LL^\top`, tildes for what :math:`L^{-1}` has multiplied, and
:math:`A=\tilde H^\top\tilde H+b^{-2}`, :math:`\hat\beta=A^{-1}\tilde H^\top\tilde y` (Rasmussen & Williams 2006,
section 2.7),

.. math:: \log p(y)=-\tfrac12|\tilde y-\tilde H\hat\beta|^2-\tfrac1{2b^2}|\hat\beta|^2-\log|L|-\tfrac12\log|b^2A|
    -\tfrac n2\log2\pi.
"""

import dataclasses

import numpy as np

from klover.base.shapes import Float, Int

Values = Float[np.ndarray, " point"]
Inputs = Float[np.ndarray, "point dim"]
Hyperparameters = Float[np.ndarray, " scale"]
"""Logarithms of the lengths ℓ, and of the amplitude a last."""


def quadratic(z: Inputs) -> Float[np.ndarray, "point feature"]:
    """Return one, all coordinates, and all their products: the features H."""
    first, second = np.triu_indices(z.shape[1])
    return np.concatenate([np.ones((len(z), 1)), z, z[:, first] * z[:, second]], axis=1)


def kernel(
    one: Float[np.ndarray, "one dim"], two: Float[np.ndarray, "two dim"], log_scales: Hyperparameters
) -> Float[np.ndarray, "one two"]:
    """Return the covariances of f at two sets of points."""
    one, two = one / np.exp(log_scales[:-1]), two / np.exp(log_scales[:-1])
    square = np.sum(one**2, 1)[:, None] + np.sum(two**2, 1) - 2 * one @ two.T
    return np.exp(2 * log_scales[-1] - 0.5 * np.maximum(square, 0.0))


@dataclasses.dataclass(frozen=True)
class Surrogate:
    r"""The process, given values at points.

    Parameters
    ----------
    z
        The points.
    log_scales, prior_scale
        Logarithms of ℓ and a, and b.
    inverse
        :math:`L^{-1}`.
    features, covariance
        :math:`\tilde H` and :math:`A^{-1}`.
    coefficients, residual
        :math:`\hat\beta` and :math:`\tilde y-\tilde H\hat\beta`.
    """

    z: Inputs
    log_scales: Hyperparameters
    prior_scale: float
    inverse: Float[np.ndarray, "point point"]
    features: Float[np.ndarray, "point feature"]
    covariance: Float[np.ndarray, "feature feature"]
    coefficients: Float[np.ndarray, " feature"]
    residual: Values

    @classmethod
    def condition(
        cls, z: Inputs, y: Values, error: Values, log_scales: Hyperparameters, prior_scale: float
    ) -> "Surrogate":
        """Return the process, given values y with standard errors."""
        root = np.linalg.cholesky(kernel(z, z, log_scales) + np.diag(error**2))
        inverse = np.linalg.inv(root)
        features, y = inverse @ quadratic(z), inverse @ y
        covariance = np.linalg.inv(features.T @ features + np.eye(features.shape[1]) / prior_scale**2)
        coefficients = covariance @ (features.T @ y)
        rest = z, log_scales, prior_scale, inverse, features, covariance, coefficients
        return cls(*rest, y - features @ coefficients)

    @property
    def log_likelihood(self) -> float:
        """The log marginal likelihood of the values."""
        square = self.residual @ self.residual + self.coefficients @ self.coefficients / self.prior_scale**2
        volume = -2 * np.log(np.diagonal(self.inverse)).sum() - np.linalg.slogdet(self.covariance)[1]
        volume += 2 * len(self.coefficients) * np.log(self.prior_scale) + len(self.z) * np.log(2 * np.pi)
        return float(-0.5 * (square + volume))

    @property
    def slope(self) -> Hyperparameters:
        r"""Its gradient: :math:`\tfrac12\alpha^\top\dot K\alpha-\tfrac12\mathrm{tr}\,P\dot K`.

        P is the inverse covariance matrix of the values y, and :math:`\alpha=Py`.
        """
        alpha = self.inverse.T @ self.residual
        half = self.covariance @ self.features.T
        precision = self.inverse.T @ self.inverse - self.inverse.T @ (self.features @ half) @ self.inverse
        weight = (np.outer(alpha, alpha) - precision) * kernel(self.z, self.z, self.log_scales)
        z = self.z / np.exp(self.log_scales[:-1])
        # Σ_jk W_jk (z_ji - z_ki)² for all i at once.
        lengths = weight.sum(1) @ z**2 - np.sum(z * (weight @ z), axis=0)
        return np.append(lengths, weight.sum())

    def predict(self, z: Inputs) -> tuple[Values, Values]:
        """Return means and variances at other points."""
        across = kernel(z, self.z, self.log_scales) @ self.inverse.T
        rest = quadratic(z) - across @ self.features
        mean = quadratic(z) @ self.coefficients + across @ self.residual
        spread = (
            np.exp(2 * self.log_scales[-1]) - np.sum(across**2, axis=1) + np.sum((rest @ self.covariance) * rest, 1)
        )
        return mean, np.maximum(spread, 0.0)

    def spread_out(self, z: Inputs, log_weight: Values, num: int) -> Int[np.ndarray, " chosen"]:
        """Choose points of large weight times variance, one after another, each given those before it."""
        across = kernel(z, self.z, self.log_scales) @ self.inverse.T
        rest = quadratic(z) - across @ self.features
        scaled = rest @ self.covariance
        variance, columns, chosen = self.predict(z)[1], np.zeros((len(z), 0)), []
        for _ in range(num):
            with np.errstate(divide="ignore"):
                best = int(np.argmax(log_weight + np.log(variance)))
            chosen.append(best)
            column = kernel(z, z[best][None], self.log_scales)[:, 0] - across @ across[best] + scaled @ rest[best]
            column = (column - columns @ columns[best]) / np.sqrt(max(variance[best], np.finfo(float).tiny))
            columns = np.concatenate([columns, column[:, None]], axis=1)
            variance = np.maximum(variance - column**2, 0.0)
        return np.array(chosen)
