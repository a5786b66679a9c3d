r"""Thrift: where a point is expensive, no more is evaluated than the answer needs.

The usual rounds are made for densities that cost a microsecond: thousands of draws, of which the last ones alone are
the answer. Here there is a *goal*, a number of effective draws. All that is counted in draws shrinks in proportion to
the goal, what is counted in climbs by the root of that. The answer is made of the draws of all rounds. A round draws
as many as are still missing, and the rounds end when together they have the goal and fresh draws have nothing against
it. The goal grows where standard deviations are not yet known as well as means, and with every surprise. The last
search takes a quarter of all evaluations: a smaller one than usual, which can miss a narrow mode.

Draws of round j are weighted by p over the proposal :math:`q_j` that they were drawn from, which was fitted to rounds
before it alone: so each round has an evidence :math:`\hat Z_j` that fitting does not bias, and their mean with weights
:math:`\alpha_j\propto n_je_j`, e being the share of effective draws, has the sum of their effective draws. The pool's
own weights, p over the mixture of all proposals, are for fits only: a proposal is too high at the draws that it was
fitted to, which made log evidences too low by two standard errors in 18 dimensions. Tails are smoothed round by round;
a round whose own tail is too heavy does not count, nor do those before it. k̂ of the answer is that of the pool's own
weights, which have one distribution: in the ratios of several rounds it would see steps, not tails.

There is a goal where the user gives one (``min_ess``), and where the budget is small.
"""

import dataclasses

import numpy as np

from klover.base.shapes import Float
from klover.importance import psis
from klover.importance.draws import WeightedDraws, weigh_on_host
from klover.importance.ratios import effective_sample_size
from klover.refinement.defence import next_proposal
from klover.refinement.frugality import num_final_draws
from klover.refinement.pool import Pool
from klover.refinement.state import Context, Stage, State
from klover.targets.budget import Budget
from klover.tuning import Tuning
from klover.warps.warped import behind

EVALUATIONS_OF_EFFECTIVE = 5
"""Of a budget, for each effective draw: half of them draws, the rest for searches and checks."""
EVALUATIONS_BY_SURROGATE, BESIDE_SURROGATE = 2, 150
"""The same where there is a surrogate, beside what it, the searches and the checks take."""
FIRST_BY_SURROGATE = 0.6
"""Of the goal, for the first round, which is a good one."""
GOOD_SHARE = 0.8
"""Of effective draws, with a surrogate."""
FEWEST_DRAWS, DRAWS_OF_DIMENSION = 64, 4
"""Of a first round, at all and for each dimension."""


def goal_of(min_ess: int | None, budget: Budget, tuning: Tuning, has_surrogate: bool = False) -> int | None:
    """Return how many effective draws to aim at: what the user asks for, or fewer if the budget pays for fewer.

    A budget that the usual rounds never end within is a goal, too.
    """
    if not isinstance(budget, int) or (min_ess is None and budget > tuning.rounds.small_budget):
        return min_ess
    each = EVALUATIONS_OF_EFFECTIVE
    affordable = (budget - BESIDE_SURROGATE) // EVALUATIONS_BY_SURROGATE if has_surrogate else budget // each
    affordable = max(affordable, tuning.answer.fewest_effective)
    return affordable if min_ess is None else min(min_ess, affordable)


def plan(tuning: Tuning, goal: int | None, dim: int, has_surrogate: bool = False) -> Tuning:
    """Return numbers in proportion to the goal; never larger ones than usual.

    With a surrogate the first round is as good as the second, and there shall be no third.
    """
    if goal is None:
        return tuning
    ratio, rounds, exploration = min(goal / tuning.answer.wanted_ess, 1.0), tuning.rounds, tuning.exploration
    fewest = max(FEWEST_DRAWS, DRAWS_OF_DIMENSION * dim)
    first = min(max(round(ratio * rounds.first_draws), fewest), rounds.first_draws)
    if has_surrogate:
        first = max(round(FIRST_BY_SURROGATE * goal), fewest)
    most = min(max(round(ratio * rounds.most_draws), 4 * fewest), rounds.most_draws)
    particles = max(round(ratio * exploration.num_particles), exploration.num_probes)
    starts = max(round(ratio**0.5 * tuning.search.num_starts), 2)
    broad = min(tuning.start.broad_share, tuning.defence.share)
    # A first mixture that trusts the curvature of a top more than its wider copies.
    weights = tuple(weight**2 for weight in tuning.start.copy_weights)
    return dataclasses.replace(
        tuning,
        search=dataclasses.replace(tuning.search, num_starts=starts),
        start=dataclasses.replace(tuning.start, broad_share=broad, copy_weights=weights),
        rounds=dataclasses.replace(rounds, first_draws=first, most_draws=most),
        exploration=dataclasses.replace(exploration, num_particles=particles),
    )


