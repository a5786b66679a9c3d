"""PyMC's ADVI on the JAX function as a potential; mean-field, or (tuned) of full covariance with Adam's longer steps.

PyMC compiles anew in each call.
"""

import jax
import numpy as np
import pymc
import pytensor
from pytensor.graph.op import Op

from benchmarks.peers import Answer

SETTINGS = {
    "default": {"method": "advi", "n": 10_000},
    "tuned": {"method": "fullrank_advi", "n": 30_000, "obj_optimizer": pymc.adam(learning_rate=0.01)},
}
NUM_DRAWS = 4000


class _Gradient(Op):
    itypes, otypes = [pytensor.tensor.dvector], [pytensor.tensor.dvector]

    def __init__(self, function):
        self.function = jax.jit(jax.grad(function))

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(self.function(inputs[0]))


class _LogDensity(Op):
    itypes, otypes = [pytensor.tensor.dvector], [pytensor.tensor.dscalar]

    def __init__(self, function):
        self.function, self.gradient = jax.jit(function), _Gradient(function)

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(self.function(inputs[0]))

    def L_op(self, inputs, outputs, output_gradients):
        return [output_gradients[0] * self.gradient(inputs[0])]


def prepare(task, n, **setting):
    operation = _LogDensity(task.log_prob)

    def solve(seed):
        with pymc.Model():
            x = pymc.Flat("x", shape=task.dim, initval=task.starts(seed, 1)[0])
            pymc.Potential("log_p", operation(x))
            approximation = pymc.fit(n, random_seed=seed, progressbar=False, **setting)
            x = np.asarray(approximation.sample(NUM_DRAWS, random_seed=seed).posterior["x"])[0]
        return Answer(x, num_gradients=n)

    return solve
