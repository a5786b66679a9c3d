"""NumPyro models as targets.

The density is NumPyro's joint density with the Jacobians of the transforms to the supports, which may depend on other
sites. NumPyro's own potential takes the Jacobians to be sites of the model, and so scales or masks them with a site
that stands under ``handlers.scale`` or ``handlers.mask``; here they are what they are.
"""

import dataclasses
import importlib.util
import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from klover.base import optional
from klover.base.checks import check_function, note
from klover.base.jaxpr import trace
from klover.base.keys import quick
from klover.base.processes import num_devices
from klover.targets.adapters.numpyro_sites import Sites, flat_prior, inspect_model
from klover.targets.bounds import Corners, reach
from klover.targets.model_info import ModelInfo
from klover.targets.positions import flatten
from klover.targets.target import Target

NEED = "klover.from_numpyro needs"
Array = np.ndarray | jax.Array | np.generic | float | int
"""What counts as data among the arguments of a model."""


def from_numpyro(model: Any, *args: Any, **kwargs: Any) -> Target:
    """Make a target of a NumPyro model.

    Parameters
    ----------
    model
        A NumPyro model. Positions are its continuous latent sites, unconstrained; people read them constrained, beside
        the deterministic sites. Discrete latent sites are summed out by funsor; deterministic sites are then left out.
        A prior ``Uniform`` with an infinite bound is taken as flat, like ``ImproperUniform``.
    *args, **kwargs
        The arguments of the model: its data. A second target with other data of the same shapes compiles nothing.

    Warns
    -----
    UserWarning
        If the model observes nothing, and an argument is None that a random site is named after: data were forgotten.

    Raises
    ------
    ValueError
        If the model subsamples, has sites without a prior, or discrete sites that cannot be summed out.
    """
    handlers, infer = (optional.load(f"numpyro.{name}", NEED, "numpyro") for name in ("handlers", "infer.util"))
    check_function("model", model, "the arguments that follow, with NumPyro's primitives", args, kwargs)
    given, model = model, handlers.reparam(model, config=flat_prior)
    sites = inspect_model(model, args, kwargs)
    _warn_of_missing_data(sites)

    def read(position):
        seeded = handlers.seed(model, 0)  # for discrete sites, on which no value that is kept depends
        return infer.constrain_fn(seeded, args, kwargs, position, return_deterministic=not sites.discrete)

    return Target(
        _log_density(model, args, kwargs, sites),
        {name: np.zeros(shape) for name, shape in sites.latent.items()},
        constrain=read,
        model_info=dataclasses.replace(
            _model_info(model, args, kwargs, sites),
            renew=None if sites.discrete or not sites.observed else _renew(given, model, sites),
        ),
    ).remade_by(from_numpyro, given, *args, **kwargs)


def _warn_of_missing_data(sites: Sites) -> None:
    if sites.not_given and not sites.observed:
        sizes = [f"{name} ({math.prod(sites.latent.get(name, ()))} numbers)" for name in sites.not_given]
        warnings.warn(
            f"model observes nothing: {', '.join(sizes)} was not given, and is taken for unknown. Pass the data, for "
            f"example from_numpyro(model, {sites.not_given[0]}=...).",
            stacklevel=3,
        )


def _log_density(model: Callable, args: tuple, kwargs: dict, sites: Sites) -> Callable:
    from numpyro import handlers
    from numpyro.distributions import biject_to
    from numpyro.infer.util import log_density

    model, joint_density = _summed_out(model, sites) if sites.discrete else (model, log_density)

    def function(position):
        def constrained(site):
            is_latent = site["type"] == "sample" and site["name"] in position
            return biject_to(site["fn"].support)(position[site["name"]]) if is_latent else None

        replayed = handlers.substitute(model, substitute_fn=constrained)
        joint, trace = joint_density(replayed, args, kwargs, {})
        for name, value in position.items():
            transform = biject_to(trace[name]["fn"].support)
            joint += jnp.sum(transform.log_abs_det_jacobian(value, trace[name]["value"]))
        return joint

    return function


def _summed_out(model: Callable, sites: Sites) -> tuple[Callable, Callable]:
    """Return the model and the joint density with which funsor sums out the discrete sites."""
    if importlib.util.find_spec("funsor") is None:
        raise ValueError(
            f"model has discrete latent sites, {', '.join(sites.discrete)}, which funsor could sum out, but it is not "
            "installed. Marginalise them by hand (numpyro.distributions.MixtureSameFamily, or logsumexp and "
            "numpyro.factor), or: pip install 'klover[numpyro]'."
        )
    from numpyro.contrib.funsor import config_enumerate, enum, log_density

    return enum(config_enumerate(model), -sites.num_plate_dims - 1), log_density


