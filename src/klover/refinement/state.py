"""What :func:`klover.refine` carries from round to round."""

import dataclasses

import numpy as np

from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.refinement.pool import Pool
from klover.sampling.hamiltonian import Particles
from klover.targets.evaluator import Evaluator

STUDENT = Family("student")
TEMPER, DESCEND, POOL, EXPLORE = "temper", "descend", "pool", "explore"


@dataclasses.dataclass(frozen=True)
class RoundInfo:
    """What one round measured on its fresh draws.

    Parameters
    ----------
    round
        Number of the round, from 0.
    num_components, num_draws
        Size of the mixture that was measured, and number of fresh draws.
    ess_share, pareto_k, log_evidence, log_evidence_se
        Measured on the fresh draws.
    drift
        Standard errors by which moved particles have found mass that the proposal misses; 0 where none were moved.
    num_evaluations, seconds
        Spent so far.
    """

    round: int
    num_components: int
    num_draws: int
    ess_share: float
    pareto_k: float
    log_evidence: float
    log_evidence_se: float
    drift: float
    num_evaluations: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Context:
    """What all rounds share: the source of chance, the target, how large the mixture may grow, and of what."""

    generator: np.random.Generator
    evaluator: Evaluator
    max_components: int
    family: Family = STUDENT

    @property
    def dim(self) -> int:
        """Dimension of the space."""
        return self.evaluator.target.dim


@dataclasses.dataclass
class State:
    """All that a round needs of the rounds before.

    Parameters
    ----------
    mixture
        The present mixture, without defence.
    broad
        A mixture over the region where the posterior may be.
    pool
        All draws so far.
    stage
        ``"temper"``, ``"descend"``, ``"pool"`` or ``"explore"`` (see :mod:`klover.refinement.rounds`).
    was_hard
        Whether it took more than the pool to come here; then a last look is a longer one.
    frontier, frontier_particles
        Particles somewhat colder and hotter than the target, and the mixture that follows them.
    archive
        Particles of the last journeys.
    discovered
        Mass that the last two journeys from outside found where the proposal is all but absent.
    most_invalid
        NaN, +inf and draws of the round that had most of them, the first excepted: its draws go far out.
    best_ess, num_stale
        Largest share of effective draws so far, and rounds since it grew.
    is_done
        Whether the mixture is as good as it will get.
    history
        What each round measured.
    """

    mixture: Mixture
    broad: Mixture
    pool: Pool
    stage: str = POOL
    was_hard: bool = False
    frontier: Mixture | None = None
    frontier_particles: tuple[Particles, ...] = ()
    archive: tuple[Particles, ...] = ()
    discovered: tuple[float, ...] = (1.0, 1.0)
    most_invalid: tuple[int, ...] = (0, 0, 1)
    best_ess: float = 0.0
    num_stale: int = 0
    is_done: bool = False
    history: tuple[RoundInfo, ...] = ()