def num_needed(context: Context, state: State) -> float | None:
    r"""Return how many effective draws are enough: the goal g, or more where there is more to know.

    With g effective draws a mean has a standard error of :math:`1/\sqrt g` standard deviations. No standard deviation
    shall have a larger one, relative to itself; that of a Normal is :math:`1/\sqrt{2g}`, heavy tails take more draws.
    And the goal doubles with each surprise (:func:`num_surprises`). The usual number is always enough: some targets
    have no standard deviation at all. With a surrogate, for the most expensive densities, the goal is for means alone.
    """
    if context.goal is None:
        return None
    goal = context.goal * 2.0 ** num_surprises(state)
    if state.design is not None:
        return float(min(goal, max(context.tuning.answer.wanted_ess, context.goal)))
    pool = known(state)
    needed = max(goal, context.goal * largest_sd_error(*pool) ** 2 * num_effective(*pool))
    return float(min(needed, max(context.tuning.answer.wanted_ess, context.goal)))


def num_surprises(state: State) -> int:
    """Count the searches that found something, and the rounds after the first that met what their proposals lack.

    Such a round has heavy weights. Without it the others are light by luck: it was chance that they did not meet that.
    """
    return state.num_returns + sum(not batch.is_fair(light(state)) for batch in rounds_of(state.pool)[1:])


def light(state: State) -> float:
    """Return the share of effective draws beyond which a round is fair whatever its k̂.

    With a surrogate ratios may hardly vary, and k̂ of a hundred of them is then that of small change.
    """
    return GOOD_SHARE if state.design is not None else 1.0


def known(state: State) -> tuple[Pool, int, float]:
    """Return the pool, the rounds that do not count, and what makes others count."""
    return state.pool, state.num_blind, light(state)


def num_missing(context: Context, state: State, planned: int) -> int:
    """Return how many draws the next round makes: those that are missing if it is a good one, or as many as planned.

    Rounds may be the larger the more is needed: better fits are made of more draws. A round that the budget pays for in
    part is smaller, rather than left out.
    """
    needed = num_needed(context, state) if state.history else None
    if needed is None or context.goal is None:
        return planned
    rounds, is_new = context.tuning.rounds, state.num_blind == len(state.pool.sizes)
    missing = (needed - (0.0 if is_new else num_effective(*known(state)))) / rounds.good_ess
    fewest, allowed = rounds.first_draws // 2, context.evaluator.num_allowed
    num = int(np.clip(missing, fewest, rounds.most_draws * needed / context.goal))
    if state.design is not None and allowed is not None:
        return max(min(num, allowed), 1)
    return num if allowed is None or allowed < fewest else min(num, allowed)


def suffices(context: Context, state: State) -> bool:
    """Whether the rounds that a budget has paid for are an answer, although it has ended them before the goal."""
    if context.goal is None or len(state.history) < 2 or state.was_hard or state.stage is not Stage.POOL:
        return False
    rounds, last = context.tuning.rounds, state.history[-1]
    is_good = last.ess_share > rounds.fair_ess and last.pareto_k < rounds.fair_pareto_k
    fewest, pool = context.tuning.answer.fewest_effective, known(state)
    return is_good and num_effective(*pool) >= fewest and largest_sd_error(*pool) <= fewest**-0.5


@dataclasses.dataclass(frozen=True)
class Batch:
    """Draws of one round, with log p and with log q of the proposal that they were drawn from."""

    x: Float[np.ndarray, "draw dim"]
    log_p: Float[np.ndarray, " draw"]
    log_q: Float[np.ndarray, " draw"]

    @property
    def log_ratio(self) -> Float[np.ndarray, " draw"]:
        """Log p - log q."""
        return self.log_p - self.log_q

    @property
    def ess(self) -> float:
        """Effective number of draws."""
        return float(effective_sample_size(self.log_ratio))

    def is_fair(self, light: float = 1.0) -> bool:
        """Whether weights have no heavier a tail than so many draws may have, or more than a share is effective."""
        num = len(self.log_p)
        return self.ess > 0 and (self.ess > light * num or bool(psis.pareto_k(self.log_ratio) <= psis.reliable_k(num)))


def counted(pool: Pool, num_blind: int, light: float = 1.0) -> Pool:
    """Return the rounds of a pool that count: all after the last that was blind or heavy, or the last one.

    To leave out heavy rounds alone, wherever they are, would leave out what they alone have met.
    """
    heavy = [place + 1 for place, batch in enumerate(rounds_of(pool)) if not batch.is_fair(light)]
    first = min(max(num_blind, *heavy[-1:], 0), max(len(pool.sizes) - 1, 0))
    rows = slice(sum(pool.sizes[:first]), None)
    kept = pool.proposals[first:], pool.sizes[first:]
    return Pool(pool.x[rows], pool.log_p[rows], pool.log_q[first:, rows], *kept)


