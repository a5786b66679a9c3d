"""Tuning as the paper did it, by its grid of hyperparameters, on validation data that come out of the training data.

The whole grid has 640 points. Successive halving looks at all learning rates and initial scales with few steps and
draws, keeps the best, and gives those more of both. All points of a rung are one compiled program. The criterion is the
log of mean with importance weights, the quantity that the paper's equations define.
"""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from klover.paper import methods, problems
from klover.paper.datasets import read_shipped
from klover.paper.measurements import write_whole
from klover.paper.methods import Choices

RATES = (0.0001, 0.001, 0.01, 0.1)
INITIAL_SCALES = (0.0001, 0.0005, 0.001, 0.005, 0.01)
STEP_SIZES = (0.001, 0.01)
"""The paper's grid (appendix "Hyperparameters"); the last one is that of HMC on neural networks."""


@dataclasses.dataclass(frozen=True)
class Rung:
    """One round of successive halving: how much work each point gets, on which splits, and how many points stay."""

    num_steps: int
    num_draws_per_step: int
    splits: tuple[int, ...]
    num_kept: int


LADDER = (Rung(200, 25, (1,), 16), Rung(200, 100, (1, 2, 3), 4))
LAST = (Rung(1000, 50, (1, 2, 3), 4), Rung(1000, 200, (1, 2, 3), 4))
"""The last candidates are compared at all of these, and with what they had before."""

SHARED = {"rkl-vb2": "rkl-vb3", "fkl-vb2": "fkl-vb3", "fkl-remainder": "fkl-vb3", "fkl-hmc": "fkl-vb3"}
"""Methods that take the choices of their nearest relative."""
TUNED = ("hmc", "rkl-vi", "rkl-vb3", "fkl-vi", "fkl-vb3")

Point = tuple[float, float, float]
NAMES = ("learning_rate_location", "learning_rate_scale", "initial_scale")


def shipped() -> dict[str, Any]:
    """Return what was tuned before, and comes with the package."""
    return json.loads(read_shipped("tuned.json"))


def tuned(table: str) -> tuple[str, ...]:
    """Return the methods that have something to tune; linear regressions adapt the step size of HMC."""
    return TUNED if table == "bnn" else TUNED[1:]


def of(tuned: dict[str, Any], table: str, dataset: str, method: str) -> Choices:
    """Look the choices of a method up; those that were not tuned have the defaults."""
    source = {"hmc3": "hmc", **SHARED}.get(method, method)
    return Choices(**tuned.get(f"{table} {dataset} {source}", {}).get("choices", {}))


def save(path: Path, tuned: dict[str, Any]) -> None:
    """Write what has been tuned so far; a kill leaves either the old file or the new one."""
    text = json.dumps(tuned, indent=1, sort_keys=True) + "\n"
    write_whole(path, lambda part: part.write_text(text, encoding="utf-8"))


def tune(key: jax.Array, table: str, dataset: str, method: str) -> dict[str, Any]:
    """Choose the hyperparameters of a method for a data set; return them with the validation score."""
    if method == "hmc":
        return _tune_step_size(key, table, dataset)
    points: list[Point] = list(itertools.product(RATES, RATES, INITIAL_SCALES))
    entries = []
    for rung in (*LADDER, *LAST):
        score = _validate(key, table, dataset, method, rung, points)
        order = np.argsort(-score)
        entries.append((float(score[order[0]]), points[order[0]], rung))
        points = [points[index] for index in order[: rung.num_kept]]
    # The first rungs have other splits: only the last ones can be compared.
    score, point, rung = max(entries[len(LADDER) - 1 :], key=lambda entry: entry[0])
    steps = {"num_steps": rung.num_steps, "num_draws_per_step": rung.num_draws_per_step}
    return {"choices": dict(zip(NAMES, point, strict=True)) | steps, "validation": score}


def _validate(key: jax.Array, table: str, dataset: str, method: str, rung: Rung, points: list[Point]) -> np.ndarray:
    """Mean validation score of every point; fits that are not finite come last."""
    problem = problems.load(table, dataset, rung.splits, is_validation=True)
    steps = Choices(num_steps=rung.num_steps, num_draws_per_step=rung.num_draws_per_step)
    settings = methods.settings_of(method, steps)
    start, num_components, _ = methods.BOOSTED[method]

    def fit(key, target, point):
        chosen = dataclasses.replace(settings, **{name: point[place] for place, name in enumerate(NAMES)})
        return methods.boosted(key, target, chosen, start, num_components)

    over_points = jax.vmap(fit, in_axes=(None, None, 0))
    program = jax.jit(jax.vmap(over_points, in_axes=(0, 0, None)))
    x, log_ratio = program(jax.random.split(key, len(rung.splits)), problem.targets, jnp.asarray(points))
    each = range(len(points))
    score = [problem.score(x[:, which], log_ratio[:, which])["log_of_mean_is"] for which in each]
    mean = np.mean(np.asarray(score), axis=1)
    return np.where(np.isfinite(mean), mean, -np.inf)


def _tune_step_size(key: jax.Array, table: str, dataset: str) -> dict[str, Any]:
    problem = problems.load(table, dataset, (1, 2, 3), is_validation=True)
    keys = jax.random.split(key, len(problem))
    scores = {}
    for size in STEP_SIZES:
        found, _ = methods.solve("hmc", keys, problem, Choices(step_size=size))
        scores[size] = float(np.mean(np.nan_to_num(np.asarray(found["log_of_mean"]), nan=-np.inf)))
    best = max(scores, key=lambda size: scores[size])
    return {"choices": {"step_size": best}, "validation": scores[best]}
