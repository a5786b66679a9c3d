r"""Draws along a coordinate, by Laplace's approximation over all others: into a neck, further than chains go.

At c, a scale parameter of a hierarchy, the others are about :math:`\mathrm N(\theta^*(c),H(c)^{-1})`, and c itself has
the density :math:`m(c)` of :mod:`klover.search.necks` (Tierney & Kadane 1986). Newton's method follows the tops from
one c to the next, as far as there is mass. Between two of them log m, tops and roots are straight lines. Draws are
weighed by the target: where the approximation is bad few are effective, and none are returned.
"""

import dataclasses

import numpy as np

from klover.base.shapes import Float, Int
from klover.fitting.sample import Sample
from klover.importance.ratios import effective_sample_size, truncate
from klover.search.necks import laplace, restricted
from klover.targets.evaluator import Evaluator

STEP = 0.4
"""Standard deviations of the coordinate between two tops."""
MOST_STEPS = 40
"""To either side."""
NEGLIGIBLE = 8.0
"""Nats below the highest log m at which the way ends."""
FINE = 64
"""Places between two tops that c may have, but for the width of one."""
LEAST_SHARE = 0.05
"""Of draws that must be effective."""


@dataclasses.dataclass(frozen=True)
class Profile:
    """Places of c, with log m, the tops of the others, and roots of their covariances there; all in standard units."""

    place: Float[np.ndarray, " node"]
    log_mass: Float[np.ndarray, " node"]
    top: Float[np.ndarray, "node other"]
    root: Float[np.ndarray, "node other other"]

    def draw(
        self, generator: np.random.Generator, num: int
    ) -> tuple[Float[np.ndarray, " draw"], Float[np.ndarray, "draw other"], Float[np.ndarray, " draw"]]:
        """Return draws of c, of the others, and their log density up to a constant."""
        fine = np.linspace(self.place[0], self.place[-1], FINE * len(self.place))
        log_density = np.interp(fine, self.place, self.log_mass)
        share = np.exp(log_density - log_density.max())
        c = generator.choice(fine, num, p=share / share.sum())
        c = np.clip(c + (fine[1] - fine[0]) * generator.uniform(-0.5, 0.5, num), fine[0], fine[-1])
        left = np.clip(np.searchsorted(self.place, c) - 1, 0, len(self.place) - 2)
        part = ((c - self.place[left]) / (self.place[left + 1] - self.place[left]))[:, None]
        noise = generator.standard_normal((num, self.top.shape[1]))
        # Roots are triangular, so that the determinant of what lies between two is that of its diagonal.
        diagonal = np.diagonal(self.root, axis1=1, axis2=2)
        log_volume = np.log((1 - part) * diagonal[left] + part * diagonal[left + 1]).sum(1)
        below, above = (self._at(left + shift, noise) for shift in (0, 1))
        log_q = np.interp(c, fine, log_density) - 0.5 * (noise**2).sum(1) - log_volume
        return c, (1 - part) * below + part * above, log_q

    def _at(
        self, node: Int[np.ndarray, " draw"], noise: Float[np.ndarray, "draw other"]
    ) -> Float[np.ndarray, "draw other"]:
        """Return the others at nodes, given their noise."""
        z = self.top[node]
        for each in np.unique(node):
            z[node == each] += noise[node == each] @ self.root[each].T
        return z


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def draw_along(generator: np.random.Generator, evaluator: Evaluator, seen: Sample, lead: int) -> Sample | None:
    """Return weighted draws, as many as there are seen ones; None where Laplace's approximation does not help."""
    x, weight = np.asarray(seen.x), np.asarray(seen.weight)
    centre = weight @ x
    scale = np.sqrt(weight @ (x - centre) ** 2)
    profile = follow(evaluator, centre, scale, lead)
    if profile is None:
        return None
    c, z, log_q = profile.draw(generator, len(x))
    points = centre + scale * np.insert(z, lead, c, axis=1)
    log_p = evaluator.values(points)
    inside = np.isfinite(log_p)
    log_ratio = np.where(inside, log_p - log_q, -np.inf)
    if not effective_sample_size(log_ratio) > LEAST_SHARE * len(x):
        return None
    weight = np.exp(truncate(log_ratio))
    return Sample(points, weight, log_p=log_p).where(inside)


def follow(
    evaluator: Evaluator, centre: Float[np.ndarray, " dim"], scale: Float[np.ndarray, " dim"], lead: int
) -> Profile | None:
    """Follow the tops of the others to both sides, as long as Newton's method can and there is mass.

    None where that is nowhere, or at one place.
    """
    others = np.delete(np.arange(len(centre)), lead)
    found: dict[int, tuple[float, np.ndarray, np.ndarray]] = {}
    for side in (-1, 1):
        z = found[0][1] if found else np.zeros(len(others))
        for number in range(int(len(found) > 0), MOST_STEPS):
            origin = centre.copy()
            origin[lead] += side * number * STEP * scale[lead]
            z, log_mass, root = laplace(restricted(evaluator, origin, scale, others), z)
            if log_mass is None or log_mass < max([node[0] for node in found.values()], default=-np.inf) - NEGLIGIBLE:
                break
            found[side * number] = log_mass, z, np.linalg.inv(root).T
    if len(found) < 2:
        return None
    order = sorted(found)
    log_mass, top, root = ([found[number][which] for number in order] for which in range(3))
    return Profile(STEP * np.array(order, float), np.array(log_mass), np.array(top), np.array(root))
