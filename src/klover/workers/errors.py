"""What can go wrong with workers: with one point, which is then quarantined, or with all of them."""


class PoolGone(RuntimeError):
    """A pool that does no more work. What it had finished was handed on before."""


class Refused(RuntimeError):
    """A function that workers cannot run as it is here: they have another version of it, of klover or of Python."""


class Quarantined(Exception):
    """A point that is not evaluated again: it is NaN."""


class WorkerDied(Quarantined):
    """A point that has ended the processes that evaluated it, each time alone or on the way to being so."""


class TooSlow(Quarantined):
    """A point that took longer than ``timeout``, twice."""


def gone(name: str, error: BaseException, was_on_it: str = "") -> PoolGone:
    """Say that a pool of the user's is gone, what was being evaluated there, and what to do."""
    return PoolGone(
        f"{name} is gone: {str(error) or type(error).__name__}{was_on_it} What was evaluated until then is kept; pass "
        "a pool that is open. Workers that die are replaced, and what kills them is found, where pool= is a whole "
        "number, a function that opens an executor (pool=lambda: ProcessPoolExecutor(4)), or a Dask client."
    )
