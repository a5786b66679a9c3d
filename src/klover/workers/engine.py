"""What the scheduler needs of workers, whoever runs them."""

from concurrent.futures import Future
from typing import Any, Protocol, runtime_checkable

from klover.workers.parcel import Job


@runtime_checkable
class Engine(Protocol):
    """Workers that take one chunk each."""

    name: str
    """What errors call it."""

    @property
    def num_workers(self) -> int:
        """How many chunks are worked on at a time; 0 where all workers are stuck."""
        ...

    def submit(self, job: Job, chunk: Any, with_function: bool, is_suspect: bool) -> Future:
        """Send a chunk to an idle worker; the future holds what :func:`klover.workers.task.run` returns.

        A suspect may kill: its death must not be that of other chunks.
        """
        ...

    def is_ready(self, future: Future) -> bool:
        """Whether the worker of a chunk has loaded the function, so that the time that points take can be counted."""
        ...

    def is_false_start(self, future: Future) -> bool:
        """Whether the worker that died had not even begun with its chunk."""
        ...

    def is_death(self, error: BaseException) -> bool:
        """Whether a future's error says that its worker has died, and other workers have not."""
        ...

    def is_end(self, error: BaseException) -> bool:
        """Whether a future's error says that there are no workers any more."""
        ...

    def give_up(self, future: Future) -> None:
        """Wait no longer for a chunk: stop its worker, or do without it until it comes back."""
        ...

    def close(self) -> None:
        """End what was started here."""
        ...
