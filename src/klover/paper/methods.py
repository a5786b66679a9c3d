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

from klover.base.shapes import AnyArray, Float, Int, Key
from klover.boosting import boost, newcomer, sources
from klover.boosting.settings import Settings
from klover.fitting.simplex import forward_weights
from klover.importance import psis
from klover.importance.ratios import normalise
from klover.mixtures.mixture import Mixture
from klover.paper import chains
from klover.paper.problems import Problem, Scores, score_equal, score_weighted
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
LOG_EPSILON = -10.0
"""log ε of the paper's smoothed residual; without it the search for a newcomer runs away into the tails of p/q."""

FAST_COMPILATION = {"xla_backend_optimization_level": 1}
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
    key: Key[jax.Array, ""], target: Target, settings: Settings, first: str, num_components: Int[AnyArray, ""] | int
) -> tuple[Float[AnyArray, "draw dim"], Float[AnyArray, " draw"]]:
    """Run the paper's algorithm for one target; return draws and log importance ratios.

    ``num_components`` may be traced, and smaller than that of the settings: two and three components are one program.
    """
    key_first, key_rounds, key_draws = jax.random.split(key, 3)
    state, _ = boost.init(key_first, target, settings, first)

    def grow(number, state):
        return boost.step(jax.random.fold_in(key_rounds, number), state, target, settings)[0]

    if settings.num_components > 1:
        state = jax.lax.fori_loop(1, num_components, grow, state)
    return _draw(key_draws, target, state.mixture)


def _draw(
    key: Key[jax.Array, ""], target: Target, mixture: Mixture
) -> tuple[Float[AnyArray, "draw dim"], Float[AnyArray, " draw"]]:
    x, log_q = mixture.sample_and_log_prob(key, NUM_DRAWS)
    return x, evaluate(target, x)[0] - log_q


def boosted_by_chains(
    key: Key[jax.Array, ""], target: Target, settings: Settings
) -> tuple[Float[AnyArray, "draw dim"], Float[AnyArray, " draw"]]:
    r"""Boost on the remainder, which chains of HMC sample once a round (appendix "Minimizing the Remainder").

    The remainder :math:`p/q_{i-1}` need not be integrable where q has the lighter tails, so the chains sample
    :math:`p/(q_{i-1}+\epsilon)`, with ε counted from the typical height of q. The Gaussian nearest to their draws in
    forward KL has their means and variances.
    """
    key_first, key_rounds, key_draws = jax.random.split(key, 3)
    reverse = dataclasses.replace(settings, divergence="reverse")
    state, _ = boost.init(key_first, target, reverse, "reverse")
    mixture = state.mixture
    for number in range(1, settings.num_components):
        key_chains, key_weights = jax.random.split(jax.random.fold_in(key_rounds, number))
        x = _remainder_draws(key_chains, target, mixture)
        component = settings.family.components(x.mean(0)[None], x.var(0)[None])
        grown = mixture.append(component, -jnp.log(number + 1.0))
        draws = sources.draw_defended(key_weights, target, grown, state.anchor, settings.num_draws)
        log_weights, _ = forward_weights(
            grown.log_weights, grown.component_log_prob(draws.x), jnp.exp(normalise(draws.log_ratio)), "projected"
        )
        mixture = Mixture(grown.components, log_weights)
    return _draw(key_draws, target, mixture)


def _remainder_draws(key: Key[jax.Array, ""], target: Target, mixture: Mixture) -> Float[AnyArray, "draw dim"]:
    key_start, key_chains = jax.random.split(key)
    start, log_q = mixture.sample_and_log_prob(key_start, NUM_REMAINDER_CHAINS)
    log_epsilon = jnp.mean(log_q) + LOG_EPSILON

    def log_remainder(point):
        return target.log_prob(point) - jnp.logaddexp(mixture.log_prob(point[None])[0], log_epsilon)

    def run(chain_key, point):
        return chains.hamiltonian(
            chain_key, log_remainder, point, NUM_REMAINDER_DRAWS, step_size=0.1, num_burn_in=100, num_adapted=80
        )

    x = jax.vmap(run)(jax.random.split(key_chains, NUM_REMAINDER_CHAINS), start)
    return x.reshape(-1, x.shape[-1])


