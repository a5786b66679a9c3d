"""The state of a refinement in one file: arrays and a description of their structure, no pickle."""

import json
import os
from typing import Any

import numpy as np

from klover.fitting.sample import Sample
from klover.mixtures.components import Components
from klover.mixtures.mixture import Mixture
from klover.mixtures.scale import Diagonal, Full, LowRank
from klover.refinement.pool import Pool
from klover.refinement.state import Context, RoundInfo, Stage, State
from klover.results import codec
from klover.results.integrity import check_mixture, check_numbers, check_warp, expect, expect_array
from klover.sampling.hamiltonian import Particles
from klover.targets.evaluator import COUNTS
from klover.warps import warped

VERSION = 1
REMEDY = "delete it, and begin again."
RECORDS = (Components, Diagonal, Full, LowRank, Mixture, Particles, Pool, RoundInfo, Sample, Stage, State)
RECORDS += warped.RECORDS


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
    description = codec.read(path, "checkpoint", VERSION, RECORDS, REMEDY)
    with codec.refuse_damage(path, "checkpoint", REMEDY):
        _check(description)
    state: State = description["state"]
    if description["dim"] != context.dim:
        raise ValueError(
            f"checkpoint {path} belongs to a target of dimension {description['dim']}, but this one has {context.dim}. "
            "Choose another file."
        )
    change = codec.find_change(context.evaluator.values_in_time, state.pool.x, state.pool.log_p)
    if change:
        raise ValueError(
            f"checkpoint {path} belongs to another target: its log density differs by {change:.3g} at a stored draw. "
            "Was the model or its data changed? Delete the file to begin again, or choose another one."
        )
    for name, value in asked.items():
        before = description["asked"].get(name, value)
        if before != value:
            raise ValueError(
                f"checkpoint {path} belongs to a run with {name} = {before}, got {value}. Go on with the same {name}, "
                "or choose another file."
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


def _check(description: dict[str, Any]) -> None:
    """Refuse a description whose parts do not belong together."""
    state, dim, counts = description["state"], description["dim"], description["counts"]
    expect(isinstance(state, State) and isinstance(state.stage, Stage), "state")
    for each in (state, *state.history):
        check_numbers(each)
    expect(all(isinstance(info, RoundInfo) for info in state.history), "history")
    expect(all(isinstance(each, int | float) for each in (*state.discovered, *state.most_invalid)), "state")
    if state.warp is not None:
        check_warp(state.warp, dim)
    for mixture in (state.mixture, state.broad, *([] if state.frontier is None else [state.frontier])):
        check_mixture(mixture, dim)
    for particles in (*state.frontier_particles, *state.archive):
        num = len(particles.x)
        for name, shape in {"x": (num, dim), "log_p": (num,), "gradient": (num, dim)}.items():
            expect_array(name, getattr(particles, name), shape)
    if state.chains is not None:
        expect_array("chains", state.chains, (len(state.chains), dim))
    if state.seen is not None:
        num = len(state.seen.weight)
        for name, shape in {"x": (num, dim), "weight": (num,), "log_p": (num,)}.items():
            expect_array(name, getattr(state.seen, name), shape)
    pool, num = state.pool, sum(state.pool.sizes)
    for proposal in pool.proposals:
        check_mixture(proposal, dim)
    expect(len(pool.proposals) == len(pool.sizes), "proposals")
    for name, shape in {"x": (num, dim), "log_p": (num,), "log_q": (len(pool.sizes), num)}.items():
        expect_array(name, getattr(pool, name), shape)
    expect(all(counts[name] >= 0 for name in (*COUNTS, "elapsed")), "counts")
    expect(isinstance(description["asked"], dict) and bool(json.dumps(description["asked"])), "asked")
    # What is no state of a generator is refused by one that nobody needs.
    np.random.default_rng().bit_generator.state = description["generator"]
