"""The result of a fit: the mixture, how it grew, fresh weighted draws, the verdict, and a table for people."""

import dataclasses
import json
import os
from typing import Any

import numpy as np

from klover.base import optional
from klover.base.checks import check_path
from klover.base.shapes import KeyLike
from klover.importance.draws import WeightedDraws, sample_importance
from klover.results import datatree, files
from klover.results.summary import Summary, summarise
from klover.targets.loaded import TargetLike
from klover.targets.target import Target
from klover.verdict.judge import Verdict
from klover.warps.warped import Proposal


@dataclasses.dataclass(frozen=True)
class Fit:
    """A fitted proposal and what it says about the target.

    ``mixture`` is the final proposal q. ``draws`` are fresh draws of it with their weights (or particles, see
    :attr:`kind`); the verdict and the summary rest on them. ``history`` has what was measured after each round, by
    name: arrays with one entry a round. ``num_evaluations`` and ``evaluation_seconds`` count the evaluations of the
    target in all, and the seconds inside it (compilation included); they are None where they were not counted.
    ``settings`` say how the fit was made: the function, its choices, and the data of the key.
    """

    target: TargetLike
    mixture: Proposal
    draws: WeightedDraws
    history: dict[str, np.ndarray]
    verdict: Verdict
    num_evaluations: int | None = None
    evaluation_seconds: float | None = None
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What the draws are: ``"importance"``, or ``"particles"`` where importance sampling cannot work."""
        return self.draws.kind

    @property
    def log_evidence(self) -> float:
        """Log of the evidence."""
        return float(self.draws.log_evidence)

    @property
    def log_evidence_se(self) -> float:
        """Standard error of the log evidence."""
        return float(self.draws.log_evidence_se)

    @property
    def pareto_k(self) -> float:
        """Tail index k̂ of the weights."""
        return float(self.draws.pareto_k)

    @property
    def ess(self) -> float:
        """Effective number of the fresh draws."""
        return float(self.draws.ess)

    def importance(self, key: KeyLike, num_draws: int) -> WeightedDraws:
        """Draw more from the proposal, weighted by the target."""
        return sample_importance(key, self.target, self.mixture, num_draws)

    def summary(self) -> Summary:
        """Weighted mean, sd, interval, Monte Carlo error, ESS and k̂ of every quantity."""
        return summarise(self.draws, self.verdict, int(self.mixture.num_components))

    def posterior(self, num_draws: int = 4000, key: KeyLike = 0) -> dict[str, np.ndarray]:
        """Return equally weighted posterior draws by name: constrained values, as arrays of shape (draw, ...).

        As :meth:`klover.WeightedDraws.resample` of the fit's own draws; more of them than are effective (``ess``)
        repeat what is there. The key is one of JAX, or a whole number as its seed.
        """
        return {name: np.asarray(values) for name, values in self.draws.resample(key, num_draws).items()}

    def to_pandas(self, num_draws: int = 4000, key: KeyLike = 0) -> Any:
        """Return the draws of :meth:`posterior` as a ``pandas.DataFrame``: a row a draw, a column a quantity."""
        x = np.asarray(self.draws.resample_unconstrained(key, num_draws))
        return optional.pandas().DataFrame(np.asarray(self.target.flat_position(x)), columns=list(self.target.names))

    def to_datatree(self, num_draws: int = 4000, key: KeyLike = 0, predictive: bool = False) -> Any:
        """Return labelled results in ArviZ's groups, as an ``xarray.DataTree``.

        As :func:`klover.results.datatree.to_datatree` of the draws; the verdict with reason and remedy, the number of
        components and the settings (as JSON) are attributes too.
        """
        tree = datatree.to_datatree(self.draws, num_draws, key, predictive)
        tree.attrs |= {
            "verdict": "trusted" if self.verdict.trusted else "refused",
            "verdict_status": self.verdict.status.name,
            "verdict_reason": self.verdict.reason,
            "verdict_remedy": self.verdict.remedy,
            "num_components": int(self.mixture.num_components),
            "settings": json.dumps(self.settings),
        }
        return tree

    def to_arviz(self, num_draws: int = 4000, key: KeyLike = 0, predictive: bool = False) -> Any:
        """Return :meth:`to_datatree` as the installed ArviZ has it: a DataTree, or InferenceData before ArviZ 1."""
        return datatree.to_arviz(self.to_datatree(num_draws, key, predictive))

    def save(self, path: str | os.PathLike) -> None:
        """Write all but the target's functions to one file, which :func:`klover.load` reads."""
        files.save(check_path("path", path), self)

    def __repr__(self) -> str:
        """Return a one-line description."""
        state = "trusted" if self.verdict.trusted else "refused"
        return f"Fit(dim={self.target.dim}, num_components={int(self.mixture.num_components)}, {state})"


def load(path: str | os.PathLike, target: Target | None = None) -> Fit:
    """Read a fit that :meth:`Fit.save` has written, with its target, built as before.

    Without the target, what was stored can be read (draws, their constrained positions, summary, verdict, history), and
    the log density cannot be evaluated. Constrained positions in containers other than dicts, lists and tuples are then
    dicts by name.

    Raises
    ------
    klover.results.codec.DamagedFile
        If the file was cut or changed, or is something else; it is a ``ValueError``.
    ValueError
        If the file is a checkpoint, was written by a newer klover, or belongs to another target.
    """
    return Fit(**files.load(check_path("path", path, is_read=True), target))
