r"""The neural network :math:`v^\top\mathrm{relu}(Ux+a)+b` and its derivative, each as one kernel of a GPU.

XLA writes the hidden layer, rows by units for each draw, to memory and reads it again, several times where a gradient
is asked for, and that is where its time goes. These kernels never write it: a program has one draw and one part of the
rows, and ``vmap`` makes a grid of programs. Products are those of tensor cores, with each factor split into the parts
that these can hold, and have the precision of float32. On one H200, for 20 splits of 100 draws (µs, XLA's beside them):

=============  ============  ==============
data set       the network   its derivative
=============  ============  ==============
Boston         65 (183)      102 (246)
power          537 (2404)    1401 (3854)
=============  ============  ==============

(The network with 512 rows to a program, the derivative with 256; on Boston 256 rows took 66 µs.) Lanes of the GPU for
rows, and no tensor cores, took 94 and 261 µs on Boston, 509 and 840 µs on power.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from klover.typing import AnyArray, Float

NUM_ROWS = 256
"""Rows of one program."""
NUM_PARTS = 3
"""Numbers of bfloat16 that together hold one of float32."""
IS_INTERPRETED = jax.default_backend() == "cpu"
"""Whether there is no GPU: tests then run the kernels step by step."""


@jax.custom_vjp
def network(
    hidden: Float[AnyArray, "input unit"],
    output: Float[AnyArray, " unit_and_bias"],
    inputs: Float[AnyArray, "row input"],
) -> Float[AnyArray, " row"]:
    """Return the network's output in single precision; differentiable once, and with respect to the weights only."""
    num_rows, num_inputs, num_units = _lengths(hidden, inputs, 8)
    rows, wide = _pad(inputs, num_rows, num_inputs), _pad(hidden, num_inputs, num_units)
    found = _call(_network, (num_rows,), num_rows, num_warps=4)(wide, _pad(output[:-1], num_units), rows)
    return found[: inputs.shape[0]] + output[-1]


def _network(hidden, output, inputs, found):
    weights, output_weights = hidden[...], output[...]

    def step(rows, _):
        layer = _product(inputs[rows, :], weights)
        found[rows] = jnp.sum(jnp.maximum(layer, 0.0) * output_weights, axis=1)

    _for_rows(128, step, None)


def _forward(hidden, output, inputs):
    return network(hidden, output, inputs), (hidden, output, inputs)


def _backward(saved, change):
    r"""With :math:`A_{fj}=\sum_rc_r1[h_{rj}>0]x_{rf}`: :math:`v_jA_{fj}` and :math:`\sum_fU_{fj}A_{fj}`."""
    hidden, output, inputs = saved
    num_rows, num_inputs, num_units = _lengths(hidden, inputs, 16)
    rows, wide = _pad(inputs, num_rows, num_inputs), _pad(hidden, num_inputs, num_units)
    shape = (num_rows // NUM_ROWS, num_inputs, num_units)
    parts = _call(_slope, shape, num_rows, num_warps=1)(wide, rows, _pad(change, num_rows))
    slope = jnp.sum(parts, axis=0)[: hidden.shape[0], : hidden.shape[1]]
    by_output = jnp.append(jnp.sum(hidden * slope, axis=0), jnp.sum(change))
    return output[:-1] * slope, by_output, jnp.zeros_like(inputs)


network.defvjp(_forward, _backward)


def _slope(hidden, inputs, change, found):
    weights = hidden[...]

    def add(rows, total):
        here = inputs[rows, :]
        # What is one or zero is exact in the lowest precision, and then only the small factor needs parts.
        is_active = (_product(here, weights) > 0).astype(jnp.bfloat16)
        rest = here * change[rows][:, None]
        for _ in range(NUM_PARTS):
            part = rest.astype(jnp.bfloat16)
            rest = rest - part.astype(jnp.float32)
            total = total + _product(part.T, is_active)
        return total

    found[pl.program_id(0)] = _for_rows(32, add, jnp.zeros(weights.shape, jnp.float32))


def _for_rows(size: int, step, start):
    """Go through a program's rows, some at a time."""
    first = pl.program_id(0) * NUM_ROWS
    return jax.lax.fori_loop(0, NUM_ROWS // size, lambda i, state: step(pl.ds(first + i * size, size), state), start)


def _lengths(hidden, inputs, least: int) -> tuple[int, int, int]:
    """Return how many rows, inputs and units there are with those that only fill up: a GPU wants powers of two."""
    num_inputs, num_units = (max(pl.next_power_of_2(size), least) for size in hidden.shape)
    return pl.cdiv(inputs.shape[0], NUM_ROWS) * NUM_ROWS, num_inputs, num_units


def _pad(array: Float[AnyArray, "..."], *lengths: int) -> Float[AnyArray, "..."]:
    """Append zeros; units and inputs without weights add nothing."""
    return jnp.pad(array, [(0, length - size) for size, length in zip(array.shape, lengths, strict=True)])


def _product(a, b):
    is_split = a.dtype == jnp.float32 and not IS_INTERPRETED
    precision = jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3 if is_split else None
    return jax.lax.dot(a, b, precision=precision, preferred_element_type=jnp.float32)


def _call(kernel, shape: tuple[int, ...], num_rows: int, num_warps: int):
    return pl.pallas_call(
        kernel,
        jax.ShapeDtypeStruct(shape, jnp.float32),
        grid=(num_rows // NUM_ROWS,),
        compiler_params=triton.CompilerParams(num_warps=num_warps),
        interpret=IS_INTERPRETED,
        name=kernel.__name__,
    )