SMOOTHED = {"num_components": 3, "log_epsilon": LOG_EPSILON}
BOOSTED: dict[str, tuple[str, int, dict[str, Any]]] = {
    "rkl-vi": ("reverse", 1, {"divergence": "reverse", "num_components": 1}),
    "rkl-vb2": ("reverse", 2, {"divergence": "reverse", **SMOOTHED}),
    "rkl-vb3": ("reverse", 3, {"divergence": "reverse", **SMOOTHED}),
    "fkl-vi": ("forward", 1, {"num_components": 1}),
    "fkl-vb2": ("reverse", 2, SMOOTHED),
    "fkl-vb3": ("reverse", 3, SMOOTHED),
    "fkl-remainder": ("reverse", 3, {"approach": "remainder", **SMOOTHED}),
    "fkl-hmc": ("reverse", 3, {"num_components": 3}),
}
"""Methods with the paper's Adam and its grid: first component, number of components, choices of the settings."""

METHODS = ("hmc", "hmc3", "nuts", *BOOSTED, "fkl-em", "refine")


def settings_of(method: str, choices: Choices) -> Settings:
    """Return the settings of a method that has the paper's Adam."""
    tuned = {name: value for name, value in dataclasses.asdict(choices).items() if name != "step_size"}
    return Settings.of(**BOOSTED[method][2], num_draws=NUM_ROUND_DRAWS, **tuned)


def solve(method: str, keys: Keys, problem: Problem, choices: Choices) -> tuple[Scores, Float[np.ndarray, " split"]]:
    """Run a method on all splits of a problem; return its scores, and the seconds that each fit took.

    Compilation is not counted: it is paid once for all splits, and not at all the second time.
    """
    if method == "refine":
        return _refined_particles(keys, problem) if problem.table == "bnn" else _refined(keys, problem)
    run = {"hmc": _hmc(1), "hmc3": _hmc(3), "nuts": _nuts, "fkl-em": _em}.get(method)
    function = run(problem, choices) if run else _adam(method, settings_of(method, choices))
    num_components = jnp.asarray(BOOSTED[method][1] if method in BOOSTED else 0)
    program = jax.jit(jax.vmap(function, in_axes=(0, 0, None)))
    result, seconds = _timed(program, keys, problem.targets, num_components)
    return _scores(problem, *result), np.full(len(problem), seconds / len(problem))


def time_component(method: str, keys: Keys, problem: Problem, choices: Choices) -> float:
    """Seconds for the steps of Adam on one component of each split, started and compiled before; the best of some."""
    first, settings = BOOSTED[method][0], settings_of(method, choices)
    settings = dataclasses.replace(settings, divergence=first)
    start = jax.jit(jax.vmap(lambda key, target: newcomer.start_first(key, target, settings)))(keys, problem.targets)
    fit = jax.vmap(lambda key, target, begin: newcomer.fit_newcomer(key, target, None, begin, settings))
    program = jax.jit(fit).lower(keys, problem.targets, start).compile()
    seconds = []
    for _ in range(NUM_TIMINGS):
        began = time.perf_counter()
        jax.block_until_ready(program(keys, problem.targets, start))
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _timed(program: Any, *arguments) -> tuple[Any, float]:
    compiled = program.lower(*arguments).compile(FAST_COMPILATION)
    with ALONE:
        began = time.perf_counter()
        result = jax.block_until_ready(compiled(*arguments))
        return result, time.perf_counter() - began


def _scores(problem: Problem, x: AnyArray, extra: AnyArray) -> Scores:
    """Score weighted draws by log ratios, or chains by their effective number of draws."""
    if extra.ndim == 2:
        return score_weighted(problem.targets, problem.test, x, extra)
    return {**score_equal(problem.targets, problem.test, x), "ess": extra}


def _adam(method: str, settings: Settings) -> Callable:
    if method == "fkl-hmc":
        return lambda key, target, num: boosted_by_chains(key, target, settings)
    return lambda key, target, num: boosted(key, target, settings, BOOSTED[method][0], num)


