"""Boosting in the shape of blackjax: ``init``, ``step`` and ``sample``, for programs that loop over algorithms."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from klover.base.shapes import Key, PyTree, record
from klover.boosting import rounds
from klover.boosting.rounds import BoostInfo, BoostState
from klover.boosting.settings import Settings
from klover.targets.target import Target

DEFAULTS = Settings()


@record
class AlgorithmState:
    """The mixture so far, and the target that it is fitted to."""

    boost: BoostState
    target: Target


class VIAlgorithm(NamedTuple):
    """Three pure functions, like blackjax's tuple of the same name.

    Parameters
    ----------
    init
        From a position and a key to a state with the first component.
    step
        From a key and a state to the next state, one component larger, and what was measured
        (:class:`~klover.boosting.rounds.BoostInfo`). Where all slots are taken the newcomer replaces the lightest
        component.
    sample
        From a key, a state and a number to a pytree of that many draws of the mixture, not weighted.
    """

    init: Callable[[PyTree, Key[jax.Array, ""]], AlgorithmState]
    step: Callable[[Key[jax.Array, ""], AlgorithmState], tuple[AlgorithmState, BoostInfo]]
    sample: Callable[[Key[jax.Array, ""], AlgorithmState, int], PyTree]


def vi_algorithm(
    logdensity: Callable[[PyTree], jax.Array], settings: Settings = DEFAULTS, start: str = "reverse"
) -> VIAlgorithm:
    """Return forward-KL boosting as three functions that can be jitted and vmapped.

    Parameters
    ----------
    logdensity
        From a position to an unnormalised log density.
    settings
        The options of :func:`klover.boost`.
    start
        The divergence by which the first component is fitted, ``"reverse"`` or ``"forward"``.

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

    def init(position, key):
        target = Target(logdensity, position)
        return AlgorithmState(rounds.init(key, target, settings, start)[0], target)

    def step(key, state):
        grown, info = rounds.step(key, state.boost, state.target, settings)
        return AlgorithmState(grown, state.target), info

    def sample(key, state, num_samples):
        return jax.vmap(state.target.unravel)(state.boost.mixture.sample(key, num_samples))

    return VIAlgorithm(init, step, sample)
