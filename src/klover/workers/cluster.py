"""Workers of a Dask cluster: each chunk is sent to one of them by its address, so that a death is known to be its own.

Dask itself would send what has died with its worker to three others, and those beside it would be blamed as well.
"""

import contextlib
import functools
import math
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import Any

from klover.workers.errors import gone
from klover.workers.executors import Foreign

SECONDS_WITHOUT = 60.0
"""How long a cluster may be without workers."""
SECONDS_TO_COUNT = 1.0
"""How long the workers are taken to be those that there were."""


class WorkerLost(Exception):
    """The worker of a chunk is not in the cluster any more."""


class Dask(Foreign):
    """Engine on the client of a cluster.

    Parameters
    ----------
    client
        The client, which is left open.
    """

    def __init__(self, client: Any):
        super().__init__(client)
        self._client = client
        self.name = f"pool={client!r}"
        self._threads: dict[str, int] = {}
        self._counted_at = -math.inf
        self._places: dict[Future, tuple[Any, str]] = {}

    def _count(self) -> int:
        """Return how many threads the workers have; wait for a while where there are none."""
        began = time.monotonic()
        while not self._threads or time.monotonic() - self._counted_at > SECONDS_TO_COUNT:
            try:
                self._threads = dict(self._client.nthreads())
            except Exception as error:  # whatever the network raises
                raise gone(self.name, error) from error
            self._counted_at = time.monotonic()
            self._mourn_the_lost()
            if self._threads:
                break
            if self._counted_at - began > SECONDS_WITHOUT:
                raise gone(self.name, TimeoutError(f"it has had no workers for {SECONDS_WITHOUT:.0f} seconds"))
            time.sleep(SECONDS_TO_COUNT / 10)
        return sum(self._threads.values())

    def _mourn_the_lost(self) -> None:
        """End the futures of workers that are gone."""
        self._places = {local: place for local, place in self._places.items() if not local.done()}
        for local, (remote, address) in self._places.items():
            if address not in self._threads:
                with contextlib.suppress(InvalidStateError):
                    local.set_exception(WorkerLost(address))
                remote.cancel()

    def _send(self, function: Callable, *arguments: Any) -> Future:
        """Send a task to the worker that has most to spare."""
        self._count()
        busy = Counter(address for local, (_, address) in self._places.items() if not local.done())
        address = max(self._threads, key=lambda each: self._threads[each] - busy[each])
        # Not pure: a chunk that is sent again is to be evaluated again.
        options = {"pure": False, "workers": [address], "allow_other_workers": False}
        try:
            remote = self._client.submit(function, *arguments, **options)
        except Exception as error:  # whatever a client that is closed raises
            raise gone(self.name, error) from error
        local: Future = Future()
        self._places[local] = remote, address
        remote.add_done_callback(functools.partial(_hand_over, local))
        return local

    def is_death(self, error: BaseException) -> bool:
        """Whether the worker of the chunk has died."""
        return isinstance(error, WorkerLost) or type(error).__name__ == "KilledWorker"

    def give_up(self, future: Future) -> None:
        """Let the worker be started anew, or count it out: Dask cannot stop what runs."""
        self._stuck.append(future)
        remote, address = self._places.get(future, (None, ""))
        if remote is None:
            return
        with contextlib.suppress(Exception):  # a worker without a nanny stays as it is
            self._client.restart_workers([address], timeout=SECONDS_WITHOUT, raise_for_error=False)
            self._counted_at = -math.inf


def _hand_over(local: Future, remote: Any) -> None:
    """Give the result of a Dask future to one of Python's, and let go of it, so that Dask does not compute it again."""
    with contextlib.suppress(InvalidStateError):
        try:
            result = remote.result()
        except (Exception, CancelledError) as error:
            local.set_exception(error)
        else:
            local.set_result(result)
    remote.release()


def is_dask(pool: Any) -> bool:
    """Whether this is a client of Dask, without an import of it."""
    distributed = sys.modules.get("distributed")
    return distributed is not None and isinstance(pool, distributed.Client)
