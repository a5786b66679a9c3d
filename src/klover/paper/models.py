r"""The paper's regressions as targets: linear with a Gaussian or a heavy-tailed prior, and a neural network.

All have likelihood :math:`y\sim\mathrm N(\phi(x,w),1/\tau)` with an intercept among the weights w, and
:math:`\tau\sim\mathrm{Gamma}(1,0.1)` (rate). Precisions are fitted on the log scale; the Jacobian of the logarithm is
part of the log density. Features and target are standardised.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from klover.base.shapes import AnyArray, Float, Scalar
from klover.paper.datasets import Split
from klover.targets.target import Target

GAMMA_SHAPE, GAMMA_RATE = 1.0, 0.1
PRIOR_DF = 2.0
NUM_HIDDEN = 50


def design(features: np.ndarray) -> np.ndarray:
    """Append the intercept's column of ones."""
    return np.column_stack([features, np.ones(len(features))])


def prior_factor(num_weights: int) -> np.ndarray:
    """Draw the fixed matrix A of the heavy-tailed prior, entries N(0, 1)."""
    return np.random.RandomState(0).standard_normal((num_weights, num_weights))  # noqa: NPY002


def _log_gamma_prior(log_value: Scalar) -> Scalar:
    """Log density of log τ where τ ~ Gamma(1, 0.1): shape 1 has no further constant."""
    return np.log(GAMMA_RATE) + GAMMA_SHAPE * log_value - GAMMA_RATE * jnp.exp(log_value)


def _least_squares(split: Split) -> tuple[Callable[..., Scalar], int]:
    r"""Return the log likelihood of the weights and the log precision of a linear model, and the number of weights.

    Since :math:`\|y-Xw\|^2=\|y-X\hat w\|^2+\|R(w-\hat w)\|^2` with X = QR, an evaluation costs as much as the weights
    are many, not as the rows are.
    """
    inputs, outputs = design(split.train_features), split.train_target
    fitted = np.linalg.lstsq(inputs, outputs, rcond=None)[0]
    root, best = jnp.asarray(np.linalg.qr(inputs, mode="r")), jnp.asarray(fitted)
    smallest = jnp.asarray(np.sum((outputs - inputs @ fitted) ** 2))

    def log_likelihood(weights, log_tau):
        square = smallest + jnp.sum((root @ (weights - best)) ** 2)
        return 0.5 * len(outputs) * (log_tau - np.log(2 * np.pi)) - 0.5 * jnp.exp(log_tau) * square

    return log_likelihood, inputs.shape[1]


def linear_regression(split: Split, names: tuple[str, ...] | None = None) -> Target:
    r"""Gaussian prior: :math:`w_i\sim\mathrm N(0,1/\alpha)`, :math:`\alpha\sim\mathrm{Gamma}(1,0.1)`; d = features + 3.

    ``names`` are those of the features, for tables.
    """
    log_likelihood, num_weights = _least_squares(split)

    def logdensity(position):
        weights, log_alpha, log_tau = position["w"], position["log_alpha"], position["log_tau"]
        log_prior = 0.5 * num_weights * (log_alpha - np.log(2 * np.pi)) - 0.5 * jnp.exp(log_alpha) * weights @ weights
        hyper = _log_gamma_prior(log_alpha) + _log_gamma_prior(log_tau)
        return log_likelihood(weights, log_tau) + log_prior + hyper

    def constrain(position):
        return {"alpha": jnp.exp(position["log_alpha"]), "tau": jnp.exp(position["log_tau"]), "w": position["w"]}

    example = {"w": jnp.zeros(num_weights), "log_alpha": 0.0, "log_tau": 0.0}
    return Target(logdensity, example, constrain=constrain, names=names and ("alpha", "tau", *names, "intercept"))


def neural_network(split: Split) -> Target:
    r"""One hidden layer of ReLU units, :math:`y\sim\mathrm N(v^\top\mathrm{relu}(Ux+a)+b,1/\tau)`; prior as above.

    All weights and biases are :math:`\mathrm N(0,1/\alpha)`; d = 50 (features + 2) + 3, 753 for Boston.
    """
    inputs, outputs = jnp.asarray(design(split.train_features)), jnp.asarray(split.train_target)
    num_weights = NUM_HIDDEN * (inputs.shape[1] + 1) + 1

    def logdensity(position):
        log_alpha, log_tau = position["log_alpha"], position["log_tau"]
        # All of the position is one vector already, so this is one sum on a GPU; that of two of its parts would be two.
        flat = ravel_pytree(position)[0]
        square = jnp.sum(flat**2) - log_alpha**2 - log_tau**2
        log_prior = 0.5 * num_weights * (log_alpha - np.log(2 * np.pi)) - 0.5 * jnp.exp(log_alpha) * square
        size, error = outputs.shape[0], squared_error(flat, inputs, outputs)
        log_likelihood = 0.5 * size * (log_tau - np.log(2 * np.pi)) - 0.5 * jnp.exp(log_tau) * error
        return log_likelihood + log_prior + _log_gamma_prior(log_alpha) + _log_gamma_prior(log_tau)

    layers = {"hidden": np.zeros((inputs.shape[1], NUM_HIDDEN)), "output": np.zeros(NUM_HIDDEN + 1)}
    return Target(logdensity, {**layers, "log_alpha": 0.0, "log_tau": 0.0})


