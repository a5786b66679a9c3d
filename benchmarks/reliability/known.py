"""Known truth: random targets with exact evidence and moments."""

from collections.abc import Callable

import numpy as np

from benchmarks.reliability.case import Case, from_density
from benchmarks.reliability.densities import Density
from benchmarks.reliability.families import ellipses, products, warps

BOX_SHARE, BOX_SDS = 0.15, 8.0


def plain(make: Callable[[np.random.Generator], Density]):
    """Turn what makes a density into what makes a case of it."""
    return lambda name, generator: from_density(name, make(generator), generator)


def boxed(make: Callable[[np.random.Generator], Density]):
    """Like :func:`plain`, but some of the targets have a box around all modes, as a user may know one."""

    def case(name, generator):
        density, box = make(generator), None
        if generator.random() < BOX_SHARE:
            assert density.parts is not None
            spread = BOX_SDS * np.sqrt(np.diagonal(density.parts.covariances, axis1=1, axis2=2))
            box = (density.parts.locations - spread).min(0), (density.parts.locations + spread).max(0)
        return from_density(name, density, generator, box=box)

    return case


FAMILIES: dict[str, Callable[[str, np.random.Generator], Case]] = {
    "gaussian": plain(ellipses.gaussian),
    "mixture": boxed(ellipses.mixture),
    "product": plain(products.product),
    "halo": plain(ellipses.halo),
    "student": plain(ellipses.student),
    "warped_mixture": boxed(warps.warped_mixture),
    "rotated_product": plain(products.rotated_product),
    "banana": plain(warps.banana),
    "funnel": plain(warps.funnel),
    "sinh_arcsinh": plain(warps.sinh_arcsinh),
    "tiny_product": plain(products.tiny_product),
    "warped_product": plain(warps.warped_product),
    "warped_student": plain(warps.warped_student),
    "lattice": plain(ellipses.lattice),
}
