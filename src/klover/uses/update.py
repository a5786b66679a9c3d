"""New data or a new prior: a fit of the same parameters that begins with the draws of the old one."""

import dataclasses
from typing import Any

from klover.base.checks import check_instance
from klover.base.shapes import KeyLike
from klover.refinement.kept import Kept
from klover.refinement.refine import refine
from klover.results.doubt import warn_if_refused
from klover.results.fit import Fit
from klover.targets.loaded import as_target
from klover.targets.target import Target
from klover.tuning import Tuning

GOAL = 1000
"""Effective draws of an update, unless the user says how many are enough."""


def update(fit: Fit, target: Target, key: KeyLike = 0, **asked: Any) -> Fit:
    """Fit a target of the same parameters; the documentation is that of :meth:`klover.Fit.update`."""
    fit, target = check_instance("fit", fit, Fit), as_target(target)
    check_parameters(fit, target)
    warn_if_refused(fit, "Its draws are only where the work begins; see the new fit's own verdict.")
    return go_on(fit, target, key, **asked)


def go_on(
    fit: Fit, target: Target, key: KeyLike, *, min_ess: int | None = None, progress: bool | None = None, **asked: Any
) -> Fit:
    """Fit a target of the same parameters, beginning with the proposal of a fit."""
    family = fit.settings.get("family") or "student"
    if target.dim > Tuning().search.full_dim:
        # There, scores tell locations and covariances, and no number of draws is planned.
        made = refine(key, target, fit.mixture, family=family, min_ess=min_ess, progress=progress, **asked)
    else:
        kept = Kept(fit.mixture, min_ess is None)
        made = refine(
            key, target, kept, family=family, min_ess=GOAL if min_ess is None else min_ess, progress=progress, **asked
        )
    return dataclasses.replace(made, settings=made.settings | {"function": "update", "start": "Fit"})


def check_parameters(fit: Fit, target: Target) -> None:
    """Refuse a target of other parameters."""
    if target.dim != fit.target.dim:
        raise ValueError(
            f"target must have the parameters of the fit, {fit.target.dim} unconstrained numbers, got {target.dim}. "
            "Data and prior may change, parameters may not: call klover.refine for another model."
        )
    if target.names != fit.target.names:
        other = [f"{old!r} is {new!r}" for old, new in zip(fit.target.names, target.names, strict=False) if old != new]
        what = ", ".join(other[:3]) or f"{len(fit.target.names)} names are {len(target.names)}"
        raise ValueError(
            f"target must have the parameters of the fit, in their order, by the same names; but {what}. Name them "
            "alike, or call klover.refine for another model."
        )
