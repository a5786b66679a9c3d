"""What the engine tells while it works: a line a round on the terminal, and the user's callback."""

import dataclasses
import sys
from collections.abc import Callable

import numpy as np

from klover.base.checks import note
from klover.base.shapes import Float
from klover.refinement.state import RoundInfo
from klover.targets.evaluator import Evaluator

PATIENCE = 2.0
"""Seconds after which a terminal is shown what is going on, unless the user has said otherwise."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """Tell the user.

    Parameters
    ----------
    callback
        Called after each round.
    is_shown
        Whether to write lines; None writes them to a terminal when the work takes long.
    evaluator
        Knows how much was spent.
    """

    callback: Callable[[RoundInfo], None] | None
    is_shown: bool | None
    evaluator: Evaluator

    def report(self, info: RoundInfo) -> None:
        """Tell what a round has measured."""
        self._write(
            f"round {info.round:2d}  {info.num_components:3d} components  ESS {info.ess_share:6.1%}  "
            f"k̂ {info.pareto_k:5.2f}  log evidence {info.log_evidence:.3f} ± {info.log_evidence_se:.3f}"
        )
        if self.callback is not None:
            with note("callback failed: make it a function of what a round has measured (a RoundInfo)."):
                self.callback(info)

    def tell_temperature(self, beta: Float[np.ndarray, " target"]) -> None:
        """Tell how far particles have come on their way to the target."""
        self._write(f"particles at temperature {beta[0]:6.1%}")

    def _write(self, line: str) -> None:
        is_wanted = self.is_shown is None and sys.stderr.isatty() and self.evaluator.elapsed > PATIENCE
        if self.is_shown or is_wanted:
            spent = f"{self.evaluator.num_evaluations} evaluations  {self.evaluator.elapsed:.1f} s"
            print(f"{line}  {spent}", file=sys.stderr)
