"""Every number of the automatic engine, with its unit, what it trades, and how it was chosen.

:func:`klover.refine` passes one :class:`Tuning` to all of its parts; nothing else in the engine is adjustable. The rule
of what is here: a number that weighs cost against reliability for targets in general. What follows from another number
by a rule is no number of its own: the rule is in the code. A named constant at the top of a module is a detail of that
one device (the steps of a surrogate's climb, the knots of a spline, how thrift divides a goal) and means nothing beside
it; a bare number is numerics (a floor against division by zero, a bisection's length) or belongs to a formula.

``python -m benchmarks sensitivity`` halves and doubles each of them on targets that the reported suite does not
contain; ``docs/engine.md`` has what that changed.

``chosen`` is one of: *theory* (follows from a stated result), *measured* (an experiment that the text names), *habit*
(what the literature uses), *guess* (never compared with another value before the halving and doubling).
"""

import dataclasses
from typing import Any


def number(default: Any, unit: str, purpose: str, chosen: str) -> Any:
    """Return a field that knows what its number is for."""
    return dataclasses.field(default=default, metadata={"unit": unit, "purpose": purpose, "chosen": chosen})


@dataclasses.dataclass(frozen=True)
class Search:
    """Climbs to the tops of the target."""

    num_starts: int = number(
        16, "climbs", "at a time, and for each mode on average", "measured: fewer miss one of ten modes, d = 20"
    )
    unseen_share: float = number(
        0.05, "share", "of climbs that may end on a top of their own (Good & Turing)", "theory, level by guess"
    )
    most_modes: int = number(128, "modes", "kept; each is three components of the first mixture", "measured: 40 modes")
    start_scale: float = number(3.0, "units", "spread of starts around the example where there is no box", "guess")
    widest: float = number(
        10.0,
        "start scales",
        "a direction without curvature is taken to be so wide, and the region covered so far",
        "guess",
    )
    full_dim: int = number(
        128, "dimensions", "beyond this covariances are diagonal: draws would not tell matrices", "measured: memory"
    )
    warped_dim: int = number(
        384, "dimensions", "beyond this there are no chains and no bent warps", "measured: seconds of a fit"
    )


@dataclasses.dataclass(frozen=True)
class Whitening:
    """Coordinates that scores whiten, beyond the largest dimension of full covariances."""

    num_starts: int = number(4, "climbs", "to the top around which it begins", "guess")
    few_pairs: int = number(
        128, "pairs", "of scores for up to a quarter as many directions", "theory: exact for Gaussians"
    )
    pairs_per_dim: int = number(
        2, "pairs", "of scores that tell a whole matrix, for each dimension; as many of chains", "guess"
    )
    matrix_dim: int = number(1024, "dimensions", "beyond which a whole matrix is not tried", "measured: seconds")
    most_updates: int = number(8, "batches", "of pairs at the most", "guess")


@dataclasses.dataclass(frozen=True)
class Start:
    """The first mixture: copies of each mode, and what covers the region around them."""

    copies: tuple[float, ...] = number(
        (1.1, 4.0, 16.0), "variances", "each mode begins as copies of its covariance, so inflated", "measured: suite"
    )
    copy_weights: tuple[float, ...] = number((6.0, 2.0, 1.0), "parts", "weights of these copies", "guess")
    weight_range: float = number(20.0, "ratio", "between the largest and the smallest mode's first weight", "guess")
    broad_share: float = number(0.25, "share", "of draws over the whole region, without a box", "guess")
    wide_df: float = number(5.0, "degrees", "tails of everything that is wide on purpose", "habit")


@dataclasses.dataclass(frozen=True)
class Growth:
    """EM, splits and deletions on weighted draws."""

    held_out: float = number(0.25, "share", "of draws that judge splits and are not fitted to", "habit")
    em_steps: int = number(5, "steps", "of EM between splits", "measured: speed")
    split_rounds: int = number(2, "rounds", "of splits in one round of the engine", "measured: prototype")
    least_gain: float = number(
        0.05, "nats", "on held-out points that are worth another warp, or more of a whitening", "guess"
    )
    pulls: tuple[float, ...] = number(
        (1.0, 10.0, 100.0), "draws", "strengths of the pull to the old covariance, held-out draws choose", "measured"
    )


