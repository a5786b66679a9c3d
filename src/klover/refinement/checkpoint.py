"""The state of a refinement in one file: arrays and a description of their structure, no pickle."""

import os
from typing import Any

import numpy as np

from klover.mixtures.components import Components
from klover.mixtures.mixture import Mixture
from klover.mixtures.scale import Diagonal, Full, LowRank
from klover.refinement.pool import Pool
from klover.refinement.state import Context, RoundInfo, Stage, State
from klover.results import codec
from klover.sampling.hamiltonian import Particles
from klover.search.recall import Part

VERSION = 1
RECORDS = (Components, Diagonal, Full, LowRank, Mixture, Part, Particles, Pool, RoundInfo, Stage, State)


def save(path: str | os.PathLike, context: Context, state: State, asked: dict[str, Any]) -> None:
    """Write the state, the generator and the counts; the file is replaced at once, so that it is never half written.

    ``asked`` holds the arguments that the way to the state depends on.
    """
    arrays: dict[str, np.ndarray] = {}
    description = {
        "kind": "checkpoint",
        "version": VERSION,
        "dim": context.dim,
        "asked": asked,
        "state": codec.encode(state, arrays),
        "generator": context.generator.bit_generator.state,
        "counts": context.evaluator.counts(),
    }
    codec.write(path, description, arrays)


def load(path: str | os.PathLike, context: Context, asked: dict[str, Any]) -> State:
    """Read a state that the same arguments led to, and put the generator and the counts to where they were."""
    description = codec.read(path, "checkpoint", VERSION, RECORDS, "delete it, and begin again.")
    if description["dim"] != context.dim:
        raise ValueError(
            f"checkpoint {path} belongs to a target of dimension {description['dim']}, but this one has {context.dim}. "
            "Choose another file."
        )
    state: State = description["state"]
    change = codec.find_change(context.evaluator.values, state.pool.x, state.pool.log_p)
    if change:
        raise ValueError(
            f"checkpoint {path} belongs to another target: its log density differs by {change:.3g} at a stored draw. "
            "Was the model or its data changed? Delete the file to begin again, or choose another one."
        )
    for name, value in description.get("asked", asked).items():
        if value != asked[name]:
            raise ValueError(
                f"checkpoint {path} belongs to a run with {name} = {value}, got {asked[name]}. Go on with the "
                f"same {name}, or choose another file."
            )
    context.generator.bit_generator.state = description["generator"]
    evaluator = context.evaluator
    evaluator.set_counts(description["counts"])
    if evaluator.num_left is not None and evaluator.num_left < evaluator.reserve:
        raise ValueError(
            f"budget must pay for the {evaluator.num_evaluations} evaluations of checkpoint {path} and for "
            f"{evaluator.reserve} final draws, but {evaluator.num_left} are left. Give a larger one."
        )
    return state
