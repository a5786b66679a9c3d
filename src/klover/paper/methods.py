r"""The methods of the paper's tables, each from a stack of posteriors to scores on their test data.

One compiled program solves all splits of a data set. What a method may be tuned in is in ``Choices``; everything else
follows the paper: diagonal Gaussians by Adam, the first component by the reverse KL, 6000 draws of the result.
"""

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from klover.base.shapes import Count, Float, Key, PerDraw, Points, RandomKey
from klover.boosting import newcomer, rounds
from klover.boosting.newcomer import ThreeKeys
from klover.boosting.rounds import Propose
from klover.boosting.settings import Settings
from klover.boosting.sources import BoostState
from klover.fitting.divergences import PAPER_LOG_EPSILON
from klover.importance import psis
from klover.mixtures.components import Family
from klover.mixtures.mixture import Mixture
from klover.paper import chains
from klover.paper.problems import Problem, Scores
from klover.refinement import escalation
from klover.refinement.refine import refine
from klover.targets.target import Target, evaluate

NUM_DRAWS = 6000
"""Draws of the final mixture, and of all chains together (appendix "Hyperparameters")."""
NUM_ROUND_DRAWS = 500
"""Draws of the previous mixture, made once a round."""
NUM_CHAIN_DRAWS = 2000
NUM_NUTS_CHAINS = 4
NUM_REFINED_DRAWS = 10_000
NUM_STARTS = 1000
NUM_TIMINGS = 5
NUM_REMAINDER_CHAINS = 100
NUM_REMAINDER_DRAWS = 20

FAST_COMPILATION: dict[str, Any] = {"xla_backend_optimization_level": 1}
"""Half the time to compile on a CPU; what is compiled runs as fast."""

ALONE = threading.Lock()
"""Held by the one program that runs; others may be compiled meanwhile."""

Keys = Key[jax.Array, " split"]


@dataclasses.dataclass(frozen=True)
class Choices:
    """What the paper tuned for each method and data set; the defaults lie in the middle of its grid."""

    learning_rate_location: float = 0.01
    learning_rate_scale: float = 0.01
    num_steps: int = 1000
    num_draws_per_step: int = 100
    initial_scale: float = 0.01
    step_size: float = 0.01


def boosted(
    key: RandomKey,
    target: Target,
    settings: Settings,
    start: str,
    num_components: Count,
    propose: Propose = newcomer.propose,
) -> tuple[Points, PerDraw]:
    """Run the paper's algorithm for one target; return draws and log importance ratios.

    ``num_components`` may be traced, and smaller than that of the settings: two and three components are one program.
    ``propose`` makes the newcomers.
    """
    key_start, key_rounds, key_draws = jax.random.split(key, 3)
    state, info = rounds.init(key_start, target, settings, start)
    if settings.max_components > 1:
        state, _ = rounds.grow(key_rounds, state, info, target, settings, 1, num_components, propose)
    x, log_q = state.mixture.sample_and_log_prob(key_draws, NUM_DRAWS)
    return x, evaluate(target, x)[0] - log_q


def propose_by_chains(keys: ThreeKeys, state: BoostState, target: Target, settings: Settings) -> Mixture:
    r"""Make a newcomer of draws of the remainder by chains of HMC (appendix "Minimizing the Remainder").

    The remainder :math:`p/q_{i-1}` need not be integrable where q has the lighter tails, so the chains sample
    :math:`p/(q_{i-1}+\epsilon)`, with ε counted from the typical height of q. The Gaussian nearest to their draws in
    forward KL has their means and variances; it begins with an equal share of the weight.
    """
    key_start, key_chains = jax.random.split(keys[0])
    mixture = state.mixture
    start, log_q = mixture.sample_and_log_prob(key_start, NUM_REMAINDER_CHAINS)
    log_epsilon = jnp.mean(log_q) + PAPER_LOG_EPSILON

    def log_remainder(point):
        return target.log_prob(point) - jnp.logaddexp(mixture.log_prob(point[None])[0], log_epsilon)

    def run(chain_key, point):
        return chains.hamiltonian(
            chain_key, log_remainder, point, NUM_REMAINDER_DRAWS, step_size=0.1, num_burn_in=100, num_adapted=80
        )

    x = jax.vmap(run)(jax.random.split(key_chains, NUM_REMAINDER_CHAINS), start).reshape(-1, target.dim)
    share = jnp.full(1, 1 / (1 + mixture.num_components), x.dtype)
    return Mixture(settings.family.components(x.mean(0)[None], x.var(0)[None]), jnp.log(share))


