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
from klover.base.checks import note
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
        If an unobserved variable is discrete, or none is left, or an ``initval`` is outside of the support.
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

    def over(outputs: Sequence[Any]) -> Callable[[dict[str, Any]], list[Any]]:
        function = jaxify(values, list(outputs))
        return lambda position: function(*(position[name] for name in names))

    density = over([model.logp()])
    read = [*model.free_RVs, *model.deterministics]
    constrain = over(model.replace_rvs_by_values(read))
    return Target(
        lambda position: density(position)[0],
        _start(model),
        constrain=lambda position: dict(zip((each.name for each in read), constrain(position), strict=True)),
        model_info=_model_info(model, jaxify, over),
    ).remade_by(from_pymc, model)


def _start(model: Any) -> dict[str, np.ndarray]:
    """Return PyMC's initial point, with zero where it is not finite: equal numbers cannot be ordered."""
    point, start = model.initial_point(), {}
    for variable in model.free_RVs:
        name, given = model.rvs_to_values[variable].name, model.rvs_to_initial_values[variable]
        start[name] = np.asarray(point[name], float)
        is_finite = np.isfinite(start[name])
        if not is_finite.all() and given is not None:
            raise ValueError(
                f"model's variable {variable.name!r} begins outside of its support, or at its edge, by its initval, "
                f"{given}. Move it inside, or leave initval out."
            )
        start[name] = np.where(is_finite, start[name], 0.0)
    return start


def _model_info(model: Any, jaxify: Callable, over: Callable) -> ModelInfo:
    unconstrain = _unconstrain(model, jaxify)
    observed = list(model.observed_RVs)
    improper = tuple(each.name for each in model.free_RVs if type(each.owner.op).__name__ in FLAT)
    likelihood = over(model.logp(observed, sum=False)) if observed else None

    priors = over(model.logp(model.free_RVs, jacobian=False, sum=False))

    def log_likelihood(position):
        assert likelihood is not None
        return dict(zip((each.name for each in observed), likelihood(unconstrain(position)), strict=True))

    def log_prior(position):
        return dict(zip((each.name for each in model.free_RVs), priors(unconstrain(position)), strict=True))

    return ModelInfo(
        "pymc",
        dims={name: tuple(dims) for name, dims in model.named_vars_to_dims.items() if None not in dims},
        coords={name: np.asarray(values) for name, values in model.coords.items() if values is not None},
        observed={each.name: np.asarray(model.rvs_to_values[each].eval()) for each in observed},
        improper=improper,
        unconstrain=unconstrain,
        log_likelihood=log_likelihood if observed else None,
        log_prior=log_prior,
        prior=None if improper else _prior(model, unconstrain),
        predict=_predict(model, {}) if observed else None,
        renew=functools.partial(_renew, model) if observed else None,
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


@functools.cache
def _mode() -> Any:
    """Return a mode of PyTensor without C, in which the categories of all observations are drawn at once.

    PyTensor draws them one by one, which is most of the time of a mixture's predictions. Here a category is the number
    of cumulative probabilities that a uniform number reaches; the last is 1, and may be rounded to less.
    """
    from pytensor.compile.mode import get_mode
    from pytensor.graph.rewriting.basic import node_rewriter, out2in
    from pytensor.tensor.random.basic import CategoricalRV

    class Categories(CategoricalRV):
        @classmethod
        def rng_fn(cls, rng, p, size):
            uniform = rng.random((*(p.shape[:-1] if size is None else size), 1))
            return np.sum(np.cumsum(p, axis=-1)[..., :-1] <= uniform, axis=-1)

    @node_rewriter([CategoricalRV])
    def at_once(graph, node):
        if isinstance(node.op, Categories):
            return None
        return Categories(**node.op._props_dict()).make_node(*node.inputs).outputs

    mode: Any = get_mode("FAST_COMPILE")
    return mode.register((out2in(at_once), 100))


def _predict(model: Any, data: dict[str, np.ndarray]) -> Callable[..., dict[str, Any]]:
    """Return the way from a key and the variables to new observations, with new values of some of the model's data.

    PyTensor builds the function at the first time, without C: to compile that takes longer than thousands of draws.
    PyTensor 2.38 can make JAX functions of random graphs, for all draws at once, but takes probabilities of categories
    for logits there: mixtures come out with wrong weights.
    """

    @functools.cache
    def program():
        from pymc.pytensorf import compile as compile_graph
        from pytensor.graph.replace import clone_replace
        from pytensor.tensor.random.type import RandomType

        inputs = {variable: variable.type(variable.name) for variable in model.free_RVs}
        new = {model[name]: model[name].type(name) for name in data}
        sizes = {
            model.dim_lengths[dim]: new[model[name]].shape[axis].astype(model.dim_lengths[dim].dtype)
            for name in data
            for axis, dim in enumerate(model.named_vars_to_dims.get(name, ()))
        }
        # A length that is computed from the data follows them; one that stands by itself has to be replaced.
        lengths = {length: size for length, size in sizes.items() if length.owner is None}
        outputs = clone_replace(list(model.observed_RVs), replace={**inputs, **new, **lengths}, rebuild_strict=False)
        arguments = [*inputs.values(), *new.values()]
        function = compile_graph(arguments, outputs, mode=_mode(), on_unused_input="ignore")
        return function, [each for each in function.get_shared() if isinstance(each.type, RandomType)]

    def predict(key, position):
        from pymc.pytensorf import reseed_rngs

        # To draw a seed with JAX would take longer than the prediction.
        seed = [int(word) for word in np.asarray(jax.random.key_data(key)).ravel()]
        values = [np.asarray(position[each.name]) for each in model.free_RVs]
        function, generators = program()
        reseed_rngs(generators, np.random.SeedSequence(seed).generate_state(1)[0])
        found = function(*values, *data.values())
        return dict(zip((each.name for each in model.observed_RVs), found, strict=True))

    return predict


def _renew(model: Any, data: dict[str, Any], coords: dict[str, Any] | None = None) -> ModelInfo:
    """Return predictions for new data, which replace those of ``pm.Data``; the model stays as it is."""
    known = [each.name for each in model.data_vars]
    unknown = [name for name in data if name not in known] if isinstance(data, dict) else [data]
    if unknown:
        raise ValueError(
            f"fit.predict takes a dict of new values by the names of the model's pm.Data, {known}, got {unknown}. Wrap "
            "inputs in pm.Data, and give the observed variable shape=mu.shape, as pm.set_data asks for it."
        )
    values = {name: np.asarray(value, model[name].dtype) for name, value in data.items()}
    predict = _predict(model, values)

    def checked(key, position):
        with note(
            "PyMC failed with the new data. If shapes do not match, give the observed variable shape=mu.shape, or pass "
            "new values of all data that have this dimension."
        ):
            return predict(key, position)

    dims: dict[str, Sequence[str]] = {
        name: tuple(each) for name, each in model.named_vars_to_dims.items() if None not in each
    }
    changed = {dim for name in values for dim in dims.get(name, ())}
    kept = {dim: np.asarray(each) for dim, each in model.coords.items() if each is not None and dim not in changed}
    return ModelInfo("pymc", dims=dims, coords=kept | (coords or {}), observed=values, predict=checked)


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
