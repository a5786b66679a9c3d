"""How a target was made, so that another process can make it again: programs that JAX has traced cannot be pickled."""

import dataclasses
import importlib
import pickle
import sys
from collections.abc import Callable
from typing import Any

REMEDY = (
    "Define its functions at the top level of a module instead of as lambdas or inside other functions, or import "
    "cloudpickle first; or keep results in a file: fit.save(path), and klover.load(path, target)."
)


@dataclasses.dataclass(frozen=True, eq=False)
class Recipe:
    """A function that makes a target, and its arguments."""

    maker: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def __call__(self) -> Any:
        """Make the target."""
        return self.maker(*self.arguments, **self.options)


def reduce(recipe: Recipe | None) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return what pickle needs to make a target again, or say why it cannot.

    Functions without a name that another process could find are pickled by value where cloudpickle is in use: a pickler
    does not tell the objects that it asks which kind it is.
    """
    if recipe is None:
        raise TypeError(f"a target that went through jax.jit, vmap or tree.map cannot be pickled. {REMEDY}")
    try:
        pickle.dumps(recipe)
    except Exception as error:
        module = next((name for name in list(sys.modules) if name.rpartition(".")[2] == "cloudpickle"), None)
        if module is None:
            raise TypeError(f"the target cannot be pickled ({error}). {REMEDY}") from error
        return _unpack, (module, _pack(module, recipe))
    return recipe.__call__, ()


def _pack(module: str, recipe: Recipe) -> bytes:
    try:
        return sys.modules[module].dumps(recipe)
    except Exception as error:
        raise TypeError(f"the target cannot be pickled, even by value ({error}). {REMEDY}") from error


def _unpack(module: str, packed: bytes) -> Any:
    return importlib.import_module(module).loads(packed)()
