"""Where the posterior may lie, before anything is known: the user's box, or the surroundings of the example."""

import dataclasses

import numpy as np

from klover.base.shapes import Float
from klover.mixtures.algebra import box_variance
from klover.targets.evaluator import Coordinates
from klover.targets.target import Target
from klover.tuning import Search


@dataclasses.dataclass(frozen=True)
class Region:
    """Starts for searches, and how wide a mode may be; in other coordinates, if such are given."""

    target: Target
    tuning: Search = Search()
    coordinates: Coordinates | None = None

    @property
    def box(self) -> tuple[Float[np.ndarray, " dim"], Float[np.ndarray, " dim"]] | None:
        """The box that the user gave, if any; in other coordinates it is none."""
        return self._box if self.coordinates is None else None

    @property
    def _box(self) -> tuple[Float[np.ndarray, " dim"], Float[np.ndarray, " dim"]] | None:
        box = self.target.box
        return None if box is None else (np.asarray(box[0], float), np.asarray(box[1], float))

    @property
    def _middle(self) -> Float[np.ndarray, " dim"]:
        return np.asarray(self.target.start, float) if self._box is None else 0.5 * (self._box[0] + self._box[1])

    @property
    def centre(self) -> Float[np.ndarray, " dim"]:
        """Centre of the box, or the example."""
        return self._moved(self._middle[None])[0]

    def draw_starts(self, generator: np.random.Generator, num: int) -> Float[np.ndarray, "start dim"]:
        """Draw starts all over the box; else around the example, which is the first of them, near and further away."""
        if self._box is not None:
            return self._moved(generator.uniform(*self._box, (num, self.target.dim)))
        scale = np.where(np.arange(num) % 2 == 0, self.tuning.start_scale, 1.0)[:, None]
        starts = self._middle + scale * generator.standard_normal((num, self.target.dim))
        starts[0] = self._middle
        return self._moved(starts)

    def _moved(self, x: Float[np.ndarray, "start dim"]) -> Float[np.ndarray, "start dim"]:
        return x if self.coordinates is None else self.coordinates.to_base(x)[0]

    def ceiling(self, top: Float[np.ndarray, " dim"]) -> Float[np.ndarray, " dim"]:
        """Return the largest variances to believe of a top; on unscaled data the way to it is the only scale."""
        if self.box is not None:
            return np.asarray(box_variance(*self.box))
        widest = np.maximum(self.tuning.start_scale, np.abs(top - self.centre))
        return (self.tuning.widest * widest) ** 2
