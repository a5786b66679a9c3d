import itertools
import os
import zlib
from collections.abc import Callable

import hypothesis
import jax
import pytest
from jaxtyping import Array, Key, install_import_hook

# Most of the time goes into compiling programs that run once.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
jax.config.update("jax_enable_x64", True)

# A module imported before the hook would go unchecked, so nothing here imports klover.
install_import_hook("klover", "beartype.beartype")

# The first example of a test compiles and the others do not, so a time limit for each would only be flaky.
hypothesis.settings.register_profile("klover", deadline=None, derandomize=True)
hypothesis.settings.load_profile("klover")


@pytest.fixture
def getkey(request: pytest.FixtureRequest) -> Callable[[], Key[Array, ""]]:
    """Return a function that gives a fresh key at each call, the same ones in every run of a test."""
    key = jax.random.key(zlib.crc32(request.node.nodeid.encode()))
    count = itertools.count()
    return lambda: jax.random.fold_in(key, next(count))


@pytest.fixture(scope="module", autouse=True)
def _forget_programs():
    """Drop the programs that a module compiled: each is mapped memory, of which a process may have 65,530 pieces."""
    yield
    jax.clear_caches()