@dataclasses.dataclass(frozen=True)
class Moves:
    """Hamiltonian moves and temperatures of particles."""

    effective_share: float = number(
        0.5, "share", "of particles that stays effective in a change of temperature", "habit"
    )
    acceptance: float = number(0.7, "rate", "that step sizes are adapted to", "theory: 0.65 to 0.8")
    num_leapfrogs: int = number(5, "steps", "of a trajectory", "measured: prototype")
    num_moves: int = number(4, "moves", "at each temperature", "measured: prototype")
    selection_power: float = number(
        0.1, "power", "of the weights by which a move's metric is chosen", "measured: ridges"
    )
    step_jitter: float = number(0.5, "log sd", "of step sizes", "guess")


@dataclasses.dataclass(frozen=True)
class Rounds:
    """Draws, goals and patience of the rounds."""

    first_draws: int = number(2048, "draws", "of the first round", "measured: 14,000 evaluations solve easy targets")
    draws_growth: float = number(1.5, "factor", "by which rounds grow", "guess")
    most_draws: int = number(8192, "draws", "of a round", "measured: speed")
    warped_draws: int = number(
        4096, "draws", "of a round behind a warp, in up to 30 dimensions", "measured: products, d = 20; funnel, d = 50"
    )
    small_budget: int = number(
        10_000,
        "evaluations",
        "up to which a budget is planned by a goal of effective draws",
        "measured: easy targets take 14,000",
    )
    most_rounds: int = number(32, "rounds", "after which the work is called unfinished", "guess")
    fitted_draws: int = number(
        4096, "draws", "that are fitted to at the least; a comb leaves out the rest", "measured: speed"
    )
    fitted_per_parameter: int = number(16, "draws", "that are fitted to, for each parameter of a component", "guess")
    warped_ess: float = number(0.2, "share", "as fair, behind a warp", "guess")
    warped_gain: float = number(
        1.2,
        "factor",
        "below which a gain of a round's ESS is worth no further round, behind a warp",
        "measured: d = 89",
    )
    begun_ess: float = number(0.1, "share", "of effective draws from which on plain weights are fitted to", "guess")
    begun_pool: float = number(2.0, "draws", "the same, of the whole pool", "guess")
    tempered_draws: float = number(10.0, "draws", "effective for each dimension after tempering", "guess")
    good_ess: float = number(0.8, "share", "of effective draws with which a round may be the last", "guess")
    good_explored_ess: float = number(0.65, "share", "the same after exploring", "measured: Rosenbrock")
    fair_ess: float = number(0.5, "share", "the same where rounds no longer get better", "guess")
    least_ess: float = number(0.05, "share", "the same after exploring, or beyond where anything is explored", "guess")
    good_pareto_k: float = number(0.4, "k̂", "with which a good round may be the last", "measured: 0.5 refused 5 of 480")
    fair_pareto_k: float = number(0.6, "k̂", "the same where rounds no longer get better", "theory: below 0.7")
    least_gain: float = number(
        1.03, "factor", "by which a round's ESS must exceed the best to count as better", "guess"
    )
    patience: int = number(
        2, "rounds", "without a gain; before a warp is tried where few draws are effective", "measured: prototype"
    )
    steady_rounds: int = number(3, "rounds", "whose evidences must agree on hard targets", "measured: eight schools")
    trend_rounds: int = number(
        8, "rounds", "over which the evidence must not rise on hard targets; of chains at the most", "guess"
    )
    tiled_dim: int = number(
        4,
        "dimensions",
        "up to which 64 components follow any shape, particles explore, and the usual search is thorough",
        "measured: ring; beyond, as many answers are right without particles",
    )


