r"""Low-dimensional posteriors whose answers are sums over a grid: trigonometric densities, Gaussian-process
hyperparameters, rounded measurements.

For a smooth density that has died away at the edges of the grid, a plain sum over equidistant nodes (the trapezoidal
rule) converges faster than any power of the spacing. The sum over every second node has the error of a grid twice as
coarse; where the two differ, the grid is refined.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from scipy import ndimage

from benchmarks.reliability.densities import Density, Moments

MOST_NODES = 2_000_000
LARGEST_ERROR = 1e-5
BLOCK = 2**15


def by_grid(log_prob: Callable, lower, upper, nums: Sequence[int]) -> Density:
    """Return a density with its answers from a grid between two corners; the numbers of nodes an axis may double."""
    dim = len(nums)
    evaluate = jax.jit(jax.vmap(log_prob))
    while True:
        axes = [np.linspace(*ends) for ends in zip(lower, upper, nums, strict=True)]
        nodes = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
        values = _in_blocks(evaluate, nodes.reshape(-1, dim)).reshape(nums)
        fine = _answers(values, nodes)
        coarse = _answers(*(each[tuple(dim * [slice(None, None, 2)])] for each in (values, nodes)))
        error = max(abs(fine[0] - coarse[0]), np.max(np.abs(fine[1].mean - coarse[1].mean) / fine[1].sd))
        if error < LARGEST_ERROR:
            break
        nums = [2 * num - 1 for num in nums]
        if np.prod(nums) > MOST_NODES:
            raise ArithmeticError(f"the grid's answer is still off by {error:.1g}.")
    log_evidence, moments = fine
    tops = (values == ndimage.maximum_filter(values, size=3, mode="nearest")) & (values > values.max() - 15)
    num_tops = int(ndimage.label(tops, np.ones(dim * [3]))[1])
    return Density(log_prob, dim, moments=moments, log_evidence=log_evidence, is_unimodal=num_tops == 1)


def _in_blocks(evaluate, x: np.ndarray) -> np.ndarray:
    """Evaluate points in blocks of one size, so that one program serves all grids."""
    size = -(-len(x) // BLOCK) * BLOCK
    padded = np.concatenate([x, np.broadcast_to(x[-1], (size - len(x), x.shape[1]))])
    parts = [np.asarray(evaluate(padded[at : at + BLOCK])) for at in range(0, size, BLOCK)]
    return np.concatenate(parts)[: len(x)]


def _answers(values: np.ndarray, nodes: np.ndarray) -> tuple[float, Moments]:
    dim = nodes.shape[-1]
    nodes, values = nodes.reshape(*values.shape, dim), values
    steps = [nodes[tuple(int(axis == at) for at in range(dim))][axis] - nodes[(0,) * dim][axis] for axis in range(dim)]
    weight = np.exp(values - values.max())
    edges = max(np.take(weight, end, axis=axis).max() for axis in range(dim) for end in (0, -1))
    if edges > 1e-8:
        raise ArithmeticError(f"the density has not died away at the edge of the grid: {edges:.1g} of its peak.")
    log_evidence = float(np.log(weight.sum()) + values.max() + np.log(steps).sum())
    weight, flat = weight.ravel() / weight.sum(), nodes.reshape(-1, dim)
    mean = weight @ flat
    variance, fourth = weight @ (flat - mean) ** 2, weight @ (flat - mean) ** 4
    return log_evidence, Moments(mean, np.sqrt(variance), fourth / variance**2)


def trigonometric(generator) -> Density:
    r""":math:`\log p(x)=-\tfrac12|x-m|^2/s^2+\sum_ja_j\cos(\omega_j^\top x+\phi_j)` in one or two
    dimensions: anything from a ripple to a dozen modes.
    """
    dim, num = int(generator.integers(1, 3)), int(generator.integers(2, 7))
    heights = generator.uniform(0.2, generator.choice([0.7, 2.5]), size=num)
    frequencies, phases = generator.normal(0, 1.5, size=(num, dim)), generator.uniform(0, 2 * np.pi, size=num)
    centre, scale = generator.normal(0, 2, size=dim), generator.uniform(1, 4)

    def log_prob(x):
        bell = -0.5 * jnp.sum((x - centre) ** 2) / scale**2
        return bell + jnp.sum(heights * jnp.cos(frequencies @ x + phases))

    reach = 10 * scale
    return by_grid(log_prob, centre - reach, centre + reach, [801] if dim == 1 else [201, 201])


def gaussian_process(generator) -> Density:
    """Log length scale and log amplitude of a Gaussian process on six to twelve points, with normal priors on both."""
    num = int(generator.integers(6, 13))
    inputs = np.sort(generator.uniform(0, 10, size=num))
    noise, units = generator.uniform(0.1, 0.5), 10 ** generator.choice([0.0, 1.0, -1.0])
    distances = (inputs[:, None] - inputs) ** 2
    # Data from the prior: the length scale around 1.5, the amplitude around the unit.
    length, amplitude = np.exp(generator.normal([0.4, 0.0], [0.7, 0.5]))
    kernel = amplitude**2 * np.exp(-0.5 * distances / length**2) + noise**2 * np.eye(num)
    values = units * np.linalg.cholesky(kernel) @ generator.normal(size=num)
    centre, widths = np.array([0.4, np.log(units)]), np.array([0.7, 1.0])

    def log_prob(x):
        covariance = jnp.exp(2 * x[1] - 0.5 * distances * jnp.exp(-2 * x[0])) + (units * noise) ** 2 * jnp.eye(num)
        factor = jnp.linalg.cholesky(covariance)
        white = jax.scipy.linalg.solve_triangular(factor, values, lower=True)
        log_likelihood = -0.5 * jnp.sum(white**2) - jnp.sum(jnp.log(jnp.diagonal(factor)))
        return log_likelihood - 0.5 * jnp.sum(((x - centre) / widths) ** 2)

    return by_grid(log_prob, centre - 7.5 * widths, centre + 7.5 * widths, [151, 151])


def rounded(generator) -> Density:
    r"""The mean (and perhaps the log standard deviation) of normal measurements that were rounded to whole numbers.

    The likelihood of a rounded y is :math:`\Phi((y+\tfrac12-\mu)/\sigma)-\Phi((y-\tfrac12-\mu)/\sigma)`; with a fine σ
    it is nearly a step function of μ.
    """
    dim, num = int(generator.integers(1, 3)), int(generator.integers(1, 12))
    sd = 10 ** generator.uniform(-2 if dim == 1 else -1, 0)
    data = np.round(generator.normal(generator.normal(0, 2), sd, size=num))

    def log_prob(x):
        mean, log_step = x[0], x[1] if dim == 2 else 0.0
        scale = sd * jnp.exp(0.3 * log_step)
        upper, lower = (data + 0.5 - mean) / scale, (data - 0.5 - mean) / scale
        # Both on the left flank, where the difference of the distribution functions does not cancel.
        flip = lower + upper > 0
        high, low = jnp.where(flip, -lower, upper), jnp.where(flip, -upper, lower)
        high, low = jax.scipy.stats.norm.logcdf(high), jax.scipy.stats.norm.logcdf(low)
        log_likelihood = jnp.sum(high + jnp.log1p(-jnp.exp(low - high)))
        return log_likelihood - 0.5 * (mean / 2) ** 2 - 0.5 * log_step**2

    # The posterior of μ ends a few σ beyond the rounding intervals of the data.
    reach = min(0.5 + 9 * sd * np.exp(1.2), 16.0)
    lower, upper = max(data.min() - reach, -14.0), min(data.max() + reach, 14.0)
    if dim == 1:
        return by_grid(log_prob, [lower], [upper], [4001])
    return by_grid(log_prob, [lower, -7.0], [upper, 7.0], [401, 101])
