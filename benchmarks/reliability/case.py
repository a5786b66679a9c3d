"""Cases by name: ``arm/set/family/number`` is all that a case is made of, so that every fit can be repeated.

The seeds are hashes of the name. The seed sets (``dev``, ``validation``, ``release``) share nothing: what was tuned
while looking at one is judged by another.
"""

import contextlib
import dataclasses
import hashlib
import importlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import klover
from benchmarks.reliability import ARMS, SETS
from benchmarks.reliability.densities import Density, Parts
from benchmarks.reliability.truth import Truth, is_in_reach, truth_of

LARGEST_CONSTANT = 50.0


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A target, the right answer, and what it is worth knowing about it when answers are counted.

    Attributes
    ----------
    target
        What klover gets.
    truth
        What it does not.
    density
        The density behind the target, where the case is made of one.
    measure
        What else is to be kept of a fit, as fields of its line.
    """

    id: str
    target: klover.Target
    truth: Truth
    is_unimodal: bool = True
    is_in_reach: bool = False
    parts: Parts | None = None
    density: Density | None = None
    is_float32: bool = False
    measure: Callable[[klover.Fit], dict[str, Any]] | None = None

    @property
    def arm(self) -> str:
        return self.id.split("/")[0]

    @property
    def family(self) -> str:
        return self.id.split("/")[2]

    def precision(self) -> contextlib.AbstractContextManager:
        """Return the context in which the target was traced and has to be used."""
        return jax.enable_x64(not self.is_float32)


def seed_of(name: str, purpose: str) -> int:
    """Hash a name to a seed of 63 bits; each purpose has its own."""
    return int.from_bytes(hashlib.sha256(f"{purpose}:{name}".encode()).digest()[:8], "big") >> 1


def build(name: str) -> Case:
    """Make a case by its name."""
    arm, _, family, _ = split(name)
    families = families_of(arm)
    if family not in families:
        raise ValueError(f"there is no family {family!r} in {arm!r}, got {name!r}. There are: {', '.join(families)}.")
    return families[family](name, np.random.default_rng(seed_of(name, "case")))


def split(name: str) -> list[str]:
    """Take a name apart, or say what is wrong with it."""
    parts = name.split("/")
    if len(parts) != 4 or parts[0] not in ARMS or parts[1] not in SETS or not parts[3].isdecimal():
        raise ValueError(f"a case is named like known/dev/mixture/17, got {name!r}.")
    return parts


def families_of(arm: str) -> dict[str, Callable[[str, np.random.Generator], Case]]:
    """Return what makes the cases of an arm, by family."""
    if arm not in ARMS:
        raise ValueError(f"there is no arm {arm!r}. There are: {', '.join(ARMS)}.")
    return importlib.import_module(f"benchmarks.reliability.{arm}").FAMILIES


def names(arm: str, seed_set: str, num: int, families: list[str] | None = None) -> list[str]:
    """Name so many cases, spread evenly over the families; a smaller number's are the first of a larger one's."""
    known = list(families_of(arm))
    for family in families or []:
        if family not in known:
            raise ValueError(f"there is no family {family!r} in {arm!r}. There are: {', '.join(known)}.")
    chosen = families or known
    return [f"{arm}/{seed_set}/{chosen[at % len(chosen)]}/{at // len(chosen)}" for at in range(num)]


def from_density(
    name: str, density: Density, generator: np.random.Generator, *, example=None, box=None, is_float32: bool = False
) -> Case:
    """Make a case of a density: a target of it times a random constant, with an example at the origin."""
    constant = float(generator.uniform(-LARGEST_CONSTANT, LARGEST_CONSTANT))
    truth = truth_of(density, generator, constant)
    start = np.zeros(density.dim) if example is None else example
    with jax.enable_x64(not is_float32):
        start = start.astype(np.float32 if is_float32 else np.float64)
        target = klover.Target(lambda x: density.log_prob(x) + constant, start, box=box)
    is_reached = is_in_reach(density, truth)
    return Case(name, target, truth, density.is_unimodal, is_reached, density.parts, density, is_float32)
