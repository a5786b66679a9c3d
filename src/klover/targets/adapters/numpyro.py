"""NumPyro models as targets.

The model is run once in the abstract (``jax.eval_shape``), which tells its sites, their shapes and supports, and
computes nothing; NumPyro's ``initialize_model`` compiles some eighty small programs to the same end. The density is
NumPyro's joint density with the Jacobians of the transforms to the supports, which may depend on other sites. NumPyro's
own potential takes the Jacobians to be sites of the model, and so scales or masks them with a site that stands under
``handlers.scale`` or ``handlers.mask``; here they are what they are.
"""

import contextlib
import dataclasses
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from klover.base import optional
from klover.base.checks import check_function, note
from klover.base.jaxpr import trace
from klover.targets.bounds import Corners, reach
from klover.targets.model_info import ModelInfo
from klover.targets.positions import flatten
from klover.targets.target import Target

NEED = "klover.from_numpyro needs"


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

    Raises
    ------
    ValueError
        If the model subsamples, has sites without a prior, or discrete sites that cannot be summed out.
    """
    handlers, infer = (optional.load(f"numpyro.{name}", NEED, "numpyro") for name in ("handlers", "infer.util"))
    check_function("model", model, "the arguments that follow, with NumPyro's primitives", args, kwargs)
    given, model = model, handlers.reparam(model, config=_flat_prior)
    sites = _inspect(model, args, kwargs)

    def read(position):
        seeded = handlers.seed(model, 0)  # for discrete sites, on which no value that is kept depends
        return infer.constrain_fn(seeded, args, kwargs, position, return_deterministic=not sites.discrete)

    return Target(
        _log_density(model, args, kwargs, sites),
        {name: np.zeros(shape) for name, shape in sites.latent.items()},
        constrain=read,
        model_info=_model_info(model, args, kwargs, sites),
    ).remade_by(from_numpyro, given, *args, **kwargs)


@dataclasses.dataclass(frozen=True)
class _Sites:
    """What a run in the abstract tells about a model."""

    latent: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    """Unconstrained shapes of the continuous latent sites."""
    bounds: dict[str, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    """Lower and upper bounds of those of them that have some, and the same ones always."""
    discrete: list[str] = dataclasses.field(default_factory=list)
    improper: list[str] = dataclasses.field(default_factory=list)
    observed: dict[str, Any] = dataclasses.field(default_factory=dict)
    dims: dict[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    coords: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    num_plate_dims: int = 0


def _inspect(model: Callable, args: tuple, kwargs: dict) -> _Sites:
    """Run the model in the abstract, every continuous latent site at the origin of its unconstrained space."""
    sites = _run_abstractly(model, args, kwargs, contextlib.nullcontext)
    if any(isinstance(value, Tracer) for value in sites.observed.values()):
        # The model computes what it observes. Computed for real, only what depends on latent sites stays abstract.
        sites = _run_abstractly(model, args, kwargs, jax.ensure_compile_time_eval)
    if not sites.latent:
        raise ValueError("model has no continuous latent site, so there is nothing to infer.")
    return sites


def _run_abstractly(model: Callable, args: tuple, kwargs: dict, mode: Callable) -> _Sites:
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
            found.append(_read(handlers.trace(seeded).get_trace(*args, **kwargs)))

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


def _read(trace: dict[str, dict[str, Any]]) -> _Sites:
    """Collect what is needed of a trace, and refuse what has no density in R^d."""
    sites = _Sites(num_plate_dims=max((-frame.dim for site in trace.values() for frame in _plates(site)), default=0))
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
                _sort(name, site, sites)
    return sites


def _sort(name: str, site: dict[str, Any], sites: _Sites) -> None:
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
        raise ValueError(
            f"model has the discrete site {name!r} with infinitely many values, which cannot be summed out. "
            "Marginalise it by hand, for example with a closed form."
        )


def _plates(site: dict[str, Any]) -> list[Any]:
    return [frame for frame in site.get("cond_indep_stack", ()) if frame.dim is not None]


def _name_axes(name: str, site: dict[str, Any], sites: _Sites) -> None:
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


def _flat_prior(site: dict[str, Any]) -> Callable | None:
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


def _log_density(model: Callable, args: tuple, kwargs: dict, sites: _Sites) -> Callable:
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


def _summed_out(model: Callable, sites: _Sites) -> tuple[Callable, Callable]:
    """Return the model and the joint density with which funsor sums out the discrete sites."""
    if importlib.util.find_spec("funsor") is None:
        raise ValueError(
            f"model has discrete latent sites, {', '.join(sites.discrete)}, which funsor could sum out, but it is not "
            "installed. Marginalise them by hand (numpyro.distributions.MixtureSameFamily, or logsumexp and "
            "numpyro.factor), or: pip install 'klover[numpyro]'."
        )
    from numpyro.contrib.funsor import config_enumerate, enum, log_density

    return enum(config_enumerate(model), -sites.num_plate_dims - 1), log_density


def _reach(sites: _Sites) -> Corners:
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


def _model_info(model: Callable, args: tuple, kwargs: dict, sites: _Sites) -> ModelInfo:
    from numpyro import handlers
    from numpyro.distributions import biject_to
    from numpyro.infer.util import unconstrain_fn

    def latent(position):
        return {name: jnp.asarray(position[name]) for name in sites.latent}

    def log_likelihood(position):
        fixed = handlers.substitute(model, data=latent(position))
        trace = handlers.trace(fixed).get_trace(*args, **kwargs)
        return {name: trace[name]["fn"].log_prob(trace[name]["value"]) for name in sites.observed}

    def draw(key):
        seen = handlers.trace(handlers.seed(model, key)).get_trace(*args, **kwargs)
        return {name: biject_to(seen[name]["fn"].support).inv(seen[name]["value"]) for name in sites.latent}

    def prior(key, num):
        # One program from the key to the draws: to split a key by itself compiles for longer than the draws take.
        draws = trace(lambda key: jax.vmap(draw)(jax.random.split(key, num)), key, is_for_one_run=True)(key)
        return jax.tree.map(np.asarray, draws)

    def predict(key, position):
        fixed = handlers.substitute(model, data=latent(position))
        trace = handlers.trace(handlers.seed(handlers.uncondition(fixed), key)).get_trace(*args, **kwargs)
        return {name: trace[name]["value"] for name in sites.observed}

    # Given the continuous sites alone, observations with discrete parents are neither independent nor replayed.
    has_replay = bool(sites.observed) and not sites.discrete
    return ModelInfo(
        "numpyro",
        dims=sites.dims,
        coords=sites.coords,
        observed={name: np.asarray(value) for name, value in sites.observed.items() if not isinstance(value, Tracer)},
        improper=tuple(sites.improper),
        unconstrain=lambda position: unconstrain_fn(model, args, kwargs, latent(position)),
        log_likelihood=log_likelihood if has_replay else None,
        prior=None if sites.improper or sites.discrete else prior,
        predict=predict if has_replay else None,
        reach=_reach(sites),
    )
