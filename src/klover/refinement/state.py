"""What :func:`klover.refine` carries from round to round."""

import dataclasses
import enum
from collections.abc import Callable

import numpy as np

from klover.base.shapes import Float
from klover.fitting.growth import Rules
from klover.fitting.sample import Sample
from klover.fitting.splits import num_parameters
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.refinement.pool import Pool
from klover.sampling.hamiltonian import Particles
from klover.search.region import Region
from klover.targets.evaluator import Evaluator
from klover.tuning import Tuning
from klover.warps.warp import Warp


class Stage(enum.Enum):
    """What a round does beside drawing, measuring and fitting (:mod:`klover.refinement.stages`)."""

    BEGIN = "begin"
    TEMPER = "temper"
    CHAIN = "chain"
    DESCEND = "descend"
    POOL = "pool"
    EXPLORE = "explore"


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
    """What all rounds share.

    Parameters
    ----------
    generator, evaluator
        Sources of chance and of the target.
    max_components, family
        The largest mixture, and what it is made of.
    tuning
        The numbers.
    goal
        Effective draws of the pool that are enough (:mod:`klover.refinement.thrift`); None where evaluations are cheap.
    has_usual_search
        Whether the last search is the usual one although there is a goal.
    tell
        Told what is being done, in words.
    """

    generator: np.random.Generator
    evaluator: Evaluator
    max_components: int
    family: Family = Family("student")
    tuning: Tuning = Tuning()
    goal: int | None = None
    has_usual_search: bool = False
    tell: Callable[[str], None] = lambda doing: None

    @property
    def dim(self) -> int:
        """Dimension of the space."""
        return self.evaluator.target.dim

    @property
    def rules(self) -> Rules:
        """How mixtures may grow."""
        return Rules(self.max_components, self.family.is_df_fitted, self.tuning.growth, self.evaluator.check_clock)

    @property
    def num_fitted(self) -> int:
        """Draws that a mixture is fitted to; a comb leaves out the rest."""
        rounds = self.tuning.rounds
        # Where covariances are diagonal a component has but 2d parameters.
        num = num_parameters(self.dim) if self.dim <= self.tuning.search.full_dim else 2 * self.dim
        return max(rounds.fitted_draws, int(rounds.fitted_per_parameter * num))

    @property
    def num_warped(self) -> int:
        """The same of a warp, which has more parameters."""
        return int(np.clip(4 * self.num_fitted, self.num_fitted, self.tuning.rounds.most_draws))

    @property
    def region(self) -> Region:
        """Where the posterior may lie."""
        return Region(self.evaluator.target, self.tuning.search, self.evaluator.coordinates)

    @property
    def can_warp(self) -> bool:
        """Whether there are bent warps: one coordinate has nobody to depend on, of many draws alone tell too little."""
        search = self.tuning.search
        most = search.warped_dim if self.can_whiten else search.full_dim
        return 1 < self.dim <= most and self.family.covariance == "full"

    @property
    def can_whiten(self) -> bool:
        """Whether locations and covariances come from scores: draws would not tell so many (:mod:`~.whitening`)."""
        is_large = self.dim > self.tuning.search.full_dim and self.family.covariance == "full"
        return is_large and self.evaluator.has_gradient and self.goal is None

    @property
    def can_escalate(self) -> bool:
        """Whether particles may take over where weights fail (:mod:`klover.refinement.escalation`)."""
        return self.evaluator.has_gradient and self.dim > self.tuning.islands.beyond_dim


@dataclasses.dataclass(frozen=True)
class State:
    """All that a round needs of the rounds before.

    Parameters
    ----------
    mixture
        The present mixture, without defence.
    warp
        From the user's coordinates to those of the mixture, and of all else but the pool; None if they are the same.
    broad
        A mixture over the region where the posterior may be.
    found
        Parts that searches have found after draws had missed them; None if there are none.
    pool
        All draws so far.
    stage
        What the last round did.
    was_hard
        Whether it took more than the pool to come here; then a last look is a longer one.
    frontier, frontier_particles
        Particles somewhat colder and hotter than the target, and the mixture that follows them.
    archive
        Particles of this round's journeys.
    discovered
        Mass that the last two journeys from outside found where the proposal is all but absent.
    most_invalid
        NaN, +inf and draws of the round that had most of them, the first excepted: its draws go far out.
    is_followed
        Whether there were draws along the lead of a warp.
    can_chain
        Whether chains, and not particles through temperatures, help where weights fail.
    chains, seen, num_windows
        Where the chains are, and what they have seen, in the user's coordinates; how many windows they have moved for.
    best_ess, num_stale
        Largest share of effective draws so far, and rounds since it grew.
    num_returns
        How often the work went on after an answer that was not good enough.
    has_looked
        Whether a search has found nothing where rounds no longer got better, since parts were last added.
    num_blind
        Rounds that did not know of parts that were found after them: a thrifty answer does without their draws.
    design
        Points with log densities that a surrogate is fitted to, beside the pool (:mod:`klover.refinement.surrogate`);
        None where there is no surrogate.
    is_done
        Whether the mixture is as good as it will get.
    history
        What each round measured.
    """

    mixture: Mixture
    broad: Mixture
    pool: Pool
    stage: Stage = Stage.BEGIN
    was_hard: bool = False
    warp: Warp | None = None
    found: Mixture | None = None
    frontier: Mixture | None = None
    frontier_particles: tuple[Particles, ...] = ()
    archive: tuple[Particles, ...] = ()
    discovered: tuple[float, ...] = (1.0, 1.0)
    most_invalid: tuple[int, int, int] = (0, 0, 1)
    can_chain: bool = False
    chains: Float[np.ndarray, "chain dim"] | None = None
    seen: Sample | None = None
    num_windows: int = 0
    is_followed: bool = False
    best_ess: float = 0.0
    num_stale: int = 0
    num_returns: int = 0
    has_looked: bool = False
    num_blind: int = 0
    design: Sample | None = None
    is_done: bool = False
    history: tuple[RoundInfo, ...] = ()
