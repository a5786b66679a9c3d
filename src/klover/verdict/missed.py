"""The last search: modes that neither draws nor particles have visited.

The weights of a proposal say nothing about a mode that it never visits: k̂ and ESS are then perfect. So the target is
climbed once more, from far away. This is a search, not a proof: it can miss a mode whose basin no start falls into.
"""

import numpy as np

from klover.base.shapes import AnyArray, Bool, Float
from klover.mixtures.algebra import inflate
from klover.mixtures.mixture import Mixture
from klover.search.climb import climb
from klover.search.curvature import log_volume
from klover.search.modes import resolution_of
from klover.search.region import Region
from klover.targets.evaluator import Evaluator
from klover.targets.loaded import TargetLike
from klover.tuning import Tuning

SAME_TOP = 0.1
"""Whitened distance below which two climbs have ended on one top."""

Tops = tuple[Float[np.ndarray, "top dim"], Float[np.ndarray, " top"]]


def find_tops(
    generator: np.random.Generator, evaluator: Evaluator, proposal: Mixture, mixture: Mixture, tuning: Tuning
) -> Tops:
    """Climb from far draws of the proposal and from the region; return tops and log densities.

    What the mixture knows of scales and correlations saves most of the steps: the climb is in coordinates without them.
    """
    search, num = tuning.search, tuning.search.num_starts
    far = inflate(proposal, tuning.answer.search_inflation, tuning.start.wide_df).draw(generator, num)
    starts = np.concatenate([far, Region(evaluator.target, search).draw_starts(generator, num)])
    root = mixture.root()

    def whitened(z):
        values, gradients = evaluator.values_and_gradients(z @ root.T)
        return values, gradients @ root

    begin = np.linalg.solve(root, starts.T).T
    tops, values = climb(whitened, begin, resolution=resolution_of(evaluator))
    return np.asarray(tops @ root.T), np.where(np.isfinite(values), values, -np.inf)


def first_with_mass(
    evaluator: Evaluator,
    mixture: Mixture,
    tops: Tops,
    order: Float[AnyArray, " top"],
    is_suspect: Bool[AnyArray, " top"],
    log_evidence: float,
    tuning: Tuning,
) -> str | None:
    """Name the first suspect, the highest in ``order`` first, that is no spike.

    The neck of a funnel is high and has no mass, as Laplace's approximation tells.
    """
    x, values = tops
    whitened = np.linalg.solve(mixture.root(), x.T).T
    region, seen = Region(evaluator.target, tuning.search), []
    for place in np.argsort(-order).tolist():
        is_known = any(np.linalg.norm(whitened[place] - other) < SAME_TOP for other in seen)
        if not is_suspect[place] or is_known:
            continue
        seen.append(whitened[place])
        log_mass = values[place] + log_volume(evaluator, x[place], region.ceiling(x[place]), tuning.search)
        if log_mass >= log_evidence + np.log(tuning.answer.smallest_mode):
            return place_in_words(evaluator.target, x[place])
    return None


def place_in_words(target: TargetLike, x: Float[AnyArray, " dim"]) -> str:
    """Name the first coordinates of a point."""
    values = np.asarray(target.flat_position(x[None]))[0]
    named = [f"{name} = {value:.3g}" for name, value in zip(target.names, values, strict=True)]
    return "at " + ", ".join(named[:4]) + (", ..." if len(named) > 4 else "")
