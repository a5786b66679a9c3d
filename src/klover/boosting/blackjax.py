"""Boosting in the shape of blackjax: ``init``, ``step`` and ``sample``, for programs that loop over algorithms."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from klover.base.checks import as_key, check_choice, check_count, check_function, check_instance
from klover.base.shapes import KeyLike, PyTree, record
from klover.boosting import rounds
from klover.boosting.rounds import BoostInfo, BoostState
from klover.boosting.settings import STARTS, Settings
from klover.targets.target import Target

DEFAULTS = Settings()


@record
class AlgorithmState:
    """The mixture so far, and the target that it is fitted to."""

    boost: BoostState
    target: Target


class VIAlgorithm(NamedTuple):
    """Three pure functions, like blackjax's tuple of the same name.

    ``init`` makes a state with the first component; ``step`` makes it one component larger (where all slots are taken
    the newcomer replaces the lightest one), and measures it; ``sample`` draws positions, not weighted, of the mixture.
    """

    init: Callable[[PyTree, KeyLike], AlgorithmState]
    step: Callable[[KeyLike, AlgorithmState], tuple[AlgorithmState, BoostInfo]]
    sample: Callable[[KeyLike, AlgorithmState, int], PyTree]


def vi_algorithm(
    logdensity: Callable[[PyTree], jax.Array], settings: Settings = DEFAULTS, start: str = "reverse"
) -> VIAlgorithm:
    """Return forward-KL boosting as three functions that can be jitted and vmapped.

    ``logdensity`` maps a position to an unnormalised log density, ``settings`` are the options of :func:`klover.boost`,
    and ``start`` is the divergence by which the first component is fitted, ``"reverse"`` or ``"forward"``.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> import klover
    >>> from klover.boosting.settings import Settings
    >>> settings = Settings(max_components=2, family=klover.Family("student"), fitter="em", newcomer="gain")
    >>> algorithm = klover.vi_algorithm(lambda x: -0.5 * jnp.sum(x**2), settings)
    >>> state = jax.jit(algorithm.init)(jnp.zeros(2), jax.random.key(0))
    >>> state, info = jax.jit(algorithm.step)(jax.random.key(1), state)
    >>> algorithm.sample(jax.random.key(2), state, 5).shape
    (5, 2)
    """
    check_function("logdensity", logdensity, "one position")
    check_instance("settings", settings, Settings)
    check_choice("start", start, STARTS)

    def init(position, key):
        key, target = as_key(key), Target(logdensity, position)
        return AlgorithmState(rounds.init(key, target, settings, start)[0], target)

    def step(key, state):
        key, state = as_key(key), check_instance("state", state, AlgorithmState)
        grown, info = rounds.step(key, state.boost, state.target, settings)
        return AlgorithmState(grown, state.target), info

    def sample(key, state, num_samples):
        key, num_samples = as_key(key), check_count("num_samples", num_samples, 1)
        check_instance("state", state, AlgorithmState)
        return jax.vmap(state.target.unravel)(state.boost.mixture.sample(key, num_samples))

    return VIAlgorithm(init, step, sample)
