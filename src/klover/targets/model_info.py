"""What a modelling language knows about a model beyond its density; adapters fill it in, and results carry it on."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from klover.base.shapes import AnyArray, Key, PyTree
from klover.targets.bounds import Corners

Position = dict[str, AnyArray]
"""One constrained position by the model's own names."""


@dataclasses.dataclass(frozen=True, eq=False)
class ModelInfo:
    """Names, data and functions of a model.

    Parameters
    ----------
    name
        The modelling language, for example ``"numpyro"``.
    dims
        Names of the axes of each variable (of a constrained position, or observed), where the model names them.
    coords
        Values along these axes.
    observed
        Observed data by name.
    improper
        Names of variables with an improper prior: the evidence then means nothing.
    unconstrain
        From one constrained position (the model's parameters by name) to an unconstrained one.
    log_likelihood
        From one constrained position to the log likelihood of each observation, by the observed variable's name.
    log_prior
        From one constrained position to the log prior density of each of the model's parameters, by its name, on the
        scale of that position: without Jacobians.
    prior
        From a key and a number to so many unconstrained positions, stacked, drawn from the prior, where that is proper.
    predict
        From a key and one constrained position to new observations, by the observed variable's name.
    renew
        From new inputs, as the front end takes them, to what is known of the model with these: how to ``predict``, with
        names of axes; its ``observed`` are the new inputs.
    reach
        Coordinates of a flat point at and beyond which their parameters are at their bounds, but for the last digit
        (:mod:`klover.targets.bounds`): two vectors, infinite where there is no bound.
    not_given
        Names of arguments of the model that are None, while a variable of that name is not observed: data left out.
    """

    name: str
    dims: dict[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    coords: dict[str, Any] = dataclasses.field(default_factory=dict)
    observed: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    improper: tuple[str, ...] = ()
    unconstrain: Callable[[Position], PyTree] | None = None
    log_likelihood: Callable[[Position], dict[str, AnyArray]] | None = None
    log_prior: Callable[[Position], dict[str, AnyArray]] | None = None
    prior: Callable[[Key[jax.Array, ""], int], PyTree] | None = None
    predict: Callable[[Key[jax.Array, ""], Position], dict[str, AnyArray]] | None = None
    renew: Callable[..., "ModelInfo"] | None = None
    reach: Corners | None = None
    not_given: tuple[str, ...] = ()