ONE = Settings(max_components=1, num_round_draws=NUM_ROUND_DRAWS)
THREE = dataclasses.replace(ONE, max_components=3)
SMOOTHED = dataclasses.replace(THREE, log_epsilon=PAPER_LOG_EPSILON)
BOOSTED = {
    "rkl-vi": ("reverse", 1, dataclasses.replace(ONE, divergence="reverse")),
    "rkl-vb2": ("reverse", 2, dataclasses.replace(SMOOTHED, divergence="reverse")),
    "rkl-vb3": ("reverse", 3, dataclasses.replace(SMOOTHED, divergence="reverse")),
    "fkl-vi": ("forward", 1, ONE),
    "fkl-vb2": ("reverse", 2, SMOOTHED),
    "fkl-vb3": ("reverse", 3, SMOOTHED),
    "fkl-remainder": ("reverse", 3, dataclasses.replace(SMOOTHED, approach="remainder")),
    "fkl-hmc": ("reverse", 3, THREE),
}
"""Methods with the paper's Adam and its grid: first component, number of components, settings before any tuning."""

METHODS = ("hmc", "hmc3", "nuts", *BOOSTED, "fkl-em", "refine")


def settings_of(method: str, choices: Choices) -> Settings:
    """Return the settings of a method that has the paper's Adam."""
    tuned = {name: value for name, value in dataclasses.asdict(choices).items() if name != "step_size"}
    return dataclasses.replace(BOOSTED[method][2], **tuned)


def solve(method: str, keys: Keys, problem: Problem, choices: Choices) -> tuple[Scores, Float[np.ndarray, " split"]]:
    """Run a method on all splits of a problem; return its scores, and the seconds that each fit took.

    Compilation is not counted: it is paid once for all splits, and not at all the second time.
    """
    if method == "refine":
        return _refined_particles(keys, problem) if problem.table == "bnn" else _refined(keys, problem)
    num_components = jnp.asarray(BOOSTED[method][1] if method in BOOSTED else 0)
    arguments = keys, problem.targets, num_components
    program = jax.jit(jax.vmap(_fit(method, problem.table, choices), in_axes=(0, 0, None))).lower(*arguments)
    (x, found), seconds = _timed(program.compile(FAST_COMPILATION), *arguments)
    # Chains have an effective number of draws instead of log ratios.
    scores = problem.score(x, found) if found.ndim == 2 else {**problem.score(x), "ess": found}
    return scores, np.full(len(problem), seconds / len(problem))


def time_component(method: str, keys: Keys, problem: Problem, choices: Choices) -> float:
    """Seconds for the steps of Adam on one component of each split, started and compiled before; the best of some."""
    settings = dataclasses.replace(settings_of(method, choices), divergence=BOOSTED[method][0])
    start = jax.jit(jax.vmap(lambda key, target: newcomer.start_first(key, target, settings)))(keys, problem.targets)
    fit = jax.vmap(lambda key, target, begin: newcomer.fit_newcomer(key, target, None, begin, settings))
    program = jax.jit(fit).lower(keys, problem.targets, start).compile()
    return min(_timed(program, keys, problem.targets, start)[1] for _ in range(NUM_TIMINGS))


def _timed(program: Any, *arguments) -> tuple[Any, float]:
    """Run a compiled program alone; return its result and its seconds."""
    with ALONE:
        began = time.perf_counter()
        result = jax.block_until_ready(program(*arguments))
        return result, time.perf_counter() - began


