"""What the engine tells while it works: a line that a terminal rewrites, lines in a file, and the user's callback.

A thread looks at the clock, so that a compilation or a long step of particles does not look like the end. On a terminal
the line is rewritten every second, and erased when the work is done. Elsewhere there is a line for each round, and
another where nothing else was written for long.
"""

import contextlib
import shutil
import sys
import threading
from collections.abc import Callable

import numpy as np

from klover.base.checks import note
from klover.base.shapes import Float
from klover.refinement.state import RoundInfo
from klover.targets.evaluator import Evaluator

PATIENCE = 2.0
"""Seconds after which a terminal is shown what is going on, unless the user has said otherwise."""
TERMINAL_SECONDS, FILE_SECONDS = 1.0, 15.0
"""Seconds without news after which a terminal's line is rewritten, and a file gets another."""
REWRITE = "\r\x1b[K"
"""Back to the beginning of a terminal's line, and erase it."""


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

    def __init__(self, callback: Callable[[RoundInfo], None] | None, is_shown: bool | None, evaluator: Evaluator):
        self._callback, self._is_shown, self._evaluator = callback, is_shown, evaluator
        self._doing, self._how_far, self._is_line_open = "", "", False
        self._lock, self._is_over, self._news = threading.Lock(), threading.Event(), 0
        self._thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> "Progress":
        """Look at the clock from now on, if anything is to be shown."""
        if self._is_shown or (self._is_shown is None and sys.stderr.isatty()):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Come to an end, and leave a terminal as it was."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._is_line_open:
            print(REWRITE, end="", file=sys.stderr, flush=True)
            self._is_line_open = False

    def say(self, doing: str) -> None:
        """Say what is being done now; a file hears of it with the round, or when it takes long."""
        self._doing = doing
        if sys.stderr.isatty():
            self._write()

    def report(self, info: RoundInfo, doing: str, how_far: str) -> None:
        """Tell what a round has done and measured, and how far that is from what is wanted."""
        evidence = f"log evidence {info.log_evidence:.3f} ± {info.log_evidence_se:.3f}"
        self._doing, self._how_far = f"round {info.round}: {doing}", how_far
        self._write(f"k̂ {info.pareto_k:.2f}", evidence, f"{info.num_components} components")
        if self._callback is not None:
            with note("callback failed: make it a function of what a round has measured (a RoundInfo)."):
                self._callback(info)

    def tell_temperature(self, beta: Float[np.ndarray, " target"]) -> None:
        """Tell how far particles have come on their way to the target."""
        self.say(f"particles at temperature {beta[0]:.1%} of the way to the posterior")

    def _tick(self) -> None:
        seconds = TERMINAL_SECONDS if sys.stderr.isatty() else FILE_SECONDS
        seen = self._news
        while not self._is_over.wait(seconds):
            if self._news == seen:
                self._write()
            seen = self._news

    def _write(self, *measured: str) -> None:
        is_terminal = sys.stderr.isatty()
        is_wanted = self._is_shown is None and is_terminal and self._evaluator.elapsed > PATIENCE
        if not (self._is_shown or is_wanted):
            return
        spent = f"{self._evaluator.num_evaluations:,} evaluations", f"{self._evaluator.elapsed:.1f} s"
        line = "  ".join(part for part in (self._doing, self._how_far, *spent, *measured) if part)
        with self._lock, contextlib.suppress(OSError):
            if is_terminal:
                # A line that wraps could not be rewritten.
                line = REWRITE + line[: shutil.get_terminal_size().columns - 1]
            print(line, end="" if is_terminal else "\n", file=sys.stderr, flush=True)
            self._is_line_open, self._news = is_terminal, self._news + 1
