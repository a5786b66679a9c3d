"""What a NumPyro model holds: its sites, found by one run in the abstract (``jax.eval_shape``), which computes nothing.

NumPyro's ``initialize_model`` compiles some eighty small programs to the same end.
"""

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from klover.base.checks import note


@dataclasses.dataclass(frozen=True)
class Sites:
    """What a run in the abstract tells about a model."""

    latent: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    """Unconstrained shapes of the continuous latent sites."""
    bounds: dict[str, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    """Lower and upper bounds of those of them that have some, and the same ones always."""
    discrete: list[str] = dataclasses.field(default_factory=list)
    improper: list[str] = dataclasses.field(default_factory=list)
    observed: dict[str, Any] = dataclasses.field(default_factory=dict)
    not_given: list[str] = dataclasses.field(default_factory=list)
    """Random sites that are named after an argument of the model, which is None."""
    dims: dict[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    coords: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    num_plate_dims: int = 0


def inspect_model(model: Callable, args: tuple, kwargs: dict) -> Sites:
    """Run the model in the abstract, every continuous latent site at the origin of its unconstrained space."""
    sites = _run_abstractly(model, args, kwargs, contextlib.nullcontext)
    if any(isinstance(value, Tracer) for value in sites.observed.values()):
        # The model computes what it observes. Computed for real, only what depends on latent sites stays abstract.
        sites = _run_abstractly(model, args, kwargs, jax.ensure_compile_time_eval)
    if not sites.latent:
        raise ValueError("model has no continuous latent site, so there is nothing to infer.")
    return sites


def _empty_arguments(model: Callable, args: tuple, kwargs: dict) -> set[str]:
    """Return the names of the model's arguments that are None, given so or by default."""
    bound = inspect.signature(model).bind(*args, **kwargs)
    bound.apply_defaults()
    return {name for name, value in bound.arguments.items() if value is None}


def _run_abstractly(model: Callable, args: tuple, kwargs: dict, mode: Callable) -> Sites:
    from numpyro import handlers
    from numpyro.distributions import biject_to
    from numpyro.infer.util import helpful_support_errors

    found = []

    def run(seed):
        def origin(site):
            if site["type"] == "plate":
                _refuse_subsampling(site["name"], *site["args"])
            if site["type"] != "sample" or site["is_observed"] or site["fn"].support.is_discrete:
                return None
            with helpful_support_errors(site):
                transform = biject_to(site["fn"].support)
            shape = (*site["kwargs"]["sample_shape"], *site["fn"].shape())
            return transform(jnp.zeros(transform.inverse_shape(shape)) + 0.0 * seed)

        with mode():
            seeded = handlers.seed(handlers.substitute(model, substitute_fn=origin), seed)
            traced = handlers.trace(seeded).get_trace(*args, **kwargs)
            found.append(_read(traced, _empty_arguments(model, args, kwargs)))

    try:
        with note("model failed when it was run with NumPyro's primitives on the arguments given."):
            jax.eval_shape(run, 0)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        error.add_note("model could not be traced by JAX: write it with jax.numpy, without branches on values.")
        raise
    return found[0]


def _refuse_subsampling(name: str, size: int, subsample_size: int | None) -> None:
    if subsample_size not in (None, size):
        raise ValueError(
            f"model subsamples {subsample_size} of {size} in the plate {name!r}, so its density is random. Leave "
            "subsample_size out: klover evaluates all data."
        )


def _read(trace: dict[str, dict[str, Any]], empty: set[str]) -> Sites:
    """Collect what is needed of a trace, and refuse what has no density in R^d."""
    sites = Sites(num_plate_dims=max((-frame.dim for site in trace.values() for frame in _plates(site)), default=0))
    for name, site in trace.items():
        if site["type"] == "param":
            raise ValueError(
                f"model has the parameter {name!r}, which has no prior. Give it one with numpyro.sample "
                "(ImproperUniform is flat), or fix it with numpyro.handlers.substitute."
            )
        is_factor = site.get("infer", {}).get("is_auxiliary", False)
        if site["type"] in ("sample", "deterministic") and not is_factor:
            _name_axes(name, site, sites)
            if site["type"] == "sample":
                if name in empty and not site["is_observed"]:
                    sites.not_given.append(name)
                _sort(name, site, sites)
    return sites


def _sort(name: str, site: dict[str, Any], sites: Sites) -> None:
    """Put a random site among the observed, the discrete or the continuous ones."""
    from numpyro.distributions import Delta, ImproperUniform, biject_to

    distribution, innermost = site["fn"], _innermost(site["fn"])
    if site["is_observed"]:
        sites.observed[name] = site["value"]
    elif isinstance(innermost, Delta):
        raise ValueError(f"model samples {name!r} from a Delta, which has no density. Use numpyro.deterministic.")
    elif not distribution.support.is_discrete:
        sites.latent[name] = biject_to(distribution.support).inverse_shape(jnp.shape(site["value"]))
        support = getattr(distribution.support, "base_constraint", distribution.support)
        bounds = getattr(support, "lower_bound", -np.inf), getattr(support, "upper_bound", np.inf)
        if not any(isinstance(bound, Tracer) for bound in bounds):
            sites.bounds[name] = bounds
        if isinstance(innermost, ImproperUniform):
            sites.improper.append(name)
    elif distribution.has_enumerate_support:
        sites.discrete.append(name)
    else:
        by_hand = "Marginalise it by hand, for example with a closed form."
        remedy = f"If it is data, pass {name}=, which is None." if name in sites.not_given else by_hand
        raise ValueError(
            f"model has the discrete site {name!r} with infinitely many values, which cannot be summed out. {remedy}"
        )


def _plates(site: dict[str, Any]) -> list[Any]:
    return [frame for frame in site.get("cond_indep_stack", ()) if frame.dim is not None]


def _name_axes(name: str, site: dict[str, Any], sites: Sites) -> None:
    """Name axes by their plates, and by ``infer={"event_dims": [...]}`` as ArviZ reads it; others as ArviZ does."""
    shape = jnp.shape(site["value"])
    events = list(site.get("infer", {}).get("event_dims", ()))
    event_dim = site["fn"].event_dim if "fn" in site else 0
    named = {len(shape) - len(events) + place: event for place, event in enumerate(events)}
    named |= {len(shape) - event_dim + frame.dim: frame.name for frame in _plates(site)}
    sizes = {frame.name: frame.size for frame in _plates(site)}
    # A deterministic site may lack the axis of a plate that it stands in.
    named = {axis: dim for axis, dim in named.items() if axis >= 0 and shape[axis] == sizes.get(dim, shape[axis])}
    if named:
        sites.dims[name] = tuple(named.get(axis, f"{name}_dim_{axis}") for axis in range(len(shape)))
        sites.coords.update({dim: np.arange(shape[axis]) for axis, dim in named.items()})


def _innermost(distribution: Any) -> Any:
    """Unwrap what expand, to_event and mask put around a distribution."""
    from numpyro.distributions import ExpandedDistribution, Independent, MaskedDistribution

    while isinstance(distribution, ExpandedDistribution | Independent | MaskedDistribution):
        distribution = distribution.base_dist
    return distribution


def flat_prior(site: dict[str, Any]) -> Callable | None:
    """Say what stands for a uniform prior with infinite bounds, which in NumPyro has density zero: a flat one."""
    from numpyro.distributions import ImproperUniform, Uniform, constraints

    base = _innermost(site["fn"])
    if site["is_observed"] or not isinstance(base, Uniform):
        return None
    interval: Any = base.support
    lower, upper = interval.lower_bound, interval.upper_bound
    is_endless = [not isinstance(bound, Tracer) and bool(np.isinf(bound).all()) for bound in (lower, upper)]
    if not any(is_endless):
        return None
    one_sided = constraints.less_than(upper) if is_endless[0] else constraints.greater_than(lower)
    support = constraints.real if all(is_endless) else one_sided
    return lambda _, fn, value: (ImproperUniform(support, fn.batch_shape, fn.event_shape), value)