def _fit(method: str, table: str, choices: Choices) -> Callable:
    """Return the method as a function of a key, a target and the number of components."""
    # A neural network has more parameters than draws.
    is_wide = table == "bnn"
    if method == "nuts":
        num_draws, num_warmup, max_num_doublings = (200, 300, 8) if is_wide else (1000, 500, 10)
        options: dict[str, Any] = {"num_warmup": num_warmup, "max_num_doublings": max_num_doublings}
        return _chains(NUM_NUTS_CHAINS, lambda key, log_p, x: chains.adapted(key, log_p, x, num_draws, **options)[0])
    if method in ("hmc", "hmc3"):
        fixed = {"step_size": choices.step_size, "num_adapted": 0} if is_wide else {}
        num_chains = 3 if method == "hmc3" else 1
        return _chains(num_chains, lambda key, log_p, x: chains.hamiltonian(key, log_p, x, NUM_CHAIN_DRAWS, **fixed))
    if method == "fkl-em":
        covariance, placed = ("diagonal", "ascent") if is_wide else ("full", "gain")
        settings = Settings(max_components=2, family=Family("student", covariance), fitter="em", newcomer=placed)
        return lambda key, target, num: boosted(key, target, settings, "forward", settings.max_components)
    settings, propose = settings_of(method, choices), propose_by_chains if method == "fkl-hmc" else newcomer.propose
    return lambda key, target, num: boosted(key, target, settings, BOOSTED[method][0], num, propose)


def _chains(num_chains: int, run: Callable) -> Callable:
    """Return a function that runs chains of one target: all draws as one, and their effective number."""

    def together(key, target, num):
        key_start, key_run = jax.random.split(jax.random.split(key, num_chains)[0])
        starts = jax.vmap(lambda key: chains.start(key, target))(jax.random.split(key_start, num_chains))
        keys = jax.random.split(key_run, num_chains)
        x = jax.vmap(lambda key, position: run(key, target.log_prob, position))(keys, starts)
        return x.reshape(-1, x.shape[-1]), chains.effective_draws(x)

    return together


def _refined(keys: Keys, problem: Problem) -> tuple[Scores, Float[np.ndarray, " split"]]:
    """Refine one split after the other; the second one compiles nothing."""
    fits, seconds = [], []
    for which in range(len(problem)):
        target = jax.tree.map(np.asarray, problem.target(which))
        began = time.perf_counter()
        fits.append(refine(keys[which], target, num_draws=NUM_REFINED_DRAWS, progress=False))
        seconds.append(time.perf_counter() - began)
    x, log_ratio = (jnp.stack([jnp.asarray(getattr(fit.draws, name)) for fit in fits]) for name in ("x", "log_ratio"))
    return problem.score(x, log_ratio), np.array(seconds)


def _refined_particles(keys: Keys, problem: Problem) -> tuple[Scores, Float[np.ndarray, " split"]]:
    """Carry particles, as refine does in so many dimensions, for all splits at once."""
    fold = jax.vmap(jax.random.fold_in, in_axes=(0, None))
    key_field, key_tail, key_carry = (fold(keys, number) for number in range(3))
    escalation.compile_ahead(keys, problem.targets)
    with ALONE:
        began = time.perf_counter()
        begins = escalation.mean_field(key_field, problem.targets)
        quiet = (lambda num: None), (lambda beta: None)
        arrived, sweeps = escalation.carry(key_carry, problem.targets, begins, *quiet)
        seconds = time.perf_counter() - began

    def tail_index(key, target, begin):
        x, log_q = begin.sample_and_log_prob(key, NUM_STARTS)
        return psis.pareto_k(evaluate(target, x)[0] - log_q)

    pareto_k = jax.jit(jax.vmap(tail_index))(key_tail, problem.targets, begins)
    each = range(len(problem))
    draws = [escalation.as_draws(problem.target(one), arrived, sweeps, one, pareto_k[one]) for one in each]
    scores = {**problem.score(jnp.stack([jnp.asarray(each.x) for each in draws])), "pareto_k": pareto_k}
    names = {"ess": "ess", "log_evidence": "log_evidence", "log_evidence_spread": "spread", "drift": "drift"}
    scores |= {name: np.array([float(getattr(each, field)) for each in draws]) for name, field in names.items()}
    return scores, np.full(len(problem), seconds / len(problem))
