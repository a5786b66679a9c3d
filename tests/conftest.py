import collections
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import itertools
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import hypothesis
import jax
import jaxtyping
import pytest
from jaxtyping import Array, Key

# Most of the time goes into compiling programs that run once. The older emitters take half of it; jax 0.12 has the new
# ones alone, and refuses flags that it does not know.
FLAGS = "--xla_backend_optimization_level=0"
FLAGS += " --xla_cpu_use_fusion_emitters=false" if jax.__version_info__ < (0, 12) else ""
os.environ.setdefault("XLA_FLAGS", FLAGS)
# What was compiled is kept for the other worker, for the processes that tests start, and for the next run.
CACHE = str(Path(__file__).parents[1] / ".pytest_cache" / "xla")
jax.config.update("jax_compilation_cache_dir", os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
jax.config.update("jax_enable_x64", True)

NUM_CHECKED = 8
calls = collections.Counter()
check_all = jaxtyping.jaxtyped


def check(function=None, **options):
    """Check the shapes and types of a function's first calls in each test, and of ever fewer later ones.

    Loops repeat theirs by the thousand: after the first eight, calls number 16, 32, 64, ... are checked. What checks a
    function is made when it is first called, since half of all functions never are.

    What has no annotations is left alone, above all functions inside of others: they are made anew at every call, and
    what checks them would be as well.
    """
    if function is None:
        return functools.partial(check, **options)
    if inspect.isclass(function):
        if dataclasses.is_dataclass(function):
            function.__init__ = check(function.__init__, **options)
        return function
    if not function.__annotations__:
        return function
    checked = functools.cache(lambda: check_all(function, **options))

    @functools.wraps(function)
    def call(*args, **kwargs):
        calls[function] = number = calls[function] + 1
        is_checked = number <= NUM_CHECKED or not number & (number - 1)
        return (checked() if is_checked else function)(*args, **kwargs)

    return call


# On Python 3.11 bilby imports pip, after which setuptools, which PyTensor needs, can no longer be imported.
if importlib.util.find_spec("setuptools") is not None:
    importlib.import_module("setuptools")

# A module imported before the hook would go unchecked, so nothing here imports klover.
jaxtyping.jaxtyped = check
jaxtyping.install_import_hook("klover", "beartype.beartype")

# Under `make test`, which installs every extra, a library that cannot be imported is an error and no reason to skip.
if os.environ.get("KLOVER_REQUIRE_EXTRAS") == "1":
    pytest.importorskip = lambda name, **_: importlib.import_module(name)

# The first example of a test compiles and the others do not, so a time limit for each would only be flaky.
hypothesis.settings.register_profile("klover", deadline=None, derandomize=True)
hypothesis.settings.load_profile("klover")


@pytest.fixture
def getkey(request: pytest.FixtureRequest) -> Callable[[], Key[Array, ""]]:
    """Return a function that gives a fresh key at each call, the same ones in every run of a test."""
    key = jax.random.key(zlib.crc32(request.node.nodeid.encode()))
    count = itertools.count()
    return lambda: jax.random.fold_in(key, next(count))


@pytest.fixture(autouse=True)
def _check_afresh():
    calls.clear()


@pytest.fixture(scope="module", autouse=True)
def _forget_programs():
    """Drop the programs that a module compiled: each is mapped memory, of which a process may have 65,530 pieces."""
    yield
    jax.clear_caches()