def _reach(sites: Sites) -> Corners:
    """Where flat points come to the bounds of their sites; NumPyro keeps 1.2e-7 or 2.2e-16 of an interval from 1."""
    dtype = jnp.result_type(float)
    furthest = -np.log(float(np.finfo(dtype).eps))
    lower, upper = (
        flatten(
            {
                name: np.broadcast_to(sites.bounds.get(name, (-np.inf, np.inf))[side], shape)
                for name, shape in sites.latent.items()
            }
        )[0]
        for side in (0, 1)
    )
    left, right = reach(lower, upper, dtype)
    return left, np.where(np.isfinite(right), np.minimum(right, furthest), right)


def _model_info(model: Callable, args: tuple, kwargs: dict, sites: Sites) -> ModelInfo:
    from numpyro import handlers
    from numpyro.distributions import biject_to
    from numpyro.infer.util import unconstrain_fn

    def latent(position):
        return {name: jnp.asarray(position[name]) for name in sites.latent}

    def log_probs(position, names):
        fixed = handlers.substitute(model, data=latent(position))
        trace = handlers.trace(fixed).get_trace(*args, **kwargs)
        return {name: trace[name]["fn"].log_prob(trace[name]["value"]) for name in names}

    def draw(key):
        seen = handlers.trace(handlers.seed(model, key)).get_trace(*args, **kwargs)
        return {name: biject_to(seen[name]["fn"].support).inv(seen[name]["value"]) for name in sites.latent}

    def prior(key, num):
        # One program from the key to the draws: to split a key by itself compiles for longer than the draws take.
        def run(key):
            return trace(lambda key: jax.vmap(draw)(jax.random.split(key, num)), key, is_for_one_run=True)(key)

        try:
            draws = run(quick(key))
        except NotImplementedError:  # jax.random.poisson takes no keys but JAX's own
            draws = run(key)
        return jax.tree.map(np.asarray, draws)

    # Given the continuous sites alone, observations with discrete parents are neither independent nor replayed.
    # Labelled results would bring all rows to the host, so data on several devices are left out of them.
    observed = {} if num_devices(sites.observed) > 1 else sites.observed
    has_replay = bool(observed) and not sites.discrete
    return ModelInfo(
        "numpyro",
        dims=sites.dims,
        coords=sites.coords,
        observed={name: np.asarray(value) for name, value in observed.items() if not isinstance(value, Tracer)},
        improper=tuple(sites.improper),
        not_given=tuple(sites.not_given),
        unconstrain=lambda position: unconstrain_fn(model, args, kwargs, latent(position)),
        log_likelihood=(lambda position: log_probs(position, sites.observed)) if has_replay else None,
        log_prior=None if sites.discrete else lambda position: log_probs(position, sites.latent),
        prior=None if sites.improper or sites.discrete else prior,
        predict=_predict(model, args, kwargs, sites) if has_replay else None,
        reach=_reach(sites),
    )


def _predict(model: Callable, args: tuple, kwargs: dict, sites: Sites) -> Callable[..., dict[str, Any]]:
    """Return the way from a key and a position to new observations of the model with these arguments."""
    from numpyro import handlers

    def predict(key, position):
        fixed = handlers.substitute(model, data={name: jnp.asarray(position[name]) for name in sites.latent})
        trace = handlers.trace(handlers.seed(handlers.uncondition(fixed), key)).get_trace(*args, **kwargs)
        return {name: trace[name]["value"] for name in sites.observed}

    return predict


def _renew(given: Callable, model: Callable, sites: Sites) -> Callable[..., ModelInfo]:
    """Return the way from new arguments to predictions; observed data among them are None, or give a shape only."""

    def renew(*args, **kwargs):
        with note("fit.predict takes the arguments of the model: new inputs, and None for what is observed."):
            named = inspect.signature(given).bind(*args, **kwargs).arguments
        predict = _predict(model, args, kwargs, sites)

        def checked(key, position):
            with note(
                "The model failed with the new arguments and the parameters that were fitted. Parameters whose shape "
                "follows from the data cannot be used for other data."
            ):
                return predict(key, position)

        inputs = {name: np.asarray(value) for name, value in named.items() if isinstance(value, Array)}
        return ModelInfo("numpyro", dims=sites.dims, observed=inputs, predict=checked)

    return renew
