"""The same cases through other tools, by the modules in ``benchmarks/peers``, judged by the same rule."""

import types
from typing import Any

import jax
import numpy as np

from benchmarks import field, peers, tasks
from benchmarks.reliability import PEERS, outcome
from benchmarks.reliability.case import Case

FEWEST_EFFECTIVE = 400
"""Effective draws of a chain's worst coordinate, below which its user would not trust it."""
WITHOUT_GRADIENTS = ("dynesty",)


class BoxedTask(tasks.Task):
    """A task whose only box is the one that a user has given."""

    def box(self):
        if self.target.box is None:
            raise tasks.Unsuited(f"{self.name} has no box.")
        return super().box()


def as_task(case: Case) -> tasks.Task:
    """Put a case into the shape that the peers take."""
    sample = None if case.density is None else case.density.sample
    truth = case.truth
    return BoxedTask(
        case.id, case.target, case.target.flat_position, truth.mean, truth.sd, truth.log_evidence, sample=sample
    )


def load(peer: str) -> tuple[types.ModuleType, dict[str, Any]]:
    """Import a peer's module, or say what is missing: a tool that is not installed has no outcomes."""
    try:
        return peers.load(PEERS[peer])
    except ModuleNotFoundError as error:
        raise SystemExit(f"{peer} cannot be run: {error}. It comes with the extra bench.") from None


def check_gradient(case: Case) -> None:
    """Refuse a case of values alone."""
    try:
        jax.eval_shape(jax.grad(case.target.log_prob), case.target.start)
    except ValueError:
        raise tasks.Unsuited(f"{case.id} has no gradient.") from None


def solve(case: Case, peer: str, seed: int) -> dict[str, Any]:
    """Run a peer on a case, and return what is kept of it."""
    module, setting = load(peer)
    try:
        if peer not in WITHOUT_GRADIENTS:
            check_gradient(case)
        found = module.prepare(as_task(case), **setting)(seed)
    except tasks.Unsuited as reason:
        return {"outcome": outcome.UNSUITED, "reason": str(reason)}
    complaint = found.complaint
    if found.x.ndim == 3 and not field.effective(found) >= FEWEST_EFFECTIVE:
        complaint = ", ".join(filter(None, [complaint, f"ESS below {FEWEST_EFFECTIVE}"]))
    compared = outcome.compare(case.truth, answer_of(case, found))
    return {
        "outcome": outcome.outcome_of(case.truth, not complaint, compared["wrong_by"]),
        "status": complaint or "TRUSTED",
        **compared,
        "evaluations": found.num_evaluations + found.num_gradients,
    }


def answer_of(case: Case, found: peers.Answer) -> outcome.Answer:
    """Read a peer's draws as klover's are read: weighted moments of the constrained quantities."""
    x = found.x.reshape(-1, case.target.dim)
    values = np.asarray(case.target.flat_position(x), float)
    log_weight = np.zeros(len(x)) if found.log_weight is None else found.log_weight
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    mean = weight @ values
    sd = np.sqrt(weight @ (values - mean) ** 2)
    return outcome.Answer(mean, sd, None, found.log_evidence, found.log_evidence_se)