@dataclasses.dataclass(frozen=True)
class Defence:
    """What is drawn beside the mixture, so that it does not forget what it does not visit."""

    share: float = number(
        0.1,
        "share",
        "of draws from inflated copies, and from copies that are wider along leads; of a first mixture's over its box",
        "measured: bounds ESS at 92 %",
    )
    df: float = number(4.0, "degrees", "tails of these copies", "measured: 5 leaves heavy weights on eight schools")
    length: float = number(6.0, "factor", "by which copies are stretched along their axis, on hard targets", "measured")
    box_share: float = number(0.005, "share", "of draws over the box, and on parts that a search has found", "guess")
    frontier_share: float = number(0.15, "share", "of draws from the frontier of colder and hotter particles", "guess")
    widened_share: float = number(0.4, "share", "of final draws from slightly wider copies, d > 4", "measured: k̂")
    widening: float = number(0.6, "over √d", "how much wider these are", "measured: k̂")


@dataclasses.dataclass(frozen=True)
class Exploration:
    """Particles that look for what the proposal misses."""

    num_particles: int = number(1024, "particles", "that explore", "measured: 512 miss the neck of eight schools")
    num_probes: int = number(
        128, "particles", "of a last look on an easy target; chains where weights cannot supply draws", "measured"
    )
    num_moves: int = number(8, "moves", "of particles that probe", "guess")
    chain_moves: int = number(32, "moves", "of a window of these; the second half is kept", "measured: hierarchies")
    crawls: int = number(3, "times", "that hot particles crawl along ridges in a round", "measured: Rosenbrock")
    crawl_leapfrogs: int = number(40, "steps", "of their trajectories", "measured: Rosenbrock")
    inflations: tuple[float, ...] = number((12.0, 4.0), "sds", "from which particles return, by turns", "measured")
    hottest: float = number(0.2, "β", "below which particles are not heated, in however few dimensions", "guess")
    particle_share: float = number(0.3, "share", "of what is fitted to that is particles, at the least", "guess")
    discovery: float = number(0.02, "mass", "beyond the proposal, below which particles have found nothing", "guess")


@dataclasses.dataclass(frozen=True)
class Answer:
    """The final draws, and what speaks against them."""

    wanted_ess: int = number(4000, "draws", "effective ones to aim at", "habit: four chains of 1000")
    fewest_draws: int = number(6144, "draws", "at the least", "theory: 4000 effective ones, where two thirds are")
    most_draws: int = number(98304, "draws", "that this may take", "guess")
    fewest_effective: int = number(100, "draws", "below which nothing is trusted", "habit")
    least_share: float = number(
        0.03, "share", "of final draws that are effective, at the least", "measured: right answers have 0.1 and more"
    )
    least_uneven_share: float = number(
        0.15,
        "share",
        "the same where k̂ is above a half: the variance is infinite",
        "measured: none of 7,743 right ones",
    )
    largest_invalid: float = number(0.1, "share", "of final draws that may be NaN or +inf", "guess")
    largest_hidden: float = number(0.01, "share", "of a round's draws that may be, for a density of JAX", "guess")
    largest_width: float = number(1e10, "units", "to which a proper posterior may spread", "guess")
    largest_drift: float = number(3.0, "errors", "by which particles of the answer may still move", "habit")
    largest_beyond: float = number(
        1.3, "errors", "by which they may find more beyond the heaviest draws than expected", "measured: tails"
    )
    largest_weight: float = number(0.02, "share", "of one draw's raw weight that smoothing may cut", "guess")
    fallen_ess: float = number(0.5, "ratio", "of the final draws' ESS to the last round's", "guess")
    unstable_errors: float = number(5.0, "errors", "between the evidences of the last round and the answer", "habit")
    unstable_difference: float = number(
        0.05, "nats", "that such a difference, and missed parts, must make", "theory: the definition of wrong"
    )
    far: float = number(6.0, "sds", "from all particles at which a top is none of theirs", "guess")
    coarse_step: float = number(0.01, "sds", "between neighbouring numbers of a coordinate", "theory")
    coarse_log: float = number(0.1, "nats", "between neighbouring numbers of the size of log p", "theory")


