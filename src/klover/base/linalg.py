"""Factorisations, solutions and distances, each written once for NumPy and JAX where the two can share it."""

import jax
import jax.numpy as jnp
import numpy as np

from klover.base.arrays import BLOCK, namespace, over_blocks
from klover.base.shapes import AnyArray, Float, Locations, PerComponent, PerDraw, Point, Points

SMALLEST_BLOCK = 128
MOST_PRODUCTS = 2**18
"""Multiplications that OpenBLAS leaves to one thread. Two are no faster at this, and wait for each other: on a machine
with other work to do, refining eight schools took 0.95 s instead of 0.56."""
MOST_WHITENED = 2**23
"""Numbers that JAX computes at once on the way to distances: 32 MiB in single precision, which a GPU's cache holds."""


def inverse_triangular(factor: Float[AnyArray, "... dim dim"]) -> Float[AnyArray, "... dim dim"]:
    """Inverse of lower-triangular matrices."""
    return np.linalg.inv(factor) if namespace(factor) is np else _inverse_triangular(jnp.asarray(factor))


@jax.custom_jvp
def _inverse_triangular(factor: Float[jax.Array, "... dim dim"]) -> Float[jax.Array, "... dim dim"]:
    return jax.lax.platform_dependent(factor, cpu=_substitute, default=_solve_identity)


@_inverse_triangular.defjvp
def _inverse_triangular_jvp(primals, tangents):
    r"""Differentiate: :math:`-L^{-1}\,dL\,L^{-1}`."""
    inverse = _inverse_triangular(*primals)
    return inverse, -inverse @ tangents[0] @ inverse


def _solve_identity(factor: Float[jax.Array, "... dim dim"]) -> Float[jax.Array, "... dim dim"]:
    identity = jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape)
    return jax.lax.linalg.triangular_solve(factor, identity, left_side=True, lower=True)


def _substitute(factor: Float[jax.Array, "... dim dim"]) -> Float[jax.Array, "... dim dim"]:
    """Invert row by row.

    LAPACK's solver would wait for other threads of the pool that it runs in: with jaxlib 0.10.2 on two cores, programs
    that solve two batches of triangular systems side by side never end.
    """
    identity = jnp.eye(factor.shape[-1], dtype=factor.dtype)

    def add_row(row, inverse):
        # Rows that are still zero add nothing to the product.
        known = (factor[..., row, None, :] @ inverse)[..., 0, :]
        return inverse.at[..., row, :].set((identity[row] - known) / factor[..., row, row, None])

    return jax.lax.fori_loop(0, factor.shape[-1], add_row, jnp.zeros_like(factor))


def solve_positive(
    matrix: Float[AnyArray, "... dim dim"], right: Float[AnyArray, "... dim column"]
) -> Float[AnyArray, "... dim column"]:
    """Solve systems with symmetric positive definite matrices."""
    xp = namespace(matrix, right)
    if xp is np:
        return np.linalg.solve(matrix, right)
    inverse = inverse_triangular(jnp.linalg.cholesky(matrix))
    return jnp.swapaxes(inverse, -1, -2) @ (inverse @ right)