def squared_error(
    weights: Float[AnyArray, " weight"], inputs: Float[AnyArray, "row input"], outputs: Float[AnyArray, " row"]
) -> Scalar:
    """Sum of squared errors of a network's flat position, by kernels of our own on a GPU in single precision."""
    if jax.default_backend() == "gpu" and weights.dtype == jnp.float32:
        from klover.paper import network

        return jax.lax.platform_dependent(weights, inputs, outputs, cuda=network.squared_error, default=_squared_error)
    return _squared_error(weights, inputs, outputs)


def _squared_error(weights, inputs, outputs):
    units = num_units(weights.shape, inputs.shape)
    hidden = weights[: inputs.shape[1] * units].reshape(-1, units)
    residual = outputs - predict(hidden, weights[-units - 1 :], inputs)
    return residual @ residual


def num_units(of_weights: tuple[int, ...], of_inputs: tuple[int, ...]) -> int:
    """Return the number of hidden units, given the shapes of a network's flat position and of its inputs."""
    return (of_weights[0] - 3) // (of_inputs[1] + 1)


def predict(
    hidden: Float[AnyArray, "input unit"],
    output: Float[AnyArray, " unit_and_bias"],
    inputs: Float[AnyArray, "row input"],
) -> Float[AnyArray, " row"]:
    """Output of the network; ``inputs`` come from :func:`design`, and the last number of ``output`` is the bias."""
    # As a sum, which is fused with the ReLU: the hidden layer is then read once, and memory is what limits this.
    return jnp.sum(jax.nn.relu(inputs @ hidden) * output[:-1], axis=1) + output[-1]


def predictive_log_density(
    position: dict[str, AnyArray],
    features: Float[AnyArray, "row feature"],
    outputs: Float[AnyArray, " row"],
    target_scale: Scalar,
) -> Float[AnyArray, " row"]:
    r"""Log density :math:`\log p(y\mid x,\theta)` of each row in original units, at one position of any model."""
    inputs = jnp.column_stack([features, jnp.ones(features.shape[0], features.dtype)])
    mean = inputs @ position["w"] if "w" in position else predict(position["hidden"], position["output"], inputs)
    log_tau = position["log_tau"]
    square = jnp.exp(log_tau) * (outputs - mean) ** 2
    return 0.5 * (log_tau - np.log(2 * np.pi) - square) - jnp.log(target_scale)


def heavy_tailed_regression(split: Split, names: tuple[str, ...] | None = None) -> Target:
    r"""Heavy-tailed prior: :math:`w\sim\mathcal T_2(0,A^\top A)` with a fixed A, entries N(0, 1); d = features + 2.

    ``names`` are those of the features, for tables.
    """
    log_likelihood, num_weights = _least_squares(split)
    factor = prior_factor(num_weights)
    whitener = jnp.asarray(np.linalg.inv(factor).T)
    constant = (
        jax.scipy.special.gammaln((PRIOR_DF + num_weights) / 2)
        - jax.scipy.special.gammaln(PRIOR_DF / 2)
        - 0.5 * num_weights * np.log(PRIOR_DF * np.pi)
        - np.linalg.slogdet(factor)[1]
    )

    def logdensity(position):
        weights, log_tau = position["w"], position["log_tau"]
        distance = jnp.sum((whitener @ weights) ** 2)
        log_prior = constant - 0.5 * (PRIOR_DF + num_weights) * jnp.log1p(distance / PRIOR_DF)
        return log_likelihood(weights, log_tau) + log_prior + _log_gamma_prior(log_tau)

    def constrain(position):
        return {"tau": jnp.exp(position["log_tau"]), "w": position["w"]}

    example = {"w": jnp.zeros(num_weights), "log_tau": 0.0}
    return Target(logdensity, example, constrain=constrain, names=names and ("tau", *names, "intercept"))


MODELS = {"blr": linear_regression, "bnn": neural_network, "heavy": heavy_tailed_regression}
"""The model of each of the paper's tables."""