@dataclasses.dataclass(frozen=True)
class Missed:
    """The search for what the final draws may have missed."""

    num_starts: int = number(160, "starts", "on each of twelve rungs", "measured: 69 fits that had missed a mode")
    num_climbs: int = number(5, "climbs", "from each rung, by the screen", "measured: the same")
    num_heavy: int = number(24, "climbs", "from the heaviest final draws", "measured: the same")
    num_radial: int = number(512, "draws", "on other scales around known centres", "measured: the same")
    thorough: int = number(36, "factor", "by which a thorough search has more starts", "measured: the same")
    fairly: int = number(
        9, "factor", "the same in up to four dimensions, where many modes are known", "measured: a spike on a mode"
    )
    most_passes: int = number(4, "passes", "of a thorough search, one for each known mode", "guess")
    least_ratio: float = number(30.0, "ratio", "of p to q, over the evidence, at a top that is not covered", "guess")
    smallest_mode: float = number(
        1e-3, "mass", "that matters: of a missed mode, by Laplace, or where a parameter rounds to its bound", "guess"
    )
    smallest_halo: float = number(0.01, "mass", "the same on another scale around a known centre", "measured")
    least_recall: float = number(0.99, "probability", "that known modes would be found, or look thoroughly", "guess")
    trusted_recall: float = number(0.9, "probability", "below which nothing is trusted", "guess")
    trusted_scale: float = number(
        0.45,
        "width",
        "relative, of modes that may be missed where known ones are as uneven",
        "measured: 13 of 41 wrong beyond, 2 of 46 below",
    )
    most_returns: int = number(4, "times", "that the work goes on with what a search has found", "guess")
    most_retries: int = number(2, "times", "that it goes on for better weights", "guess")


@dataclasses.dataclass(frozen=True)
class Islands:
    """Particles that take over where importance sampling cannot work."""

    num_islands: int = number(
        8, "islands", "from each start; their scatter is the error", "theory: a t with 14 degrees"
    )
    island_size: int = number(32, "particles", "of an island", "measured: the bias of an evidence is that of one")
    inflations: tuple[float, ...] = number(
        (1.0, 2.0), "sds", "of the approximation: narrow and wide starts, which have to end alike", "measured: funnels"
    )
    effective_share: float = number(
        0.95, "share", "of a start's particles that stays effective in a change of temperature", "measured: evidences"
    )
    trajectory: float = number(
        8.0,
        "sds",
        "length of one at the target, a turn and more; a quarter between temperatures",
        "measured: evidences",
    )
    most_leapfrogs: int = number(250, "steps", "of one", "measured: neural networks")
    num_sweeps: int = number(8, "sweeps", "at the target itself; the second half is kept", "guess")
    largest_spread: float = number(1.0, "nats", "standard deviation of the islands' log evidences", "guess")
    least_agreement: float = number(
        0.01, "chance", "of starts that end alike to differ so much", "habit: one false alarm in a hundred"
    )
    beyond_dim: int = number(
        30, "dimensions", "beyond which they take over", "measured: in 12 and 25 dimensions their doubts were too weak"
    )


@dataclasses.dataclass(frozen=True)
class Ending:
    """Where a fit without a budget ends; what it does before depends on none of these numbers."""

    most_evaluations: int = number(
        20_000_000, "evaluations", "of a fit without a budget", "measured: trusted fits took up to 13 million"
    )
    most_seconds: float = number(
        120.0, "seconds", "of work beside the evaluations, the same", "measured: trusted fits took up to 88"
    )
    last_evaluations: int = number(
        500_000, "evaluations", "left in any case for final draws, the last search and checks", "theory: their sum"
    )
    last_seconds: float = number(30.0, "seconds", "left in any case for the same", "guess")


@dataclasses.dataclass(frozen=True)
class Tuning:
    """All numbers of the engine, by the part that uses them."""

    search: Search = Search()
    whitening: Whitening = Whitening()
    start: Start = Start()
    growth: Growth = Growth()
    moves: Moves = Moves()
    rounds: Rounds = Rounds()
    defence: Defence = Defence()
    exploration: Exploration = Exploration()
    answer: Answer = Answer()
    missed: Missed = Missed()
    islands: Islands = Islands()
    ending: Ending = Ending()
