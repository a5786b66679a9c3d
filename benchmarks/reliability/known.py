"""Known truth: random targets with exact evidence and moments."""

from collections.abc import Callable

import numpy as np

from benchmarks.reliability.case import Case, from_density
from benchmarks.reliability.densities import Density
from benchmarks.reliability.families import bounded, ellipses, models, products, quadrature, shapes, warps

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


def single_precision(name: str, generator: np.random.Generator) -> Case:
    """A density of another family in float32."""
    makers = ellipses.student, ellipses.mixture, products.product, warps.sinh_arcsinh, warps.banana
    make = makers[generator.integers(len(makers))]
    return from_density(name, make(generator), generator, is_float32=True)


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
    "shell": plain(shapes.shell),
    "flat_body": plain(shapes.flat_body),
    "staircase": plain(shapes.staircase),
    "trigonometric": plain(quadrature.trigonometric),
    "gaussian_process": plain(quadrature.gaussian_process),
    "rounded": plain(quadrature.rounded),
    "conjugate_regression": plain(models.conjugate_regression),
    "hierarchy": plain(models.hierarchy),
    "callback_bounds": bounded.callback_bounds,
    "transformed_bounds": bounded.transformed_bounds,
    "simplex": bounded.simplex,
    "ordered": bounded.ordered,
    "values_only": bounded.values_only,
    "float32": single_precision,
}