def _em(problem: Problem, choices: Choices) -> Callable:
    """Student-t components by EM, of full covariance; a neural network has more parameters than draws: diagonal."""
    is_wide = problem.table == "bnn"
    settings = Settings.of(
        fitter="em",
        family="student-diagonal" if is_wide else "student",
        newcomer="ascent" if is_wide else "gain",
        num_components=2,
    )
    return lambda key, target, num: boosted(key, target, settings, "forward", settings.num_components)


def _flat(run: Callable) -> Callable:
    """Run chains of one target; return all draws as one, and their effective number."""

    def together(keys, target):
        key_start, key_run = jax.random.split(keys[0])
        starts = jax.vmap(lambda key: chains.start(key, target))(jax.random.split(key_start, len(keys)))
        x = jax.vmap(lambda key, position: run(key, target.log_prob, position))(
            jax.random.split(key_run, len(keys)), starts
        )
        return x.reshape(-1, x.shape[-1]), chains.effective_draws(x)

    return together


def _hmc(num_chains: int) -> Callable:
    def build(problem, choices):
        fixed = {"step_size": choices.step_size, "num_adapted": 0} if problem.table == "bnn" else {}

        def run(key, log_density, position):
            return chains.hamiltonian(key, log_density, position, NUM_CHAIN_DRAWS, **fixed)

        return lambda key, target, num: _flat(run)(jax.random.split(key, num_chains), target)

    return build


def _nuts(problem: Problem, choices: Choices) -> Callable:
    is_wide = problem.table == "bnn"
    options = {"num_warmup": 300 if is_wide else 500, "max_num_doublings": 8 if is_wide else 10}
    num_draws = 200 if is_wide else 1000

    def run(key, log_density, position):
        return chains.no_u_turn(key, log_density, position, num_draws, **options)

    return lambda key, target, num: _flat(run)(jax.random.split(key, NUM_NUTS_CHAINS), target)


def _refined(keys: Keys, problem: Problem) -> tuple[Scores, Float[np.ndarray, " split"]]:
    """Refine one split after the other; the second one compiles nothing."""
    fits, seconds = [], []
    for which in range(len(problem)):
        target = jax.tree.map(np.asarray, problem.target(which))
        began = time.perf_counter()
        fits.append(refine(keys[which], target, num_draws=NUM_REFINED_DRAWS, progress=False))
        seconds.append(time.perf_counter() - began)
    x, log_ratio = (jnp.stack([jnp.asarray(getattr(fit.draws, name)) for fit in fits]) for name in ("x", "log_ratio"))
    return _scores(problem, x, log_ratio), np.array(seconds)


def _refined_particles(keys: Keys, problem: Problem) -> tuple[Scores, Float[np.ndarray, " split"]]:
    """Carry particles, as refine does in so many dimensions, for all splits at once."""
    key_field, key_tail, key_carry = (
        jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, number) for number in range(3)
    )
    escalation.compile_ahead(keys, problem.targets)
    with ALONE:
        began = time.perf_counter()
        begins = escalation.mean_field(key_field, problem.targets)
        arrived, sweeps = escalation.carry(key_carry, problem.targets, begins, lambda num: None, lambda beta: None)
        seconds = time.perf_counter() - began

    def tail_index(key, target, begin):
        x, log_q = begin.sample_and_log_prob(key, NUM_STARTS)
        return psis.pareto_k(evaluate(target, x)[0] - log_q)

    pareto_k = jax.jit(jax.vmap(tail_index))(key_tail, problem.targets, begins)
    draws = [
        escalation.as_draws(problem.target(which), arrived, sweeps, which, pareto_k[which])
        for which in range(len(problem))
    ]
    scores = score_equal(problem.targets, problem.test, jnp.stack([jnp.asarray(each.x) for each in draws]))
    found = {
        "pareto_k": pareto_k,
        "ess": np.array([float(each.ess) for each in draws]),
        "log_evidence": np.array([float(each.log_evidence) for each in draws]),
        "log_evidence_spread": np.array([each.spread for each in draws]),
        "drift": np.array([float(each.drift) for each in draws]),
    }
    return {**scores, **found}, np.full(len(problem), seconds / len(problem))
