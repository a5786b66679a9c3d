"""Whether what a file holds fits together: kinds and shapes of arrays, checked against each other before they are used.

What does not fit raises a ``ValueError`` that says what; readers turn it into
:class:`~klover.base.checks.DamagedFile`.
"""

import json
from typing import Any

import jax
import numpy as np

from klover.mixtures.components import TAILS, Components
from klover.mixtures.mixture import Mixture
from klover.mixtures.scale import Diagonal, Full, LowRank
from klover.targets.loaded import LoadedTarget
from klover.targets.model_info import ModelInfo
from klover.targets.positions import names_of
from klover.verdict.judge import Verdict
from klover.verdict.status import Status
from klover.warps.linear import Linear
from klover.warps.low_rank import LowRankLinear
from klover.warps.marginal import Marginal
from klover.warps.triangular import Triangular, num_features
from klover.warps.warp import Warp
from klover.warps.warped import WarpedMixture

FIELDS = {"mixture", "history", "verdict", "num_evaluations", "evaluation_seconds", "settings"}
"""Of a fit, beside its draws and its target."""


def expect(is_so: bool, what: str) -> None:
    """Refuse what is not so."""
    if not is_so:
        raise ValueError(f"{what} does not fit the rest")


def expect_array(what: str, array: Any, shape: tuple[int, ...], kinds: str = "f") -> None:
    """Refuse anything but an array of a shape; ``kinds`` are NumPy's letters."""
    expect(isinstance(array, np.ndarray) and array.shape == shape and array.dtype.kind in kinds, what)


def check_warp(warp: Any, dim: int) -> None:
    """Refuse a warp whose layers are not of the dimension."""
    expect(isinstance(warp, Warp) and isinstance(warp.layers, tuple) and len(warp.layers) > 0, "warp")
    for layer in warp.layers:
        if isinstance(layer, Linear):
            shapes = {"centre": (dim,), "matrix": (dim, dim), "inverse": (dim, dim), "log_det": ()}
        elif isinstance(layer, LowRankLinear):
            rank = layer.lengths.shape[-1]
            shapes = {"centre": (dim,), "scale": (dim,), "directions": (dim, rank), "lengths": (rank,)}
        elif isinstance(layer, Marginal):
            shapes = dict.fromkeys(("knot", "value", "slope"), (dim, layer.knot.shape[-1]))
        else:
            expect(isinstance(layer, Triangular) and sorted(layer.order.tolist()) == list(range(dim)), "order")
            num = layer.num_leads
            table = num_features(num), dim
            shapes = {"centre": (num,), "scale": (num,), "mean": table, "log_scale": table}
        for name, shape in shapes.items():
            expect_array(name, getattr(layer, name), shape)


def check_mixture(mixture: Any, dim: int) -> None:
    """Refuse a mixture whose arrays do not belong together, or to the dimension; it may be behind a warp."""
    if isinstance(mixture, WarpedMixture):
        check_warp(mixture.warp, dim)
        mixture = mixture.mixture
    expect(isinstance(mixture, Mixture) and isinstance(mixture.components, Components), "mixture")
    components, spread = mixture.components, mixture.components.spread
    num = len(mixture.log_weights)
    expect(components.tail in TAILS and num > 0, "mixture")
    expect_array("log_weights", mixture.log_weights, (num,))
    expect_array("location", components.location, (num, dim))
    expect_array("df", components.df, (num,))
    expect(bool(np.isfinite(components.location).all() and (components.df > 0).all()), "mixture")
    expect(bool((mixture.log_weights < 1e-3).all() and (mixture.log_weights > -np.inf).any()), "log_weights")
    if isinstance(spread, Full):
        expect_array("factor", spread.factor, (num, dim, dim))
        return
    expect(isinstance(spread, Diagonal | LowRank), "spread")
    expect_array("scale", spread.scale, (num, dim))
    if isinstance(spread, LowRank):
        expect_array("factor", spread.factor, (num, dim, spread.factor.shape[-1]))


def check_draws(draws: dict[str, Any], dim: int, kind: str) -> None:
    """Refuse weighted draws whose arrays do not belong together."""
    num = len(draws["x"])
    expect_array("x", draws["x"], (num, dim))
    for name in ("log_p", "log_q", "log_weight"):
        expect_array(name, draws[name], (num,))
    control = draws.get("control", np.zeros(()))
    expect_array("control", control, (num,) if np.ndim(control) > 0 else ())
    for name in ("pareto_k", *(["drift"] if kind == "particles" else [])):
        expect_array(name, draws[name], ())
    for name in ("num_nan", "num_positive_infinite"):
        expect_array(name, draws[name], (), "iu")
    if kind == "particles":
        islands = len(draws["island_log_evidence"])
        expect_array("island_log_evidence", draws["island_log_evidence"], (islands,))
        expect(islands > 1 and num % islands == 0, "island_log_evidence")
        expect_array("agreement", draws.get("agreement", np.ones(())), ())
    is_weighted = not np.isnan(draws["log_weight"]).any() and bool((draws["log_weight"] < np.inf).all())
    expect(num > 1 and is_weighted, "log_weight")


def check_target(about: Any, num: int) -> None:
    """Refuse a stored target whose positions are not those of so many draws of its coordinates."""
    expect(isinstance(about, LoadedTarget) and isinstance(about.model_info, ModelInfo | None), "target")
    leaves = jax.tree.leaves(about.read)
    expect(all(isinstance(leaf, np.ndarray) and leaf.shape[:1] == (num,) for leaf in leaves), "positions")
    expect(all(isinstance(name, str) for name in about.names), "names")
    expect(sum(leaf[0].size for leaf in leaves) == len(about.names), "names")
    expect(len(names_of(about.example)) == about.dim, "example")


def check_fit(content: dict[str, Any], about: Any, draws: dict[str, Any], kind: str) -> None:
    """Refuse the fields of a fit that do not belong together."""
    expect(set(content) == FIELDS, "fields")
    num, dim = draws["x"].shape
    check_draws(draws, dim, kind)
    check_target(about, num)
    expect_array("x", about.x, (num, dim))
    check_mixture(content["mixture"], dim)
    history, verdict = content["history"], content["verdict"]
    expect(len({values.shape for values in history.values()}) <= 1, "history")
    expect(all(values.ndim == 1 and values.dtype.kind in "fiu" for values in history.values()), "history")
    expect(isinstance(verdict, Verdict) and isinstance(verdict.status, Status), "verdict")
    expect(isinstance(verdict.trusted, bool) and isinstance(verdict.reason + verdict.remedy, str), "verdict")
    expect(isinstance(content["settings"], dict) and bool(json.dumps(content["settings"])), "settings")
    counts = content["num_evaluations"], content["evaluation_seconds"]
    expect(all(isinstance(count, int | float | None) for count in counts), "num_evaluations")
