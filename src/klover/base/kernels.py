r"""Kernels of our own for a GPU in single precision, and what they share.

XLA writes the differences :math:`\theta_s-\mu_k` and the whitened points, draws by components by dimensions, to memory
and reads them again. A program of :func:`whitened_squares` has one component and some draws, and keeps both in
registers: a million draws in a hundred dimensions with 32 components take 12 ms on one H200, XLA's programs 30.
Products are those of tensor cores, with each factor split into parts that these can hold, and have the precision of
float32. (Parts that a program splits itself, of both factors: 19 ms; three products of 19 bits: 25 ms. Half as many
columns at a time, which leaves out a quarter of the zeros of a triangular matrix: 15 ms.)
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from klover.base.shapes import AnyArray, Float, Locations, PerComponent, Points

NUM_DRAWS, MOST_COLUMNS, NUM_TERMS = 64, 128, 16
"""A program's draws, and how many whitened coordinates, and terms of each, it adds up at a time."""
NUM_PARTS = 3
"""Numbers of bfloat16 that together hold one of float32."""
IS_INTERPRETED = jax.default_backend() == "cpu"
"""Whether there is no GPU: tests then run the kernels step by step."""


def call(kernel, shapes: list[tuple[int, ...]], grid: tuple[int, ...], num_warps: int):
    """Return a kernel as a function of arrays that returns arrays of these shapes."""
    return pl.pallas_call(
        kernel,
        [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes],
        grid=grid,
        compiler_params=triton.CompilerParams(num_warps=num_warps),
        interpret=IS_INTERPRETED,
        name=kernel.__name__,
    )


def product(a, b):
    """Multiply matrices in a kernel."""
    is_split = a.dtype == jnp.float32 and not IS_INTERPRETED
    precision = jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3 if is_split else None
    return jax.lax.dot(a, b, precision=precision, preferred_element_type=jnp.float32)


def parts(array):
    """Split numbers of float32 into parts of bfloat16, the largest first, in a kernel."""
    found = []
    for _ in range(NUM_PARTS):
        found.append(array.astype(jnp.bfloat16))
        array = array - found[-1].astype(jnp.float32)
    return found


def whitened_squares(x: Points, location: Locations, right: Float[AnyArray, "component dim dim"]) -> PerComponent:
    r"""Return :math:`|(\theta_s-\mu_k)R_k|^2` for upper-triangular :math:`R_k`."""
    (num_draws, dim), num_components = x.shape, location.shape[0]
    num_columns = min(max(pl.next_power_of_2(dim), NUM_TERMS), MOST_COLUMNS)
    none, terms, columns = (0, 0), (0, -dim % NUM_TERMS), (0, -dim % num_columns)
    points = jnp.pad(x, ((0, -num_draws % NUM_DRAWS), terms))
    arguments = points, jnp.pad(location, (none, terms)), jnp.pad(_parts(right), (none, none, terms, columns))
    grid = (num_components, points.shape[0] // NUM_DRAWS)
    (found,) = call(_whitened_squares, [(num_components, points.shape[0])], grid, num_warps=4)(*arguments)
    return found[:, :num_draws]


def _whitened_squares(points, location, right, found):
    component, draws = pl.program_id(0), pl.ds(pl.program_id(1) * NUM_DRAWS, NUM_DRAWS)
    num_columns, total = min(right.shape[-1], MOST_COLUMNS), jnp.zeros(NUM_DRAWS, jnp.float32)
    for start in range(0, right.shape[-1], num_columns):
        columns = pl.ds(start, num_columns)

        def add_terms(number, whitened, columns=columns):
            terms = pl.ds(number * NUM_TERMS, NUM_TERMS)
            difference = parts(points[draws, terms] - location[component, terms])
            # The smallest products first; those that are smaller still are below the precision.
            for order in reversed(range(NUM_PARTS)):
                for part in range(order + 1):
                    factor = right[order - part, component, terms, columns]
                    whitened = whitened + product(difference[part], factor)
            return whitened

        # Terms below the diagonal are zero.
        num_terms = min(start + num_columns, points.shape[1])
        whitened = jnp.zeros((NUM_DRAWS, num_columns), jnp.float32)
        whitened = jax.lax.fori_loop(0, num_terms // NUM_TERMS, add_terms, whitened)
        total += jnp.sum(whitened**2, axis=1)
    found[component, draws] = total


def _parts(array: Float[AnyArray, "..."]) -> Float[AnyArray, "part ..."]:
    """Split as :func:`parts` does, outside of kernels; XLA keeps a rounding only if it is asked for by this name."""
    found = []
    for _ in range(NUM_PARTS):
        found.append(jax.lax.reduce_precision(array, 8, 7))
        array = array - found[-1]
    return jnp.stack(found).astype(jnp.bfloat16)
