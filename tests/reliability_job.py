"""A job for worker processes that take no time, and can be made to fail."""

import dataclasses
import os
import time


@dataclasses.dataclass(frozen=True)
class QuickJob:
    """Answers at once; dies at numbers from 100, and hangs at numbers from 200."""

    limit: float = 0.1
    can_begin: bool = True

    def begin(self) -> None:
        """Fail if told so."""
        if not self.can_begin:
            os._exit(1)

    def run(self, name: str) -> dict:
        """Return a line that says which process made it."""
        number = int(name.rpartition("/")[2])
        if number >= 200:
            time.sleep(600)
        if number >= 100:
            os._exit(1)
        outcome = "unfinished" if number == 50 else "trusted right"
        return {"id": name, "outcome": outcome, "process": os.getpid(), "cores": sorted(os.sched_getaffinity(0))}

    def tidy(self) -> None:
        """Nothing to tidy."""
