"""Arrays on several devices, and processes that hold parts of them, as ``jax.distributed`` connects them.

Processes that share data run one program in step: each of them computes every decision of the host anew, and JAX adds
up what their devices have computed. Where they decided otherwise they would wait for each other for ever, or add up
values at different points. So what they are about to do is compared before they do it.
"""

import hashlib

import jax
import numpy as np
from jax.core import Tracer

from klover.base.shapes import AnyArray, PyTree


def num_devices(arrays: PyTree) -> int:
    """Return the number of devices that arrays lie on, in all processes; those of NumPy lie on none."""
    return len(set().union(*(leaf.sharding.device_set for leaf in _placed(arrays))))


def are_shared(arrays: PyTree) -> bool:
    """Whether other processes hold parts of the arrays."""
    return not all(leaf.is_fully_addressable for leaf in _placed(arrays))


def to_host(array: AnyArray) -> np.ndarray:
    """Return all of an array in NumPy; where each process holds a part, all processes have to ask for it."""
    if isinstance(array, jax.Array) and not (array.is_fully_addressable or array.is_fully_replicated):
        from jax.experimental import multihost_utils

        return np.asarray(multihost_utils.process_allgather(array, tiled=True))
    return np.asarray(array)


def check_agreement(remedy: str, *parts: PyTree) -> None:
    """Fail in all processes where one is about to do something else: ``parts`` say what, in arrays, words and numbers.

    Of an array that is spread over processes the shape has to be the same, of any other its numbers as well.
    """
    from jax.experimental import multihost_utils

    digest = hashlib.blake2b(digest_size=16)
    for part in jax.tree.leaves(parts, is_leaf=lambda part: part is None):
        is_array = isinstance(part, np.ndarray | jax.Array)
        digest.update(repr((part.shape, str(part.dtype)) if is_array else part).encode())
        if is_array and not are_shared(part):
            digest.update(np.asarray(part).tobytes())
    found = multihost_utils.process_allgather(np.frombuffer(digest.digest(), np.uint32))
    if (found != found[0]).any():
        raise RuntimeError(f"{jax.process_count()} processes share the data, but have parted ways. {remedy}")


def _placed(arrays: PyTree) -> list[jax.Array]:
    return [leaf for leaf in jax.tree.leaves(arrays) if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer)]
