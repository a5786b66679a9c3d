"""Import every module of an installed klover, and every library that its extras name; the folder of it is the argument.

What the extras `bench`, `dev`, `docs` and `test` add is for work on klover itself, and is left out; so is `mpi`, which
needs an MPI library on the machine.
"""

import importlib
import importlib.metadata
import pkgutil
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import klover

LEFT_OUT = ("bench", "dev", "docs", "mpi", "test")


def main() -> None:
    """Import everything, and print a line for each extra."""
    folder = Path(sys.argv[1])
    assert klover.__file__ is not None
    assert Path(klover.__file__).is_relative_to(folder), (
        f"klover was imported from {klover.__file__}, not from {folder}."
    )
    modules = [module.name for module in pkgutil.walk_packages(klover.__path__, "klover.")]
    for name in modules:
        if name not in ("klover.__main__", "klover.plugins.cosmosis"):  # CosmoSIS is no extra, and imports its own
            importlib.import_module(name)
    print(f"All {len(modules)} modules of the wheel import.")
    (sampler,) = {each.load() for each in importlib.metadata.entry_points(group="bilby.samplers", name="klover")}
    assert sampler.__module__ == "klover.plugins.bilby"
    assert klover.get_cobaya_class().__module__ == "klover.plugins.cobaya"
    print("bilby and Cobaya find klover.")
    packages: dict[str, list[str]] = {}
    for package, distributions in importlib.metadata.packages_distributions().items():
        for distribution in distributions:
            packages.setdefault(canonicalize_name(distribution), []).append(package)
    about = importlib.metadata.metadata("klover")
    requirements = [Requirement(line) for line in importlib.metadata.requires("klover") or []]
    for extra in sorted(set(about.get_all("Provides-Extra") or []) - set(LEFT_OUT)):
        needed = [
            canonicalize_name(each.name)
            for each in requirements
            if each.marker and each.marker.evaluate({"extra": extra}) and not each.marker.evaluate({"extra": ""})
        ]
        for name in needed:
            for package in packages[name]:
                importlib.import_module(package)
        print(f"The extra {extra} imports: {', '.join(needed)}.")


if __name__ == "__main__":
    main()