def whitened_squares(x: Points, location: Locations, inverse: Float[AnyArray, "component dim dim"]) -> PerComponent:
    r"""Return :math:`|A_k(\theta_s-\mu_k)|^2` for lower-triangular :math:`A_k`.

    On NumPy arrays, which are of double precision, one product of matrices serves all k: several times faster. Points
    are taken relative to the centre of the locations then, so that little cancels. In single precision a component a
    thousand of its scales from the centre would lose three digits, so JAX arrays are taken relative to each location.
    """
    num, dim = location.shape
    if namespace(x, location, inverse) is jnp:
        is_single = jnp.result_type(x, location, inverse) == jnp.float32
        is_for_kernel = is_single and jax.default_backend() == "gpu" and x.size * num > MOST_WHITENED
        function = _many_whitened_squares if is_for_kernel else _whitened_squares
        return function(x, location, jnp.swapaxes(inverse, -1, -2))
    centre = location.mean(0)
    shift = np.einsum("kij,kj->ik", inverse, location - centre).reshape(dim * num, 1)
    rows = inverse.swapaxes(0, 1).reshape(dim * num, dim)

    block = min(max(MOST_PRODUCTS // rows.size, SMALLEST_BLOCK), BLOCK)

    def of_block(x):
        whitened = rows @ (x - centre).T
        whitened -= shift
        whitened *= whitened
        return whitened.reshape(dim, num, -1).sum(0)

    return np.concatenate(over_blocks(of_block, x, block=block), axis=1)


def _whitened_squares(
    x: Points, location: Locations, right: Float[AnyArray, "component dim dim"]
) -> Float[jax.Array, "component draw"]:
    """Go through many points in blocks: a million in a hundred dimensions would else take 13 GB for 32 components."""

    def of_block(x):
        return (((x - location[:, None, :]) @ right) ** 2).sum(-1)

    (num, dim), num_draws = location.shape, x.shape[0]
    block = max(MOST_WHITENED // (num * dim), 1)
    if num_draws <= block:
        return of_block(x)
    blocks = jnp.pad(x, ((0, -num_draws % block), (0, 0))).reshape(-1, block, dim)
    return jnp.moveaxis(jax.lax.map(of_block, blocks), 0, 1).reshape(num, -1)[:, :num_draws]


@jax.custom_jvp
def _many_whitened_squares(x, location, right):
    """Use a kernel of our own on a GPU; what is differentiated is the plain formula."""
    from klover.base import kernels

    return jax.lax.platform_dependent(x, location, right, cuda=kernels.whitened_squares, default=_whitened_squares)


@_many_whitened_squares.defjvp
def _many_whitened_squares_jvp(primals, tangents):
    return _many_whitened_squares(*primals), jax.jvp(_whitened_squares, primals, tangents)[1]


FAILURES = (np.linalg.LinAlgError, ArithmeticError)
"""What a computation raises that fails on numbers which a target has brought."""


def said_of(failure: BaseException) -> str:
    """Say in words that a computation has failed."""
    return f"a computation failed: {failure}"


def times(root: Float[np.ndarray, "dim *dim"], z: Float[AnyArray, "... dim"]) -> Float[np.ndarray, "... dim"]:
    """Multiply points by a matrix, or by the diagonal of one, on the host."""
    return np.asarray(z * root if root.ndim == 1 else z @ root.T)


def divided(root: Float[np.ndarray, "dim *dim"], x: Points) -> Float[np.ndarray, "draw dim"]:
    """Multiply points by the inverse of a matrix, or of the diagonal of one."""
    return np.asarray(x / root if root.ndim == 1 else np.linalg.solve(root, x.T).T)


def cholesky(covariance: Float[AnyArray, "... dim dim"]) -> Float[AnyArray, "... dim dim"]:
    """Cholesky factor through the correlation matrix, so that scales of 1e-8 beside 1e8 do no harm."""
    xp = namespace(covariance)
    scale = xp.sqrt(xp.diagonal(covariance, axis1=-2, axis2=-1))
    correlation = covariance / (scale[..., :, None] * scale[..., None, :])
    jitter = 10 * np.finfo(covariance.dtype).eps * xp.eye(covariance.shape[-1], dtype=covariance.dtype)
    return scale[..., :, None] * xp.linalg.cholesky(correlation + jitter)


def moments(x: Points, weight: PerDraw) -> tuple[Point, Float[AnyArray, "dim dim"]]:
    """Weighted mean and covariance, correlations shrunk as much as few effective draws make them uncertain."""
    weight = weight / weight.sum()
    mean = weight @ x
    delta = x - mean
    covariance = delta.T @ (weight[:, None] * delta)
    noise = x.shape[1] * np.sum(weight**2)
    shrinkage = noise / (1 + noise)
    return mean, (1 - shrinkage) * covariance + (shrinkage + 1e-10) * np.diag(np.diagonal(covariance))