def rounds_of(pool: Pool) -> list[Batch]:
    """Return the rounds of a pool."""
    ends = np.cumsum(pool.sizes).tolist()
    rows = [slice(end - size, end) for end, size in zip(ends, pool.sizes, strict=True)]
    return [Batch(pool.x[row], pool.log_p[row], pool.log_q[which, row]) for which, row in enumerate(rows)]


def batches(pool: Pool, num_blind: int, light: float = 1.0) -> list[Batch]:
    """Return the rounds of a pool that count, the latest first."""
    return rounds_of(counted(pool, num_blind, light))[::-1]


def shares(used: list[Batch]) -> Float[np.ndarray, " round"]:
    """Return the weights α of rounds."""
    ess, size = np.array([batch.ess for batch in used]), np.array([float(len(batch.log_p)) for batch in used])
    return ess / ess.sum() if ess.any() else size / size.sum()


def lowered(used: list[Batch]) -> list[Float[np.ndarray, " draw"]]:
    """Return log q of rounds such that the mean ratio of all draws is the mean of their evidences, weighted by α."""
    size = np.array([float(len(batch.log_p)) for batch in used])
    factor = np.log(np.maximum(shares(used) * size.sum() / size, np.finfo(float).tiny))
    return [batch.log_q - each for batch, each in zip(used, factor, strict=True)]


def log_ratios(used: list[Batch]) -> Float[np.ndarray, " draw"]:
    """Return the log ratios of all draws of rounds."""
    return np.concatenate([batch.log_p - log_q for batch, log_q in zip(used, lowered(used), strict=True)])


def num_effective(pool: Pool, num_blind: int, light: float = 1.0) -> float:
    """Return the effective draws of all rounds that count, together."""
    return float(effective_sample_size(log_ratios(batches(pool, num_blind, light))))


@np.errstate(over="ignore", invalid="ignore")
def largest_sd_error(pool: Pool, num_blind: int, light: float = 1.0) -> float:
    r"""Return the largest standard error of a coordinate's standard deviation, relative to it.

    With normalised weights w, mean m and variance v it is :math:`\sqrt{\sum_iw_i^2((x_i-m)^2-v)^2}/2v`.
    """
    used = batches(pool, num_blind, light)
    x, log_ratio = np.concatenate([batch.x for batch in used]), log_ratios(used)
    if not np.isfinite(log_ratio).any():
        return np.inf
    weight = np.exp(log_ratio - log_ratio.max())
    weight /= weight.sum()
    square = (x - weight @ x) ** 2
    variance = np.maximum(weight @ square, np.finfo(float).tiny)
    return float(np.max(np.sqrt(weight**2 @ (square / variance - 1) ** 2)) / 2)


def mean_share(state: State) -> float:
    """Return the share of effective draws of the rounds that count, each by itself: together they have about that."""
    used = batches(*known(state))
    return sum(batch.ess for batch in used) / sum(len(batch.log_p) for batch in used)


def draw_the_rest(context: Context, state: State) -> State:
    """Return a state with as many draws more as a budget that has ended the rounds still pays for.

    They come from the best proposal so far, if that was a fair one: a fit to few draws may be a worse one.
    """
    mixture = next_proposal(context, state)
    proposal, shares = behind(mixture, state.warp), [info.ess_share for info in state.history]
    if shares and max(shares) > context.tuning.rounds.fair_ess:
        proposal = state.pool.proposals[int(np.argmax(shares))]
    draws = weigh_on_host(
        context.generator, context.evaluator, proposal, num_final_draws(context, state, mixture, True)
    )
    return dataclasses.replace(state, pool=state.pool.add(proposal, np.asarray(draws.x), np.asarray(draws.log_p)))


def pooled_draws(context: Context, state: State) -> WeightedDraws:
    """Return the draws of all rounds that count, with their weights."""
    used, (num_nan, num_infinite, _) = batches(*known(state)), state.most_invalid
    with np.errstate(divide="ignore"):
        log_share = np.log(shares(used))
    smoothed = [psis.smooth(batch.log_ratio)[0] + each for batch, each in zip(used, log_share, strict=True)]
    return WeightedDraws(
        np.concatenate([batch.x for batch in used]),
        np.concatenate([batch.log_p for batch in used]),
        np.concatenate(lowered(used)),
        np.concatenate(smoothed),
        psis.pareto_k(counted(*known(state)).log_ratio),
        np.asarray(num_nan),
        np.asarray(num_infinite),
        context.evaluator.target,
        control=np.zeros(sum(len(batch.log_p) for batch in used)),
    )
