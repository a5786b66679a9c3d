r"""How much an answer rests on the prior and on the likelihood, by power-scaling (Kallioinen and others 2023).

The prior, or the likelihood, is raised to a power α; how far the posterior :math:`p_\alpha` then moves is the
sensitivity. The draws of the fit are weighted by :math:`p_\alpha/q`: the same draws for all powers, so that
their scatter cancels. The Jacobians of the coordinates belong to neither part.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from klover.base.checks import as_key, check_instance, check_positive, in_words
from klover.base.shapes import Float, KeyLike, Points, PyTree
from klover.importance import psis
from klover.importance.distances import cumulative_distance
from klover.importance.draws import over_draws
from klover.refinement.refine import refine
from klover.results.doubt import warn_if_refused
from klover.results.fit import Fit
from klover.targets.loaded import as_target
from klover.targets.model_info import ModelInfo
from klover.targets.target import Target
from klover.uses.sensitivity_table import PARTS, PowerStep, Sensitivity

DELTA = 0.01
"""The derivative by log2 α is taken between 1 / (1 + DELTA) and 1 + DELTA."""
NUM_GROUPS = 10
"""Groups of draws that are left out in turn, for the standard errors of the sensitivities."""

PerDraw = Float[np.ndarray, " draw"]
PerValue = Float[np.ndarray, " value"]
Values = Float[np.ndarray, "draw value"]


def sensitivity(
    fit: Fit, names: Sequence[str] | None = None, powers: Sequence[float] = (0.8, 1.25), key: KeyLike = 0
) -> Sensitivity:
    """Scale prior and likelihood; the documentation is that of :meth:`klover.Fit.sensitivity`."""
    fit, key = check_instance("fit", fit, Fit), as_key(key)
    parts = _parts(fit.target.model_info)
    _check_listed("powers", powers, "exponents, such as (0.5, 2.0)")
    for power in powers:
        check_positive("powers", power, "They are exponents of the prior and of the likelihood, such as (0.5, 2.0).")
    columns = _columns(fit.target.names, names)
    warn_if_refused(fit, "Its sensitivities are no more to be trusted than its answers.")
    pool = _Pool.of(fit, columns)
    positions = fit.target.positions(pool.x)
    logs = over_draws(lambda position: {part: parts[part](position) for part in PARTS}, positions)
    prior, likelihood = (_derivative(pool, logs[part]) for part in PARTS)
    return Sensitivity(
        names=tuple(fit.target.names[column] for column in columns),
        prior=prior[0],
        likelihood=likelihood[0],
        prior_se=prior[1],
        likelihood_se=likelihood[1],
        pareto_k={"prior": prior[2], "likelihood": likelihood[2]},
        limit=psis.reliable_k(fit.draws.num_draws),
        steps=tuple(_step(fit, key, part, parts[part], power, pool, logs[part]) for part in PARTS for power in powers),
    )


@dataclasses.dataclass(frozen=True)
class _Pool:
    """Draws inside the support, with their weights and the values of the quantities that are asked for."""

    x: Points
    log_ratio: PerDraw
    weight: PerDraw
    values: Values
    columns: list[int]

    @classmethod
    def of(cls, fit: Fit, columns: list[int]) -> "_Pool":
        draws = fit.draws
        log_weight = np.asarray(draws.log_weight, float)
        # Particles have weights, and no ratios.
        log_ratio = np.asarray(draws.log_ratio, float) if draws.kind == "importance" else log_weight
        inside = log_weight > -np.inf
        if not inside.any():
            raise ValueError("fit.sensitivity needs draws of positive weight, and this fit has none. Fit again.")
        x = np.asarray(draws.x)[inside]
        values = np.asarray(fit.target.flat_position(x), float)[:, columns]
        return cls(x, log_ratio[inside], np.exp(log_weight[inside]), values, columns)


def _parts(model_info: ModelInfo | None) -> dict[str, Callable[[PyTree], jax.Array]]:
    """Return the log prior and the log likelihood as functions of one constrained position."""
    known = {
        "prior": model_info and model_info.log_prior,
        "likelihood": model_info and model_info.log_likelihood,
    }
    missing = [part for part in PARTS if known[part] is None]
    if missing:
        raise ValueError(
            f"fit.sensitivity needs the {' and the '.join(missing)} apart, which the target does not tell: it was not "
            "made from a model of a modelling language that does, or the fit was loaded without it. Use "
            "klover.from_numpyro or klover.from_pymc; a Stan program tells them as lprior and log_lik, among its "
            "transformed parameters or generated quantities."
        )

    def total(function):
        return lambda position: jnp.sum(ravel_pytree(function(position))[0])

    return {part: total(function) for part, function in known.items()}


def _check_listed(name: str, value: Any, of: str) -> None:
    if not isinstance(value, Sequence | np.ndarray):
        raise TypeError(f"{name} must be a list of {of}, got {in_words(value)}.")


def _columns(known: Sequence[str], names: Sequence[str] | None) -> list[int]:
    """Find quantities by their names, or by the names of the variables that they are entries of."""
    if names is None:
        return list(range(len(known)))
    columns = []
    _check_listed("names", names, "names of quantities or variables")
    for name in [names] if isinstance(names, str) else list(names):
        found = [column for column, each in enumerate(known) if str(name) == each or each.startswith(f"{name}[")]
        if not found:
            raise ValueError(f"names must be those of quantities of the fit, {in_words(list(known))}, got {name!r}.")
        columns += found
    return columns


def _derivative(pool: _Pool, log_part: PerDraw) -> tuple[PerValue, PerValue, float]:
    """Return the sensitivities, their standard errors (a jackknife of groups), and the larger k̂ of the two steps."""
    steps = [psis.smooth(pool.log_ratio + (power - 1) * log_part) for power in (1 / (1 + DELTA), 1 + DELTA)]

    def of(rows):
        total = sum(_distances(pool.values[rows], pool.weight[rows], np.exp(step)[rows]) for step, _ in steps)
        return total / (2 * np.log2(1 + DELTA))

    group = np.arange(len(log_part)) % NUM_GROUPS
    without = np.array([of(group != number) for number in range(NUM_GROUPS)])
    error = np.sqrt((NUM_GROUPS - 1) * without.var(axis=0))
    return of(slice(None)), error, float(max(pareto_k for _, pareto_k in steps))


def _distances(values: Values, weight: PerDraw, other: PerDraw) -> PerValue:
    return np.array([cumulative_distance(column, weight, other) for column in values.T])


def _step(
    fit: Fit,
    key: jax.Array,
    part: str,
    function: Callable[[PyTree], jax.Array],
    power: float,
    pool: _Pool,
    log_part: PerDraw,
) -> PowerStep:
    """Weigh the draws by the scaled posterior, or fit that where its weights are bad."""
    log_weight, pareto_k = psis.smooth(pool.log_ratio + (power - 1) * log_part)
    refit, weight, values = None, np.exp(log_weight), pool.values
    if pareto_k <= psis.reliable_k(len(log_part)):
        distance = _distances(values, pool.weight, weight)
    else:
        refit = refine(key, _scaled(as_target(fit.target), function, power), fit)
        moved = _Pool.of(refit, pool.columns)
        weight, values = moved.weight, moved.values
        # Two samples are compared as one, in which each draw has a weight of zero in one of the two weightings.
        both = np.concatenate([pool.values, values])
        distance = _distances(both, np.append(pool.weight, 0 * weight), np.append(0 * pool.weight, weight))
    mean = weight @ values
    delta = values - mean
    mean_se = np.sqrt(weight**2 @ delta**2)
    return PowerStep(part, float(power), float(pareto_k), refit, mean, mean_se, np.sqrt(weight @ delta**2), distance)


def _scaled(target: Target, log_part: Callable[[PyTree], jax.Array], power: float) -> Target:
    """Return the target with a part of its density to another power."""
    # An array: targets of all powers share what is compiled.
    extra = np.array([power - 1.0])

    def read(position):
        return target.position(ravel_pytree(position)[0])

    def logdensity(position):
        log_p = target.log_prob(ravel_pytree(position)[0])
        return jnp.where(log_p > -jnp.inf, log_p + jnp.sum(extra * log_part(read(position))), log_p)

    example = target.unravel(target.start)
    return Target(logdensity, example, constrain=read, names=target.names, model_info=target.model_info)
