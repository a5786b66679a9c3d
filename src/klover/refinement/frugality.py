"""Small budgets: how the first steps shrink to fit, what is kept back, and how many draws the answer can have."""

import dataclasses
import datetime
import time

import numpy as np

from klover.base.arrays import BLOCK
from klover.mixtures.mixture import Mixture
from klover.refinement.state import Context, State
from klover.targets.budget import Budget
from klover.targets.evaluator import Evaluator
from klover.tuning import Tuning
from klover.warps.warped import Proposal, behind

EVALUATIONS_OF_START = 64
"""Of a budget, for each start of a search."""
FIRST_SHARE, FEWEST_DRAWS = 1 / 8, 16
"""Of a budget that the first round may draw; fewer draws than the second number say nothing."""
EVALUATIONS_OF_MISSED = 24
"""Of the last search, for each start on a rung: twelve rungs, and as many again for the climbs."""
FEWEST_TO_GO_ON = 3
"""Times the reserve that must be left for the work to go on after an answer."""
LONGER_TO_GO_ON = 2.0
"""Times what has passed that must be left of a time: a fit to all draws looks at no clock."""
MOST_NUMBERS = 2**25
"""Numbers that the final draws may hold: 256 MiB."""
OPTIMISM = 16
"""Factor by which many evaluations at once may be quicker than a few have been."""
LONGER = 1.5
"""Factor by which a round may take longer than the one before, the target left aside."""
LONGER_FOR_MANY = 8.0
"""Factor by which a draw among many takes longer than its density, with what is computed of all of them."""


def reserve(budget: Budget, num_draws: int | None, tuning: Tuning, num_checks: int = 0) -> int:
    """Return the evaluations to keep back for the final draws, or for checks; of a time no more than a share is."""
    most_draws = tuning.rounds.most_draws
    if not isinstance(budget, int):
        return num_draws or most_draws if isinstance(budget, datetime.timedelta) else 0
    if num_draws is not None and num_draws >= budget:
        raise ValueError(
            f"num_draws must be smaller than the budget, got {num_draws} and {budget}. The budget pays for the search "
            "as well: give at least twice as many evaluations."
        )
    return num_draws or max(min(most_draws, budget // 4) + min(num_checks, budget // 4), 2)


def shrink(tuning: Tuning, num: int | None) -> Tuning:
    """Return numbers whose first search and first round fit into so many evaluations; what is large stays as it is."""
    if num is None:
        return tuning
    search, rounds = tuning.search, tuning.rounds
    starts = int(np.clip(num // EVALUATIONS_OF_START, 2, search.num_starts))
    draws = int(np.clip(FIRST_SHARE * num, FEWEST_DRAWS, rounds.first_draws))
    return dataclasses.replace(
        tuning,
        search=dataclasses.replace(search, num_starts=starts),
        rounds=dataclasses.replace(rounds, first_draws=draws),
    )


def can_go_on(evaluator: Evaluator) -> bool:
    """Whether enough of the budget is left, or no bound was reached, to go on after an answer."""
    if evaluator.is_bound_reached:
        return False
    affordable, seconds = evaluator.num_affordable, evaluator.seconds_left
    if seconds is not None and seconds < LONGER_TO_GO_ON * evaluator.elapsed:
        return False
    return affordable is None or affordable >= FEWEST_TO_GO_ON * evaluator.reserve


def num_final_draws(context: Context, state: State, proposal: Mixture, is_spent: bool) -> int:
    """Return how many final draws make accurate expectations, or are affordable.

    If the budget has ended the rounds, all of the rest goes here; otherwise a part of it is for the last search.
    """
    evaluator, answer = context.evaluator, context.tuning.answer
    # Where rounds no longer get better, one of them may have been lucky.
    share = min((info.ess_share for info in state.history[-1 - state.num_stale :]), default=0.0)
    most = min(answer.most_draws, max(MOST_NUMBERS // context.dim, answer.fewest_draws))
    wanted = int(np.clip(answer.wanted_ess / max(share, 1e-3), answer.fewest_draws, most))
    affordable = evaluator.num_affordable
    if affordable is None:
        return wanted
    if evaluator.seconds_left is not None:
        most = min(most, int(evaluator.seconds_left / _seconds_of_draw(behind(proposal, state.warp))))
    if is_spent:
        # Many points at once may take less time than the pace of a few has shown; the clock ends the work in any case.
        return max(min(affordable if evaluator.seconds_left is None else OPTIMISM * affordable, most), 2)
    kept_back = min(EVALUATIONS_OF_MISSED * context.tuning.missed.num_starts, affordable // 4)
    return max(min(wanted, most, max(affordable - kept_back, min(evaluator.reserve, affordable))), 2)


def _seconds_of_draw(proposal: Proposal) -> float:
    """Return how long a draw of a mixture takes, the target left aside; longer for many draws than for the few here."""
    began = time.perf_counter()
    proposal.log_prob(proposal.draw(np.random.default_rng(0), BLOCK))
    return LONGER_FOR_MANY * (time.perf_counter() - began) / BLOCK
