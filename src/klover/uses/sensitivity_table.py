"""What power-scaling has found: a table with words, and the steps behind it."""

import dataclasses

import numpy as np

from klover.base.shapes import Float
from klover.results import html
from klover.results.fit import Fit
from klover.results.summary import aligned

PARTS = ("prior", "likelihood")
THRESHOLD = 0.05
"""Sensitivities from here on count, by the paper's rule of thumb."""
HEADER = ("quantity", "prior", "±", "likelihood", "±", "what it says")
CONFLICT, STRONG, NOTHING = "potential prior-data conflict", "potential strong prior / weak likelihood", "-"

PerValue = Float[np.ndarray, " value"]


@dataclasses.dataclass(frozen=True)
class PowerStep:
    """The posterior with its prior, or its likelihood, to another power.

    ``pareto_k`` is that of the fit's own draws under the scaled posterior; where it is too high ``refit`` is a fit of
    it, with a verdict of its own, and all numbers are from there. ``distance`` is the cumulative Jensen-Shannon
    distance from the posterior as it is.
    """

    part: str
    power: float
    pareto_k: float
    refit: Fit | None
    mean: PerValue
    mean_se: PerValue
    sd: PerValue
    distance: PerValue

    def __str__(self) -> str:
        """Say in one line how the step was made."""
        how = "weighted draws of the fit" if self.refit is None else f"fitted anew, {self.refit.verdict}"
        return f"{self.part} to the power {self.power:g}: k̂ = {self.pareto_k:.2f}, {how}"


@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """Sensitivities of quantities to prior and likelihood; ``print`` it, or read its columns.

    A sensitivity is the change of the posterior of a quantity, as a cumulative Jensen-Shannon distance, with the binary
    logarithm of the power. ``pareto_k`` has the k̂ of the small steps that it is taken from, by ``"prior"`` and
    ``"likelihood"``, and ``limit`` is the k̂ from which on they are not to be trusted.
    """

    names: tuple[str, ...]
    prior: PerValue
    likelihood: PerValue
    prior_se: PerValue
    likelihood_se: PerValue
    pareto_k: dict[str, float]
    limit: float
    steps: tuple[PowerStep, ...]

    @property
    def diagnosis(self) -> tuple[str, ...]:
        """What the two sensitivities of each quantity say together, in words."""
        return tuple(
            NOTHING if prior < THRESHOLD else CONFLICT if likelihood >= THRESHOLD else STRONG
            for prior, likelihood in zip(self.prior, self.likelihood, strict=True)
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """How the numbers were made, and which of them are in doubt."""
        bad = [part for part in PARTS if self.pareto_k[part] > self.limit]
        doubt = [
            f"The sensitivities to the {part} are unreliable: k̂ = {self.pareto_k[part]:.2f} is above "
            f"{self.limit:.2f}. Fit with more draws."
            for part in bad
        ]
        figures = ", ".join(f"{part} {self.pareto_k[part]:.2f}" for part in PARTS)
        return (*doubt, f"k̂ of the small steps: {figures}", *map(str, self.steps))

    def __str__(self) -> str:
        """Return the table as text."""
        rows = [[*HEADER[:-1]], *(row[:-1] for row in self._rows())]
        words = [HEADER[-1], *self.diagnosis]
        table = [f"{line}  {word}" for line, word in zip(aligned(rows, 12), words, strict=True)]
        return "\n".join([*table, "", *self.notes])

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return html.table(HEADER, self._rows(), "Sensitivities to prior and likelihood") + html.bullets(self.notes)

    def _rows(self) -> list[list[str]]:
        columns = (self.prior, self.prior_se, self.likelihood, self.likelihood_se)
        rows = zip(self.names, zip(*columns, strict=True), self.diagnosis, strict=True)
        return [[name, *(f"{value:.3f}" for value in row), words] for name, row, words in rows]
