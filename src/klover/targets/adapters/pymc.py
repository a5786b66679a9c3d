"""PyMC models as targets: PyTensor turns their graphs into JAX functions; PyMC itself draws priors and predictions.

Two traps of PyMC 5 are kept away from the user: importing its JAX module asks XLA for a hundred host devices, and may
switch JAX to double precision; ``XLA_FLAGS`` and the precision are put back to what they were.
"""

import concurrent.futures
import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from klover.base import optional
from klover.targets.model_info import ModelInfo
from klover.targets.target import Target

NEED = "klover.from_pymc needs"
FLAT = ("FlatRV", "HalfFlatRV")


def from_pymc(model: Any) -> Target:
    """Make a target of a PyMC model.

    Parameters
    ----------
    model
        A ``pymc.Model`` whose unobserved variables are continuous. Positions are its value variables (``tau_log__``,
        ...), and the density has the Jacobians of their transforms. People read the variables themselves and the
        deterministic ones, with the model's dims and coords.

    Raises
    ------
    ValueError
        If an unobserved variable is discrete, or none is left.
    """
    # What no class of PyMC's has a part in need not wait for its import, which takes seconds.
    is_foreign = all(base.__module__.partition(".")[0] != "pymc" for base in type(model).__mro__)
    if is_foreign or not isinstance(model, optional.load("pymc", NEED, "pymc").Model):
        raise TypeError(f"model must be a pymc.Model, got a {type(model).__name__}.")
    discrete = [variable.name for variable in model.discrete_value_vars]
    if discrete:
        raise ValueError(
            f"model has discrete variables, {', '.join(discrete)}, which no density in R^d can hold. Sum them out, for "
            "example with pymc_extras.marginalize."
        )
    if not model.free_RVs:
        raise ValueError("model has no unobserved variable, so there is nothing to infer.")
    jaxify = _jaxifier()
    values = list(model.value_vars)
    names = [variable.name for variable in values]
    start = model.initial_point()

    def over(outputs: Sequence[Any]) -> Callable[[dict[str, Any]], list[Any]]:
        function = jaxify(values, list(outputs))
        return lambda position: function(*(position[name] for name in names))

    density = over([model.logp()])
    read = [*model.free_RVs, *model.deterministics]
    constrain = over(model.replace_rvs_by_values(read))
    return Target(
        lambda position: density(position)[0],
        {name: np.asarray(start[name], float) for name in names},
        constrain=lambda position: dict(zip((each.name for each in read), constrain(position), strict=True)),
        model_info=_model_info(model, jaxify, over),
    ).remade_by(from_pymc, model)


def _model_info(model: Any, jaxify: Callable, over: Callable) -> ModelInfo:
    unconstrain = _unconstrain(model, jaxify)
    observed = list(model.observed_RVs)
    improper = tuple(each.name for each in model.free_RVs if type(each.owner.op).__name__ in FLAT)
    likelihood = over(model.logp(observed, sum=False)) if observed else None

    def log_likelihood(position):
        assert likelihood is not None
        return dict(zip((each.name for each in observed), likelihood(unconstrain(position)), strict=True))

    return ModelInfo(
        "pymc",
        dims={name: tuple(dims) for name, dims in model.named_vars_to_dims.items() if None not in dims},
        coords={name: np.asarray(values) for name, values in model.coords.items() if values is not None},
        observed={each.name: np.asarray(model.rvs_to_values[each].eval()) for each in observed},
        improper=improper,
        unconstrain=unconstrain,
        log_likelihood=log_likelihood if observed else None,
        prior=None if improper else _prior(model, unconstrain),
        predict=_predict(model) if observed else None,
    )


def _prior(model: Any, unconstrain: Callable) -> Callable[..., dict[str, Any]]:
    """Return the way from a key and a number to draws of the prior; potentials have no part in them."""

    def prior(key, num):
        from pymc import draw

        # Compiling C for a few hundred draws would take seconds, and Python's own thunks take milliseconds.
        drawn = draw(model.free_RVs, draws=num, mode="FAST_COMPILE", random_seed=int(jax.random.bits(key)))
        values = {variable.name: values for variable, values in zip(model.free_RVs, drawn, strict=True)}
        return jax.jit(jax.vmap(unconstrain))(values)

    return prior


def _predict(model: Any) -> Callable[..., dict[str, Any]]:
    """Return the way from a key and the variables to new observations, which PyTensor compiles at the first time."""

    @functools.cache
    def program():
        from pymc.pytensorf import compile as compile_graph
        from pytensor.graph.replace import clone_replace
        from pytensor.tensor.random.type import RandomType

        inputs = {variable: variable.type(variable.name) for variable in model.free_RVs}
        function = compile_graph(list(inputs.values()), clone_replace(list(model.observed_RVs), replace=inputs))
        return function, [each for each in function.get_shared() if isinstance(each.type, RandomType)]

    def predict(key, position):
        from pymc.pytensorf import reseed_rngs

        seed, values = int(jax.random.bits(key)), [np.asarray(position[each.name]) for each in model.free_RVs]
        function, generators = program()
        reseed_rngs(generators, seed)
        return dict(zip((each.name for each in model.observed_RVs), function(*values), strict=True))

    return predict


def _unconstrain(model: Any, jaxify: Callable) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return the way from the variables to their value variables; a transform may need other variables."""
    from pytensor.graph.replace import clone_replace

    inputs = {variable: variable.type(variable.name) for variable in model.free_RVs}
    outputs = []
    for variable, given in inputs.items():
        transform = model.rvs_to_transforms[variable]
        outputs.append(given if transform is None else transform.forward(given, *variable.owner.inputs))
    function = jaxify(list(inputs.values()), clone_replace(outputs, replace=inputs))
    names = [model.rvs_to_values[variable].name for variable in inputs]

    def unconstrain(position):
        found = function(*(jax.numpy.asarray(position[variable.name]) for variable in inputs))
        return dict(zip(names, found, strict=True))

    return unconstrain


def _jaxifier() -> Callable[[list[Any], list[Any]], Callable]:
    """Return PyMC's function from inputs and outputs of a graph to a JAX function of the inputs."""
    with _untouched():
        module = optional.load("pymc.sampling.jax", NEED, "pymc")

    def jaxify(inputs, outputs):
        with _untouched():
            function = module.get_jaxified_graph(inputs=inputs, outputs=outputs)

        def traced(*arguments):
            # PyTensor mixes types, and asks for double precision in single.
            with jax.numpy_dtype_promotion("standard"), warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Explicitly requested dtype float64", UserWarning)
                return function(*arguments)

        return traced

    return jaxify


@contextlib.contextmanager
def _untouched() -> Iterator[None]:
    """Put the flags of XLA and the precision of JAX back to what they were."""
    flags = os.environ.get("XLA_FLAGS")
    # A thread sees the precision of the process, not one that holds for a block of code (jax.enable_x64).
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        is_double = thread.submit(lambda: jax.config.jax_enable_x64).result()  # pyright: ignore
    try:
        yield
    finally:
        if flags is None:
            os.environ.pop("XLA_FLAGS", None)
        else:
            os.environ["XLA_FLAGS"] = flags
        jax.config.update("jax_enable_x64", is_double)
